"""From graph to primitives: normal forms, liveness, rotations, then one rule per call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from paramsym.lowering import rules as rules
from paramsym.lowering.beyond import hold_beyond
from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.data import moving_values
from paramsym.lowering.held import hold
from paramsym.lowering.normalise import normalise
from paramsym.lowering.origins import settle_origins
from paramsym.lowering.probed import by_probing
from paramsym.lowering.registry import RULES
from paramsym.lowering.rotary import Rotation, find_rotations, turning_constants
from paramsym.lowering.sliding import slide_origins
from paramsym.primitives import Primitive, Rotate
from paramsym.primitives import index as ix
from paramsym.primitives.defects import report
from paramsym.recording.graph import Call, Graph, Value, values_in
from paramsym.recording.replay import RANDOM

# torch lends a number an axis where these ask for one
_ALONG_AN_AXIS = {"softmax", "log_softmax", "softmin", "cummax", "cummin", "index_select",
                  "gather", "take_along_dim"}  # fmt: skip
# what is not yet written counts as zero: it says nothing about units or scales
_ZEROS = {"zeros", "zeros_like", "new_zeros", "empty", "new_empty", "empty_like", "empty_strided"}


def lower(graph: Graph, kept: Collection[str] = ()) -> Builder:
    """Express a traced network in primitives between typed tensors.

    Args:
        graph: a recorded forward pass.
        kept: buffers that the pass writes and whose next values count as the same thing as those
            that they had before; see `tracing.written`.
    """
    graph = normalise(graph)
    graph = replace(graph, held=turning_constants(graph) | graph.held)
    moving = moving_values(graph)
    build = Builder(graph, moving)
    rotations = find_rotations(graph, moving)
    roots = [*graph.outputs, *(graph.written[name] for name in kept)]
    alive, build.alive = _alive(graph, rotations, roots)
    for value in [*graph.parameters.values(), *graph.buffers.values()]:
        build.tensor(value)
    for call in graph.calls:
        if call.index not in alive:
            continue
        build.where = call.where
        if call.index in rotations:
            _turn(build, rotations[call.index])
        else:
            _lower_call(build, call, moving)
    ties = []
    for name in kept:
        build.where = f"what the forward pass leaves in {name}"
        ties.append(
            _keep(build, build.tensor(graph.written[name]), build.tensor(graph.buffers[name]))
        )
    for value in graph.outputs:
        build.where = "the output of the model"
        tensor = build.tensor(value)
        for node in tensor.axes:
            ix.freeze(node, "it is an output of the model")
    seen = [*map(build.tensor, graph.outputs), *build.anchors]
    build.ops = _live_ops(build, [*seen, *ties])
    settle_origins(build)
    slide_origins(build)
    hold_beyond(build)
    hold(build)
    if ties:
        build.beside = {*build.ops}.difference(_live_ops(build, seen))
    return build


def _keep(build: Builder, after: Tensor, before: Tensor) -> Tensor:
    """A buffer after the forward pass is what it was before, at another time."""
    for a, b in zip(after.axes, before.axes, strict=True):
        if not after.moves:  # it is filled with data
            ix.freeze(b, next((leaf.frozen for leaf in ix.leaves(a) if leaf.frozen), ""))
    build.kept.add(before.owner.serial)
    return build.tie(after, before)


def _lower_call(build: Builder, call: Call, moving: set[int]) -> None:
    """Give the results of one call their tensors: by its rule, or as data."""
    if call.name in RANDOM:
        build.is_random(call)
    fresh = [v for v in call.outputs if v.storage == v.id]  # the axes of views are read off later
    if any(v.id in moving and 0 not in v.shape for v in fresh):  # what is empty is data
        _apply(build, call, fresh)
        return
    zero = call.name in _ZEROS or (call.name == "full" and call.args[1:2] == (0,))
    made = not zero and any(build.tensor(v).zero for v in call.operands)  # in another dtype, say
    for value in fresh:
        numbers = build.fixed.number(value) if made else None
        build.tensor(value).zero = zero or (numbers is not None and not bool(numbers.any()))


def _apply(build: Builder, call: Call, fresh: list[Value]) -> None:
    """Run the rule of one call and give its results the layout of the traced outputs."""
    try:
        targets, result = _by_rule(build, call, fresh)
    except Exception as error:  # ours or that of a taught rule: freeze the place and go on
        reason = report(build, call.name, error)
        targets, result = fresh, _unruled(build, call, fresh, reason)
    for value, tensor in zip(targets, result, strict=False):
        if tensor is None or (value.id in build.tensors and build.tensors[value.id].producer):
            continue
        if tensor.base is not None and tensor.nodes is None and tensor.moves:
            build.mirror(value, tensor)  # a copy of a window
            continue
        if tensor.base is not None or tensor.value is not None or not tensor.moves:
            tensor = build.alias(tensor)
        tensor.strides, tensor.offset, tensor.value = value.strides, value.offset, value
        build.tensors[value.id] = tensor


def _by_rule(build: Builder, call: Call, fresh: list[Value]):
    """The values that a call returns and their tensors, by the rule of its operator."""
    function = RULES.get(call.name)
    if _has_no_axis(call):
        return fresh, _unruled(build, call, fresh, f"a number has no axis at {call.where}")
    result = function(build, call) if function is not None else None
    if result is None and function is None:
        result = by_probing(build, call)
    if result is None:
        place = call.where or "an unknown place"
        why = build.unprobed.get(call.name)
        build.unknown.setdefault(call.name, f"{place}: {why}" if why else place)
        return fresh, _unruled(build, call, fresh, f"there is no rule for {call.name} at {place}")
    result = [result] if isinstance(result, Tensor) else list(result)
    targets = list(values_in(call.result))
    for value, tensor in zip(targets, result, strict=False):
        if tensor is not None and tensor.shape != value.shape:
            raise AssertionError(
                f"the rule for {call.name} gave shape {tensor.shape} where the operator at "
                f"{call.where} returns {value.shape}"
            )
    missing = [v for v in targets[len(result) :] if v.id in build.alive]
    if missing:  # a rule says nothing about these outputs, and they are used
        reason = f"the rule for {call.name} does not cover all of its outputs at {call.where}"
        made = _unruled(build, call, missing, reason)
        return [*targets[: len(result)], *missing], [*result, *made]
    return targets, result


def _has_no_axis(call: Call) -> bool:
    """Whether a call goes along an axis of a number."""
    return call.name in _ALONG_AN_AXIS and any(not v.shape for v in call.operands[:1])


def _unruled(build: Builder, call: Call, fresh: list[Value], reason: str) -> list[Tensor]:
    return build.opaque_call(call, fresh, reason)


def _turn(build: Builder, rotation: Rotation) -> None:
    """A rotation as its primitive; what it turns is held where that fails."""
    try:
        _rotate(build, rotation)
    except Exception as error:
        _held_rotation(build, rotation, report(build, "rotate", error))


def _rotate(build: Builder, rotation: Rotation) -> None:
    source = build.tensor(rotation.source)
    node = source.axes[rotation.dim]
    half = source.shape[rotation.dim] // 2
    sizes = [2, half] if rotation.layout == "half" else [half, 2]
    reason = f"positions turn its pairs at {build.where}"
    split = ix.split_product(node, sizes, reason)
    pair, frequency = split if rotation.layout == "half" else split[::-1]
    ix.freeze(pair, reason)
    ix.freeze(frequency, reason)
    for k in rotation.varies:
        if k < source.ndim and k != rotation.dim:
            ix.freeze(source.axes[k], reason)
    out = build.new(source.shape, source.axes)
    facts = build.again(rotation.calls, rotation.source, output=rotation.output)
    if run := facts.get("compute"):
        facts["compute"] = lambda *xs: _as_it_was(run(*xs).reshape(source.shape), rotation)
    varies = tuple(rotation.varies)
    build.emit(Rotate, out, [source], dim=rotation.dim, pair=pair, varies=varies, **facts)
    if rotation.order != rotation.layout:
        swapped = [*range(source.ndim + 1)]
        swapped[rotation.dim : rotation.dim + 2] = rotation.dim + 1, rotation.dim
        shape = list(source.shape)
        shape[rotation.dim : rotation.dim + 1] = sizes
        out = build.permute(build.reshape(out, shape), swapped)
    out = build.reshape(out, rotation.output.shape)
    if out.base is not None:
        out = build.alias(out)
    out.strides, out.value = rotation.output.strides, rotation.output
    out.offset = rotation.output.offset
    build.tensors[rotation.output.id] = out


def _as_it_was(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """What a rotation gives, in the order of pairs that it takes."""
    if rotation.order == rotation.layout:
        return x
    sizes, dim = ((2, -1) if rotation.order == "half" else (-1, 2)), rotation.dim
    return x.unflatten(dim, sizes).transpose(dim, dim + 1).flatten(dim, dim + 1)


def _held_rotation(build: Builder, rotation: Rotation, reason: str) -> None:
    value = rotation.output
    (out,) = build.opaque([build.tensor(rotation.source)], [value.shape], reason)
    out.strides, out.offset, out.value = value.strides, value.offset, value
    build.tensors[value.id] = out


def _alive(
    graph: Graph, rotations: dict[int, Rotation], roots: list[Value]
) -> tuple[set[int], set[int]]:
    """Indices of calls and ids of values on which the roots depend; rotations are one call."""
    alive: set[int] = set()
    stack = list(roots)
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if value.id in seen:
            continue
        seen.add(value.id)
        if value.storage != value.id:
            stack.append(graph.values[value.storage])
        call = value.call
        if call is None or call.index in alive:
            continue
        if value.storage != value.id and value.storage in {v.storage for v in call.operands}:
            continue  # a view is read off its owner, whatever led to it
        alive.add(call.index)
        if call.index in rotations:
            stack.append(rotations[call.index].source)
        else:
            stack.extend(call.operands)
    return alive, seen


def _live_ops(build: Builder, roots: list[Tensor]) -> list[Primitive]:
    """The primitives that the roots depend on, in order."""
    alive: set[int] = set()
    stack = [t.owner for t in roots]
    while stack:
        op = stack.pop().producer
        if op is None or id(op) in alive:
            continue
        alive.add(id(op))
        stack.extend(t.owner for t in op.inputs)
    return [op for op in build.ops if id(op) in alive]
