"""How many directions a symmetry has, from shapes alone: its dimension at generic weights.

    rank(G) − rank(G restricted to buffers)

for the matrix G of all generators, a row for each, at weights that satisfy no equation. It is no
sum of dimensions: families overlap, have stabilisers, and move buffers that are held. It is found
without the matrix, which for a large model does not fit anywhere, by elimination in blocks:

    a family F that alone moves some box of entries, and injectively there, adds dim F to the rank
    whatever it does elsewhere, and is taken away.

For F stands alone in the columns of that box, G is block triangular, and the rank is dim F plus
that of the other families. What no such step takes away is counted by a dense rank at random
weights where it is small, and otherwise only bounded: the number is then called "at most".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from paramsym.structure.axes import frames_of
from paramsym.structure.orbit import unreached_columns
from paramsym.structure.rank import matrix_rank
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import real_entries, tangent
from paramsym.structure.windows import Moves, Ranges, families

_WORK = 4e9  # operations of the largest dense rank


@dataclass(frozen=True)
class Count:
    """A number of directions, exact unless it says which families may overlap.

    `overlapping` names the families of which only the sum of their dimensions is known.
    """

    value: int
    overlapping: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether there are exactly so many."""
        return not self.overlapping

    @property
    def why(self) -> str:
        """Why the number is only an upper bound; empty if it is exact."""
        if self.is_exact:
            return ""
        names = ", ".join(self.overlapping[:2])
        more = f" and {len(self.overlapping) - 2} more" if self.overlapping[2:] else ""
        return f"{names}{more} move the same entries and may overlap"

    def __str__(self) -> str:
        return f"{'' if self.is_exact else 'at most '}{self.value:,}"


def generic_dimension(
    symmetry: ParameterSymmetry,
    params: Mapping[str, torch.Tensor],
    only: Collection[str] | None = None,
    hold_buffers: bool = True,
) -> Count:
    """The dimension of the orbit through generic weights of the given shapes.

    It is what `orbit_dimension` returns at weights without coincidences: all families, dead
    parameters and unreached rows count together, overlaps once, and buffers are held.

    Args:
        symmetry: what `find_symmetry` derived.
        params: the complete state dict; only shapes and kinds of numbers are read, so that it may
            be on the meta device.
        only: names of spaces and shifts that count; by default all, with what is dead.
        hold_buffers: count only what leaves running statistics where they are.
    """
    numbers = {n: p for n, p in params.items() if _is_number(p) and n not in symmetry.ties}
    dead = {n for n in symmetry.dead if n in numbers and n not in symmetry.buffers}
    live = {n: p for n, p in numbers.items() if n not in dead}
    buffers = symmetry.buffers if hold_buffers else ()
    count, overlapping = _moving(symmetry, numbers, live, only, buffers)
    ignored = sum(real_entries(numbers[n]) for n in dead)
    if only is None:
        count += ignored + _unreached(symmetry, live)
    room = sum(real_entries(p) for n, p in live.items() if n not in buffers) + ignored
    return Count(min(count, room), overlapping)


def _moving(
    symmetry: ParameterSymmetry, numbers: Mapping[str, torch.Tensor],
    live: Mapping[str, torch.Tensor], only: Collection[str] | None, buffers: Collection[str],
) -> tuple[int, tuple[str, ...]]:  # fmt: skip
    """Directions that leave the buffers where they are, at most, and the families in doubt."""
    found = families(symmetry, {n: tuple(p.shape) for n, p in live.items()})
    found = [moves for moves in found if only is None or moves.name in only]
    ranks = _Ranks(symmetry, live, numbers)
    low, high, unclear = ranks.bounds(found)
    held = [_within(moves, buffers) for moves in found]
    fixed, most, doubtful = ranks.bounds([moves for moves in held if moves.boxes])
    exact = low == high and fixed == most
    return high - fixed, () if exact else tuple(dict.fromkeys((*unclear, *doubtful)))


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _unreached(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]) -> int:
    """Real numbers in the rows of tables that no input reaches."""
    return sum(
        len(rows) * math.prod(params[name].shape[1:]) * parts(params[name])
        for name, rows in symmetry.unreached.items()
        if name in params
    )


def parts(tensor: torch.Tensor) -> int:
    """Real numbers in one entry."""
    return 2 if tensor.is_complex() else 1


def _within(moves: Moves, names: Collection[str]) -> Moves:
    """A family on some tensors alone."""
    return replace(moves, boxes=tuple(box for box in moves.boxes if box.parameter in names))


