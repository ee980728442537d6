"""The scales at which a cost is least, and the same made ready for many points of one symmetry.

Which blocks of which parameters a scale multiplies, and to which power, depends on no number. In a
training loop it is found once; what is left to do at each point is to add up masses and a few
products with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paramsym.geometry.bounds import Limits, standing
from paramsym.geometry.boxed import Box, least_in_box
from paramsym.geometry.costs import balanced_scales, family_shapes, readers_of, terms_read
from paramsym.geometry.finite import require_range
from paramsym.geometry.movers import Movers
from paramsym.geometry.newton import STEEP, Least, comes_to_rest, least_from
from paramsym.geometry.posynomial import Point, Posynomial
from paramsym.geometry.refilled import Refilled
from paramsym.structure.symmetry import ParameterSymmetry

_FAR, _FADED = 10.0, 1e-12  # e-folds, and share of the cost: a scale on its way to no weights
_REACH = 10.0  # e-folds from where training is within which no point of the orbit is better
_SHARE = 100.0  # slopes as a share of the cost, in tolerances, below which the gap is asked for


class Scaled(NamedTuple):
    """The best scales from given parameters.

    Attributes:
        logs: their logarithms by space, in the shape of the family.
        before, value: the cost at the given parameters and there.
        gap: how much lower it can be along all scales together, up to factors of e¹⁰.
        held: spaces that did not move in all their units, with the reason.
        unattained: whether there is no least value, because what `held` names would go to zero or
            to infinity.
        moves: whether any scale is not one.
    """

    logs: dict[str, Tensor]
    before: float
    value: float
    gap: float
    held: dict[str, str]
    unattained: bool
    moves: bool


def best_scales(
    cost: Posynomial, free: Tensor, box: Box, tolerance: float, sweep: bool, steep: float = STEEP
) -> tuple[Least[Point], dict[str, str]]:
    """The point at which a cost is least in a box, and by family why some scales have none.

    Arguments as in `boxed.least_in_box`.
    """
    found = least_in_box(cost, free, box, tolerance, sweep, steep)
    point, best, lost = found.point, found.point.y, {}
    if best.numel() and float(best.abs().max()) > _FAR:
        faded = (best.abs() > _FAR) & (point.curvature <= _FADED * point.value) & (free > 0)
        faded &= ~box.bounded
        if bool(faded.any()) and comes_to_rest(point, faded.double()):
            faded = torch.zeros_like(faded)
        for family, part in cost.split(faded.double()).items():
            if count := int(part.sum()):
                lost[family] = f"{count} scales go to zero or to infinity"
    return found, lost


class Scales:
    """Σ |w|^p along the scales of a symmetry, made ready to be minimised at many points.

    What `balance` does along scales alone, with a tolerance that is to be looser than its own.

    Args:
        symmetry: whose scales they are.
        power: p, one or two.
        movers: which spaces move; of these those with scales take part.
        limits: bounds on the logarithms of the scales, relative to where each call begins.
        tolerance: gap relative to the cost at which the scales are done.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, power: float, movers: Movers, limits: Limits,
        tolerance: float,
    ) -> None:  # fmt: skip
        self.symmetry, self.tolerance = symmetry, tolerance
        self.shapes = family_shapes(symmetry, movers.scales)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.readers = readers_of(symmetry, symmetry.blocks, movers.scales, power)
        self.box = Box.of(Posynomial(self.shapes, ()), limits.logs)
        self.steep = max(STEEP, _SHARE * tolerance)
        self.refilled: Refilled | None = None

    def least(self, params: Mapping[str, Tensor], near: bool = True) -> Scaled:
        """The scales at which the cost is least, from the parameters as they are.

        Args:
            params: the complete state dict, which is only read.
            near: whether they are next to balanced, as after a few steps of training. Then it is
                tried without sweeps, and in the precision of the parameters; what does not come
                out is asked again.

        Raises:
            ValueError: numbers that are not finite, or whose powers overflow or vanish.
        """
        found = self._nearby(params) if near else None
        if found is None:
            found = self._least(params, sweep=not near)
        if near and found.gap > self.tolerance * found.value:
            found = self._least(params, sweep=True)
        return found

    def _least(self, params: Mapping[str, Tensor], sweep: bool) -> Scaled:
        """In double precision, whatever the parameters are."""
        cost = Posynomial(self.shapes, *terms_read(self.readers, params))
        before = cost.here.value
        require_range(self.symmetry, params, before)
        free, held = balanced_scales(cost, self.box.bounded)
        found, faded = best_scales(cost, free, self.box, self.tolerance, sweep, self.steep)
        value, y = found.point.value, found.point.y
        held |= faded
        at_bounds = standing(cost, self.box.seen_from(y))
        return Scaled(
            cost.split(y), before, value, found.gap, at_bounds | held, bool(held), bool(y.any())
        )

    def _nearby(self, params: Mapping[str, Tensor]) -> Scaled | None:
        """In NumPy from the layout of the last point; None for what is out of the ordinary."""
        if self.refilled is None or not self.refilled.fits(params):
            self.refilled = Refilled.of(self.shapes, self.readers, params)
        if self.refilled is None or not self.box.everywhere or not self.refilled.anchored:
            return None
        off = self.refilled.rounding
        if off > self.tolerance / 2:
            return None
        with np.errstate(all="ignore"):  # what overflows is asked again in double
            f = self.refilled.read(params)
            here = f.at(np.zeros(f.lines.shape[1]))
            if not math.isfinite(here.value) or not here.sides().min(initial=1.0) > 0:
                return None
            free = np.ones_like(here.y)
            point, gap = least_from(here, free, self.tolerance - off, self.steep, _REACH)
        furthest = float(np.abs(point.y).max(initial=0.0))
        if not furthest <= _FAR:
            return None
        parts = torch.from_numpy(point.y).split_with_sizes(self.sizes)
        logs = {n: y.view(s) for (n, s), y in zip(self.shapes.items(), parts, strict=True)}
        gap += off * point.value
        return Scaled(logs, here.value, point.value, gap, {}, False, furthest > 0)
