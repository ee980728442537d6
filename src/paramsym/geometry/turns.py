"""The families of an orbit in turns, until nothing is left to gain.

Scales are a convex program, changes of basis have a closed form, shifts are least squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.geometry.bounds import standing
from paramsym.geometry.boxed import Box, certified_in_box, slack_in_box, slope_in_box
from paramsym.geometry.costs import (
    balanced_scales,
    counts,
    family_shapes,
    scaled_by,
    terms_along_scales,
)
from paramsym.geometry.finite import require_range
from paramsym.geometry.means import approaching_basis, balancing_basis
from paramsym.geometry.movers import Movers
from paramsym.geometry.newton import REACH, STEEP, Least
from paramsym.geometry.posynomial import Point, Posynomial
from paramsym.geometry.result import Part, Status
from paramsym.geometry.rotations import steepest
from paramsym.geometry.scales import best_scales
from paramsym.geometry.secants import Secants
from paramsym.geometry.sliding import ShiftNorm
from paramsym.geometry.terms import Term
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.gram import gram
from paramsym.structure.layout import widened
from paramsym.structure.needs import moved_by
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]

CERTIFIED = 1e-9  # gap relative to the cost up to which a point is called optimal
_LEVEL = 1e-10  # moments relative to the cost at which the turns end
_HALVINGS = 20
_APPROACHES = 3  # steps towards balance before a direction is called null
_FADED = 1e-12  # share of the cost: a scale on its way to no weights
_CLOSER = 0.9  # of the gap so far: rounding alone does not bring it below for long
_STEEP = 1e-15  # of the cost, for slopes along scales where bases move as well
_ROUNDING = 1e-14  # of the cost: a step that rises by less may have lowered it
_STALLED = 4  # turns that gain nothing measurable, with foresight and then without


class Reached(NamedTuple):
    """A cost, how much lower it can be, and the moments by space."""

    value: float
    gap: float
    moment: dict[str, float]


class Turns:
    """The families of one factor in turns, from its tensors, in double precision.

    What scales alone move counts by its masses, which are taken once from the given parameters:
    `origin` are the logarithms of the scales so far. `current` are the tensors that bases and
    shifts move or read as well, in double precision, where they are now.
    """

    def __init__(
        self,
        symmetry: ParameterSymmetry,
        params: Params,
        power: float,
        movers: Movers,
        tolerance: float,
        limits: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.symmetry, self.power = symmetry, power
        self.params = params
        self.movers, self.tolerance = movers, tolerance
        self.current = {n: widened(self.params[n]) for n in self._coupled()}
        self.shapes = family_shapes(symmetry, movers.scales)
        apart = [n for n in self.params if n in symmetry.blocks and n not in self.current]
        self.apart = self._terms(self.params, apart)
        self.origin: Tensor | None = None
        self.element = GroupElement(symmetry)  # the empty word, so that nothing moves in vain
        self.scales = Posynomial(self.shapes, ())
        self.box = Box.of(self.scales, limits or {})  # as seen from where the scales are
        self.before: float | None = None
        self.reached = Reached(math.inf, math.inf, {})
        self.done = 0
        self.last: Point | None = None
        self.weighing: Tensor | None = None  # scales that weigh, where scales alone are balanced
        self.unattained: set[str] = set()
        self.slid = False
        self.secants = Secants()

    def settle(self, rounds: int, progress: Callable[[str], None] | None) -> None:
        """Turns until all moments vanish, or only rounding is left of them."""
        cost = self._cost()
        if self.before is None:
            self.before = cost.here.value
            if not math.isfinite(self.before):
                require_range(self.symmetry, self.params, self.before)
        free = self._free(cost)
        least, closest, stalled = math.inf, math.inf, 0  # the first may rise, to anchored scales
        self.secants = Secants()
        for turn in range(rounds):
            # what is foreseen from rounding alone would keep the slopes from vanishing
            cost = self._leap(cost) if stalled < _STALLED else cost
            found = self._scale(cost, free, sweep=turn == 0)
            if self.weighing is None:
                self.weighing = _weighing(found.point)
            if self.current:
                self._turn_and_slide()
                cost, self.box = self._cost(), self.box.seen_from(found.point.y)
                found = self._certified(cost.here, free)
            value, gap, moment = self.reached = self._measured(found, free)
            self.done, self.last = self.done + 1, found.point
            if progress:
                progress(f"turn {self.done}: {value:.9g}")
            if not self.current:
                self.box = self.box.seen_from(found.point.y)
                break
            falls = least - value > 1e-15 * value or gap < _CLOSER * closest
            stalled = 0 if falls else stalled + 1
            least, closest = min(least, value), min(closest, gap) if falls else closest
            level = max(moment.values(), default=0.0) <= _LEVEL and gap <= CERTIFIED * value / 10
            if level or stalled == 2 * _STALLED:
                break

    def found(self) -> Part:
        """What is known of the point that was reached; no more turns can follow."""
        (value, gap, moment), before = self.reached, self.before
        assert before is not None
        self._give_up_faded()
        moment = moment | self._turning(value)
        best = gap <= CERTIFIED * value and not self.slid and not self.movers.rotations
        status = Status.OPTIMAL if best else Status.LOCAL
        self.movers.held |= standing(self.scales, self.box)
        if self.slid:  # a slide reads parameters that the element, multiplied out, rounds otherwise
            moved = self.moved()
            _, value = terms_along_scales(self.symmetry, moved, moved, (), self.power)
        return Part(
            self.element, before, value, Status.UNATTAINED if self.unattained else status, gap,
            moment, self.movers.held, self.done,
        )  # fmt: skip

    def moved(self) -> dict[str, Tensor]:
        """The given parameters, moved by the element."""
        return {n: act_tensor(self.symmetry, self.element, n, self.params) for n in self.params}

    def _turning(self, value: float) -> dict[str, float]:
        """The moments along rotations in the frames of gains."""
        if not self.movers.rotations:
            return {}
        moved = self.moved()
        sizes = {s: steepest(self.symmetry, moved, s) for s in self.movers.rotations}
        return {space: size / (value or 1.0) for space, size in sizes.items()}

    def apply(self, step: GroupElement) -> None:
        """A step of any kind."""
        self._go(step, self._moved(step))

    def _go(self, step: GroupElement, moved: dict[str, Tensor]) -> None:
        self.current, self.element = moved, step @ self.element
        self.secants.follow(step)

    def _coupled(self) -> list[str]:
        """The tensors that bases, rotations and shifts move or read."""
        bases = [*self.movers.bases, *self.movers.rotations]
        names = {n for space in bases for n in self.symmetry.parameters_of(space)}
        names |= {other for n in [*names] for other in self.symmetry.needs(n)}
        for shift in (self.symmetry.shift_of[name] for name in self.movers.shifts):
            for moved in shift.parameters:
                names |= {moved, *shift.reads(moved), *shift.reads(moved, True)}
        names = {self.symmetry.ties.get(n, n) for n in names}
        return [n for n in self.params if n in names and counts(self.params[n])]

    def _terms(self, params: Params, names: Collection[str]) -> tuple[list[Term], float]:
        return terms_along_scales(self.symmetry, params, names, self.movers.scales, self.power)

    def _cost(self) -> Posynomial:
        """The cost along scales from where the parameters are now."""
        (terms, constant), (more, fixed) = self.apart, self._terms(self.current, self.current)
        if self.origin is None:
            return Posynomial(self.shapes, [*terms, *more], constant + fixed)
        logs = self.scales.split(self.origin)
        return Posynomial(
            self.shapes, [*terms, *(t.as_from(logs) for t in more)], constant + fixed, self.origin
        )

    def _free(self, cost: Posynomial) -> Tensor:
        """1 for scales with a best value and 0 for others, which are given up."""
        free, astray = balanced_scales(cost, self.box.bounded)
        for family, why in astray.items():
            self._give_up(family, why)
        return free

    def _turn_and_slide(self) -> None:
        """Every basis and every shift to its best, one after the other."""
        for space in self.movers.bases:
            self._turn(space)
        for shift in self.movers.shifts:
            self._slide(shift)

    def _give_up(self, name: str, why: str) -> None:
        self.unattained.add(name)
        self.movers.held[name] = why

    def _give_up_faded(self) -> None:
        """Give up scales that have lost all weight, not along scales alone.

        Shifts and rotations can bring what both sides of a scale multiply to zero. That the scale
        goes there as well is no longer a point of the orbit, and the slopes say nothing there.
        """
        if self.last is None or self.weighing is None:
            return
        lost = (self.weighing & ~_weighing(self.last)).double()
        for family, part in self.scales.split(lost).items():
            if count := int(part.sum()):
                self._give_up(family, f"{count} scales go to zero as shifts or rotations move")

    def _scale(self, cost: Posynomial, free: Tensor, sweep: bool) -> Least[Point]:
        """All scales to their best values at once."""
        steep = _STEEP if self._bases else STEEP
        found, faded = best_scales(cost, free, self.box, self.tolerance, sweep, steep)
        for family, why in faded.items():
            self._give_up(family, why)
        self._rescale(cost, found.point.y)
        return found

    def _rescale(self, cost: Posynomial, y: Tensor) -> None:
        """Scales by their logarithms, as the cost counts them."""
        if cost.size:
            self.apply(scaled_by(self.symmetry, cost.split(y)))
            self.origin = cost.exponents(y)

    def _leap(self, cost: Posynomial) -> Posynomial:
        """All families to where the last turns foresee the least cost, if it is lower there."""
        step = self.secants.step()
        if not step:
            return cost
        start = self.current, self.element, self.origin
        y = self.box.nearest(cost.joined(step))
        self._rescale(cost, y)
        bases = {n: torch.linalg.matrix_exp(step[n]) for n in self._bases if n in step}
        offsets = {shift: step[shift] for shift in self.movers.shifts if shift in step}
        self.apply(self.symmetry.element({**bases, **offsets}))
        there = self._cost()
        if there.here.value <= (1 + _ROUNDING) * cost.here.value:
            self.box, self.slid = self.box.seen_from(y), self.slid or bool(offsets)
            return there
        self.current, self.element, self.origin = start
        self.secants.forget()
        return cost

    @property
    def _bases(self) -> list[str]:
        """The spaces that change basis, without those that are given up."""
        return [space for space in self.movers.bases if space not in self.unattained]

    def _certified(self, here: Point, free: Tensor) -> Least[Point]:
        """The point where the scales are, with a bound on how much lower the cost can be.

        Newton steps of the scales alone say nothing of what scales and bases gain together; the
        slopes do, as the cost is convex along both at once.
        """
        if self._bases:
            return Least(here, slack_in_box(here, free, self.box))
        return certified_in_box(here, free, self.box, self.tolerance)

    def _turn(self, space: str) -> None:
        """One space to its best bases."""
        start = self.current, self.element
        pair = gram(self.symmetry, self._counted(), space)
        basis, lost = balancing_basis(*pair)
        for _ in range(_APPROACHES):
            if not lost or not all(bool(side.any()) for side in pair):
                break
            # Far from balance small directions drown in the rounding of the Gram matrices.
            self.apply(self.symmetry.element({space: approaching_basis(*pair)}))
            pair = gram(self.symmetry, self._counted(), space)
            basis, lost = balancing_basis(*pair)
        if lost:
            self.current, self.element = start
            self._give_up(space, f"{lost} null directions, along which the norm only falls")
        else:
            self.apply(self.symmetry.element({space: basis}))

    def _slide(self, shift: str) -> None:
        """One shift to its least norm; not all are linear, so that the step may be too long.

        In turns they converge faster than all at once, which leaves the coupling to the scales.
        """
        here = ShiftNorm(self.symmetry, self.current, [shift])
        offsets = here.least()
        for _ in range(_HALVINGS if offsets else 0):
            step = self.symmetry.element(offsets)
            moved = self._moved(step)
            if ShiftNorm(self.symmetry, moved, [shift]).norm <= here.norm:
                self._go(step, moved)
                self.slid = True
                return
            offsets = {name: delta / 2 for name, delta in offsets.items()}

    def _moved(self, step: GroupElement) -> dict[str, Tensor]:
        """The tensors that are not moved by scales alone, a step further."""
        if not self.current:
            return {}
        names = {n for part in step.parts for n in moved_by(self.symmetry, part)}
        return self.current | {
            n: act_tensor(self.symmetry, step, n, self.current) for n in names & {*self.current}
        }

    def _counted(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.current.items() if n not in self.symmetry.buffers}

    def _measured(self, found: Least[Point], free: Tensor) -> Reached:
        """The cost, how much lower it may be, and the moments.

        Along a geodesic of scales and bases together, exp(A), f is convex, so that it falls by at
        most |⟨∇f, A⟩|.
        """
        here, gap = found
        size = here.value or 1.0  # where all is zero, all moments are
        slopes = {**here.f.split(slope_in_box(here, free, self.box))}
        for space in self._bases:
            covariant, dual = gram(self.symmetry, self._counted(), space)
            slopes[space] = slope = 2 * (covariant - dual)
            # the sum of the singular values is at most √n times the Frobenius norm
            sizes = torch.linalg.matrix_norm(slope)
            gap += REACH * slope.shape[-1] ** 0.5 * float(sizes.sum())
        shifts = ShiftNorm(self.symmetry, self.current, self.movers.shifts)
        slopes |= {name: 2 * slope for name, slope in shifts.slope().items()}
        self.secants.meet(slopes)
        return Reached(here.value, gap, {n: _largest(x) / size for n, x in slopes.items()})


def _weighing(point: Point) -> Tensor:
    """The scales of which both sides count against the cost, of shape (size,)."""
    return torch.minimum(point.up, point.down) > _FADED * point.value


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
