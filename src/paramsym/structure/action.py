"""The action of a parameter symmetry on parameters: the one definition, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from paramsym.algebra import Element
from paramsym.structure.axes import Fixed, spaces_of
from paramsym.structure.belonging import require_own
from paramsym.structure.element import AlgebraElement, GroupElement, Slide, Values
from paramsym.structure.fast import monomial_matrix
from paramsym.structure.following import is_followed, is_transformed
from paramsym.structure.layout import laid_like
from paramsym.structure.origin import added
from paramsym.structure.shift import Factor, Shift, Window
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Leg, walked

Params = Mapping[str, torch.Tensor]
_LOW = (torch.bfloat16, torch.float16)


def act(symmetry: ParameterSymmetry, element: GroupElement, state_dict: Params) -> dict[str, Any]:
    """Move parameters along their symmetry: the network computes the same function afterwards.

    Each axis of each tensor transforms by the representation that the signature names; shifts are
    added. Tensors that do not move are shared with the input, which is never modified; the others
    are new, with the same dtype and device (half precision is computed in float32).

    Args:
        symmetry: what `find_symmetry` derived, or a hand-written signature.
        element: from `symmetry.sample`, `AlgebraElement.exp`, or a product of such.
        state_dict: tensors by name; names outside the signature pass unchanged.

    Raises:
        ValueError: a tensor is missing or has another shape than its type; the element moves
            spaces or shifts that the symmetry does not have, or by more than their groups allow; a
            gain that serves as a frame has a zero.
    """
    check_parameters(symmetry, state_dict)
    require_own(symmetry, element)
    moved = dict(state_dict)
    shifts = {shift.name: shift for shift in symmetry.shifts}
    for part in element.parts:
        if isinstance(part, Slide):
            shift, delta = shifts[part.shift], part.offset
            delta = _inverse_offset(shift, delta, moved) if part.inverse else delta
            moved = _act_shift(shift, delta, moved)
        elif part:
            moved = _act_group(symmetry, part, moved)
    for alias, name in symmetry.ties.items():
        if alias in moved and name in moved:
            moved[alias] = moved[name]
    return moved


def check_parameters(symmetry: ParameterSymmetry, state_dict: Params) -> None:
    """Raise a `ValueError` that says which tensor does not fit its type."""
    for name, axes in symmetry.signature.items():
        if name not in state_dict:
            if any(True for axis in axes for _ in spaces_of(axis)):
                raise ValueError(
                    f"act(symmetry, g, params): {name!r} is missing. Its type "
                    f"({', '.join(map(str, axes))}) moves with the symmetry, so that it is needed. "
                    "Pass the complete state_dict() of the model."
                )
            continue
        wanted, shape = symmetry.shape(name), tuple(state_dict[name].shape)
        if wanted != shape:
            raise ValueError(
                f"act(symmetry, g, params): {name!r} has shape {shape}, but its type "
                f"({', '.join(map(str, axes))}) needs {wanted}. Was the symmetry inferred from "
                "another model?"
            )


# -- groups ------------------------------------------------------------------------------------


def _act_group(symmetry: ParameterSymmetry, values: Values, params: Params) -> dict[str, Any]:
    moved = dict(params)
    for name, axes in symmetry.signature.items():
        if name in params and any(s in values for axis in axes for s in spaces_of(axis)):
            moved[name] = _move_tensor(symmetry, values, params, name, axes)
    return moved


def _move_tensor(
    symmetry: ParameterSymmetry, values: Values, params: Params, name: str, axes: tuple
) -> torch.Tensor:
    x = params[name]
    offset = symmetry.offsets.get(name, 0.0)
    dtype = torch.float32 if x.dtype in _LOW else x.dtype
    fast = None if offset else monomial_matrix(symmetry, values, x, axes)
    if fast is not None:
        return laid_like(fast, x)
    work = x.to(dtype)
    if offset:
        work = added(work, offset)
    mover, legs = _Mover(symmetry, values, params, dtype), iter(symmetry.blocks[name])
    work = walked(work, axes, symmetry.sizes, lambda x, *_: mover.move(x, next(legs).legs))
    if offset:
        work = added(work, -offset)
    return laid_like(work.to(x.dtype), x)


class _Mover:
    """Applies one element to the blocks of one tensor."""

    def __init__(self, symmetry, values: Values, params: Params, dtype: torch.dtype):
        self.symmetry, self.values, self.params, self.dtype = symmetry, values, params, dtype
        # a diagonal stays real for complex tensors, and is no number of integers
        real = dtype.is_floating_point or dtype.is_complex
        self.real = dtype.to_real() if real else torch.float64

    def move(self, x: torch.Tensor, legs: tuple[Leg, ...]) -> torch.Tensor:
        """Move one block, leg by leg."""
        for leg in legs:
            value = self.values.get(leg.space)
            if value is None:
                continue
            linear = value.matrix is not None or (
                value.diagonal is not None and value.diagonal.is_complex()
            )
            dual = linear and leg.power == -1
            frame = self._frame(leg, x) if leg.frame else None
            if frame is not None:
                x = x * frame if dual else x / frame
            x = self._apply(x, leg, value.to(self.real, x.device), dual)
            if frame is not None:
                x = x / frame if dual else x * frame
        return x

    def _apply(self, x: torch.Tensor, leg: Leg, value: Element, dual: bool) -> torch.Tensor:
        group, copies = self.symmetry.spaces[leg.space].group, leg.copies
        front = x.movedim(copies, tuple(range(len(copies)))) if copies else x
        at = [d for d in range(x.ndim) if d not in copies].index(leg.axis) + len(copies)
        if dual:
            moved = group.apply_dual(value, front, at)
        elif group.dimension and value.matrix is not None:
            moved = group.apply(value, front, at)
        else:
            moved = group.apply(value, front, at, leg.power)
        return moved.movedim(tuple(range(len(copies))), copies) if copies else moved

    def _frame(self, leg: Leg, x: torch.Tensor) -> torch.Tensor:
        """The diagonal in whose coordinates an axis is moved."""
        gain = torch.ones((), dtype=self.dtype, device=x.device)
        for item in leg.frame:
            factor = self.params[item.parameter].to(self.dtype) + item.offset
            gain = gain * factor.reshape(-1) ** item.exponent
        if not is_transformed(gain) and bool(((gain == 0) | ~gain.isfinite()).any()):
            raise ValueError(
                f"act: the gain {leg.frame[0]} has a zero, so that {leg.space!r} cannot be moved "
                "in its frame. Non-zero gains were expected; hold that space still (sample with "
                "only=…) or prune the unit."
            )
        return gain.reshape(-1, *[1] * (x.ndim - leg.axis - 1))


# -- shifts ------------------------------------------------------------------------------------


def _einsum(delta: torch.Tensor, letters: str, factors: tuple[Factor, ...], out: str, params):
    operands, subscripts = [delta], [letters]
    for factor in factors:
        if factor.kernel:
            operands.append(_projector(factor, params).to(delta))
            subscripts.append(factor.window.letters)
            continue
        window = factor.window.view(params).to(delta)
        if factor.offset:
            window = window + factor.offset
        operands.append(window if factor.power == 1 else window**factor.power)
        subscripts.append(factor.window.letters)
    present = "".join(c for c in out if any(c in s for s in subscripts))
    result = torch.einsum(",".join(subscripts) + "->" + present, *operands)
    for k, letter in enumerate(out):
        if letter not in present:
            result = result.unsqueeze(k)
    return result


def _projector(factor: Factor, params: Params) -> torch.Tensor:
    """The projector onto what is orthogonal to all columns of some windows along their letter x.

    Its letters are those of the factor's window: (out, in), then one for each batch, which the
    windows call A, B, … in this order.
    """
    batch = [chr(ord("A") + k) for k in range(len(factor.window.letters) - 2)]
    sizes = factor.window.shape[2:]
    columns = []
    for window in factor.kernel:
        view = window.view(params)
        lead = [window.letters.index(c) for c in batch if c in window.letters]
        kept = [c in window.letters for c in batch]
        rest = [k for k, c in enumerate(window.letters) if c != "x" and c not in batch]
        view = view.permute(*lead, *rest, window.letters.index("x"))
        shape = [n if k else 1 for n, k in zip(sizes, kept, strict=True)]
        columns.append(view.reshape(*shape, -1, view.shape[-1]).expand(*sizes, -1, -1))
    stacked = torch.cat(columns, dim=-2)  # (batch …, columns, n)
    eye = torch.eye(stacked.shape[-1], dtype=stacked.dtype, device=stacked.device)
    return (eye - torch.linalg.pinv(stacked) @ stacked).permute(
        -2, -1, *range(len(batch))
    )  # fmt: skip


def shift_updates(shift: Shift, delta: torch.Tensor, params: Params, first_order: bool = False):
    """What a shift adds, term by term; the divisor only matters for finite motions."""
    divisor = 1.0
    if shift.divisor is not None and not first_order:
        divisor = 1.0 + _einsum(delta, shift.letters, shift.divisor, "", params)
    for term in shift.terms:
        update = term.coefficient * _einsum(
            delta, shift.letters, term.factors, term.target.letters, params
        )
        yield term, update / divisor if term.divided else update


def _act_shift(shift: Shift, delta: torch.Tensor, params: Params) -> dict[str, Any]:
    first = params[shift.terms[0].target.parameter]
    dtype = torch.float32 if first.dtype in _LOW else first.dtype
    delta = delta.to(first.device, dtype)
    work: dict[str, torch.Tensor] = {}
    for term, update in shift_updates(shift, delta, params):
        name, update = term.target.parameter, update.expand(term.target.shape)
        x, mine = work.get(name, params[name].to(dtype)), name in work
        work[name] = _added(x, term.target, update, mine)
    moved = {n: laid_like(x.to(params[n].dtype), params[n]) for n, x in work.items()}
    return {**params, **moved}


def _added(x: torch.Tensor, window: Window, update: torch.Tensor, mine: bool) -> torch.Tensor:
    """A tensor with an update added in a window of it; in place if it is the caller's own."""
    if _covers(window, x):
        return x + update.reshape(x.shape)
    if not (is_followed(x) or is_followed(update)):
        x = x if mine else x.clone(memory_format=torch.contiguous_format)
        x.as_strided(window.shape, window.strides, window.start).add_(update)
        return x
    index = torch.arange(x.numel(), device=x.device).as_strided(
        window.shape, window.strides, window.start
    )
    return x.reshape(-1).index_add(0, index.reshape(-1), update.reshape(-1)).reshape(x.shape)


