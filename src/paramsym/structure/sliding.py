"""One tensor moved along a shift: what the shift adds to it, read off the tensors before it.

window += coefficient · Σ δ · factors / (1 + Σ δ · divisor)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from paramsym.algebra.following import is_followed, is_transformed
from paramsym.structure.belonging import require_slides
from paramsym.structure.contraction import contracted
from paramsym.structure.element import Slide
from paramsym.structure.gain_flow import gain_flow
from paramsym.structure.layout import laid_like, working_dtype
from paramsym.structure.shift import Factor, Params, Shift, Term, Window
from paramsym.structure.whole import whole


def slid(shift: Shift, slide: Slide, name: str, params: Params) -> torch.Tensor:
    """The tensor `name` after a slide, from the tensors before it that the slide reads."""
    x, delta = params[name], slide.offset
    require_slides(shift, delta, name, params)
    if why := standstill(shift, params, name):
        raise ValueError(
            f"act: {why}, so that {shift.name!r} cannot move {name!r}. Non-zero gains were "
            "expected. Hold that shift still (sample with only=…; to_scale leaves it out of an "
            "element), or prune the unit."
        )
    if slide.inverse:
        delta = _inverse_offset(shift, delta, params)
    work, mine = x.to(working_dtype(x)), False
    for term, update in shift_updates(shift, delta.to(work), params, only=name):
        work = _added(work, term.target, update.expand(term.target.shape), mine)
        mine = True
    return laid_like(work.to(x.dtype), x)


def standstill(shift: Shift, params: Params, only: str | None = None) -> str:
    """Why a shift cannot move at these parameters; nothing where it can.

    Data that sum to zero behind a gain γ are absent along γ⁻¹, to which no number leads where γ has
    a zero.

    Args:
        shift: any.
        params: what it reads; what is missing, or hidden inside a transform, is not looked at.
        only: a parameter, of which alone it is asked.
    """
    for moved in shift.parameters if only is None else (only,):
        for factor in shift.below[moved]:
            name = factor.window.parameter
            if name not in params:
                continue
            gain = factor.window.view(params)
            if is_transformed(gain) or gain.is_meta:
                continue
            inverse = powered(factor, gain.to(working_dtype(gain)))
            if not bool(inverse.isfinite().all()):
                at = [int(k) for k in (~inverse.isfinite()).nonzero()[0]]
                value = float((gain + factor.offset)[tuple(at)])
                return f"the gain {name!r} is {value:.3g} at {at}, which would be divided by"
    return ""


def shift_updates(
    shift: Shift,
    delta: torch.Tensor,
    params: Params,
    first_order: bool = False,
    only: str | None = None,
) -> Iterator[tuple[Term, torch.Tensor]]:
    """What a shift adds, term by term, to all tensors or to one.

    The divisor only matters for finite motions.
    """
    terms = shift.terms if only is None else shift.terms_of[only]
    divisor = None
    if shift.divisor is not None and not first_order and any(term.divided for term in terms):
        divisor = divided_by(shift, delta, params)
    for term in terms:
        update = term.coefficient * _einsum(
            delta, shift.letters, term.factors, term.target.letters, params,
            delta if shift.is_flow and not first_order else None,
        )  # fmt: skip
        yield term, update / divisor if term.divided and divisor is not None else update


def divided_by(shift: Shift, delta: torch.Tensor, params: Params) -> torch.Tensor:
    """1 + Σ δ · divisor, by which a finite motion divides; one where it does not."""
    if shift.divisor is None:
        return torch.ones((), dtype=delta.dtype, device=delta.device)
    return 1.0 + _einsum(delta, shift.letters, shift.divisor, "", params)


def shift_pairing(shift: Shift, covector: Params, params: Params) -> torch.Tensor | None:
    """How a covector pairs with δ, the adjoint of `shift_updates` to first order, of δ's shape.

    None where the shift moves nothing that the covector names.
    """
    total = None
    for term in shift.terms:
        if term.target.parameter in covector:
            xi = term.target.view(covector).conj()
            found = _einsum(xi, term.target.letters, term.factors, shift.letters, params)
            found = term.coefficient * (found.real if found.is_complex() else found)
            total = found if total is None else total + found
    return None if total is None else total.expand(shift.shape)


def shift_size(shift: Shift, params: Params) -> float:
    """The largest entry that δ ↦ Σ δ · factors can have in any of its terms, read off the factors.

    A turn counts as one, and so does a projector, even where nothing is left of it: its entries
    are differences of numbers up to one, and what is far below them is rounding.
    """
    read = [[f for f in term.factors if not (f.kernel or f.flow)] for term in shift.terms]
    return max(
        abs(term.coefficient)
        * math.prod(float(powered(f, f.window.view(params)).abs().max()) for f in factors)
        for term, factors in zip(shift.terms, read, strict=True)
    )


def powered(factor: Factor, value: torch.Tensor) -> torch.Tensor:
    """(window + offset)^power."""
    value = value + factor.offset if factor.offset else value
    return value if factor.power == 1 else value**factor.power


def _einsum(
    delta: torch.Tensor, letters: str, factors: tuple[Factor, ...], out: str, params: Params,
    flowed: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Σ δ · factors, with the dimensions that `out` names; where a flow is to go all the way,
    `flowed` is how far, and stands in the factors instead of δ."""
    read = (params[name] for factor in factors for name in factor.reads)
    if not delta.is_complex() and any(tensor.is_complex() for tensor in read):
        delta = delta.to(delta.dtype.to_complex())
    operands = [(delta if flowed is None else torch.ones_like(delta), letters)]
    for factor in factors:
        if factor.kernel:
            value = projector(factor, params, delta)
        elif factor.flow:
            value = _flow(factor, params, delta, flowed)
        else:
            value = powered(factor, factor.window.view(params).to(delta))
        operands.append((value, factor.window.letters))
    result, present = contracted(operands, out)
    for k, letter in enumerate(out):
        if letter not in present:
            result = result.unsqueeze(k)
    return result


