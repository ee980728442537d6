"""One point of every orbit, up to a compact group: gains that are one, shifts at rest, balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.finite import require_finite
from paramsym.geometry.given import numbers_of
from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.slices import sliced
from paramsym.geometry.support import supported
from paramsym.geometry.unframed import unframed_params, without_frames, zero_gains
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.gains import Unfoldable, folding
from paramsym.structure.layout import widened
from paramsym.structure.symmetry import ParameterSymmetry

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Reduced:
    """The representative of an orbit modulo a compact group.

    Attributes:
        params: the parameters there, `act(symmetry, element, …)` of those given.
        element: the group element that leads there.
        free: the same in coordinates on which a compact group acts by orthogonal maps: constants
            that the model adds are added, what stands in the frame of gains is taken out of it, and
            what nothing determines, because it stands against zeros, is zero.
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

    Returns:
        A `Reduced`.

    Raises:
        ValueError: numbers that are not finite; a tensor that is missing or of another shape than
            its type, or without numbers.

    Source: Kempf and Ness, "The length of vectors in representation spaces" (1979).
    """
    within = symmetry if within is None else within
    own = numbers_of(symmetry, params, "reduce")
    require_finite(symmetry, own, "reduce")
    start = unit(symmetry, own)
    folded = [name for name in _moved_by(start.element) if name in within.spaces]
    moved, slid, resting = sliced(within, start.params, folded, progress)
    plain = without_frames(within, start.stuck)
    free = unframed_params(within, moved, start.stuck)
    hold = {*folded, *start.stuck} & {*within.spaces}
    result = balance(plain, free, hold=hold, shifts=False, progress=progress)
    loose: dict[str, int] = {}
    if result.status is Status.UNATTAINED:
        free, loose = supported(plain, free)
        result = balance(plain, free, hold=hold, shifts=False, progress=progress)
    held = resting if result.status is Status.OPTIMAL else resting | _left(result)
    balanced, slid = (GroupElement(symmetry, step.parts) for step in (result.element, slid))
    element = balanced @ slid @ start.element
    moved = act(symmetry, balanced, moved)
    return Reduced(moved, element, result.params, start.stuck, held, loose)


def _left(result: Balanced) -> dict[str, str]:
    """What is not balanced, the steepest of it."""
    worst = max(result.moment, key=lambda name: result.moment[name], default="")
    slope = result.moment.get(worst, 0.0)
    return {worst: f"balance is {result.status}, with a slope of {slope:.1e} left"}


def unit(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> Reduced:
    """Parameters at which gains that serve as frames are one where they can be, and nothing else
    has moved."""
    stuck = zero_gains(symmetry, params)
    values: dict[str, Tensor] = {}
    frames = symmetry.frame_parameters
    for name in sorted(frames):
        try:
            own = {name: widened(params[name])}
            values |= folding(symmetry, own, name, 1.0, frames, values)[0]
        except Unfoldable:
            continue  # it stays, and what acts in its frame is taken out of it by its values
    element = symmetry.element(values) if values else GroupElement(symmetry)
    moved = act(symmetry, element, params)
    return Reduced(moved, element, unframed_params(symmetry, moved, stuck), stuck)


def _moved_by(element: GroupElement) -> list[str]:
    """The spaces that an element without slides moves."""
    return [name for part in element.parts if isinstance(part, Mapping) for name in part]
