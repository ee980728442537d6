"""One point of every orbit, up to a compact group: gains that are one, shifts at rest, balance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paramsym.geometry.alike import require_symmetry, require_ties
from paramsym.geometry.balance import balance
from paramsym.geometry.costs import counts
from paramsym.geometry.finite import require_finite
from paramsym.geometry.folded import folded
from paramsym.geometry.given import numbers_of
from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.slices import is_projected, sliced
from paramsym.geometry.support import one_sided, supported
from paramsym.geometry.transvections import unreceived
from paramsym.geometry.unframed import unframed_params, without_frames, zero_gains
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.shift import Shift
from paramsym.structure.symmetry import ParameterSymmetry

Progress = Callable[[str], None]
_ALTERNATIONS = 100  # of balance and shifts through projectors, where neither can come first
_AT_REST = 1e-13, 100.0  # relative moves that are none: at least, and in units in the last place


@dataclass(frozen=True)
class Reduced:
    """The representative of an orbit modulo a compact group.

    Attributes:
        params: the parameters there, `act(symmetry, element, …)` of those given.
        element: the group element that leads there.
        free: the same in coordinates on which a compact group acts by orthogonal maps: constants
            that the model adds are added, and what stands in the frame of gains is taken out of it.
            Along bases, what nothing determines because it stands against zeros is zero.
        stuck: spaces that cannot act, in the frame of a gain with a zero, with the gain.
        held: spaces, shifts and gains that could not be brought to their place, with the reason.
        loose: by space, in how many of its directions one side stands against zeros.
    """

    params: dict[str, Tensor]
    element: GroupElement
    free: dict[str, Tensor]
    stuck: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    loose: dict[str, int] = field(default_factory=dict)


def reduce(
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor],
    progress: Progress | None = None,
    within: ParameterSymmetry | None = None,
    call: str = "reduce",
) -> Reduced:
    """The representative of an orbit modulo a compact group.

    Gains in whose frames something acts become one, sign included; what shifts move freely
    vanishes; scales, moduli and changes of basis are balanced. Two points of one orbit that have
    been reduced differ by a compact element: orders, signs, rotations, phases.

    Args:
        symmetry: derived or written by hand. Approximate families (`exact=False`) take no part.
        params: the complete state dict, which is only read.
        progress: called with a line for each step.
        within: a restriction of the symmetry; what it leaves out does not move, but for the scales
            of gains that serve as frames.
        call: the function that is named in errors.

    Returns:
        A `Reduced`.

    Raises:
        ValueError: numbers that are not finite; a tensor that is missing or of another shape than
            its type, or without numbers; tied tensors that are not equal.

    Source: Kempf and Ness, "The length of vectors in representation spaces" (1979).
    """
    require_symmetry(symmetry, call)
    within = symmetry if within is None else within
    own = numbers_of(symmetry, params, call)
    require_finite(symmetry, own, call)
    require_ties(symmetry, own, call)
    _require_floats(symmetry, own, call)
    course = _Course(symmetry, within, unit(symmetry, own), progress)
    projected = [shift for shift in within.shifts if is_projected(shift)]
    course.slide([shift for shift in within.shifts if shift not in projected])
    course.size()
    if projected:  # complements of what they lead to are told once all else is balanced
        course.balance({name for shift in projected for name in shift.parameters})
        course.slide(projected)
        for _ in range(0 if course.is_settled else _ALTERNATIONS):
            course.balance()
            if course.slide(projected) <= course.at_rest:
                break
    return course.balanced()


def _require_floats(symmetry: ParameterSymmetry, params: Mapping[str, Tensor], call: str) -> None:
    """Refuse integers where scales, bases or shifts move parameters."""
    for name in symmetry.signature:
        if name in params and name not in symmetry.buffers and symmetry.movers[name]:
            if not counts(params[name]):
                raise ValueError(
                    f"{call}(params): {name!r} is {params[name].dtype}, which cannot be scaled, "
                    "and real or complex numbers were expected. Multiply quantised weights by "
                    "their scales, and pass the result."
                )


class _Course:
    """The steps from given parameters to their representative, one after the other."""

    def __init__(
        self,
        symmetry: ParameterSymmetry,
        within: ParameterSymmetry,
        start: Reduced,
        progress: Progress | None,
    ) -> None:
        self.symmetry, self.within, self.progress = symmetry, within, progress
        self.params, self.element, self.stuck = start.params, start.element, start.stuck
        self.plain = without_frames(within, start.stuck)
        self.done = {*_moved_by(start.element), *start.stuck} & {*within.spaces}
        self.held: dict[str, str] = {}
        self.loose: dict[str, int] = {}
        kinds = [p.dtype.to_real() for p in self.params.values() if counts(p)]
        rounding = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        self.at_rest = max(_AT_REST[0], _AT_REST[1] * rounding)
        self.is_settled = False  # whether projected shifts have found all else balanced

    def _go(self, step: GroupElement, params: dict[str, Tensor] | None = None) -> None:
        own = GroupElement(self.symmetry, step.parts)
        self.params = act(self.symmetry, own, self.params) if params is None else params
        self.element = own @ self.element

    def slide(self, shifts: Sequence[Shift]) -> float:
        """What some shifts move freely vanishes; how far that moved the parameters."""
        params, element, held = sliced(self.within, self.params, shifts, self.progress)
        before = self.params
        self._go(element, params)
        self.held |= held
        return self._moved_from(before)

    def size(self) -> None:
        """What stands on one side alone gets norm one, or a Gram matrix that is one.

        With it the sum of squares less 2 log |det g| is least, which is convex along everything
        together: it takes turns with balance.
        """
        whole: set[str] = set()
        for _ in range(_ALTERNATIONS):
            free = unframed_params(self.within, self.params, self.stuck)
            step, loose, whole = one_sided(self.plain, free, self.done)
            self.loose |= loose
            before = self.params
            self._go(step)
            if not _moved_by(step) or self._moved_from(before) <= self.at_rest:
                break
            self.balance(held=whole)
        else:
            self.held["sizes"] = "what stands on one side, and the balance of the rest, do not rest"
        self.done |= whole

    def _moved_from(self, before: Mapping[str, Tensor]) -> float:
        """How far the parameters have moved, relative to their tensors."""
        pairs = [(before[n], self.params[n]) for n in self.plain.signature if n in before]
        pairs = [(x, y) for x, y in pairs if counts(x)]
        largest = max((float(x.norm()) for x, _ in pairs), default=0.0)
        least = 1e-8 * largest or 1.0  # less is rounding; where all is zero, nothing is relative
        apart = (float((x - y).norm()) / (float(x.norm()) + least) for x, y in pairs if x is not y)
        return max(apart, default=0.0)

    def balance(self, without: Collection[str] = (), held: Collection[str] = ()) -> None:
        """Scales and bases are balanced, without some parameters.

        What these leave on both sides, and whatever meets it, then has its place.
        """
        plain = replace(self.plain, buffers=(*self.plain.buffers, *without))
        free = unframed_params(self.within, self.params, self.stuck)
        empty = {n for n in plain.spaces if not {*plain.parameters_of(n)} - {*plain.buffers}}
        hold = {*self.done, *held, *empty}
        result = balance(plain, free, hold=hold, shifts=False, progress=self.progress)
        self._go(result.element)
        if without and result.status is not Status.UNATTAINED:
            self.done |= {name for name in result.moment if name in plain.spaces}
            self.is_settled = True

    def balanced(self) -> Reduced:
        """The last step: what has not been balanced is, where both sides stand."""
        seen = dict(self.params)
        for shift in (shift for shift in self.within.shifts if shift.divisor is not None):
            if made := unreceived(shift, seen):
                seen |= made
                self.loose[shift.name] = shift.dimension
        free = unframed_params(self.within, seen, self.stuck)
        result = balance(self.plain, free, hold=self.done, shifts=False, progress=self.progress)
        if result.status is Status.UNATTAINED:
            free, lost = supported(self.plain, free, bases_only=True)
            self.loose |= lost
            if lost:
                result = balance(
                    self.plain, free, hold=self.done, shifts=False, progress=self.progress
                )
        if result.status is not Status.OPTIMAL and not {*result.held} <= {*self.loose, *self.done}:
            self.held |= _left(result)
        self._go(result.element)
        free = result.params
        if not self.loose:  # the same numbers, which need not be held twice
            free = unframed_params(self.within, self.params, self.stuck)
        return Reduced(self.params, self.element, free, self.stuck, self.held, self.loose)


def _left(result: Balanced) -> dict[str, str]:
    """What is not balanced, the steepest of it."""
    if not result.moment:
        return dict(result.held)
    worst = max(result.moment, key=lambda name: result.moment[name])
    slope = result.moment[worst]
    return {worst: f"balance is {result.status}, with a slope of {slope:.1e} left"}


def alongside(symmetry: ParameterSymmetry, point: Reduced, params: Mapping[str, Tensor]) -> Reduced:
    """Other parameters moved by the element that reduces a point, as they come to lie beside it.

    Small differences of the two stay small, whereas those between their own representatives need
    not: what is nearly not determined is brought to its place by large steps.
    """
    moved = act(symmetry, point.element, params)
    stuck = point.stuck | zero_gains(symmetry, moved)
    return replace(point, params=moved, free=unframed_params(symmetry, moved, stuck), stuck=stuck)


def unit(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> Reduced:
    """Parameters at which gains that serve as frames are one where they can be, and nothing else
    has moved."""
    stuck = zero_gains(symmetry, params)
    element = folded(symmetry, params)
    moved = act(symmetry, element, params)
    return Reduced(moved, element, unframed_params(symmetry, moved, stuck), stuck)


def _moved_by(element: GroupElement) -> list[str]:
    """The spaces that an element without slides moves."""
    return [name for part in element.parts if isinstance(part, Mapping) for name in part]
