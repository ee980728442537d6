"""What every primitive demands of scales and signs, as linear equations.

Let x be multiplied by exp(L_x) with L_x a function of its units. Equality of functions splits, by
the usual decomposition into main effects and interactions, into one linear system for every set U
of leaves: the part of L that depends on exactly these leaves. Each primitive demands, for each U,
that some combinations of these parts vanish. Signs obey the same equations modulo 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from paramsym.tracing import index as ix
from paramsym.tracing.blocks import (
    Block,
    Layout,
    joint_blocks,
    labels_of,
    tensor_blocks,
    torn_blocks,
)
from paramsym.tracing.builder import Builder, Op
from paramsym.tracing.index import Node
from paramsym.tracing.solve import Number, exact

Unknown = tuple[int, int, tuple[int, ...]]  # owner, block, strides of the leaves
Equation = Sequence[tuple[Number, Unknown | None]]
Component = tuple[int, ...]  # ids of leaves, sorted

_ONE = 1
# A norm whose ε is below this lets the scale of its input pass: exact up to ε, and said so.
NEGLIGIBLE = 1e-9


def equations(
    build: Builder, layout: Layout, pairs: set[Component], signs: bool
) -> Iterator[tuple[Component, Equation, str]]:
    """All equations of a network, each with the set of leaves that it speaks of and its cause.

    `pairs` are the sets of two or more leaves worth considering; single leaves and the empty set
    always are.
    """
    for op in build.ops:
        ins, outs = labels_of(op)
        for where, blocks, out in joint_blocks(op, layout):
            for component, positions in _components(op, where, pairs):
                parts = [
                    _unknown(block, labels, component, positions)
                    for block, labels in zip(blocks, ins, strict=False)
                ]
                result = _unknown(out, outs, component, positions)
                shared = _shared(op, blocks[0], parts[0]) if op.kind == "normalize" else None
                for equation in _demands(op, parts, result, positions, signs, shared):
                    kept = [(c, u) for c, u in equation if u is not None]
                    if kept:
                        yield component, kept, f"{_title(op)} at {op.where}"
    for block in torn_blocks(build, layout):
        for component, unknown in block_unknowns(block, pairs):
            yield component, [(_ONE, unknown)], "its readers and its writer disagree"
    for value in build.graph.outputs:
        tensor = build.tensor(value)
        for block in tensor_blocks(tensor, layout):
            for component, unknown in block_unknowns(block, pairs):
                yield component, [(_ONE, unknown)], "it is an output of the model"


def _title(op: Op) -> str:
    return op.data.get("name") or {"same": "a sum", "contract": "a product"}.get(op.kind, op.kind)


def block_unknowns(block: Block, pairs: set[Component]) -> Iterator[tuple[Component, Unknown]]:
    """Every component of a block's scale, with its unknown."""
    owner, start = block.key
    slots = list(block.slots())
    yield (), (owner, start, ())
    for _, leaf, stride in slots:
        yield (leaf.serial,), (owner, start, (stride,))
    yield from _joint(block, slots, pairs)


def _joint(block: Block, slots, pairs) -> Iterator[tuple[Component, Unknown]]:
    owner, start = block.key
    for count in (2, 3):
        for chosen in itertools.combinations(slots, count):
            ordered = sorted(chosen, key=lambda slot: slot[1].serial)
            component = tuple(leaf.serial for _, leaf, _ in ordered)
            if component in pairs:
                yield component, (owner, start, tuple(stride for _, _, stride in ordered))


def _components(op: Op, where: dict, pairs: set[Component]):
    """Sets of leaves at labelled positions: (component, ((label, position), …))."""
    yield (), ()
    slots = [
        (label, position, leaf)
        for label, place in where.items()
        for position, (leaf, _) in enumerate(place.leaves)
    ]
    for label, position, leaf in slots:
        yield (leaf.serial,), ((label, position, leaf),)
    if not pairs:
        return
    for count in (2, 3):
        for chosen in itertools.combinations(slots, count):
            ordered = sorted(chosen, key=lambda slot: slot[2].serial)
            component = tuple(leaf.serial for _, _, leaf in ordered)
            if component in pairs:
                yield component, tuple(ordered)


