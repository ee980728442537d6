"""Signs that only their products tell: a system of parities.

Several families of signs may meet on one axis (per head and frequency, per frequency and part, …),
so that none can be read before the others. The sign of what two points have in common at one place
is the product of the signs there, one equation modulo 2 for each place:

    Σ bits = [⟨y, x⟩ < 0].

The clearest places come first; what contradicts them is left out, and what nothing tells is zero.

Source: Fossorier and Lin, "Soft-decision decoding of linear block codes based on ordered
statistics" (1995), of order zero.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.geometry.pair import Pair
from paramsym.structure.data import batch_of
from paramsym.structure.walk import Block, Leg

_MOST = 20_000  # equations that are solved


def parities(pair: Pair, known: Collection[str], left: Collection[str]) -> dict[str, Element]:
    """Signs of all families that blocks tell together, where everything else is known.

    Args:
        pair: the two points.
        known: spaces that have been read.
        left: spaces that have not.

    Returns:
        Values by space; nothing where no block is free of other unknown spaces.
    """
    families = [name for name in left if _is_signs(pair, name)]
    starts: dict[str, int] = {}
    count = 0
    for name in families:
        starts[name] = count
        count += pair.symmetry.spaces[name].size * pair.symmetry.copies(name)
    equations = _equations(pair, known, starts)
    if not equations:
        return {}
    bits = _solved(equations, count)
    told = {name for name in families if any(starts[name] in _owners(e, starts) for e in equations)}
    found = {}
    for name in told:
        space = pair.symmetry.spaces[name]
        own = bits[starts[name] : starts[name] + space.size * pair.symmetry.copies(name)]
        sign = 1.0 - 2.0 * torch.tensor(own, dtype=torch.float64)
        found[name] = Element(diagonal=sign.reshape(*batch_of(pair.symmetry, space), space.size))
    return found


Equation = tuple[float, tuple[int, ...], bool]  # how clear, the bits of the sum, its parity


def _is_signs(pair: Pair, name: str) -> bool:
    group = pair.symmetry.spaces[name].group
    return isinstance(group, AbstractMonomial) and group.signs and not group.permutes


def _owners(equation: Equation, starts: dict[str, int]) -> set[int]:
    """The first bits of the families that an equation speaks of."""
    firsts = sorted(starts.values())
    return {max(first for first in firsts if first <= bit) for bit in equation[1]}


def _equations(pair: Pair, known: Collection[str], starts: dict[str, int]) -> list[Equation]:
    """The clearest first."""
    found: list[Equation] = []
    seen: set[Block] = set()
    for place in (place for name in starts for place in pair.places[name]):
        block = place.block
        legs = [leg for leg in (place.leg, *place.beside) if leg.space not in known]
        if block in seen or any(leg.space not in starts for leg in legs):
            continue
        seen.add(block)
        found += _of_block(pair, block, legs, starts)
    found.sort(key=lambda equation: -equation[0])
    return found[:_MOST]


def _of_block(pair: Pair, block: Block, legs: list[Leg], starts: dict[str, int]) -> list[Equation]:
    """One equation for each place of the axes on which signs differ."""
    y, x = (block.view(side[block.parameter]) for side in (pair.fixed, pair.moving))
    axes = sorted({axis for leg in legs for axis in (*leg.copies, leg.axis)})
    common = (y.conj() * x).real if y.is_complex() else y * x
    rest = [axis for axis in range(common.ndim) if axis not in axes]
    read = (common.double().sum(rest) if rest else common.double()).reshape(-1)
    bits = [_bits(block, leg, axes, starts[leg.space]) for leg in legs]
    level = pair.clear * float(read.abs().max()) if read.numel() else 0.0
    rows = zip(*(each.tolist() for each in bits), strict=True)
    return [
        (abs(value), row, value < 0)
        for value, row in zip(read.tolist(), rows, strict=True) if abs(value) > level
    ]  # fmt: skip


def _bits(block: Block, leg: Leg, axes: list[int], start: int) -> Tensor:
    """Which bit of a family stands at each place of some axes."""
    index = torch.zeros((), dtype=torch.long)
    for axis in (*leg.copies, leg.axis):
        counted = torch.arange(block.shape[axis])
        place = counted.reshape([-1 if k == axis else 1 for k in axes])
        index = index * block.shape[axis] + place
    return start + index.expand([block.shape[k] for k in axes]).reshape(-1)


def _solved(equations: list[Equation], count: int) -> list[int]:
    """Bits that satisfy all equations that do not contradict earlier ones."""
    top = 1 << count  # the bit of the right hand side
    pivots: dict[int, int] = {}
    for _, row, odd in equations:
        vector = top if odd else 0
        for bit in row:
            vector ^= 1 << bit
        while vector & (top - 1):
            lead = (vector & (top - 1)).bit_length() - 1
            if lead not in pivots:
                pivots[lead] = vector
                break
            vector ^= pivots[lead]
    bits = [0] * count
    solution = 0
    for lead in sorted(pivots):
        vector = pivots[lead]
        odd = bool(vector & top) ^ bool((vector & solution & (top - 1)).bit_count() & 1)
        if odd:
            bits[lead] = 1
            solution |= 1 << lead
    return bits
