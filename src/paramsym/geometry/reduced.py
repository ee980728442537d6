"""One point of every orbit, up to a compact group: gains that are one, shifts at rest, balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.finite import require_finite
from paramsym.geometry.given import numbers_of
from paramsym.geometry.result import Status
from paramsym.geometry.slices import sliced
from paramsym.geometry.support import supported
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
        params: the parameters there. What nothing determines, because it stands against zeros, is
            zero in them; but for that they are `act(symmetry, element, …)` of those given.
        element: the group element that leads there.
        units: gains that are one there, so that what acts in their frames acts without.
        held: spaces, shifts and gains that could not be brought to their place, with the reason.
        loose: by space, in how many of its directions one side stands against zeros.
    """

    params: dict[str, Tensor]
    element: GroupElement
    units: frozenset[str]
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
    require_finite(symmetry, own)
    start = unit(symmetry, own)
    moved, slid, resting = sliced(within, start.params, progress)
    fixed = [name for name in _moved_by(start.element) if name in within.spaces]
    result = balance(within, moved, hold=fixed, shifts=False, progress=progress)
    loose, held = dict[str, int](), dict(start.held)
    if result.status is Status.UNATTAINED:
        moved, loose = supported(within, moved)
        result = balance(within, moved, hold=fixed, shifts=False, progress=progress)
    if result.status is not Status.OPTIMAL:
        worst = max(result.moment, key=lambda name: result.moment[name])
        held[worst] = f"balance is {result.status}, with a slope of {result.moment[worst]:.1e} left"
    balanced, slid = (GroupElement(symmetry, step.parts) for step in (result.element, slid))
    return Reduced(
        result.params, balanced @ slid @ start.element, start.units, held | resting, loose
    )


def unit(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> Reduced:
    """Parameters at which gains that serve as frames are one, and nothing else has moved."""
    folded, units, held = _folded(symmetry, params)
    return Reduced(act(symmetry, folded, params), folded, frozenset(units), held)


def _folded(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor]
) -> tuple[GroupElement, list[str], dict[str, str]]:
    """The element that makes gains which serve as frames one, and why some cannot be."""
    values: dict[str, Tensor] = {}
    units: list[str] = []
    held: dict[str, str] = {}
    frames = symmetry.frame_parameters
    for name in sorted(frames):
        try:
            found, _ = folding(symmetry, {name: widened(params[name])}, name, 1.0, frames, values)
        except Unfoldable as error:
            held[name] = f"this gain stays as it is: {error.what}"
        else:
            values |= found
            units.append(name)
    return (symmetry.element(values) if values else GroupElement(symmetry)), units, held


def _moved_by(element: GroupElement) -> list[str]:
    """The spaces that an element without slides moves."""
    return [name for part in element.parts if isinstance(part, Mapping) for name in part]
