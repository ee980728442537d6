"""The action of a parameter symmetry on parameters: the one definition, and its derivative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paramsym.arguments import checked
from paramsym.structure import blockwise
from paramsym.structure.agreed import require_agreed
from paramsym.structure.belonging import (
    require_own,
    require_shape,
    require_slides,
    require_values,
)
from paramsym.structure.element import AlgebraElement, GroupElement, Part, Slide
from paramsym.structure.legwise import Movers
from paramsym.structure.needs import Steps, moved_by, reads, steps
from paramsym.structure.shift import Params
from paramsym.structure.slices import moved_in_slices
from paramsym.structure.sliding import slid
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import any_sharded, placed_alike, placed_like, whole


def act(symmetry: ParameterSymmetry, element: GroupElement, state_dict: Params) -> dict[str, Any]:
    """Move parameters along their symmetry: the network computes the same function afterwards.

    Each axis of each tensor transforms by the representation that the signature names; shifts are
    added. Tensors that do not move are shared with the input, which is never modified; the others
    are new, with the same dtype, device and order of axes in memory (half precision is computed in
    float32). Integers and booleans may be permuted.

    A `DTensor` stays one, with its mesh and its placements. Where something acts along an axis that
    is cut, it is gathered, moved by every rank and cut again, one tensor at a time, so that all
    ranks must call this together and with one element.

    Args:
        symmetry: what `find_symmetry` derived, or a hand-written signature.
        element: from `symmetry.sample`, `AlgebraElement.exp`, or a product of such.
        state_dict: tensors by name; names outside the signature pass unchanged.

    Raises:
        ValueError: a tensor is missing or has another shape than its type; its dtype cannot carry
            the element (scales or matrices on integers, booleans, 8-bit floats or quantised
            tensors, complex factors on real numbers); the element moves spaces or shifts that the
            symmetry does not have, or by more than their groups allow; a gain that serves as a
            frame has a zero; the ranks of a mesh hold different elements.
    """
    check_parameters(symmetry, state_dict)
    require_own(symmetry, element)
    require_agreed(element, state_dict)
    moved, spread = dict(state_dict), any_sharded(state_dict.values())
    for part in element.parts:
        names = [name for name in moved_by(symmetry, part) if name in moved]
        _move(symmetry, element, part, names, moved, spread)
    for alias, name in symmetry.ties.items():
        if alias in moved and name in moved:
            moved[alias] = placed_alike(moved[name], moved[alias])
    return moved


def act_tensor(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, tensors: Params
) -> torch.Tensor:
    """One tensor of `act(symmetry, element, state_dict)`, from the tensors that it needs alone.

    A checkpoint can so be moved one tensor at a time. What comes out is equal to that entry of
    `act` to the last bit.

    Args:
        symmetry: what `find_symmetry` derived, or a hand-written signature.
        element: what moves it, as for `act`.
        name: the tensor to move; tied names give the one tensor that they share.
        tensors: at least those of `symmetry.needs(name, element)`, as they are before the move;
            a tied tensor under any of its names.

    Returns:
        The moved tensor; the one given, and not a copy, if nothing moves it.

    Raises:
        ValueError: as `act`, where a needed tensor is missing or does not fit.
    """
    name = symmetry.ties.get(name, name)
    found, state = _needed(symmetry, element, name, tensors)
    spread = any_sharded(state.values())
    for place, names in found.moved.items():
        _move(symmetry, element, element.parts[place], names, state, spread)
    return state[name]


def check_tensor(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, tensors: Params
) -> None:
    """Raise where `act_tensor` would for a tensor that is missing, has another shape than its type,
    or numbers that cannot carry the element. Arguments are its own; no number is read."""
    found, state = _needed(symmetry, element, symmetry.ties.get(name, name), tensors)
    for place, names in found.moved.items():
        part = element.parts[place]
        if isinstance(part, Slide):
            for own in names:
                require_slides(symmetry.shift_of[part.shift], part.offset, own, state)
        else:
            require_values(symmetry, element.symmetry.spaces, part, names, state)


def _needed(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, tensors: Params
) -> tuple[Steps, dict[str, torch.Tensor]]:
    """What moves one tensor, and the tensors that it needs."""
    require_own(symmetry, element)
    found = steps(symmetry, element, name)
    state = {needed: _given(symmetry, name, needed, tensors) for needed in found.names}
    require_agreed(element, state)
    return found, state


def _move(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    part: Part,
    names: Iterable[str],
    state: dict[str, torch.Tensor],
    spread: bool,
) -> None:
    """Move some tensors by one part, which reads all of them as they were before it; `spread` says
    whether some are DTensors."""
    found: dict[str, torch.Tensor] = {}
    spaces = element.symmetry.spaces  # it may be the element of a smaller group
    movers: Movers | None = None if spread else {}  # which read one and the same state
    if not isinstance(part, Slide):
        require_values(symmetry, spaces, part, names, state)
    for name in names:
        sliced = moved_in_slices(symmetry, spaces, part, name, state) if spread else None
        if sliced is not None:
            found[name] = sliced
            continue
        needed = (name, *reads(symmetry, part, name)) if spread else ()
        given = {n: whole(state[n]) for n in needed} or state
        if isinstance(part, Slide):
            made = slid(symmetry.shift_of[part.shift], part, name, given)
        else:
            made = blockwise.moved(symmetry, spaces, part, name, given, movers)
        found[name] = placed_like(made, state[name]) if spread else made
    state |= found


def check_parameters(symmetry: ParameterSymmetry, state_dict: Params) -> None:
    """Raise a `ValueError` that says which tensor does not fit its type."""
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"act(symmetry, g, params): a {type(state_dict).__name__} came, and a dict of tensors "
            "by name was expected. Pass model.state_dict()."
        )
    for name, axes in symmetry.signature.items():
        if name in state_dict:
            require_shape(symmetry, name, state_dict[name])
        elif symmetry.movers[name]:
            raise ValueError(
                f"act(symmetry, g, params): {name!r} is missing. Its type "
                f"({', '.join(map(str, axes))}) moves with the symmetry, so that it is needed. "
                f"{_wrapped(name, state_dict)}Pass the complete state_dict() of the model, or move "
                "one tensor with act_tensor."
            )


def _wrapped(name: str, state_dict: Params) -> str:
    """What to say of a name that is there behind the prefix of a wrapper."""
    found = next((n for n in state_dict if n.endswith(f".{name}")), None)
    if found is None:
        return ""
    prefix = found.removesuffix(name)
    return f"The names that came begin with {prefix!r}, as those of a wrapper do. "


def _given(symmetry: ParameterSymmetry, name: str, needed: str, tensors: Params) -> torch.Tensor:
    """A needed tensor, under any of its names."""
    for known in (needed, *symmetry.aliases.get(needed, ())):
        if known in tensors:
            require_shape(symmetry, needed, tensors[known])
            return tensors[known]
    raise ValueError(
        f"act_tensor(symmetry, element, {name!r}, tensors): {needed!r} is missing among the "
        f"{len(tensors)} tensors that came. The element reads it to move {name!r}. Pass what "
        f"symmetry.needs({name!r}, element) lists, as it is before the move."
    )


# -- first order -------------------------------------------------------------------------------


@checked
def infinitesimal(
    symmetry: ParameterSymmetry, algebra: AlgebraElement, params: Params
) -> dict[str, torch.Tensor]:
    """The velocity of the parameters under exp(t·a) at t = 0: the derivative of `act`.

    It is computed as a directional derivative of `act` itself, so that the finite and the
    infinitesimal action cannot disagree. Parameters that do not move are left out. Of DTensors the
    velocity is whole.
    """
    params = {n: whole(p) for n, p in params.items()}
    if not algebra.offsets and not any(map(symmetry.parameters_of, algebra.values)):
        return {}
    numbers = [p for p in params.values() if p.is_floating_point() or p.is_complex()]
    dtype, device = numbers[0].dtype.to_real(), numbers[0].device
    first = AlgebraElement(
        symmetry,
        {name: a.to(dtype, device) for name, a in algebra.values.items()},
        {name: delta.to(device, dtype) for name, delta in algebra.offsets.items()},
    )

    def path(time: torch.Tensor) -> dict[str, torch.Tensor]:
        moved = act(symmetry, first.exp(time), params)
        return {
            n: p for n, p in moved.items()
            if p is not params[n] and (p.is_floating_point() or p.is_complex())
        }  # fmt: skip

    zero = torch.zeros((), dtype=dtype, device=device)
    return torch.func.jvp(path, (zero,), (torch.ones_like(zero),))[1]


def act_dual(
    symmetry: ParameterSymmetry, element: GroupElement, params: Params, gradients: Params
) -> dict[str, torch.Tensor]:
    """Gradients at the moved parameters from gradients at the original ones.

    The loss is constant along orbits, so its gradient transforms by the inverse transpose of the
    derivative of the action: g ↦ (Dφ⁻¹)ᵀ g, evaluated at the moved point. For signatures without
    frames and shifts this is `act(symmetry.dual, …)`. DTensors are gathered, all of them at once,
    and the result is placed as the gradients are.
    """
    if any_sharded((*params.values(), *gradients.values())):
        require_agreed(element, {**params, **gradients})
        here, there = ({n: whole(t) for n, t in given.items()} for given in (params, gradients))
        found = act_dual(symmetry, element, here, there)
        return {n: placed_like(t, gradients[n]) for n, t in found.items()}
    moved = act(symmetry, element, params)
    names = [n for n in gradients if n not in symmetry.ties]

    def back(subset: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        returned = act(symmetry, ~element, {**moved, **subset})
        return {n: returned[n] for n in names}

    pull = torch.func.vjp(back, {n: moved[n] for n in names})[1]
    return pull({n: gradients[n] for n in names})[0]
