"""Where families move: boxes of entries of each tensor, and on which of them a family is injective.

A family is a space with all its copies, or a shift. On a box of entries that are independent
numbers, its velocities are linear in its coordinates, and for generic entries the shapes alone say
whether that map is injective: A W = 0 has no solution but A = 0 as soon as W has at least as many
columns as rows, one column less suffices for a skew A, and a scale moves every entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paramsym.algebra import (
    AbstractMonomial,
    ComplexScaling,
    GeneralLinear,
    Group,
    Orthogonal,
    OrthogonalFixingOnes,
    UnitComplex,
)
from paramsym.structure.data import batch_of
from paramsym.structure.shift import Shift, Term, Window
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block

Ranges = tuple[tuple[int, int], ...]  # from, to along each axis of a tensor
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Box:
    """A box of entries of one tensor that a family moves.

    The entries fall into `rows` (pairs of size and stride) and, for each row, `columns` others. On
    each row the velocity is any combination of some vectors, with coefficients of its own: `needs`
    is how many columns make that injective; None if nothing is known. `vectors` is their number,
    and `kind` says what they are: "own" rows of the box, combined by a "skew" matrix, or "given"
    by other tensors, as "ones" by none.
    """

    parameter: str
    ranges: Ranges
    rows: frozenset[tuple[int, int]] = frozenset()
    columns: int = 0
    needs: int | None = None
    vectors: int = 0
    kind: str = ""

    @property
    def is_injective(self) -> bool:
        """Whether the family's coordinates can be read off the velocity of these entries."""
        return self.needs is not None and self.needs <= self.columns

    def meets(self, other: Box) -> bool:
        """Whether some entry is in both."""
        return self.parameter == other.parameter and all(
            a < d and c < b for (a, b), (c, d) in zip(self.ranges, other.ranges, strict=True)
        )

    def tells_apart(self, others: Sequence[Box]) -> bool:
        """Whether these entries show all coordinates of this family and of the others at once."""
        told = self.is_injective and all(
            other.is_injective and other.ranges == self.ranges for other in others
        )
        if not told or not others:
            return told
        return (len(others) == 1 and self._by_rows(others[0])) or self._by_skewness(others)

    def _by_rows(self, other: Box) -> bool:
        """Row by row, generic vectors (the rows of the box) and a given one are independent as
        soon as there are columns for all."""
        kinds = {self.kind in _GIVEN, other.kind in _GIVEN}
        given = self if self.kind in _GIVEN else other
        enough = self.vectors + other.vectors <= self.columns
        return self.rows == other.rows and kinds == {True, False} and given.vectors == 1 and enough

    def _by_skewness(self, others: Sequence[Box]) -> bool:
        """A W + s W + 1 δᵀ = 0 with A skew and W of full row rank says A + s = 1 cᵀ for some c;
        the left side is invertible for s ≠ 0 and has an even rank for s = 0, so that all vanish."""
        if self.kind != "skew" or len(self.rows) != 1 or not self.columns >= self.vectors > 2:
            return False
        ((size, stride),) = self.rows
        scales = [o for o in others if o.kind == "own" and not o.rows]
        constant = [
            o for o in others
            if o.kind == "ones" and o.columns == size
            and not any(stride <= s < stride * size for _, s in o.rows)
        ]  # fmt: skip
        single = len(scales) < 2 and len(constant) < 2
        return single and len(scales) + len(constant) == len(others)


_GIVEN = ("given", "ones")


@dataclass(frozen=True)
class Moves:
    """A family, its dimension by itself at generic weights, and the boxes that it moves."""

    name: str
    size: int
    boxes: tuple[Box, ...]
    is_exact: bool = True  # False where `size` is only known to be enough


def families(symmetry: ParameterSymmetry, shapes: Shapes) -> list[Moves]:
    """All continuous families of a symmetry with the boxes that they move."""
    found: dict[str, list[Box]] = {}
    for name in symmetry.signature:
        if name in shapes and name not in symmetry.ties:
            for space, box in _typed_boxes(symmetry, name, shapes[name]):
                found.setdefault(space, []).append(box)
    made = [
        Moves(s.name, math.prod(batch_of(symmetry, s)) * s.group.dimension, tuple(found[s.name]))
        for s in symmetry.spaces.values()
        if s.name in found and s.group.dimension
    ]
    made += [_shift_moves(symmetry, shift, shapes) for shift in symmetry.shifts]
    return [moves for moves in made if moves.size and moves.boxes]


# -- spaces --------------------------------------------------------------------------------------


def _typed_boxes(
    symmetry: ParameterSymmetry, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, Box]]:
    """Every space with each box of a tensor that it moves.

    A block that is no box, for it was cut from inside a product, stands in the smallest box that
    holds it.
    """
    for block in symmetry.blocks[name]:
        box = Box(name, _ranges(block, shape))
        full = math.prod(block.shape) == math.prod(b - a for a, b in box.ranges)
        moving = [leg.space for leg in block.legs if leg.power]
        for space in dict.fromkeys(moving):
            if symmetry.spaces[space].group.dimension:
                alone = full and sum(leg.space == space for leg in block.legs) == 1
                yield space, _certified(symmetry, space, box, block, shape) if alone else box


