"""Shifts moved to one place of their orbit that all else that moves leaves where it is.

The least norm of everything that a shift moves depends on scales and bases. The first term of a
shift says what it moves freely, and one may ask of that alone to vanish: a bias that another bias
takes up, the mean of a matrix along an axis that no reader sees. Zeros and such means stay zero
when spaces move afterwards, so that two points of one orbit that have been brought there differ by
values of spaces alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from paramsym.geometry.costs import scales_of
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.shift import Factor, Params, Shift, Window
from paramsym.structure.sliding import projector
from paramsym.structure.symmetry import ParameterSymmetry

_SWEEPS = 8
_LEVEL = 30.0  # units in the last place: a shift by less is rounding


def sliced(
    symmetry: ParameterSymmetry,
    params: Params,
    still: Collection[str] = (),
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, Tensor], GroupElement, dict[str, str]]:
    """Parameters of the same orbit at which what shifts move freely has vanished.

    Shift by shift the offset δ is the one that takes the first term away, in the coordinates in
    which it is a plain sum: divided by the gains that stand beside δ, averaged over the axes that δ
    does not know, and projected where it acts through a projector. Shifts read what others move, so
    that they take turns until nothing is left.

    Args:
        symmetry: whose shifts they are.
        params: the complete state dict, whose gains that serve as frames are one.
        still: spaces with scales that no longer move.
        progress: called with a line for each turn.

    Returns:
        The parameters, the element that leads there, and by shift why it has not moved.
    """
    element, moved = GroupElement(symmetry), dict(params)
    held: dict[str, str] = {}
    for turn in range(_SWEEPS):
        slid = 0
        for shift in symmetry.shifts:
            if shift.name in held or not shift.size:
                continue
            found = _offset(symmetry, shift, moved, still)
            if isinstance(found, str):
                held[shift.name] = found
                continue
            offset, size = found
            own = moved[shift.terms[0].target.parameter]
            level = _LEVEL * torch.finfo(own.dtype.to_real()).eps * size
            if float(offset.abs().max()) > (level if turn else 0.0):
                step = symmetry.element({shift.name: offset})
                moved, element, slid = act(symmetry, step, moved), step @ element, slid + 1
        if progress and slid:
            progress(f"shifts, turn {turn + 1}: {slid} moved")
        if not slid:
            break
    return moved, element, held


def _offset(
    symmetry: ParameterSymmetry, shift: Shift, params: Params, still: Collection[str]
) -> tuple[Tensor, float] | str:
    """The offset that takes the first term of a shift away, and the size of what it acts on.

    Or why there is none.
    """
    if shift.divisor is not None:
        return _transvection(shift, params)
    term = shift.terms[0]
    name = term.target.parameter
    plain = [f for f in term.factors if not f.kernel]
    kernels = [f for f in term.factors if f.kernel]
    letters = term.target.letters
    own = added(widened(params[name]), symmetry.offsets.get(name, 0.0))
    rest = term.target.view({name: own})
    if len(kernels) > 1 or any(not {*f.window.letters} <= {*letters} for f in plain):
        return "what it moves freely is no plain sum"
    for factor in plain:
        gain = _value(factor, params)
        if bool((gain == 0).any()):
            return f"{factor.window.parameter!r} has a zero, which it would be divided by"
        rest = rest / _laid(gain, factor.window.letters, letters)
    rest = rest / term.coefficient
    if kernels:
        rest, letters = _null_share(symmetry, kernels[0], params, still, rest, letters)
    if not {*shift.letters} <= {*letters}:
        return "what it moves freely is no plain sum"
    size = float(rest.abs().max()) if rest.numel() else 0.0
    mean = [k for k, letter in enumerate(letters) if letter not in shift.letters]
    kept = [letter for letter in letters if letter in shift.letters]
    rest = rest.mean(mean) if mean else rest
    return -rest.permute([kept.index(letter) for letter in shift.letters]), size


def _null_share(
    symmetry: ParameterSymmetry,
    factor: Factor,
    params: Params,
    still: Collection[str],
    rest: Tensor,
    letters: str,
) -> tuple[Tensor, str]:
    """What of a tensor lies where a projector leads, and its letters, the letter of δ among them.

    Two points of one orbit are to lose what corresponds. A rotation keeps the orthogonal
    complement of the null space of S, a scaling D does not; but it keeps C⁻¹ times the complement,
    for C the diagonal of SᵀS, and under GL(n) every complement will do.
    """
    out, into = factor.window.letters[:2]
    onto = projector(factor, params, rest)
    onto = onto.permute(*range(2, onto.ndim), 0, 1)
    if any(_is_scaled(symmetry, window, still) for window in factor.kernel):
        size = _lengths(factor, params, rest)
        left, values, _ = torch.linalg.svd(size[..., None] * onto)
        kept = left * (values > 1e-9 * values[..., :1].clamp(min=1e-300))[..., None, :]
        onto = (kept @ kept.mH) * size[..., None, :] / size[..., None]
    batch = factor.window.letters[2:]
    made = torch.einsum(onto, _places(batch + into + out), rest, _places(letters),
                        _places(letters.replace(out, into)))  # fmt: skip
    return made, letters.replace(out, into)


def _places(letters: str) -> list[int]:
    """Letters as einsum numbers them."""
    return [ord(letter) - ord("a") if letter >= "a" else ord(letter) - ord("A") + 26
            for letter in letters]  # fmt: skip


def _lengths(factor: Factor, params: Params, like: Tensor) -> Tensor:
    """The lengths of all columns of S along x, of shape (*batch, n)."""
    sizes, total = factor.window.shape[2:], 0.0
    batch = [chr(ord("A") + k) for k in range(len(sizes))]
    for window in factor.kernel:
        letters = window.letters
        view = window.view(params).to(like).abs().square()
        summed = [k for k, c in enumerate(letters) if c != "x" and c not in batch]
        view = view.sum(summed) if summed else view
        kept = [c for k, c in enumerate(letters) if k not in summed]
        view = view.permute([kept.index(c) for c in (*batch, "x") if c in kept])
        view = view[tuple(slice(None) if c in kept else None for c in (*batch, "x"))]
        total = total + view.expand(*sizes, view.shape[-1])
    root = torch.as_tensor(total).sqrt()
    return torch.where(root > 0, root, 1.0)


def _is_scaled(symmetry: ParameterSymmetry, window: Window, still: Collection[str]) -> bool:
    """Whether scales act on the letter x of a window."""
    stride = window.strides[window.letters.index("x")]
    for block in symmetry.blocks.get(window.parameter, ()):
        for leg in block.legs:
            if leg.space in still:
                continue
            axes = {leg.axis, *leg.copies}
            if scales_of(symmetry.spaces[leg.space]) and leg.power and any(
                block.strides[axis] == stride and block.shape[axis] > 1 for axis in axes
            ):  # fmt: skip
                return True
    return False


def _value(factor: Factor, params: Params) -> Tensor:
    """(window + offset)^power."""
    return (widened(factor.window.view(params)) + factor.offset) ** factor.power


def _laid(value: Tensor, own: str, letters: str) -> Tensor:
    """A tensor with dimensions of one entry for the letters that it lacks."""
    value = value.permute([own.index(letter) for letter in letters if letter in own])
    return value[tuple(slice(None) if letter in own else None for letter in letters)]


def _transvection(shift: Shift, params: Params) -> tuple[Tensor, float] | str:
    """The offset of β ↦ β − δ ⟨δ⁰, β⟩ / (1 + ⟨δ⁰, δ⟩), W ↦ W (1 + δ γ⁻ᵀ), δ⁰ = γ⁻¹, both behind γ.

    Write V = W γ and b = β/γ, and e = δ/γ: b ↦ b − e (1ᵀb) / (1 + 1ᵀe), V ↦ V + (V e) 1ᵀ.

    Where V has null vectors that are not orthogonal to ones, V 1 can be made zero. Where it has
    none, an e of sum zero first makes b parallel to ones; one along ones then multiplies V 1 by c
    and 1ᵀb by 1/c, and the norm is least where |1ᵀb| = ‖V 1‖. The sign of c makes 1ᵀb positive.
    """
    first, *readers = shift.terms
    divisor = shift.divisor or ()
    if len(divisor) != 1 or len(first.factors) != 2:
        return "it is no transvection behind one gain"
    views = [widened(term.target.view(params)) for term in readers if not term.divided]
    weight_view = torch.cat([view.reshape(-1, view.shape[-1]) for view in views])
    inverse = _value(divisor[0], params).reshape(-1)
    bias = widened(first.target.view(params)).reshape(-1) * inverse
    if not bool(inverse.isfinite().all()) or weight_view.shape[1] != len(inverse):
        return f"{divisor[0].window.parameter!r} has a zero, which it would be divided by"
    gain = 1 / inverse
    weight, ones = weight_view * gain, torch.ones_like(gain)
    level = _LEVEL * torch.finfo(params[first.target.parameter].dtype).eps
    along, total = weight @ ones, bias.sum()
    if float(along.norm()) <= level * float(weight.norm()) * len(gain):
        return 0 * gain, 1.0
    null = _null_part(weight, level)
    if float(null.sum()) > 1e-6 * len(gain):
        return gain * (null / null.sum() - ones / len(gain)), float(gain.abs().max())
    if not bool(total):
        return f"{first.target.parameter!r} has no part that it could be read from"
    size = float(gain.abs().max())
    bent = bias / total - ones / len(gain)
    if float(bent.abs().max()) > level:
        return gain * bent, size
    stretch = total.sign() * (total.abs() / along.norm()).sqrt()
    return (stretch - 1) / len(gain) * gain, size


def _null_part(weight: Tensor, level: float) -> Tensor:
    """The part of ones that a matrix sends to zero, by its smaller Gram matrix."""
    values, vectors = torch.linalg.eigh(weight.mT @ weight)
    null = vectors[:, values <= max(level, 1e-10) * values[-1]]
    return null @ null.sum(0)