def _unknown(block: Block, labels: tuple, component: Component, positions: tuple):
    """The unknown of a block for a component, or None where that part is zero."""
    if not block.tensor.moves or block.tensor.zero:
        return None
    strides = []
    for label, position, _ in positions:
        if label not in labels:
            return None
        axis = labels.index(label)
        if block.places[axis] is None or block.tensor.strides[axis] == 0:
            return None
        strides.append(block.stride(axis, position))
    owner, start = block.key
    return owner, start, tuple(strides)


def _shared(op: Op, block: Block, unknown: Unknown | None) -> Unknown | None:
    """The scale that all blocks along the axes of a norm have in common."""
    if unknown is None:
        return None
    inside = sum(
        place.start * block.tensor.strides[d]
        for d, place in enumerate(block.places) if place is not None and d in op.data["dims"]
    )  # fmt: skip
    return -1 - op.out.serial, unknown[1] - inside, unknown[2]


def _demands(
    op: Op, parts: list, result, positions: tuple, signs: bool, shared: Unknown | None = None
) -> Iterator[Equation]:
    """The equations of one primitive for one component."""
    kind, data = op.kind, op.data
    inside = {label for label, _, _ in positions}

    def zero(*unknowns):
        return [[(_ONE, u)] for u in unknowns if u is not None]

    def equal(x, factor: Number = _ONE):
        return [[(factor, x), (-_ONE, result)]]

    if kind in ("same", "concatenate"):
        if signs and data.get("linear") is False and not data.get("recurrent"):
            yield from zero(*parts, result)
            return
        for tensor, part in zip(op.inputs, parts, strict=False):
            if kind == "concatenate" or not tensor.zero:
                yield from equal(part)
    elif kind == "unary":
        x, degree = parts[0], data["degree"]
        if not signs:
            if degree is None:
                yield from zero(x, result)
            else:
                yield from equal(x, exact(degree))
        elif data["sign"] == "odd":
            yield from equal(x)
        else:
            yield from zero(result, *([x] if data["sign"] == "pin" else []))
    elif kind == "contract":
        power = data.get("power", 1)
        yield [(_ONE, parts[0]), (power, parts[1]), (-_ONE, result)]
    elif kind == "reduce":
        dims, how = set(data["dims"]), data["how"]
        if inside & dims and (how != "norm2" or not signs):
            yield from zero(parts[0])
        elif how == "other" or (how == "max" and signs):
            yield from zero(parts[0], result)
        elif how == "norm2":
            yield from ([[(_ONE, result)]] if signs else equal(parts[0], 2))
        else:
            yield from equal(parts[0])
    elif kind == "mix":
        if data["how"] == "max" and signs:
            yield from zero(parts[0], result)
        elif inside & set(data["dims"]) or any(isinstance(k, tuple) for k in inside):
            yield from zero(parts[0], result)
        else:
            yield from equal(parts[0])
    elif kind == "normalize":
        if signs:
            along = bool(inside & set(data["dims"])) and data["center"]
            yield from zero(parts[0], result) if along else equal(parts[0])
        elif data["epsilon"] > NEGLIGIBLE or inside & set(data["dims"]):
            yield from zero(parts[0], result)
        else:
            yield from zero(result)
            if parts[0] is not None:
                yield [(_ONE, parts[0]), (-_ONE, shared)]
    elif kind == "lookup":
        outside = inside & set(data["dims"]) or any(isinstance(k, tuple) for k in inside)
        yield from zero(parts[0], result) if outside else equal(parts[0])
    elif kind == "rotate":
        pair = ix.resolve(data["pair"])
        turned = any(label == data["dim"] and leaf is pair for label, _, leaf in positions)
        yield from zero(parts[0], result) if turned else equal(parts[0])
    elif kind != "offset":  # softmax and whatever is opaque
        yield from zero(*parts, result)


def leaf_ids(nodes: list[Node]) -> Component:
    """The component of a set of leaves."""
    return tuple(sorted({n.serial for n in nodes}))
