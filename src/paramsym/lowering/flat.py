"""Axes along which data are constant: zeros, ones, and what is broadcast from fewer axes.

Data come in a given order, so that an axis they share with units of the network fixes the order of
these units, unless the data are the same for all of them: a mask that was broadcast to all heads
(with `expand`, or by `torch.where(mask, torch.zeros(1, heads, n, n), -inf)`) exchanges with them.
"""

from __future__ import annotations

from paramsym.recording.graph import Call, Graph, Value

_FILLED = {
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
    "new_full", "fill", "zero", "scalar_tensor",
}  # fmt: skip
_ENTRYWISE = {
    "add", "sub", "rsub", "mul", "div", "rdiv", "neg", "where", "masked_fill", "to", "clone",
    "contiguous", "float", "double", "half", "bfloat16", "bool", "long", "int", "exp", "log",
    "sqrt", "abs", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "maximum", "minimum", "clamp", "pow",
    "detach",
}  # fmt: skip
_DEEPEST = 100  # a longer chain of data is not followed


def flat_axes(
    value: Value, graph: Graph, known: dict[int, frozenset[int]], depth: int = 0
) -> frozenset[int]:
    """The axes along which a value that depends on no parameter is constant.

    Args:
        value: a tensor of the trace that does not move.
        graph: the trace that it belongs to.
        known: results by value, filled on the way.
        depth: of the recursion.

    Returns:
        Positions of axes; of length one are all of them.
    """
    found = known.get(value.id)
    if found is None and depth < _DEEPEST:
        found = known[value.id] = frozenset(
            k for k, n in enumerate(value.shape)
            if n == 1 or k in _longer(value, graph, known, depth)
        )  # fmt: skip
    return found if found is not None else frozenset()


def _longer(value: Value, graph: Graph, known: dict, depth: int) -> frozenset[int]:
    """Which axes of more than one entry are flat, by the owner of a view or by what wrote it."""
    if value.storage != value.id:
        return _of_view(value, graph, known, depth)
    call = value.call
    if call is None:
        return frozenset()
    if call.name in _FILLED:
        by_tensor = call.name == "fill" and len(call.operands) != 1
        return frozenset() if by_tensor else frozenset(range(len(value.shape)))
    if call.name in ("repeat", "tile") and call.operands:
        return _of_operands(call, value, graph, known, depth)
    if call.name in _ENTRYWISE and len(call.outputs) == 1:
        return _of_operands(call, value, graph, known, depth)
    return frozenset()


def _of_view(value: Value, graph: Graph, known: dict, depth: int) -> frozenset[int]:
    """The axes of a view that step as flat axes of its owner do, or not at all."""
    owner = graph.values[value.storage]
    flat = flat_axes(owner, graph, known, depth + 1)
    if len(flat) == len(owner.shape):
        return frozenset(range(len(value.shape)))
    steps = {(owner.shape[k], owner.strides[k]) for k in flat}
    return frozenset(
        k for k, (n, s) in enumerate(zip(value.shape, value.strides, strict=True))
        if s == 0 or (n, s) in steps
    )  # fmt: skip


def _of_operands(call: Call, value: Value, graph: Graph, known: dict, depth: int) -> frozenset[int]:
    """The axes of an entrywise result along which no operand varies."""
    every = frozenset(range(len(value.shape)))
    for operand in call.operands:
        skipped = len(value.shape) - len(operand.shape)
        flat = flat_axes(operand, graph, known, depth + 1)
        every -= {k + skipped for k in range(len(operand.shape)) if k not in flat}
    return every
