"""The families of an orbit in turns, until nothing is left to gain.

Scales are a convex program, changes of basis have a closed form, shifts are least squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paramsym.geometry.bounds import standing
from paramsym.geometry.boxed import Box, gap_in_box, least_in_box, slope_in_box
from paramsym.geometry.costs import balanced_scales, cost_along_scales, scaled_by
from paramsym.geometry.means import approaching_basis, balancing_basis
from paramsym.geometry.movers import Movers
from paramsym.geometry.newton import REACH
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.sliding import ShiftNorm
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.gram import gram
from paramsym.structure.layout import widened
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]

CERTIFIED = 1e-9  # gap relative to the cost up to which a point is called optimal
_LEVEL = 1e-10  # moments relative to the cost at which the turns end
_HALVINGS = 20
_APPROACHES = 3  # steps towards balance before a direction is called null
_FAR, _FADED = 10.0, 1e-12  # e-folds, and share of the cost: a scale on its way to no weights
_STALLED = 4  # turns that gain nothing measurable before the rounding of the rest is accepted


class Turns:
    """The families in turns, from given parameters, in double precision."""

    def __init__(
        self,
        symmetry: ParameterSymmetry,
        params: Params,
        power: float,
        movers: Movers,
        tolerance: float,
        limits: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.symmetry, self.params, self.power = symmetry, params, power
        self.movers, self.tolerance = movers, tolerance
        self.current = {n: widened(p.detach()) for n, p in params.items()}
        self.element = symmetry.identity()
        self.limits, self.box = limits or {}, None
        self.unattained: set[str] = set()
        self.slid = False

    def run(self, rounds: int, progress: Callable[[str], None] | None) -> Balanced:
        """Turns until all moments vanish, or only rounding is left of them."""
        cost = self._cost()
        self.box = self.box or Box.of(cost, self.limits)
        free, astray = balanced_scales(cost, self.box.bounded)
        for family, why in astray.items():
            self._give_up(family, why)
        before = cost.at(torch.zeros_like(free)).value
        least = math.inf  # the first turn may rise, to where scales are anchored
        _require_range(self._counted(), before)
        done, stalled = 0, 0
        while True:
            done += 1
            self._scale(cost, free, self.box)
            for space in self.movers.bases:
                self._turn(space)
            for shift in self.movers.shifts:
                self._slide(shift)
            cost = self._cost()
            value, gap, moment = self._measured(cost, free, self.box)
            if progress:
                progress(f"turn {done}: {value:.9g}")
            stalled = stalled + 1 if least - value <= 1e-15 * value else 0
            least = min(least, value)
            level = max(moment.values(), default=0.0) <= _LEVEL and gap <= CERTIFIED * value / 10
            if level or stalled == _STALLED or done == rounds:
                break
        self.movers.held |= standing(cost, self.box)
        certified = gap <= CERTIFIED * value and not self.slid
        status = Status.OPTIMAL if certified else Status.LOCAL
        return Balanced(
            act(self.symmetry, self.element, self.params), self.element, before, value,
            Status.UNATTAINED if self.unattained else status, gap, moment, self.movers.held, done,
        )  # fmt: skip

    def _cost(self) -> Posynomial:
        return cost_along_scales(self.symmetry, self.current, self.movers.scales, self.power)

    def _give_up(self, name: str, why: str) -> None:
        self.unattained.add(name)
        self.movers.held[name] = why

    def _scale(self, cost: Posynomial, free: Tensor, box: Box) -> None:
        """All scales to their best values at once."""
        best = least_in_box(cost, free, box, self.tolerance)
        self.box = box.seen_from(best)
        point = cost.at(best)
        faded = (best.abs() > _FAR) & (point.curvature <= _FADED * point.value) & (free > 0)
        faded &= ~box.bounded
        gone = cost.split(faded.double())
        for family, part in gone.items():
            if bool(part.any()):
                self._give_up(family, f"{int(part.sum())} scales go to zero or to infinity")
        if gone:
            self._apply(scaled_by(self.symmetry, cost.split(best)))

    def _turn(self, space: str) -> None:
        """One space to its best bases."""
        start = self.current, self.element
        pair = gram(self.symmetry, self._counted(), space)
        basis, lost = balancing_basis(*pair)
        for _ in range(_APPROACHES):
            if not lost or not all(bool(side.any()) for side in pair):
                break
            # Far from balance small directions drown in the rounding of the Gram matrices.
            self._apply(self.symmetry.element({space: approaching_basis(*pair)}))
            pair = gram(self.symmetry, self._counted(), space)
            basis, lost = balancing_basis(*pair)
        if lost:
            self.current, self.element = start
            self._give_up(space, f"{lost} null directions, along which the norm only falls")
        else:
            self._apply(self.symmetry.element({space: basis}))

    def _slide(self, shift: str) -> None:
        """One shift to its least norm; not all are linear, so that the step may be too long.

        In turns they converge faster than all at once, which leaves the coupling to the scales.
        """
        here = ShiftNorm(self.symmetry, self.current, [shift])
        offsets = here.least()
        for _ in range(_HALVINGS if offsets else 0):
            step = self.symmetry.element(offsets)
            moved = act(self.symmetry, step, self.current)
            if ShiftNorm(self.symmetry, moved, [shift]).norm <= here.norm:
                self.current, self.element, self.slid = moved, step @ self.element, True
                return
            offsets = {name: delta / 2 for name, delta in offsets.items()}

    def _apply(self, step: GroupElement) -> None:
        self.current = act(self.symmetry, step, self.current)
        self.element = step @ self.element

    def _counted(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.current.items() if n not in self.symmetry.buffers}

    def _measured(
        self, cost: Posynomial, free: Tensor, box: Box
    ) -> tuple[float, float, dict[str, float]]:
        """The cost, how much lower it may be, and the moments.

        Along a geodesic exp(A) of bases f is convex, so that it falls by at most |⟨∇f, A⟩|.
        """
        here = cost.at(torch.zeros_like(free))
        size = here.value or 1.0  # where all is zero, all moments are
        slope, gap = slope_in_box(here, free, box), gap_in_box(here, free, box)
        moment = {n: _largest(part) / size for n, part in cost.split(slope).items()}
        for space in self.movers.bases:
            if space not in self.unattained:
                covariant, dual = gram(self.symmetry, self._counted(), space)
                difference = 2 * (covariant - dual)
                gap += REACH * float(torch.linalg.svdvals(difference).sum())
                moment[space] = _largest(difference) / size
        shifts = ShiftNorm(self.symmetry, self.current, self.movers.shifts)
        for name, slope in shifts.slope().items():
            moment[name] = 2 * _largest(slope) / size
        return here.value, gap, moment


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _require_range(params: Params, cost: float) -> None:
    """The squares of what counts have to be numbers of double precision."""
    sizes = [_largest(p) for p in params.values() if p.is_floating_point() or p.is_complex()]
    if not math.isfinite(cost) or (cost < 1e-290 and any(sizes)):
        raise ValueError(
            f"balance(params): the largest number is {max(sizes):.1e}, and numbers whose squares "
            "neither overflow nor vanish in float64 were expected, between 1e-145 and 1e150. "
            "Multiply the parameters by a power of two first."
        )