def _covers(window, tensor: torch.Tensor) -> bool:
    """Whether a window is the whole of a tensor, entry by entry."""
    whole = math.prod(window.shape) == tensor.numel() and window.start == 0
    return whole and _row_major(window)


def _row_major(window) -> bool:
    expected = 1
    for n, stride in zip(reversed(window.shape), reversed(window.strides), strict=True):
        if n > 1 and stride != expected:
            return False
        expected *= n
    return True


def _inverse_offset(shift: Shift, delta: torch.Tensor, params: Params) -> torch.Tensor:
    """The offset that undoes a shift: −δ, and for a transvection −δ / (1 + Σ δ·divisor)."""
    if shift.divisor is None:
        return -delta
    return -delta / (1.0 + _einsum(delta, shift.letters, shift.divisor, "", params))


# -- first order -------------------------------------------------------------------------------


def infinitesimal(
    symmetry: ParameterSymmetry, algebra: AlgebraElement, params: Params
) -> dict[str, torch.Tensor]:
    """The velocity of the parameters under exp(t·a) at t = 0: the derivative of `act`.

    It is computed as a directional derivative of `act` itself, so that the finite and the
    infinitesimal action cannot disagree. Parameters that do not move are left out.
    """
    moving = {space for axes in symmetry.signature.values() for a in axes for space in spaces_of(a)}
    if not algebra.offsets and moving.isdisjoint(algebra.values):
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
    frames and shifts this is `act(symmetry.dual, …)`.
    """
    moved = act(symmetry, element, params)
    names = [n for n in gradients if n not in symmetry.ties]

    def back(subset: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        returned = act(symmetry, ~element, {**moved, **subset})
        return {n: returned[n] for n in names}

    pull = torch.func.vjp(back, {n: moved[n] for n in names})[1]
    return pull({n: gradients[n] for n in names})[0]


__all__ = ["Fixed", "act", "act_dual", "check_parameters", "infinitesimal", "shift_updates"]
