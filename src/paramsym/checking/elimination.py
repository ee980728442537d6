"""Gaussian elimination in short steps, in place: what an audit can afford and an interrupt.

P·A·Q = L·U with partial pivoting: half the operations of a QR. Q puts columns last that depend on
others. The n rows that it puts first have A₁·Q = L₁·U, and the others beside them are combinations
of these. So A has full column rank where A₁ has, and no singular value of A is smaller than that of
A₁ at its place. By how much A differs from what was factored is measured (`Factors.error`), not
assumed.

No call into LAPACK or BLAS does more than `STEP` multiplications, a fraction of a second; Python
sees an interrupt between two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch

from paramsym.checking.orthogonal import PANEL, STEP, Advance, ignore

BLOCK = 2 * PANEL  # columns between two updates of all that is right of them
_SWEEPS = 4
_PROBES = 16
Lift: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def eliminate(matrix: torch.Tensor, advance: Advance = ignore, block: int = BLOCK) -> torch.Tensor:
    """Overwrite A, of at least as many rows as columns, by L (its diagonal of ones left out) and U.

    Returns:
        The order of the rows: row k of L·U is row order[k] of A.
    """
    order = torch.arange(len(matrix))
    for start in range(0, matrix.shape[1], block):
        stop = min(start + block, matrix.shape[1])
        below, own = matrix[start:], matrix[start:, start:stop]
        if block > PANEL:
            swapped = eliminate(own, advance, PANEL)
        else:
            packed, pivots, _ = torch.linalg.lu_factor_ex(own)
            own.copy_(packed)
            swapped = _order(pivots.tolist(), len(own))
            advance(float(own.numel()) * own.shape[1])
        _take(swapped, order[start:], below[:, :start], below[:, stop:])
        _update(own, below[:, stop:], advance)
    return order


def _order(pivots: list[int], size: int) -> torch.Tensor:
    """The permutation that swaps row k with row pivots[k] − 1, one after the other."""
    places: dict[int, int] = {}
    for k, pivot in enumerate(pivots):
        other = pivot - 1
        places[k], places[other] = places.get(other, other), places.get(k, k)
    order = torch.arange(size)
    order[list(places)] = torch.tensor(list(places.values()), dtype=torch.int64)
    return order


def _update(own: torch.Tensor, right: torch.Tensor, advance: Advance) -> None:
    """What the elimination of `own` columns does to those right of them."""
    width = own.shape[1]
    eye = torch.eye(width, dtype=own.dtype)
    inverse = torch.linalg.solve_triangular(own[:width], eye, upper=False, unitriangular=True)
    for columns in right.split(max(1, int(STEP / (2 * own.numel()))), dim=1):
        above = inverse @ columns[:width]
        columns[:width] = above
        columns[width:].addmm_(own[width:], above, alpha=-1)
        advance(2.0 * own.numel() * columns.shape[1])


@dataclass(frozen=True)
class Factors:
    """A₁·Q = L₁·U, packed into one matrix, and how far that is from the rows it stands for.

    What elimination lost has singular values s; `error` is (Σ s⁴)^¼, no less than the largest.
    """

    packed: torch.Tensor  # (columns, columns)
    columns: torch.Tensor  # Q: column k of L₁·U is this one of A₁
    error: float

    @cached_property
    def floor(self) -> float:
        """Diagonal entries of U below it are rounding, and lifted to it where U is inverted."""
        eps = torch.finfo(self.packed.dtype).eps
        return max(eps * float(self.packed.diagonal().abs().max()), 1e-300)

    @cached_property
    def rank(self) -> int:
        """How many columns come before those that depend on them, whose pivots are zero."""
        pivots = self.packed.diagonal().nonzero()
        return int(pivots[-1]) + 1 if len(pivots) else 0

    def leading(self) -> Factors:
        """Those of as many rows and columns as have a pivot, in the order of elimination."""
        rank = self.rank
        return Factors(self.packed[:rank, :rank], torch.arange(rank), self.error)

    def null(self) -> torch.Tensor:
        """Orthonormal rows x with A₁ · x = 0, one for each column without a pivot.

        Such a column is a combination of those before it, by coefficients that solve U. They may
        be so large that the directions are almost the same, and digits are lost where these are
        made orthogonal; what that makes wrong has an image, and is taken back.
        """
        rank, size = self.rank, len(self.packed)
        found = self.packed.new_zeros(size - rank, size)
        found[:, :rank] = -self.packed[:rank, rank:].T
        self._divide_by_upper(found)
        found[:, rank:] += torch.eye(size - rank, dtype=found.dtype)
        return self._corrected(torch.empty_like(found).index_copy_(1, self.columns, found))

    def _corrected(self, null: torch.Tensor) -> torch.Tensor:
        """Orthonormal rows, less what by their image is wrong in them."""
        rank, found = self.rank, _orthonormal(null)
        wrong = self.leading().solved(self.image(found)[:, :rank])
        return _orthonormal(found.index_add_(1, self.columns[:rank], wrong, alpha=-1))

    def image(self, directions: torch.Tensor) -> torch.Tensor:
        """A₁ · x for each row x, as rows."""
        directions = directions[:, self.columns]
        middle, found = torch.empty_like(directions), torch.empty_like(directions)
        for here, before, after in _panels(len(self.packed)):
            own = self.packed[here, here]
            middle[:, here] = directions[:, here] @ own.triu().T
            middle[:, here] += directions[:, after] @ self.packed[here, after].T
            found[:, here] = middle[:, here] + middle[:, here] @ own.tril(-1).T
            found[:, here] += middle[:, before] @ self.packed[here, before].T
        return found

    def solved(self, directions: torch.Tensor) -> torch.Tensor:
        """A₁⁻¹ · x for each row x, as rows."""
        found, packed = directions.clone(), self.packed
        for here, before, _ in _panels(len(packed)):
            own = found[:, here] - found[:, before] @ packed[here, before].T
            found[:, here] = _divided(own, packed[here, here].T, upper=True, unitriangular=True)
        self._divide_by_upper(found)
        return torch.empty_like(found).index_copy_(1, self.columns, found)

    def _divide_by_upper(self, found: torch.Tensor) -> None:
        """U⁻¹ · x for each row x, in place."""
        for here, _, after in reversed(_panels(len(self.packed))):
            own = found[:, here] - found[:, after] @ self.packed[here, after].T
            found[:, here] = _divided(own, self._upper(here).T, upper=False)

    def solved_transposed(self, directions: torch.Tensor) -> torch.Tensor:
        """A₁⁻ᵀ · x for each row x, as rows."""
        found, packed = directions[:, self.columns], self.packed
        for here, _, after in _panels(len(packed)):
            own = _divided(found[:, here], self._upper(here), upper=True)
            found[:, here] = own
            found[:, after] -= own @ packed[here, after]
        for here, before, _ in reversed(_panels(len(packed))):
            own = _divided(found[:, here], packed[here, here], upper=False, unitriangular=True)
            found[:, here] = own
            found[:, before] -= own @ packed[here, before]
        return found

    def _upper(self, here: slice) -> torch.Tensor:
        """A block of U on the diagonal, with rounding instead of zeros."""
        block = self.packed[here, here].triu()
        diagonal = block.diagonal()
        diagonal.copy_(torch.where(diagonal.abs() < self.floor, self.floor, diagonal))
        return block


def _divided(rows: torch.Tensor, triangle: torch.Tensor, **options: bool) -> torch.Tensor:
    """rows · triangle⁻¹."""
    return torch.linalg.solve_triangular(triangle, rows, left=False, **options)


def _panels(size: int) -> list[tuple[slice, slice, slice]]:
    """Panels of coordinates: (those in it, those before it, those after it)."""
    return [
        (slice(k, k + PANEL), slice(0, k), slice(min(k + PANEL, size), size))
        for k in range(0, size, PANEL)
    ]


def factored(matrix: torch.Tensor, advance: Advance = ignore) -> Factors:
    """A₁·Q = L₁·U for the rows that elimination chooses; the matrix is overwritten.

    There must be as many rows as columns, or more.
    """
    width = matrix.shape[1]
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(_PROBES, width, generator=generator, dtype=matrix.dtype)
    step = max(1, int(STEP / (2 * max(1, probes.numel()))))
    expected = torch.cat([probes @ part.T for part in matrix.split(step)], dim=1)
    order, columns = _revealed(matrix, advance)
    factors = Factors(matrix[:width], columns, 0.0)
    return replace(factors, error=_schatten(factors.image(probes) - expected[:, order[:width]]))


def _revealed(matrix: torch.Tensor, advance: Advance) -> tuple[torch.Tensor, torch.Tensor]:
    """Overwrite A by L and U, with columns that depend on those before them put last.

    Such a column has no pivot. Lifted to rounding in the middle of U, with numbers of size one
    beside it, it multiplies what is solved by 1e16, and the next one again: then the directions of
    the null space are lost in each other. And it spends a row that others need. So a block in which
    there are some changes them for the last columns, and is eliminated anew. What they have left in
    the end goes by the largest entry, and what is rounding becomes zero.

    Returns:
        Which row stands where, and which column.
    """
    order, columns = torch.arange(len(matrix)), torch.arange(matrix.shape[1])
    start, last = 0, len(columns)  # what is done ends where the first starts, what waits at last
    largest = float(torch.linalg.vector_norm(matrix, torch.inf)) if matrix.numel() else 0.0
    rounding = len(columns) * torch.finfo(matrix.dtype).eps
    while start < last:
        stop = min(start + BLOCK, last)
        below, own = matrix[start:], matrix[start:, start:stop]
        before = own.clone()
        swapped = eliminate(own, advance, PANEL)
        pivots = own.diagonal().abs()
        largest = max(largest, float(pivots.max()))
        without = start + (pivots <= rounding * largest).nonzero()[:, 0]
        if len(without):
            own.copy_(before)
            last -= len(without)
            _wait(matrix, columns, without, last)
            continue
        _take(swapped, order[start:], below[:, :start], below[:, stop:])
        _update(own, below[:, stop:], advance)
        start = stop
    _pivot_completely(matrix, start, order, columns, rounding * largest)
    return order, columns


def _wait(matrix: torch.Tensor, columns: torch.Tensor, without: torch.Tensor, last: int) -> None:
    """Change some columns for those that stand from `last` on, as many, in place."""
    there = torch.arange(last, last + len(without))
    here, there = without[~torch.isin(without, there)], there[~torch.isin(there, without)]
    _exchange(here, there, matrix.T, columns)


def _exchange(here: torch.Tensor, there: torch.Tensor, *sides: torch.Tensor) -> None:
    """Change some rows for as many others, in place."""
    for side in sides:
        side[torch.cat([here, there])] = side[torch.cat([there, here])]


def _take(order: torch.Tensor, *sides: torch.Tensor) -> None:
    """Put rows in an order, in place; those that stay are not touched."""
    moved = (order != torch.arange(len(order))).nonzero()[:, 0]
    for side in sides:
        side[moved] = side[order[moved]]


def _pivot_completely(
    matrix: torch.Tensor, start: int, order: torch.Tensor, columns: torch.Tensor, rounding: float
) -> None:
    """Go on from a column on, by the largest entry of all that is left; in place."""
    for k in range(start, len(columns)):
        rest = matrix[k:, k:]
        at = int(rest.abs().argmax())
        row, column = divmod(at, rest.shape[1])
        if abs(float(rest[row, column])) <= rounding:
            rest.zero_()
            return
        here = torch.tensor([k])
        _exchange(here, here + row, matrix, order)
        _exchange(here, here + column, matrix.T, columns)
        matrix[k + 1 :, k] /= matrix[k, k].clone()
        matrix[k + 1 :, k + 1 :].addr_(matrix[k + 1 :, k], matrix[k, k + 1 :], alpha=-1)


def _schatten(images: torch.Tensor) -> float:
    """(Σ s⁴)^¼ for the singular values s of a matrix, from its images of random directions.

    The product of two images is Σ s² a b with independent normal a and b: Σ s⁴ in the mean square.
    For rounding, which has no direction, this is a far better bound than the Frobenius norm.
    """
    products = images @ images.T
    products.diagonal().zero_()
    return float(products.norm() / (len(images) * (len(images) - 1)) ** 0.5) ** 0.5


def smallest(
    factors: Factors,
    lift: Lift,
    kept: torch.Tensor,
    ceiling: float,
    block: int = 8,
    advance: Advance = ignore,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest values of ‖A₁·x‖ / ‖lift(x)‖, ascending, and lift(x) for each.

    What A₁ takes to zero is solved for, and set aside: it would drown in rounding what is small
    beside it. For the rest, which the rows and columns with a pivot tell, block inverse iteration,
    x ← A₁⁻¹ A₁⁻ᵀ liftᵀ lift x: what is small becomes large there, so that a few steps are enough.
    The block is doubled while it is full, that is until it holds a value above the ceiling.
    Directions are rows: products with few columns are slow.

    Args:
        factors: of A₁, n columns.
        lift: an injective linear map from n coordinates to more, a projection of their inclusion.
        kept: the n of these that x stands at.
        ceiling: values up to it are wanted.
        block: how many are tried first.
        advance: is told the work of each step.

    Returns:
        (values of shape (found,), unit directions of shape (found, coordinates)).
    """
    size = len(factors.packed)
    if factors.rank == size:
        return _smallest(factors, lift, kept, ceiling, block, advance)
    flat = factors.null()
    lifted, image = _measured(factors, lift, flat)
    advance(3.0 * factors.packed.numel() * len(flat))
    known = torch.linalg.vector_norm(image, dim=0)
    places = factors.columns[: factors.rank]

    def beside(rows: torch.Tensor) -> torch.Tensor:
        found = lift(rows.new_zeros(len(rows), size).index_copy_(1, places, rows))
        return found.addmm_(found @ lifted, lifted.T, alpha=-1)

    values, found = _smallest(factors.leading(), beside, kept[places], ceiling, block, advance)
    values, order = torch.cat([known, values]).sort()
    return values, torch.cat([lifted.T, found])[order]


