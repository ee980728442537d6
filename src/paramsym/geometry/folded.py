"""The element that makes gains of frames one, alone or together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.gains import Unfoldable, folding
from paramsym.structure.layout import widened
from paramsym.structure.origin import Diagonal, Windows
from paramsym.structure.symmetry import ParameterSymmetry


def folded(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> GroupElement:
    """The element that makes gains of frames one, where they can be.

    Some gains have a scale of their own. The scale of others moves further gains, which have to
    follow: they take turns, and where that does not end those gains stay as they are.
    """
    frames = symmetry.frame_parameters
    own = {name: widened(params[name]) for name in sorted(frames)}
    alone: dict[str, Tensor] = {}
    left: list[str] = []
    for name in own:
        try:
            alone |= folding(symmetry, own, name, 1.0, frames, alone)[0]
        except Unfoldable:
            left.append(name)
    element = symmetry.element(alone) if alone else GroupElement(symmetry)
    for name in left:
        element = _together(symmetry, own, name, element)
    return element


def _together(
    symmetry: ParameterSymmetry, own: Mapping[str, Tensor], name: str, element: GroupElement
) -> GroupElement:
    """An element that folds one more gain, and again those that its scale moves.

    The same one if that does not end.
    """
    kept = [n for n in own if n == name or _is_one(symmetry, element, own, n)]
    found = element
    for _ in range(2 * len(kept)):
        gain = next((n for n in kept if not _is_one(symmetry, found, own, n)), None)
        if gain is None:
            return found
        here = {gain: act_tensor(symmetry, found, gain, own)}
        try:
            values = _scale(symmetry, here, gain, kept)
        except Unfoldable:
            break
        found = symmetry.element(values) @ found
    return element


def _scale(
    symmetry: ParameterSymmetry, here: Mapping[str, Tensor], gain: str, kept: Collection[str]
) -> dict[str, Tensor]:
    """The scales that fold a gain: those that move no other one, if there are any."""
    try:
        return folding(symmetry, here, gain, 1.0, kept)[0]
    except Unfoldable:
        return folding(symmetry, here, gain, 1.0, {gain})[0]


def _is_one(
    symmetry: ParameterSymmetry, element: GroupElement, own: Mapping[str, Tensor], name: str
) -> bool:
    """Whether an element makes a gain one."""
    origin = symmetry.offsets.get(name, 0.0)
    if isinstance(origin, (Diagonal, Windows)):
        return False
    gain = act_tensor(symmetry, element, name, own) + origin
    return bool(((gain - 1).abs() < 1e-9).all())
