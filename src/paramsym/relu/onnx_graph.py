"""ONNX models as ReLU networks: the file, and one pass over its graph.

The graph is walked with arrays of piecewise linear functions (`piecewise`) in place of numbers,
through one table of operators (`onnx_operators`); whatever is computed from weights and shapes
alone is folded. A file is data: it is parsed within bounds, and nothing in it runs. As in
`modules`, the first axis of the input counts the rows of a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import onnx
from google.protobuf.message import DecodeError

from paramsym.relu.errors import Place, ReLUError
from paramsym.relu.network import Network
from paramsym.relu.onnx_call import Call
from paramsym.relu.onnx_operators import apply
from paramsym.relu.onnx_tensors import constant_of
from paramsym.relu.onnx_values import MOST_FUNCTIONS, check_entries
from paramsym.relu.piecewise import Piecewise
from paramsym.relu.rows import network_of_rows

LARGEST_FILE = 1 << 31  # of one message, by the format itself
OLDEST = 7  # the first set of operators with today's broadcasting
_ROWS = 2  # of a batch of any size: two show whether rows are mixed
_FLOATS = (
    onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)  # fmt: skip


def network_of_file(file: Path, input_shape: Sequence[int] | None = None) -> Network:
    """The ReLU network in an ONNX file.

    Args:
        input_shape: of one input, without the batch, where the file leaves it open.

    Raises `ReLUError` for a file that is cut short, too large or no model, and, with the node, for
    what is not piecewise linear.
    """
    if file.stat().st_size > LARGEST_FILE:
        raise ReLUError(
            f"a file of {file.stat().st_size:,} bytes", f"at most {LARGEST_FILE:,}", str(file),
            "Larger networks are beyond any decision.",
        )  # fmt: skip
    try:
        model = onnx.load(str(file), format="protobuf", load_external_data=False)
    except (DecodeError, ValueError, TypeError, EOFError) as error:
        raise ReLUError(
            f"what is no ONNX model ({str(error)[:80]})", "a model that onnx.save wrote", str(file),
            "Copy the file again, or export it anew.",
        ) from error  # fmt: skip
    return network_of_model(model, file.name, input_shape, file.parent)


def network_of_model(
    model: onnx.ModelProto,
    name: str = "network",
    input_shape: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Network:
    """The ReLU network that an ONNX model computes.

    Args:
        input_shape: of one input, without the batch, where the model leaves it open.
        folder: where files of external data may lie; None refuses them.

    Raises `ReLUError` with the node's name where it is not piecewise linear.
    """
    try:
        x, y = _Walk(model, name, folder).run(input_shape)
    except ReLUError:
        raise
    except (ValueError, TypeError) as error:
        raise ReLUError(  # names that are no text
            f"what is no ONNX model ({str(error)[:80]})", "a model that onnx.save wrote", name,
            "Copy the file again, or export it anew.",
        ) from error  # fmt: skip
    return network_of_rows(x, y, name)


class _Walk:
    """One pass over a graph, with functions of the input in place of tensors."""

    def __init__(self, model: onnx.ModelProto, name: str, folder: Path | None) -> None:
        self.graph, self.name, self.folder = model.graph, name, folder
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.values: dict[str, Any] = {}
        self.opset = self._opset(model)

    def _opset(self, model: onnx.ModelProto) -> int:
        found = [s.version for s in model.opset_import if s.domain in ("", "ai.onnx")]
        newest = onnx.defs.onnx_opset_version()
        if len(found) != 1 or not OLDEST <= found[0] <= newest:
            raise ReLUError(
                f"the operators of version {found[0]}" if found else "no version of operators",
                f"one of {OLDEST} to {newest}", self.name,
                "Convert the model (onnx.version_converter), or export it with another opset.",
            )  # fmt: skip
        return found[0]

    def run(self, input_shape: Sequence[int] | None) -> tuple[Piecewise, Piecewise]:
        """The input and the output."""
        open_inputs = [i for i in self.graph.input if i.name not in self.stored]
        if len(open_inputs) != 1 or len(self.graph.output) != 1:
            self._refuse(f"{len(open_inputs)} inputs and {len(self.graph.output)} outputs")
        given, wanted = open_inputs[0], self.graph.output[0].name
        x = self._input(given, input_shape)
        self.values[given.name] = x
        for node in self._needed(given.name, wanted):
            place = f"{self.name}, node {node.name or next(iter(node.output), '')!r}"
            with Place(f"{place} ({node.op_type})"):
                self._call(node)
        y = self.values.get(wanted)
        if not isinstance(y, Piecewise):
            self._refuse("an output that does not depend on the input")
        return x, y

    def _needed(self, x: str, wanted: str) -> list[onnx.NodeProto]:
        """The nodes behind an output, in their order."""
        names = [t.name for t in self.graph.initializer] + [x]
        names += [made for node in self.graph.node for made in node.output if made]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            self._refuse(f"several values of the name {twice[:80]!r}")
        makers = {made: k for k, node in enumerate(self.graph.node) for made in node.output if made}
        found: set[int] = set()
        waiting = [wanted]
        while waiting:
            k = makers.get(waiting.pop())
            if k is not None and k not in found:
                found.add(k)
                waiting += self.graph.node[k].input
        return [self.graph.node[k] for k in sorted(found)]

    def _call(self, node: onnx.NodeProto) -> None:
        inputs = [self._read(name) for name in node.input]
        made = apply(Call(node, inputs, self.opset, self.folder))
        results = made if isinstance(made, (list, tuple)) else [made]
        for name, value in zip(node.output, results, strict=False):
            self.values[name] = value

    def _read(self, name: str) -> Any:
        if not name:
            return None  # an optional input that is left out
        if name not in self.values:
            if name not in self.stored:
                raise ReLUError(
                    f"the input {name[:80]!r}, which nothing before it makes",
                    "nodes in the order of their computation", self.name,
                    "Check the file with onnx.checker.check_model.",
                )  # fmt: skip
            self.values[name] = constant_of(self.stored[name], self.folder)
        return self.values[name]

    # ------------------------------------------------------------ the input

    def _input(self, given: onnx.ValueInfoProto, shape: Sequence[int] | None) -> Piecewise:
        tensor = given.type.tensor_type
        if tensor.elem_type not in _FLOATS:
            self._refuse(f"an input {given.name[:80]!r} that is no tensor of floats")
        known: list[int | None] | None = None
        if tensor.HasField("shape"):
            known = [d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim]
        sizes = _sizes(known, shape)
        if sizes is None:
            said = "none" if known is None else tuple("?" if n is None else n for n in known)
            raise ReLUError(
                f"an input {given.name[:80]!r} of shape {said}"
                + (f", and the shape {tuple(shape)} of one input" if shape is not None else ""),
                "the sizes of one input", self.name,
                "Give them, without the batch: relu.read_network(file, input_shape=(…)), or "
                "--input-shape 1x28x28 on the command.",
            )  # fmt: skip
        with Place(self.name):
            check_entries(math.prod(sizes), MOST_FUNCTIONS)
        return Piecewise.inputs(sizes)

    def _refuse(self, came: str) -> NoReturn:
        raise ReLUError(
            came, "a network with one tensor as input and one as output", self.name,
            "Cut the part between them out of the model: onnx.utils.extract_model.",
        )  # fmt: skip


def _sizes(known: list[int | None] | None, given: Sequence[int] | None) -> list[int] | None:
    """The sizes of the input by what the file and the caller say; None where they do not fit."""
    if given is not None:
        lead, open_sizes = (known[0], known[1:]) if known else (None, [None] * len(given))
        asked = [int(n) for n in given]
        if len(open_sizes) != len(asked) or min(asked, default=1) < 1:
            return None
        if any(n not in (None, m) for n, m in zip(open_sizes, asked, strict=True)):
            return None
        known = [lead, *asked]
    if not known or None in known[1:] or known == [None]:
        return None
    return [known[0] or _ROWS, *(n for n in known[1:] if n is not None)]