def _flow(
    factor: Factor, params: Params, like: torch.Tensor, flowed: torch.Tensor | None
) -> torch.Tensor:
    """What the flow of gains adds to them, or its turn; to first order where it goes nowhere."""
    gain = whole(params[factor.window.parameter]).reshape(-1) + factor.offset
    far = torch.zeros_like(gain[0]) if flowed is None else flowed.reshape(())
    found = gain_flow(gain, far, first_order=flowed is None)
    return getattr(found, factor.flow).to(like)


def projector(factor: Factor, params: Params, delta: torch.Tensor) -> torch.Tensor:
    """The projector onto what is orthogonal to all columns of some windows along their letter x.

    Its letters are those of the factor's window: (out, in), then one for each batch, which the
    windows call A, B, … in this order. It is computed in the dtype of δ, from singular vectors, as
    I − S⁺S is wrong by the rounding times the condition number of S, and readers would see that;
    it gives the derivatives alone.
    """
    batch = [chr(ord("A") + k) for k in range(len(factor.window.letters) - 2)]
    sizes = factor.window.shape[2:]
    columns = []
    for window, view in _columns(factor, params, delta):
        lead = [window.letters.index(c) for c in batch if c in window.letters]
        kept = [c in window.letters for c in batch]
        rest = [k for k, c in enumerate(window.letters) if c != "x" and c not in batch]
        view = view.permute(*lead, *rest, window.letters.index("x"))
        shape = [n if k else 1 for n, k in zip(sizes, kept, strict=True)]
        columns.append(view.reshape(*shape, -1, view.shape[-1]).expand(*sizes, -1, -1))
    stacked = torch.cat(columns, dim=-2)  # (batch …, columns, n)
    here = stacked.detach()
    _, values, right = torch.linalg.svd(here, full_matrices=False)
    level = max(here.shape[-2:]) * torch.finfo(here.dtype).eps * values[..., :1]
    right = right * (values > level)[..., None]
    found = torch.eye(here.shape[-1], dtype=here.dtype, device=here.device) - right.mH @ right
    if is_followed(stacked):
        rows = torch.linalg.pinv(stacked) @ stacked
        found = found - (rows - rows.detach())
    return found.permute(-2, -1, *range(len(batch)))


def _columns(
    factor: Factor, params: Params, delta: torch.Tensor
) -> Iterator[tuple[Window, torch.Tensor]]:
    """The windows of columns with their numbers, without what they have in common along z."""
    found: list[tuple[Window, torch.Tensor]] = []
    for window in factor.kernel:
        view = window.view(params).to(delta)
        if "x" in window.letters:
            found.append((window, view))
        else:
            columns, before = found.pop()
            inner = len(columns.letters) - 1 - columns.letters.index("z")
            found.append((columns, before * view.reshape(-1, *[1] * inner)))
    for window, view in found:
        at = window.letters.find("z")
        yield window, view if at < 0 else view - view.mean(at, keepdim=True)


def _added(x: torch.Tensor, window: Window, update: torch.Tensor, mine: bool) -> torch.Tensor:
    """A tensor with an update added in a window of it; in place if it is the caller's own."""
    if _covers(window, x):
        return (x + update.reshape(x.shape)).contiguous()
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
    return -delta / divided_by(shift, delta, params)
