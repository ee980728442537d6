"""The default reader: run the model once on fake tensors and write down every torch function.

No weight is read or allocated: parameters, buffers and inputs become fake tensors that have a
shape, a layout and a dtype. What is recorded are the functions as the user called them (`linear`,
`layer_norm`, `scaled_dot_product_attention`), which keeps the graph small and the rules few.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import resolve_name

from paramsym.recording.experts import dense_experts
from paramsym.recording.freed import (
    Freed,
    Virtual,
    named_arguments,
    passed,
    wanted,
    with_arguments,
)
from paramsym.recording.graph import Graph, Value
from paramsym.recording.in_place import (
    map_tensors,
)
from paramsym.recording.layout import Window, is_dense
from paramsym.recording.ledger import Ledger, captured
from paramsym.recording.mapped import maps_on_numbers
from paramsym.recording.outputs import floating_outputs, named_outputs, require_outputs
from paramsym.recording.overlap import overlapping
from paramsym.recording.recorder import Recorder
from paramsym.recording.refusals import TraceError, refuse
from paramsym.recording.running import call_at, exclusive, preserved, split_inputs, unlogged
from paramsym.recording.selected import RowsMixed
from paramsym.recording.selecting import Selector

_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)

_LOG = "torch._subclasses.fake_tensor"

Inputs = tuple[Any, ...] | Mapping[str, Any] | torch.Tensor  # one tensor is itself the tuple


def record(
    model: torch.nn.Module,
    example_inputs: Inputs,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    free_inputs: Freed = None,
    free_outputs: Freed = None,
) -> Graph:
    """Trace a model on fake tensors into a `Graph`.

    Parameters and buffers keep their names; tied ones share one value. The model is only read,
    and threads that trace at the same time take turns. What is freed passes virtual linear maps,
    whose weights the graph lists as `virtual`; see `find_symmetry`.

    Raises:
        TraceError: the model or its inputs are of a kind that is refused, the forward pass needs
            numbers that fake tensors do not have, it returns no floating tensor, or what is to be
            freed is no floating-point input or output with such an axis.
    """
    choose = _as_it_is if outputs is None else _function(outputs)
    with exclusive:
        refuse(model, example_inputs)
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        ledger = Ledger(Graph(), fake_mode)
        selector = Selector(ledger, f"find_symmetry({_named(model)})", _fake)
        state, named = _enter_state(ledger, model, selector)
        args, kwargs = _enter_inputs(ledger, example_inputs, selector)
        names = {id(m): n for n, m in model.named_modules()}
        recorder = Recorder(ledger, selector, names, record.__code__)
        given = named_arguments(model, args, kwargs) if free_inputs else {}
        opened = wanted(free_inputs, given, "input", _named(model))
        maps = maps_on_numbers(selector, recorder.where)
        try:
            with (
                preserved(model, training),
                torch.no_grad(),
                unlogged(_LOG),
                maps,
                fake_mode,
                recorder,
            ):
                if opened:
                    args, kwargs = with_arguments(_freed(ledger, given, opened), args, kwargs)
                with dense_experts(model):
                    returned = call_at(model, state, args, kwargs)
                chosen = choose(returned)
                written = _written(ledger, state)
                recorder.selections.require_none(named_outputs(chosen), written.values())
        except RowsMixed as error:  # rows that the network selects, and not those of experts
            selected = recorder.selections.first
            assert selected is not None
            raise selector.refusal(selected, selected.operands) from error
        except (Exception, SystemExit) as error:
            raise selector.refused or TraceError(_stopped(model, error, ledger.where)) from error
        selector.require_answered()
        found = named_outputs(chosen)
        closed = wanted(free_outputs, dict(found), "output", _named(model))
        with torch.no_grad(), fake_mode, recorder:
            found = [(name, _freed(ledger, {name: y}, closed)[name]) for name, y in found]
    ledger.where = "the output of the model"
    graph = ledger.graph
    require_outputs([tensor for _, tensor in found], f"find_symmetry({_named(model)})")
    graph.outputs = [ledger.value(tensor) for _, tensor in found]
    graph.written = _written(ledger, state)
    outside = {f"a constant at {place}": t for t, place in ledger.constants}
    held = overlapping({**named, **outside})
    graph.held |= {name: why for name, why in held.items() if name in named}
    return graph


def _function(outputs: Any) -> Callable[[Any], Any]:
    if callable(outputs):
        return outputs
    raise TraceError(
        f"find_symmetry(outputs=…): a {type(outputs).__name__} came, and a function of what the "
        "model returns was expected. Pass for example lambda returned: returned.logits, or leave "
        "it out for every floating tensor."
    )


def _as_it_is(returned: Any) -> Any:
    return returned


def _enter_state(
    ledger: Ledger, model: torch.nn.Module, selector: Selector
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Fake parameters and buffers by every name, and the real ones by their first names."""
    graph = ledger.graph
    fakes: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    named: dict[str, torch.Tensor] = {}
    persistent = persistent_buffers(model)
    for kind, tensors in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in tensors:
            if id(tensor) not in fakes:
                fakes[id(tensor)] = _fake(ledger, tensor)
                named[name] = tensor
                constant = kind == "buffer" and name not in persistent
                if kind == "parameter" and not tensor.requires_grad:
                    graph.frozen.add(name)
                ledger.add(
                    fakes[id(tensor)], "constant" if constant else kind, name,
                    captured(tensor.detach()) if constant else None,
                )  # fmt: skip
            state[name] = fakes[id(tensor)]
            value = ledger.value(state[name])
            if kind == "buffer":
                selector.gives(value, tensor)
            if value.kind != "constant":
                value.vector = _vector(tensor)
                (graph.parameters if kind == "parameter" else graph.buffers)[name] = value
    return state, named