class _Ranks:
    """Bounds of ranks of generators, by elimination in blocks and then densely.

    Counted are the entries of `params`; a shift may also move what is dead, among all `numbers`.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor],
        numbers: Mapping[str, torch.Tensor],
    ):  # fmt: skip
        self.symmetry, self.params, self.numbers = symmetry, params, numbers

    def bounds(self, found: list[Moves]) -> tuple[int, int, tuple[str, ...]]:
        """Lower and upper bound of the rank on the boxes given, and what is between them."""
        known, rest = peeled(found)
        low = high = known
        unclear: list[str] = []
        for group in _components(rest):
            least, most = _independent(group), min(self._room(group), sum(m.size for m in group))
            if least < most and (rank := self._dense(group)) is not None:
                least = most = rank
            low, high = low + least, high + most
            unclear += [moves.name for moves in group if least < most]
        return low, high, tuple(unclear)

    def _room(self, group: list[Moves]) -> int:
        """The number of entries that some families move, at most."""
        boxes: dict[str, set[Ranges]] = {}
        for moves in group:
            for box in moves.boxes:
                boxes.setdefault(box.parameter, set()).add(box.ranges)
        return sum(
            min(
                real_entries(self.params[name]),
                parts(self.params[name]) * sum(math.prod(b - a for a, b in r) for r in ranges),
            )
            for name, ranges in boxes.items()
        )

    def _dense(self, group: list[Moves]) -> int | None:
        """The rank at random weights; None where that is too much work."""
        names = tuple(dict.fromkeys(box.parameter for moves in group for box in moves.boxes))
        rows = sum(self._generators(moves.name) for moves in group)
        entries = sum(real_entries(self.params[n]) for n in names)
        if min(rows, entries) * rows * entries > _WORK:
            return None
        symmetry = self.symmetry
        wanted = {moves.name for moves in group}
        small = replace(
            symmetry,
            signature={n: axes for n, axes in symmetry.signature.items() if n in names},
            shifts=tuple(s for s in symmetry.shifts if s.name in wanted),
        )
        operator = tangent(small, random_weights(small, self.numbers))
        blocks = tuple(block for block in operator.blocks if block.name in wanted)
        matrix = operator.dense(blocks, names)
        matrix[:, unreached_columns(operator, names)] = 0.0
        return matrix_rank(matrix).rank

    def _generators(self, name: str) -> int:
        space = self.symmetry.spaces.get(name)
        if space is not None:
            return self.symmetry.dimension(name)
        return next(s.size for s in self.symmetry.shifts if s.name == name)


def peeled(found: list[Moves]) -> tuple[int, list[Moves]]:
    """Families taken away, alone or with some others, by a box that they alone move.

    Returns the sum of the dimensions of those and what is left.
    """
    by_tensor: dict[str, list[tuple[Moves, int]]] = {}
    for moves in found:
        for k, box in enumerate(moves.boxes):
            by_tensor.setdefault(box.parameter, []).append((moves, k))
    left = {moves.name: moves for moves in found}

    def others(moves: Moves, k: int) -> list[tuple[Moves, int]]:
        return [
            (other, j)
            for other, j in by_tensor[moves.boxes[k].parameter]
            if other.name in left and other is not moves and other.boxes[j].meets(moves.boxes[k])
        ]

    def taken(moves: Moves) -> list[Moves]:
        for k, box in enumerate(moves.boxes):
            if box.is_injective:
                near = others(moves, k)
                apart = len({other.name for other, _ in near}) == len(near)
                if apart and box.tells_apart([other.boxes[j] for other, j in near]):
                    return [moves, *(other for other, _ in near)]
        return []

    total, before = 0, -1
    while before != len(left):
        before = len(left)
        for moves in list(left.values()):
            for gone in taken(moves) if moves.name in left else ():
                total += left.pop(gone.name).size
    return total, list(left.values())


def _independent(found: list[Moves]) -> int:
    """A lower bound of a rank: the dimension of some of the families that are independent."""
    total, left = 0, found
    while left:
        left = sorted(left, key=lambda moves: moves.size)[1:]
        known, left = peeled(left)
        total += known
    return total


def _components(found: list[Moves]) -> list[list[Moves]]:
    """Families that move no box in common are independent."""
    groups: list[list[Moves]] = []
    for moves in found:
        near = [
            group for group in groups
            if any(a.meets(b) for other in group for a in other.boxes for b in moves.boxes)
        ]  # fmt: skip
        groups = [group for group in groups if group not in near]
        groups.append([moves, *(other for group in near for other in group)])
    return groups


def random_weights(
    symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Generic weights in float64 for all that a symmetry moves or reads, always the same.

    What is raised to a power is positive, so that the power is defined.
    """
    names, offsets = _what_is_read(symmetry)
    generator = torch.Generator().manual_seed(0)
    drawn: dict[str, torch.Tensor] = {}
    for name in [n for n in params if n in names]:
        shape, dtype = params[name].shape, torch.float64
        if params[name].is_complex():
            dtype = torch.complex128
        if name in offsets:
            made = 0.5 + torch.rand(shape, generator=generator, dtype=dtype.to_real())
            drawn[name] = made.to(dtype) - offsets[name]
        else:
            drawn[name] = torch.randn(shape, generator=generator, dtype=dtype)
    return drawn


def _what_is_read(symmetry: ParameterSymmetry) -> tuple[set[str], dict[str, float]]:
    """All tensors that a symmetry moves or reads, and the offsets of those raised to a power."""
    offsets = dict.fromkeys(symmetry.frame_parameters, 0.0)
    names = {*symmetry.signature, *offsets}
    for axes in symmetry.signature.values():
        offsets |= {f.parameter: f.offset for axis in axes for f in frames_of(axis)}
    for shift in symmetry.shifts:
        read = [f for term in shift.terms for f in term.factors] + [*(shift.divisor or ())]
        names |= {term.target.parameter for term in shift.terms}
        names |= {f.window.parameter for f in read}
        names |= {w.parameter for f in read for w in f.kernel}
        offsets |= {f.window.parameter: f.offset for f in read if f.power != 1}
    return names, offsets
