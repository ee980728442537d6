"""Interfaces that are wider than what reads or writes them.

Between linear maps stands a space of n coordinates. If all that pairs with it spans fewer than n
dimensions, what writes it may change by anything in the common kernel: x = W z reaches its readers
only as R x, so W + N with R N = 0 is the same function. Changes of basis cover this when W has
enough columns, not in an hourglass (many inputs, n coordinates, few outputs).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from paramsym.structure.symmetry import Factor, Shift, Term
from paramsym.tracing.blocks import Block
from paramsym.tracing.index import Node
from paramsym.tracing.perturb import fresh_letters, window_of

Member = tuple[str, Block, int, int]  # parameter, block, stride of the slot, parity


def narrow_shifts(spaces: Iterable[tuple[Node, list[Member]]]) -> list[Shift]:
    """Shift families of linear interfaces: (leaf, parameter blocks that carry it)."""
    found = []
    for leaf, members in spaces:
        sides: dict[int, list[Member]] = defaultdict(list)
        for member in members:
            sides[member[3]].append(member)
        for parity in (1, -1):
            if sides[-parity] and _columns(sides[-parity]) < leaf.size:
                found += [_shift(leaf, m, sides[-parity]) for m in sides[parity]]
    return found


def _columns(members: list[Member]) -> int:
    """How many vectors the members contribute to the span of their side."""
    return sum(
        math.prod(n.size for _, n, s in block.slots() if s != stride)
        for _, block, stride, _ in members
    )


def _shift(leaf: Node, member: Member, others: list[Member]) -> Shift:
    name, block, stride, _ = member
    alphabet = fresh_letters({"x", "y"})
    target = window_of(block, {stride: "x"}, name, alphabet)
    letters = target.letters.replace("x", "y")
    kernel = tuple(window_of(b, {s: "x"}, n, fresh_letters({"x"})) for n, b, s, _ in others)
    projector = Factor(kernel[0], kernel=kernel)
    term = Term(target, 1.0, (projector,))
    family = "what no reader of its space can tell apart"
    return Shift(f"{name}.unread", family, letters, target.shape, (term,))
