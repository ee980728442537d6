"""The default reader: run the model once on fake tensors and write down every torch function.

No weight is read or allocated: parameters, buffers and inputs become fake tensors that have a
shape, a layout and a dtype. What is recorded are the functions as the user called them (`linear`,
`layer_norm`, `scaled_dot_product_attention`), which keeps the graph small and the rules few.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from paramsym.tracing.graph import Call, Graph, Value, canonical_name

_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_CAPTURE_LIMIT = 1 << 20  # constants up to this many entries are kept, to be evaluated later

Inputs = tuple[Any, ...] | Mapping[str, Any]


class TraceError(RuntimeError):
    """The model could not be run on fake tensors."""


def split_inputs(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments of the model."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


_CACHES = ("past_key_values", "past_key_value", "mems", "cache_params", "past_buckets_states")


def floating_outputs(returned: Any) -> list[torch.Tensor]:
    """Every floating tensor that a model returns, except its caches.

    Caches such as `past_key_values` hold keys and values, so that counting them as part of the
    function would pin the basis of every head.
    """
    found: list[torch.Tensor] = []

    def walk(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            if item.is_floating_point() or item.is_complex():
                found.append(item)
        elif isinstance(item, Mapping):
            for key, value in item.items():
                if key not in _CACHES:
                    walk(value)
        elif isinstance(item, (tuple, list)):
            for value in item:
                walk(value)

    walk(returned)
    return found


@contextmanager
def preserved(model: torch.nn.Module, training: bool):
    """Run a block in the wanted mode and give every submodule back the mode that it had."""
    modes = {module: module.training for module in model.modules()}
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        model.train(training)
    except NotImplementedError:  # an exported program has the mode that it was exported in
        pass
    torch.backends.mha.set_fastpath_enabled(False)  # one opaque kernel otherwise
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for module, mode in modes.items():
            module.training = mode


def call_at(
    model: torch.nn.Module, state: Mapping[str, torch.Tensor], args: tuple, kwargs: dict[str, Any]
) -> Any:
    """Run a model at other parameters and buffers; the model is only read.

    `torch.func.functional_call` leaves the substitutes inside a module that is registered under
    two names. Here every module is filled once, and all names of a tied tensor get one value.
    """
    given: dict[int, torch.Tensor] = {}
    for name, tensor in [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]:
        if name in state:
            given.setdefault(id(tensor), state[name])
    filled = {
        f"{prefix}.{name}" if prefix else name: given[id(tensor)]
        for prefix, module in model.named_modules()
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]
        if tensor is not None and id(tensor) in given
    }
    return torch.func.functional_call(model, filled, args, kwargs, tie_weights=False)


class _Recorder(TorchFunctionMode):
    """Writes each torch function that touches a tensor into a `Graph`."""

    def __init__(self, graph: Graph, module_names: dict[int, str], fake_mode: FakeTensorMode):
        super().__init__()
        self.graph = graph
        self.module_names = module_names
        self.fake_mode = fake_mode
        self.known: dict[int, Value] = {}  # id(tensor) -> value
        self.storages: dict[int, int] = {}  # storage -> id of the value that owns it
        self.alive: list[torch.Tensor] = []  # ids stay valid while the tensors live
        self.later: list[Call] = []  # partial writes, to follow the call that wrote

    # -- values ------------------------------------------------------------------------------
    def add(self, tensor: torch.Tensor, kind: str, name: str = "", data=None) -> Value:
        key = tensor.untyped_storage()._cdata
        graph = self.graph
        strides, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        owner = self.storages.get(key)
        value = Value(
            len(graph.values), tuple(tensor.shape), strides, offset,
            len(graph.values) if owner is None else owner, tensor.dtype, kind, name, data,
        )  # fmt: skip
        if owner is None:
            self.storages[key] = value.id
        graph.values.append(value)
        self.known[id(tensor)] = value
        self.alive.append(tensor)
        return value

    def value(self, tensor: torch.Tensor) -> Value:
        found = self.known.get(id(tensor))
        if found is not None:
            return found
        data = None
        if not isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
            # detach() would make it fake here: the fake mode is active
            data = tensor if tensor.numel() <= _CAPTURE_LIMIT else None
        return self.add(tensor, "constant", data=data)

    # -- one call ----------------------------------------------------------------------------
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = canonical_name(func)
        if name == "detach_" or name in _UNTRACED:
            return func(*args, **kwargs)
        before = {id(t): t._version for t in _tensors((args, kwargs))}
        result = (_FAKE.get(name) or func)(*args, **kwargs)
        tensors = _tensors(result)
        written = name == "setitem" or (
            _is_inplace(func) and bool(before) and isinstance(args[0], torch.Tensor)
        )
        if kwargs.get("out") is not None:
            written = True
        if isinstance(result, torch.Tensor) and before.get(id(result), 1 << 60) < result._version:
            written = True  # relu(x, inplace=True) returns the x that it wrote
        if not tensors and not written:
            return result
        call_args, call_kwargs = pytree.tree_map(
            lambda leaf: self.value(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            (tuple(args), dict(kwargs)),
        )
        call = Call(
            len(self.graph.calls), name, func, call_args, call_kwargs, [], None, self.where()
        )
        if written:
            target = args[0] if kwargs.get("out") is None else kwargs["out"]
            call.outputs = [self.rewrite(target)]
            call.result = call.outputs[0]
        else:
            fresh: dict[int, Value] = {}
            for tensor in tensors:
                known = self.known.get(id(tensor))
                if known is None:
                    known = self.add(tensor, "activation")
                    known.call = call
                elif known in call.operands:  # the operator returned its argument unchanged
                    pass
                fresh[id(tensor)] = known
            call.outputs = [v for v in fresh.values() if v.call is call]
            call.result = pytree.tree_map(
                lambda leaf: fresh[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf, result
            )
            if not call.outputs:
                return result
        for output in call.outputs:
            output.call = call
        self.graph.calls.append(call)
        for following in self.later:
            following.index = len(self.graph.calls)
            self.graph.calls.append(following)
        self.later.clear()
        return result

    def rewrite(self, tensor: torch.Tensor) -> Value:
        """New values after a write in place: of the tensor, and of all windows on its storage.

        A write of the whole storage makes the written value the owner. A write of a part is
        followed by a `partial_write` that puts the part into the whole.
        """
        old = self.value(tensor)
        owner = self.graph.values[old.storage]
        written = self._fresh(old, None)
        whole = written
        if math.prod(old.shape) != math.prod(owner.shape):
            whole = self._fresh(owner, None)
            call = Call(
                len(self.graph.calls), "partial_write", "partial_write", (owner, written), {},
                [whole], whole, self.where(),
            )  # fmt: skip
            whole.call = call
            self.later.append(call)
        self.storages[tensor.untyped_storage()._cdata] = whole.id
        for other in self.alive:
            seen = self.known.get(id(other))
            if seen is not None and seen.storage == owner.id:
                if other is tensor and whole is written:
                    self.known[id(other)] = written
                elif seen is owner:
                    self.known[id(other)] = whole
                else:
                    self.known[id(other)] = self._fresh(seen, whole)
        return written

    def _fresh(self, like: Value, owner: Value | None) -> Value:
        """A value with the layout of another one, in its own storage or in that of an owner."""
        number = len(self.graph.values)
        value = Value(
            number, like.shape, like.strides, like.offset, number if owner is None else owner.id,
            like.dtype, "activation",
        )  # fmt: skip
        self.graph.values.append(value)
        return value

    def where(self) -> str:
        """The innermost line of the user's model, and the module that it belongs to."""
        frame = sys._getframe(2)
        place = module = ""
        while frame is not None:
            code = frame.f_code
            if code is record.__code__:  # what called us is not the model
                break
            if not code.co_filename.startswith(_LIBRARIES[1]):
                inside_torch = code.co_filename.startswith(_LIBRARIES[0])
                if not place and not inside_torch:
                    place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
                if not module and code.co_varnames and code.co_varnames[0] == "self":
                    name = self.module_names.get(id(frame.f_locals.get("self")))
                    if name is not None:
                        module = name or "model"
                if place and module:
                    break
            frame = frame.f_back
        return f"{place} ({module})" if module else place