def _written(ledger: Ledger, state: Mapping[str, torch.Tensor]) -> dict[str, Value]:
    """What the forward pass left in the buffers that it wrote to; single numbers count nothing."""
    buffers = {n: v for n, v in ledger.graph.buffers.items() if n == v.name and v.shape}
    found = {name: ledger.value(state[name]) for name in buffers}
    return {name: value for name, value in found.items() if value is not buffers[name]}


def _vector(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a vector, or the one of a scalar, which only the question whether one of them
    is zero reads."""
    known = not (tensor.is_meta or isinstance(tensor, FakeTensor))
    real = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach() if known and real and sum(n > 1 for n in tensor.shape) < 2 else None


def _enter_inputs(
    ledger: Ledger, example_inputs: Inputs, selector: Selector
) -> tuple[tuple, dict[str, Any]]:
    counter = iter(range(1 << 30))

    def fake_input(leaf: torch.Tensor) -> torch.Tensor:
        made = _fake(ledger, leaf)
        data = captured(leaf.detach(), (1 << 16) - 1)
        selector.gives(ledger.add(made, "input", f"input{next(counter)}", data), leaf)
        return made

    return map_tensors(fake_input, split_inputs(example_inputs))


def _freed(
    ledger: Ledger, tensors: Mapping[str, Any], virtual: Sequence[Virtual]
) -> dict[str, Any]:
    """Inputs or outputs by name, freed ones behind a virtual linear map."""
    made, graph = dict(tensors), ledger.graph
    for one in virtual:
        if one.name in made:
            size = made[one.name].shape[one.axis]
            weight = torch.empty(size, size, dtype=made[one.name].dtype, device="meta")
            weight = FakeTensor(ledger.fake_mode, weight, torch.get_default_device())
            value = ledger.add(weight, "parameter", one.parameter)
            if one.side == "input":  # first, so that it is inputs that are covariant
                graph.parameters = {one.parameter: value, **graph.parameters}
            else:
                graph.parameters[one.parameter] = value
            graph.virtual[one.parameter] = one
            made[one.name] = passed(made[one.name], weight, one)
    return made


def _fake(ledger: Ledger, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and, if it is dense, layout: what is a view depends on it."""
    shape = tuple(tensor.shape)
    made = torch.empty(shape, dtype=tensor.dtype, device="meta")
    if tensor.layout is torch.strided and is_dense(Window(shape, tensor.stride(), 0)):
        made = torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(ledger.fake_mode, made, torch.get_default_device())


def _named(model: torch.nn.Module) -> str:
    return f"model={type(model).__name__}"


def _stopped(model: torch.nn.Module, error: BaseException, where: str) -> str:
    place = _lastplace(error) or where or "an unknown place"
    message = [*str(error).strip().splitlines(), ""][0][:300].rstrip(".")
    return (
        f"find_symmetry({_named(model)}): the forward pass stopped on fake "
        f"tensors with {type(error).__name__}: {message}. "
        f"A forward pass whose control flow does not depend on numbers was expected; it "
        f"stopped at {place}. Check that the example inputs fit the model, or "
        f"replace data-dependent branches (such as .item()) before tracing."
    )


def persistent_buffers(model: torch.nn.Module) -> set[str]:
    """Names of the buffers that belong to the state dict."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }


def _lastplace(error: BaseException) -> str:
    place, trace = "", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(_LIBRARIES):
            place = f"{os.path.basename(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


__all__ = ["Inputs", "TraceError", "call_at", "floating_outputs", "preserved", "record",
           "resolve_name", "split_inputs"]  # fmt: skip
