"""How far two tensors are apart: as a whole, and unit by unit where units have scales of their own.

A unit may stand at any scale, so that beside the others its numbers are as small as one likes. What
is left of it is held against its own size: of its row or column where nothing mixes that with
others, of a whole head where its coordinates may change basis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.algebra.linear import GeneralLinear
from paramsym.algebra.monomial import AbstractMonomial
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Piecewise,
    Product,
    inside,
    spaces_of,
)
from paramsym.structure.pieces import cutting, plain
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.windowed import Window

Units = dict[tuple[int, ...], Tensor]  # of some axes together: for every place its unit's number


def units_of(symmetry: ParameterSymmetry, name: str) -> Units:
    """The units of a tensor that may have scales of their own; none of one that shifts move.

    Where a type says what holds in each piece of another axis, a unit lies in a piece of that one.
    """
    if is_slid(symmetry, name):
        return {}
    axes = symmetry.signature.get(name, ())
    by = cutting(axes)
    found: Units = {}
    for k, axis in enumerate(axes):
        if any(_has_size(symmetry.spaces[s]) for s in spaces_of(axis)):
            over = tuple(sorted({k, *by})) if isinstance(axis, Piecewise) else (k,)
            found[over] = _on_axes(symmetry, axes, over, k)
    return {over: units for over, units in found.items() if _many(units) > 1}


def _on_axes(
    symmetry: ParameterSymmetry, axes: Sequence[AxisType], over: tuple[int, ...], at: int
) -> Tensor:
    """The units that an axis counts, at every place of some axes."""
    sizes = symmetry.sizes
    grid = torch.zeros([axes[k].size(sizes) for k in over], dtype=torch.int64)
    for starts, types in plain(axes, sizes):
        own = _units(types[at], symmetry.spaces, sizes)
        window = grid[tuple(slice(starts[k], starts[k] + types[k].size(sizes)) for k in over)]
        window.copy_((own + _many(grid)).reshape([-1 if k == at else 1 for k in over]))
    return grid.unique(return_inverse=True)[1]


def is_slid(symmetry: ParameterSymmetry, name: str) -> bool:
    """Whether shifts move a tensor, whose numbers are rounded at the size of what is added."""
    return any(name in shift.parameters for shift in symmetry.shifts if shift.size)


def seen_through(window: Window, units: Units) -> Units:
    """The units of a tensor on the axes of a window, of which the box holds some."""
    found = {}
    for over, own in units.items():
        box = [window.box[k] for k in over]
        left = [k for k, held in zip(over, box, strict=True) if isinstance(held, tuple)]
        places = [window.axes.index(k) for k in left]
        seen = own[tuple(slice(*held) if isinstance(held, tuple) else held for held in box)]
        order = sorted(range(len(places)), key=places.__getitem__)
        if places:
            seen = seen.permute(order).unique(return_inverse=True)[1]
            found[tuple(sorted(places))] = seen
    return {over: own for over, own in found.items() if _many(own) > 1}


def _has_size(space: Space) -> bool:
    """Whether its group makes numbers larger or smaller."""
    group = space.group
    if isinstance(group, AbstractMonomial):
        return group.scales
    return isinstance(group, GeneralLinear | AbstractComplexScaling) and group.dimension > 0


def _units(axis: AxisType, spaces: Mapping[str, Space], sizes: Mapping[str, int]) -> Tensor:
    count = axis.size(sizes)
    if isinstance(axis, Fixed):
        return torch.zeros(count, dtype=torch.int64)
    if isinstance(axis, Carried):
        plain = all(isinstance(spaces[s].group, AbstractMonomial) for s, _ in axis.factors)
        return torch.arange(count) if plain else torch.zeros(count, dtype=torch.int64)
    if isinstance(axis, Product):
        return _of_product(axis.factors, spaces, sizes)
    found = torch.zeros(0, dtype=torch.int64)
    for part in inside(axis):
        inner = _units(part, spaces, sizes)
        found = torch.cat([found, inner + _many(found)])
    return found


def _of_product(
    factors: Sequence[AxisType], spaces: Mapping[str, Space], sizes: Mapping[str, int]
) -> Tensor:
    """The units of a product; of factors whose types others tell, those of each piece."""
    grid = torch.zeros([factor.size(sizes) for factor in factors], dtype=torch.int64)
    for starts, types in plain(factors, sizes):
        found = torch.zeros((), dtype=torch.int64)
        for part in types:
            inner = _units(part, spaces, sizes)
            found = found[..., None] * _many(inner) + inner
        ends = [start + part.size(sizes) for start, part in zip(starts, types, strict=True)]
        grid[tuple(map(slice, starts, ends))] = found + _many(grid)
    return grid.reshape(-1).unique(return_inverse=True)[1]


class Gap:
    """What is seen of two tensors of one shape, of which rows are added as they come.

    Attributes:
        largest: the largest difference; ∞ where whole numbers differ.
        mine, theirs, apart: the sums of squares of both, and of their difference, where both are
            finite; infinities are equal or not.
        count: the numbers that were added.
        finite: whether all of them were.
    """

    def __init__(self, units: Units, shape: Sequence[int]):
        self.largest = self.mine = self.theirs = self.apart = 0.0
        self.count, self._units, self._shape = 0, units, tuple(shape)
        self.finite = True
        self._peaks = {k: torch.zeros(_many(u), dtype=torch.float64) for k, u in units.items()}
        self._masses = {k: torch.zeros(_many(u), dtype=torch.float64) for k, u in units.items()}

    def add(self, x: Tensor, y: Tensor, low: int = 0) -> None:
        """Rows from `low` on of both, real and of one floating dtype."""
        masses = [_mass(x), _mass(y)]
        if not math.isfinite(sum(masses)):
            x, y = self._in_range(x.double(), y.double())
            masses = [_mass(x), _mass(y)]
        gap = y - x
        self.count += x.numel()
        self.mine, self.theirs = self.mine + masses[0], self.theirs + masses[1]
        self.apart += _mass(gap)
        if gap.numel():
            least, most = torch.aminmax(gap)
            self.largest = max(self.largest, -float(least), float(most))
        for over, units in self._units.items():
            own = (units[low : low + x.shape[0]] if over[0] == 0 else units).reshape(-1)
            rest = [k for k in range(x.ndim) if k not in over]
            # norms over one axis of several are ten times slower than sums
            mass = x.square().sum(rest) if rest else x.square()
            peak = torch.maximum(gap.amax(rest), -gap.amin(rest)) if rest else gap.abs()
            self._masses[over].index_add_(0, own, mass.double().reshape(-1))
            self._peaks[over].scatter_reduce_(0, own, peak.double().reshape(-1), "amax")

    def _in_range(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both without what is not finite, where they are equal or differ by more than anything."""
        finite = x.isfinite() & y.isfinite()
        self.finite &= bool(finite.all())
        if not torch.equal(x[~finite], y[~finite]):
            self.largest = math.inf
        return torch.where(finite, x, 0.0), torch.where(finite, y, 0.0)

    def relative(self, floor: float) -> float:
        """The largest difference relative to the root mean square of the first, of the tensor or
        of a unit; tensors that are smaller than a floor count as so large, and a unit that is zero
        differs from any other."""
        if self.largest in (0.0, math.inf):
            return self.largest
        if not math.isfinite(self.mine):  # squares beyond all numbers say nothing of a size
            return math.inf
        size = max(math.sqrt(self.mine / max(1, self.count)), floor)
        found = self.largest / size if size else math.inf
        for over, units in self._units.items():
            each = self.count / max(1, math.prod(self._shape[k] for k in over))
            entries = torch.bincount(units.reshape(-1), minlength=_many(units)) * each
            sizes, peaks = (self._masses[over] / entries).sqrt(), self._peaks[over]
            found = max(found, float(torch.where(peaks > 0, peaks / sizes, 0.0).max()))
        return found

    @property
    def distance(self) -> float:
        """‖a − b‖ / √(‖a‖² + ‖b‖²)."""
        both = math.sqrt(self.mine + self.theirs)
        return math.sqrt(self.apart) / both if both else 0.0


def _mass(x: Tensor) -> float:
    flat = x.reshape(-1)
    return float(torch.dot(flat, flat))


def _many(units: Tensor) -> int:
    return int(units.max()) + 1 if units.numel() else 0


def typical_size(gaps: Iterable[Gap]) -> float:
    """The median over tensors of the root mean square of the first of each two.

    The mean would be that of one unit that stands at a large scale, beside which all else is small.
    """
    sizes = [math.sqrt(g.mine / g.count) for g in gaps if g.count and math.isfinite(g.mine)]
    return median(sizes or [0.0])