def _certified(
    symmetry: ParameterSymmetry, space: str, box: Box, block: Block, shape: tuple[int, ...]
) -> Box:
    """The box with what is known of the space on it."""
    own, places = symmetry.spaces[space], list(zip(block.shape, block.strides, strict=True))
    (leg,) = (leg for leg in block.legs if leg.space == space)
    rows = _longer(places[axis] for axis in (leg.axis, *leg.copies))
    columns = math.prod(block.shape) // math.prod(n for n, _ in rows)
    if dead := len(symmetry.unreached.get(box.parameter, ())):
        size = block.shape[0]
        if size != shape[0] or any(leg.axis == 0 for leg in block.legs):
            return box
        columns = columns // size * (size - dead)
    needs, vectors = _demand(own.group)
    skew = isinstance(own.group, (Orthogonal, OrthogonalFixingOnes))
    return Box(
        box.parameter, box.ranges, rows, columns, needs, vectors, "skew" if skew else "own"
    )  # fmt: skip


def _demand(group: Group) -> tuple[int | None, int]:
    """How many columns tell an algebra element, and of how many vectors each row is made."""
    if isinstance(group, GeneralLinear):
        return group.size, group.size
    if isinstance(group, Orthogonal):
        return group.size - 1, group.size
    if isinstance(group, OrthogonalFixingOnes):
        return max(0, group.size - 2), group.size
    if isinstance(group, AbstractMonomial):
        return 1, 1
    if isinstance(group, (ComplexScaling, UnitComplex)):
        return 1, 2
    return None, 0


# -- shifts --------------------------------------------------------------------------------------


def _shift_moves(symmetry: ParameterSymmetry, shift: Shift, shapes: Shapes) -> Moves:
    """A shift with its boxes; on a term without sums the offset can be read off."""
    size, exact = shift.dimension, shift.is_counted
    terms = [term for term in shift.terms if term.target.parameter in shapes]
    boxes = [Box(t.target.parameter, _ranges(t.target, shapes[t.target.parameter])) for t in terms]
    made = []
    for k, (term, box) in enumerate(zip(terms, boxes, strict=True)):
        alone = not any(box.meets(other) for j, other in enumerate(boxes) if j != k)
        dead = len(symmetry.unreached.get(box.parameter, ()))
        if dead and len(terms) == 1:
            size, known = _without_rows(shift, term, size, shapes[box.parameter], dead)
            exact = exact and known
        if alone and exact and (not dead or len(terms) == 1) and _is_direct(shift, term):
            box = _read_off(shift, term, box)
        made.append(box)
    return Moves(shift.name, size, tuple(made), exact)


def _without_rows(
    shift: Shift, term: Term, size: int, shape: tuple[int, ...], dead: int
) -> tuple[int, bool]:
    """The dimension of a shift on the rows that inputs reach, where it moves rows one by one."""
    window = term.target
    for letter, count, stride in zip(window.letters, window.shape, window.strides, strict=True):
        if (count, stride) == (shape[0], _strides(shape)[0]) and letter in shift.letters:
            return size // count * (count - dead), True
    return size, False


def _read_off(shift: Shift, term: Term, box: Box) -> Box:
    """The box of a term that shows the whole offset."""
    window = term.target
    places = dict(
        zip(window.letters, zip(window.shape, window.strides, strict=True), strict=True)
    )  # fmt: skip
    rows = _longer(places[x] for x in shift.letters if x in places)
    columns = math.prod(window.shape) // math.prod(n for n, _ in rows)
    whole = math.prod(window.shape) == math.prod(b - a for a, b in box.ranges)
    read = {f.window.parameter for f in term.factors}
    kind = "given" if term.factors else "ones"
    if not whole or box.parameter in read or any(f.kernel for f in term.factors):
        kind = ""
    return Box(box.parameter, box.ranges, rows, columns, 1, 1, kind)


def _longer(places: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Sizes and strides without axes of length one, whose strides mean nothing."""
    return frozenset(place for place in places if place[0] > 1)


def _is_direct(shift: Shift, term: Term) -> bool:
    """Whether the term is the offset times numbers, entry by entry, behind at most one projector.

    Then what the shift moves in this term is as much as it moves at all.
    """
    letters = {*term.target.letters}
    if len(letters) < len(term.target.letters):
        return False
    kernels = [f.window.letters for f in term.factors if f.kernel]
    into = {read[1] for read in kernels}
    needed = {*shift.letters} - into
    needed |= {x for f in term.factors if not f.kernel for x in f.window.letters}
    needed |= {x for read in kernels for x in (read[0], *read[2:])}
    return len(kernels) < 2 and needed <= letters and not into & letters


def _ranges(window: Window | Block, shape: tuple[int, ...]) -> Ranges:
    """The smallest box that holds a window; the whole tensor where it wraps around an axis."""
    found, start = [], window.start
    for size, stride in zip(shape, _strides(shape), strict=True):
        low, start = divmod(start, stride) if stride else (0, start)
        top = (stride or 1) * size
        reach = sum(
            (n - 1) * (s // (stride or 1))
            for n, s in zip(window.shape, window.strides, strict=True)
            if (stride or 1) <= s < top
        )
        if low + reach >= size:
            return tuple((0, n) for n in shape)
        found.append((low, low + reach + 1))
    return tuple(found)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    found = [1]
    for size in reversed(shape[1:]):
        found.insert(0, found[0] * size)
    return tuple(found[: len(shape)])