_UNTRACED = {
    "__set__", "shape", "dtype", "device", "ndim", "requires_grad", "size", "dim", "numel",
    "is_floating_point", "grad", "stride", "layout", "is_cuda", "requires_grad_", "backward",
    "storage_offset", "is_contiguous", "data_ptr", "is_sparse", "is_quantized", "is_meta",
}  # fmt: skip


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`F.one_hot` without its look at the largest entry."""
    if num_classes < 0:
        return torch.nn.functional.one_hot(tensor)
    return tensor.new_empty((*tensor.shape, num_classes))


_FAKE = {"one_hot": _one_hot}  # functions that look at numbers where shapes are enough


def _is_inplace(func: Any) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    name = getattr(func, "__name__", "")
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def record(
    model: torch.nn.Module,
    example_inputs: Inputs,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
) -> Graph:
    """Trace a model on fake tensors into a `Graph`.

    Parameters and buffers keep their names; tied ones share one value. The model is only read.

    Raises `TraceError` where the forward pass needs numbers that fake tensors do not have.
    """
    graph = Graph()
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(graph, {id(m): n for n, m in model.named_modules()}, fake_mode)
    fakes: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with fake_mode:
            return torch.empty(tuple(tensor.shape), dtype=tensor.dtype)

    state: dict[str, torch.Tensor] = {}
    persistent = persistent_buffers(model)
    for kind, named in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            if id(tensor) not in fakes:
                fakes[id(tensor)] = fake(tensor)
                constant = kind == "buffer" and name not in persistent
                keep = constant and tensor.device.type != "meta"
                recorder.add(
                    fakes[id(tensor)],
                    "constant" if constant else kind,
                    name,
                    tensor.detach() if keep and tensor.numel() <= _CAPTURE_LIMIT else None,
                )
            state[name] = fakes[id(tensor)]
            value = recorder.known[id(state[name])]
            if value.kind != "constant":
                (graph.parameters if kind == "parameter" else graph.buffers)[name] = value
    args, kwargs = split_inputs(example_inputs)
    counter = iter(range(1 << 30))

    def fake_input(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = fake(leaf)
        data = leaf.detach() if leaf.device.type != "meta" and leaf.numel() < 1 << 16 else None
        recorder.add(made, "input", f"input{next(counter)}", data)
        return made

    args, kwargs = pytree.tree_map(fake_input, (args, kwargs))
    try:
        with preserved(model, training), torch.no_grad(), fake_mode, recorder:
            returned = call_at(model, state, args, kwargs)
            chosen = outputs(returned) if outputs is not None else returned
    except Exception as error:
        raise TraceError(
            f"find_symmetry(model={type(model).__name__}): the forward pass stopped on fake "
            f"tensors with {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}. "
            f"A forward pass whose control flow does not depend on numbers was expected; it "
            f"stopped at {_last_place(error)}. Check that the example inputs fit the model, or "
            f"replace data-dependent branches (such as .item()) before tracing."
        ) from error
    graph.outputs = [recorder.value(t) for t in floating_outputs(chosen)]
    return graph


def persistent_buffers(model: torch.nn.Module) -> set[str]:
    """Names of the buffers that belong to the state dict."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }


def _last_place(error: Exception) -> str:
    place, trace = "an unknown place", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_LIBRARIES):
            place = f"{os.path.basename(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


__all__ = ["Inputs", "TraceError", "floating_outputs", "record", "resolve_name", "split_inputs"]