def _smallest(
    factors: Factors,
    lift: Lift,
    kept: torch.Tensor,
    ceiling: float,
    block: int,
    advance: Advance,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by iteration alone."""
    size = len(factors.packed)
    generator = torch.Generator().manual_seed(0)
    found = factors.packed.new_zeros(0, size)
    if not size:
        return found.new_zeros(0), lift(found)
    while True:
        block = min(block, size)
        drawn = torch.randn(block - len(found), size, generator=generator, dtype=found.dtype)
        found = torch.cat([found, drawn])
        for _ in range(_SWEEPS):
            found = _orthonormal(factors.solved_transposed(lift(found)[:, kept]))
            found = _orthonormal(factors.solved(found))
            advance(4.0 * factors.packed.numel() * block)
        lifted, image = _measured(factors, lift, found)
        _, values, turn = torch.linalg.svd(torch.linalg.qr(image).R)
        values, directions = values.flip(0), (turn @ lifted.T).flip(0)
        if block == size or float(values[-1]) > ceiling:
            return values, directions
        block *= 2


def _measured(
    factors: Factors, lift: Lift, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal columns that span lift(rows), and what A₁ makes of what they lift."""
    lifted, lengths = torch.linalg.qr(lift(rows).T)
    return lifted, _divided(factors.image(rows).T, lengths, upper=True)


def _orthonormal(rows: torch.Tensor) -> torch.Tensor:
    """The same span; after every solution, or the smallest value would drown its neighbours."""
    return torch.linalg.qr(rows.T).Q.T
