"""Gains that serve as frames, folded into the tensors that stand in them, and taken out again.

A change of basis behind a gain γ acts as γ A γ⁻¹. Every reader of such a stream is linear, or there
would be no such change; and then γ itself has a symmetry, a scale for each coordinate that γ and
its readers share: γ ↦ s γ, W ↦ W s⁻¹. With s = γ⁻¹ the gain is one, and the frame is gone. That the
function stays is what the symmetry says; nothing about norms is assumed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import torch

from paramsym.algebra import AbstractMonomial
from paramsym.structure.action import act, check_parameters
from paramsym.structure.origin import Diagonal, Windows
from paramsym.structure.pairing import rows
from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Leg


class Unfoldable(ValueError):
    """A gain that no scale of the symmetry brings where it is wanted; `what` says why."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


def unit_gains(
    symmetry: ParameterSymmetry,
    params: Params,
    gains: Mapping[str, torch.Tensor | float] | None = None,
) -> dict[str, Any]:
    """Parameters of the same function whose gains are one: changes of basis act without frames.

    Each gain γ is moved along its own scales s, γ ↦ s γ with the inverse in all that reads it, by
    the one element of the symmetry that brings it where it is wanted. Gains that a model stores as
    γ − 1 come out as zeros.

    Args:
        symmetry: what `find_symmetry` derived.
        params: the complete state dict, which is not modified.
        gains: the effective gains that are wanted, by the names of the parameters that hold them;
            tensors of their shape, or one number. Without it, one for every gain that serves as a
            frame. With the effective gains of before it takes the folding back.

    Returns:
        The new state dict; tensors that did not move are shared.

    Raises:
        ValueError: a gain that is zero or shall be; one that no scale of the symmetry moves by
            itself, so that some reader cannot take the factor up; a sign that the scales cannot
            change; or as `act`.
    """
    check_parameters(symmetry, params)
    frames = symmetry.frame_parameters
    wanted = dict.fromkeys(sorted(frames), 1.0) if gains is None else dict(gains)
    values: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    for name, gain in wanted.items():
        found, exact[name] = folding(symmetry, params, name, gain, {*wanted, *frames}, values)
        values |= found
    moved = act(symmetry, symmetry.element(values), params)
    for name, gain in exact.items():  # where the action brought it, up to rounding
        moved |= {n: gain for n in (name, *_aliases(symmetry, name)) if n in moved}
    return moved


def folding(
    symmetry: ParameterSymmetry,
    params: Params,
    name: str,
    gain: torch.Tensor | float,
    gains: Collection[str],
    taken: Collection[str] = (),
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The scales, by space, that bring one gain where it is wanted, and what is stored there.

    Args:
        symmetry: what `find_symmetry` derived.
        params: at least the gain.
        name: the parameter that holds it.
        gain: the effective gain that is wanted.
        gains: all gains that no other may move.
        taken: spaces that move another gain already.

    Raises:
        Unfoldable: as `unit_gains`.
    """
    frames = symmetry.frame_parameters
    if name not in symmetry.signature or name not in params:
        _refuse(name, "it is no parameter of this symmetry", "the name of a gain", frames)
    origin = symmetry.offsets.get(name, 0.0)
    if isinstance(origin, (Diagonal, Windows)):
        used = "a matrix, used as W + I" if isinstance(origin, Diagonal) else "shifted in windows"
        _refuse(name, f"it is {used}", "the name of a gain", frames)
    stored = params[name].detach()
    dtype = torch.promote_types(stored.dtype, torch.float32)
    ratio, target = _ratio(name, stored.to(dtype) + origin, gain)
    values: dict[str, torch.Tensor] = {}
    for block in symmetry.blocks[name]:
        leg = _scale_of(symmetry, block, {*gains}, {*values, *taken})
        factor = rows(block.view(ratio), leg)[..., 0]
        values[leg.space] = _root(symmetry, name, leg, factor)
    return values, (target - origin).to(stored.dtype)


def _ratio(
    name: str, now: torch.Tensor, gain: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """By what a gain is multiplied, and what it becomes."""
    target = torch.as_tensor(gain, dtype=now.dtype, device=now.device).detach()
    if target.ndim and target.shape != now.shape:
        _refuse(name, f"a tensor of shape {tuple(target.shape)} came for a gain of shape "
                f"{tuple(now.shape)}", "one effective gain for each coordinate", ())  # fmt: skip
    target = target.expand(now.shape).clone()
    for value, what in ((now, "it"), (target, "what it shall be")):
        if bool(((value == 0) | ~value.isfinite()).any()):
            _refuse(name, f"{what} has a zero or is not finite", "non-zero gains", ())
    return target / now, target


def _scale_of(symmetry: ParameterSymmetry, block: Block, gains: set[str], taken: set[str]) -> Leg:
    """The leg by which a block of a gain is scaled, entry by entry, and no other gain with it."""
    why = "no scale of the symmetry moves each of its entries"
    for leg in block.legs:
        space = symmetry.spaces[leg.space]
        scales = isinstance(space.group, AbstractMonomial) and space.group.scales and leg.power
        if not scales or space.size * symmetry.copies(leg.space) != _entries(block):
            continue
        others = gains.intersection(symmetry.parameters_of(leg.space)) - {block.parameter}
        if not others and leg.space not in taken:
            return leg
        beside = sorted(others)[0] if others else block.parameter
        why = f"the scale {leg.space!r} moves it together with entries of {beside!r}"
    _refuse(
        block.parameter,
        f"{why}, so that what reads it cannot take it up",
        "a gain with a scale of its own in the symmetry, as find_symmetry finds it for a norm that "
        "linear maps read",
        (),
    )


def _entries(block: Block) -> int:
    return torch.Size(block.shape).numel()


def _root(symmetry: ParameterSymmetry, name: str, leg: Leg, factor: torch.Tensor) -> torch.Tensor:
    """The scales whose power is this factor."""
    group = symmetry.spaces[leg.space].group
    assert isinstance(group, AbstractMonomial)
    if not (group.signs and leg.power in (1, -1)) and bool((factor < 0).any()):
        what = f"it would change its sign, but {leg.space!r}, {group}, keeps it"
        _refuse(name, what, "gains of the sign that they have", ())
    if leg.power == 1:
        return factor
    if leg.power == -1:
        return factor.reciprocal()
    return factor ** (1 / float(leg.power))


def _aliases(symmetry: ParameterSymmetry, name: str) -> list[str]:
    return [alias for alias, own in symmetry.ties.items() if own == name]


def _refuse(name: str, what: str, expected: str, near: Any) -> NoReturn:
    known = f" (the frames are {sorted(near)[:6]})" if near else ""
    message = (
        f"unit_gains(symmetry, params, …): the gain {name!r} cannot be folded: {what}. Expected "
        f"was {expected}{known}. Leave it out of gains={{name: value}}, which names those that "
        "shall change."
    )
    raise Unfoldable(message, what)
