"""Torch modules and exported programs as ReLU networks.

A module is traced with `torch.export`; its graph is walked with arrays of piecewise linear
functions (`piecewise`) in place of numbers, through one table of operators (`operators`). Whatever
is not piecewise linear is named together with its place. The first axis of the input counts rows
of a batch: each row of the output must be the same function of the same row of the input.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from paramsym.relu.choices import PLACES, Jumping, Side, refused
from paramsym.relu.constants import CASTS, INDEXING, Constant, fold, name_of, over_arguments, stored
from paramsym.relu.entries import Entries
from paramsym.relu.errors import Place, ReLUError
from paramsym.relu.network import Network
from paramsym.relu.operators import apply
from paramsym.relu.piecewise import Piecewise
from paramsym.relu.rows import network_of_rows, same_network

EXPECTED = "a piecewise linear network"
_SILENT = (torch.nn.Identity, torch.nn.Flatten)  # in a chain
# What is computed from the shape of an array alone, whatever its entries.
_OF_SHAPES = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split()
)


def network_of_module(
    module: Any, name: str = "network", input_shape: Sequence[int] | None = None
) -> Network:
    """The ReLU network that a module (or an exported program) computes.

    Args:
        input_shape: of one input, without the batch; by default what the first weight matrix reads.

    Raises `ReLUError` with the module's or node's name where it is not piecewise linear.
    """
    if not isinstance(module, torch.nn.Module):
        return _rows(module, name)
    chain = list(_chain(module))
    first = next((part for part in chain if isinstance(part, torch.nn.Linear)), None)
    if first is not None and None not in chain:
        value = Piecewise.inputs((first.in_features,))
        for place, part in enumerate(chain):
            with Place(f"{name}, part {place + 1} of its chain"):
                value = value.linear(*_stored(part)) if hasattr(part, "weight") else value.relu()
        return value.network(name)
    _check_mode(module, name)
    found, other = (_rows(_export(module, name, input_shape, rows), name) for rows in (2, 3))
    if not same_network(found, other):
        raise ReLUError(
            "a function that is another for a batch of another size", EXPECTED, name,
            "Take the size of the batch (x.shape[0]) out of what is computed.",
        )  # fmt: skip
    return found


# ------------------------------------------------------------ chains, without tracing


def _chain(module: torch.nn.Module) -> Iterable[torch.nn.Module | None]:
    """The parts of a chain of linear layers and ReLU, in order; None for anything else."""
    kind = type(module)
    if isinstance(module, torch.nn.Sequential) and kind.forward is torch.nn.Sequential.forward:
        for child in module:  # as its forward pass goes; `children` names a part that recurs once
            yield from _chain(child)
    elif kind in (torch.nn.Linear, torch.nn.ReLU):
        yield module
    elif not (kind in _SILENT or (kind is torch.nn.Dropout and not module.training)):
        yield None


def _stored(part: Any) -> tuple[Entries, Entries | None]:
    bias = None if part.bias is None else stored(part.bias).entries
    return stored(part.weight).entries, bias


# ------------------------------------------------------------ tracing


def _check_mode(module: torch.nn.Module, name: str) -> None:
    """Batch norm and dropout compute something else while training."""
    for path, part in module.named_modules():
        norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        drop = isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0
        if part.training and (norm or drop):
            raise ReLUError(
                f"{type(part).__name__} in training mode", "a deterministic network of each input",
                name + _path(path), "Call .eval() first.",
            )  # fmt: skip


def _path(path: str) -> str:
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in path.split(".") if p)


def _export(module: torch.nn.Module, name: str, shape: Sequence[int] | None, rows: int) -> Any:
    first = next((p for p in module.parameters() if p.ndim >= 2), None)
    if shape is None:
        if first is None or first.ndim != 2:
            reads = "no weight matrix" if first is None else "a convolution first"
            raise ReLUError(
                f"the module {type(module).__name__} with {reads}", "the shape of its input", name,
                "Pass relu.as_network(module, input_shape=(channels, height, width)), one input "
                "without the batch, or an exported program.",
            )  # fmt: skip
        shape = (first.shape[1],)
    floats = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    example = torch.zeros(rows, *shape, dtype=next(floats, torch.float32))
    try:
        return torch.export.export(module, (example,))
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else ""
        raise ReLUError(
            f"the module {type(module).__name__}, which torch.export cannot trace on inputs of "
            f"shape {tuple(example.shape)} ({type(error).__name__}: {said})",
            EXPECTED, name,
            "Check the shape of its input (input_shape=...), or pass an nn.Sequential or the list "
            "of (W, b) pairs.",
        ) from error  # fmt: skip


def _rows(program: Any, name: str) -> Network:
    """The network of one row of a batch, from the program of the batch."""
    try:
        x, y = _Walk(program, name).run()
    except ReLUError:
        # In-place and composite operators may be known in terms of the core ones.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch warns of its own code
            program = program.run_decompositions()
        x, y = _Walk(program, name).run()
    return network_of_rows(x, y, name)


# ------------------------------------------------------------ the graph


class _Walk:
    """One pass over a program's graph, with functions of the input in place of tensors."""

    def __init__(self, program: Any, name: str) -> None:
        self.program, self.name = program, name
        signature = program.graph_signature
        tensors = {**program.state_dict, **getattr(program, "constants", {})}
        self.lifted = {
            node: tensors[target]
            for table in (
                signature.inputs_to_parameters,
                signature.inputs_to_buffers,
                signature.inputs_to_lifted_tensor_constants,
            )
            for node, target in table.items()
            if target in tensors
        }
        self.values: dict[str, Any] = {}
        self.input: Piecewise | None = None

    def run(self) -> tuple[Piecewise, Piecewise]:
        """The input and the output."""
        changed = self.program.graph_signature.buffers_to_mutate
        if changed:
            raise ReLUError(
                f"a network that changes its buffers {sorted(set(changed.values()))}",
                "a function of the input", self.name, "Call .eval() before exporting.",
            )  # fmt: skip
        output: Any = None
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node.name] = self._placeholder(node)
            elif node.op == "call_function":
                with Place(self._place(node)):
                    self.values[node.name] = self._call(node)
            elif node.op == "output":
                output = node
            else:
                self._refuse(node, f"the node {node.target!r} of kind {node.op}")
        returned = output.args[0]
        result = self.values.get(getattr(returned[0], "name", "")) if len(returned) == 1 else None
        if not isinstance(result, Piecewise) or self.input is None:
            came = "a network with several outputs" if len(returned) != 1 else (
                "an output that does not depend on the input")  # fmt: skip
            self._refuse(output, came)
        return self.input, result

    def _placeholder(self, node: Any) -> Any:
        if node.name in self.lifted:
            return stored(self.lifted[node.name])
        held = node.meta.get("val")
        if not isinstance(held, torch.Tensor) or self.input is not None:
            self._refuse(node, "a second input" if self.input is not None else "no tensor")
        sizes = list(held.shape)
        if sizes and not isinstance(sizes[0], int):
            sizes[0] = 2  # a batch of any size: one of two shows whether rows are mixed
        if not all(isinstance(n, int) for n in sizes):
            self._refuse(node, f"an input of the open shape {tuple(held.shape)}")
        self.input = Piecewise.inputs(sizes)
        return self.input

    def _call(self, node: Any) -> Any:
        args, kwargs = over_arguments(
            (node.args, node.kwargs),
            lambda v: self.values[v.name] if isinstance(v, torch.fx.Node) else v,
        )
        name: str = name_of(node.target)
        first: Any = args[0] if args else None
        if node.target is operator.getitem and isinstance(first, (list, tuple)):
            return first[args[1]]
        if name == "sym_size":
            return (first if isinstance(first, Piecewise) else first.value).shape[args[1]]
        if name in _OF_SHAPES and isinstance(first, Piecewise):
            nothing = torch.zeros(first.shape, dtype=torch.float64)
            args = (Constant(nothing, nothing, frozenset()), *args[1:])
        seen = _kinds((args, kwargs))
        if Jumping in seen:
            refused(PLACES.what, "They jump; use the largest entries alone.")
        if not seen & {Piecewise, Side}:
            return fold(node.target, tuple(args), dict(kwargs))
        if name.startswith("_assert"):
            return None
        if name in CASTS and isinstance(first, Constant):
            return first  # to the kind of what varies, which is real
        args, kwargs = _readable(name, (args, kwargs))
        return apply(node.target, tuple(args), dict(kwargs))

    # ------------------------------------------------------------ places

    def _place(self, node: Any) -> str:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        line = f" ({trace[-2].strip()})" if len(trace) >= 2 else ""
        kind = stack[-1][1] if stack else ""
        kind = (kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1]
        inside = f" of the {kind}" if path else ""
        return f"{self.name}{_path(path)}, node {node.name!r}{inside}{line}"

    def _refuse(self, node: Any, came: str) -> NoReturn:
        raise ReLUError(
            came, "a network with one tensor as input and one as output", self._place(node),
            "Export the part between them, or a wrapper that returns one tensor.",
        )  # fmt: skip


def _readable(name: str, arguments: Any) -> Any:
    """Arguments as operators on varying values read them: constants as exact numbers.

    What only says where entries go, or of which kind they are, stays a tensor.
    """
    plain = name in INDEXING or name in CASTS

    def read(value: Any) -> Any:
        if not isinstance(value, Constant):
            return value
        return value.value if plain else value.entries

    return over_arguments(arguments, read)


def _kinds(values: Any) -> set[type]:
    """The kinds of values among arguments, sequences searched."""
    found: set[type] = set()

    def look(value: Any) -> Any:
        found.add(type(value))
        return value

    over_arguments(values, look)
    return found
