"""The scales at which a cost is least, and the same made ready for many points of one symmetry.

Which blocks of which parameters a scale multiplies, and to which power, depends on no number. In a
training loop it is found once; what is left to do at each point is to add up masses and a few
products with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.geometry.bounds import Limits, standing
from paramsym.geometry.boxed import Box, least_in_box
from paramsym.geometry.costs import balanced_scales, family_shapes, readers_of, terms_read
from paramsym.geometry.finite import require_range
from paramsym.geometry.movers import Movers
from paramsym.geometry.newton import STEEP, Least, comes_to_rest
from paramsym.geometry.posynomial import Point, Posynomial
from paramsym.structure.symmetry import ParameterSymmetry

_FAR, _FADED = 10.0, 1e-12  # e-folds, and share of the cost: a scale on its way to no weights
_SINGLE = 1e-4  # tolerance from which on single precision is exact enough
_OFF = 2e-5  # of the cost: what the rounding of slopes and masses then adds to the gap
_SHARE = 100.0  # slopes as a share of the cost, in tolerances, below which the gap is asked for


class Scaled(NamedTuple):
    """The best scales from given parameters.

    Attributes:
        logs: their logarithms by space, in the shape of the family.
        before, value: the cost at the given parameters and there.
        gap: how much lower it can be along all scales together.
        held: spaces that did not move in all their units, with the reason.
        unattained: whether there is no least value, because what `held` names would go to zero or
            to infinity.
    """

    logs: dict[str, Tensor]
    before: float
    value: float
    gap: float
    held: dict[str, str]
    unattained: bool


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
        self.readers = readers_of(symmetry, symmetry.blocks, movers.scales, power)
        self.box = Box.of(Posynomial(self.shapes, ()), limits.logs)
        self.single = tolerance >= _SINGLE
        self.steep = max(STEEP, _SHARE * tolerance)

    def least(self, params: Mapping[str, Tensor], near: bool = True) -> Scaled:
        """The scales at which the cost is least, from the parameters as they are.

        Args:
            params: the complete state dict, which is only read.
            near: whether they are next to balanced, as after a few steps of training. Then it is
                tried without sweeps, and in single precision where the tolerance admits that;
                what does not come out so is asked again.

        Raises:
            ValueError: numbers that are not finite, or whose powers overflow or vanish.
        """
        if near:
            found = self._least(params, sweep=False, single=self.single)
            ordinary = not (self.single and found.unattained)
            if ordinary and found.gap <= self.tolerance * found.value:
                return found
        return self._least(params, sweep=True, single=False)

    def _least(self, params: Mapping[str, Tensor], sweep: bool, single: bool) -> Scaled:
        terms, constant = terms_read(self.readers, params, single)
        cost = Posynomial(self.shapes, terms, constant, single=single)
        before = cost.here.value
        if not single:  # numbers that it does not hold are no reason to refuse them yet
            require_range(self.symmetry, params, before)
        free, held = balanced_scales(cost, self.box.bounded)
        off = _OFF if single else 0.0
        found, faded = best_scales(cost, free, self.box, self.tolerance - off, sweep, self.steep)
        value, y = found.point.value, found.point.y
        gap, held = found.gap + off * value, held | faded
        at_bounds = standing(cost, self.box.seen_from(y))
        return Scaled(cost.split(y), before, value, gap, at_bounds | held, bool(held))
