"""What no key is made for: each refusal says which factor breaks what, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paramsym.algebra import Element, Group, Trivial
from paramsym.geometry.updates import Update
from paramsym.privacy.keys.losses import Loss
from paramsym.structure.element import GroupElement
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry


def require_exact(updates: Iterable[Update], accepted: bool) -> None:
    """Raise a `ValueError` for an update that commutes in exact arithmetic only."""
    for update in updates:
        if update.inexact and not accepted:
            raise ValueError(
                f"Key.generate(optimizer={update.name!r}): {update.inexact}, so that what comes "
                "back is decoded to another network than plain training gives. An optimiser that "
                "commutes in floating-point arithmetic was expected, such as SGD or Adam. Pass "
                "inexact=True to accept the drift."
            )


def require_repeatable(symmetry: ParameterSymmetry) -> None:
    """Raise a `ValueError` if the model draws random numbers, which no unit takes along."""
    if symmetry.random:
        name, place = next(iter(symmetry.random.items()))
        raise ValueError(
            f"Key.generate(symmetry, …): the model draws random numbers by {name!r} at {place}, "
            "unit by unit, and a key moves the units but not the draws, so that training would "
            "follow another course. A model without dropout, noise or other draws in training was "
            "expected. Set its rate to zero, or make the key without an optimiser, for inference."
        )


def require_conditioned(values: Mapping[str, Any], limit: float) -> None:
    """Raise a `ValueError` for a matrix of which too many digits are lost when it is undone."""
    for name, value in values.items():
        matrix = value.matrix if isinstance(value, Element) else value
        if not isinstance(matrix, torch.Tensor) or matrix.ndim < 2:
            continue
        if not bool(matrix.isfinite().all()):
            raise ValueError(
                f"Key.of(symmetry, {{{name!r}: …}}): the matrix has entries that are not finite, "
                "and an invertible one was expected. Draw it anew."
            )
        singular = torch.linalg.svdvals(matrix.detach().to(torch.float64))
        condition = float((singular[..., 0] / singular[..., -1]).max())
        if not condition <= limit:
            raise ValueError(
                f"Key.of(symmetry, {{{name!r}: …}}): the matrix of shape {tuple(matrix.shape)} has "
                f"the condition number {condition:.1e}, above the limit of {limit:.0e}: undoing it "
                "loses as many digits. A well conditioned matrix was expected, such as an "
                "orthogonal one; or raise limit=… knowingly."
            )


def require_within(
    wanted: ParameterSymmetry,
    asked: Iterable[str],
    acting: ParameterSymmetry,
    updates: tuple[Update, ...],
    loss: Loss | None,
) -> None:
    """Raise a `ValueError` if groups were asked for that training does not commute with."""
    for space in (wanted.spaces[name] for name in asked if name in wanted.spaces):
        own = acting.spaces.get(space.name)
        allowed = own.group if own else Trivial(space.size)
        if not isinstance(space.group, Trivial) and not space.group <= allowed:
            raise _breaks(wanted, space, str(space.group), allowed, updates, loss)


def commuting_element(
    symmetry: ParameterSymmetry,
    acting: ParameterSymmetry,
    values: Mapping[str, Any],
    updates: tuple[Update, ...],
    loss: Loss | None,
) -> GroupElement:
    """The element with these values; a `ValueError` says what the model or its training forbids."""
    try:
        return acting.element(values)
    except (KeyError, ValueError) as error:
        for name, value in values.items():
            space = symmetry.spaces.get(name)
            if space is None or _is_value(acting, name, value):
                continue
            if not _is_value(symmetry, name, value):
                raise ValueError(
                    f"{error} What the model allows there is limited: {space.why or space.group}."
                ) from error
            own = acting.spaces.get(name)
            allowed = own.group if own else Trivial(space.size)
            raise _breaks(symmetry, space, "this value", allowed, updates, loss) from error
        raise


def _is_value(symmetry: ParameterSymmetry, name: str, value: Any) -> bool:
    try:
        symmetry.element({name: value})
    except (KeyError, ValueError):
        return False
    return True


def _breaks(
    symmetry: ParameterSymmetry,
    space: Space,
    what: str,
    allowed: Group,
    updates: tuple[Update, ...],
    loss: Loss | None,
) -> ValueError:
    """Which factor breaks which part of the training."""
    compared = any(space.name in f.spaces for f in symmetry.outputs.values())
    if compared and updates:
        why = _seen_by(loss)
    elif updates:
        one = next((u for u in updates if not _allows_more(u, space, allowed)), updates[0])
        carriers = ", ".join(symmetry.parameters_of(space.name)[:3])
        why = f"acts on {carriers}, and {one.name!r} {one.kind.value}"
    else:
        why = f"is more than the model allows ({space.why or 'its group is smaller'})"
    return ValueError(
        f"Key(…): {what} of the space {space.name!r} {why}. An element of {allowed} was expected "
        "there. Leave that space to Key.generate, or choose an optimiser and a loss that commute "
        "with it (commuting_subgroup shows what each of them allows)."
    )


def _seen_by(loss: Loss | None) -> str:
    if loss is None:
        return "moves the outputs, and no loss was given that would say how targets go along"
    return f"moves outputs by what the loss {loss.name!r} sees"


def _allows_more(update: Update, space: Space, allowed: Group) -> bool:
    """Whether an update by itself allows more on a space than what is left."""
    return not (space.group & update.group(space.size)) <= allowed
