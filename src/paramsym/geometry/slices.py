"""Shifts moved to one place of their orbit that all else that moves leaves where it is.

The least norm of everything that a shift moves depends on scales and bases. The first term of a
shift says what it moves freely, and one may ask of that alone to vanish: a bias that another bias
takes up, the mean of a matrix along an axis that no reader sees. Zeros and such means stay zero
when spaces move afterwards, so that two points of one orbit that have been brought there differ by
values of spaces alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paramsym.geometry.transvections import LEVEL, power_of, transvection
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.gain_flow import to_the_middle
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.shift import Params, Shift, Term
from paramsym.structure.sliding import divided_by, shift_updates
from paramsym.structure.symmetry import ParameterSymmetry

_SWEEPS = 8
_NO_SUM = "what it moves freely is no plain sum"
_NO_SIZE = "what it would bring to one is zero, or no number"
_NEVER = "what it would bring to one is moved again by others"
_CALMER = 0.5  # of the last turn: a size that is to be found by turns comes to rest


def sliced(
    symmetry: ParameterSymmetry,
    params: Params,
    shifts: Sequence[Shift],
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, Tensor], GroupElement, dict[str, str]]:
    """Parameters of the same orbit at which what shifts move freely has vanished.

    Gains that flow are led to the middle of their way. Of every other shift, one by one, the offset
    δ is the one that takes the first term away, in the coordinates in
    which it is a plain sum: divided by the gains that stand beside δ, averaged over the axes that δ
    does not know, and projected where it acts through a projector. Shifts read what others move, so
    that they take turns until nothing is left.

    Args:
        symmetry: whose shifts they are.
        params: the state dict, or what the shifts move and read of it; gains that serve as frames
            are one.
        shifts: those that move; the ones that act through projectors need bases and scales that
            are balanced, as orthogonal complements are kept by nothing else.
        progress: called with a line for each turn.

    Returns:
        The parameters, the element that leads there, and by shift why it has not moved.
    """
    element, moved = GroupElement(symmetry), dict(params)
    held: dict[str, str] = {}
    sized: dict[str, tuple[float, GroupElement]] = {}  # how far what is sized went, and all of it
    for turn in range(_SWEEPS):
        slid = 0
        for shift in shifts:
            if shift.name in held or not shift.size:
                continue
            found = _offset(symmetry, shift, moved)
            if isinstance(found, str):
                held[shift.name] = found
                continue
            offset, size = found
            own = moved[shift.terms[0].target.parameter]
            level = LEVEL * torch.finfo(own.dtype.to_real()).eps * size
            far = float(offset.abs().max())
            if far > (level if turn else 0.0):
                step = symmetry.element({shift.name: offset})
                if shift.divisor is not None and not shift.kind:
                    before, steps = sized.get(shift.name, (math.inf, GroupElement(symmetry)))
                    sized[shift.name] = far, step @ steps
                    if far > _CALMER * before:
                        step, held[shift.name] = ~steps, _NEVER
                moved |= {n: act_tensor(symmetry, step, n, moved) for n in shift.parameters}
                element, slid = step @ element, slid + 1
        if progress and slid:
            progress(f"shifts, turn {turn + 1}: {slid} moved")
        if not slid:
            break
    return moved, element, held


def _offset(
    symmetry: ParameterSymmetry, shift: Shift, params: Params
) -> tuple[Tensor, float] | str:
    """The offset that takes the first term of a shift away, and the size of what it acts on.

    Or why there is none.
    """
    if shift.divisor is not None:
        return transvection(shift, params) if shift.kind else _of_one(shift, params)
    term = shift.terms[0]
    name, letters = term.target.parameter, term.target.letters
    if shift.is_flow:  # the first term moves the gains themselves
        gain = widened(params[name]).reshape(-1) + term.factors[0].offset
        apart = float(gain.sort().values.diff().min())
        size = float(gain.abs().max()) / apart if apart else 0.0
        return to_the_middle(gain).reshape(shift.shape).to(gain), size
    own = added(widened(params[name]), symmetry.offsets.get(name, 0.0))
    rest = _without_gains(term, term.target.view({name: own}) / term.coefficient, params)
    for factor in (f for f in term.factors if f.kernel):
        if own.is_complex():
            return "its projector is complex, and offsets are real"
        out, into = factor.window.letters[:2]
        letters = letters.replace(out, into)  # a projector leaves what it leads to
    if isinstance(rest, str) or not {*shift.letters} <= {*letters}:
        return rest if isinstance(rest, str) else _NO_SUM
    rest = rest.real if rest.is_complex() else rest  # offsets are real
    size = float(rest.abs().max()) if rest.numel() else 0.0
    return -_averaged(rest, letters, shift.letters), size


def _averaged(x: Tensor, letters: str, kept: str) -> Tensor:
    """The mean over the letters that are not kept, these in their order."""
    mean = [k for k, letter in enumerate(letters) if letter not in kept]
    left = [letter for letter in letters if letter in kept]
    x = x.mean(mean) if mean else x
    return x.permute([left.index(letter) for letter in kept])


def _without_gains(term: Term, rest: Tensor, params: Params) -> Tensor | str:
    """What a term moves, divided by the gains beside δ; or why it cannot be."""
    letters = term.target.letters
    for factor in (f for f in term.factors if not f.kernel):
        gain = power_of(factor, params)
        if not {*factor.window.letters} <= {*letters}:
            return _NO_SUM
        if not bool(((gain != 0) & gain.isfinite()).all()):
            return f"{factor.window.parameter!r} has a zero, which it would be divided by"
        rest = rest / _laid(gain, factor.window.letters, letters)
    return rest


def _of_one(shift: Shift, params: Params) -> tuple[Tensor, float] | str:
    """The offset with which what the first term adds for each δ becomes one, or why there is none.

    What a shift multiplies by 1 + Σ δ · divisor, or divides by it, is multiplied together.
    """
    like = widened(params[shift.terms[0].target.parameter])
    if shift.shape != (1,) or like.is_complex():
        return _NO_SUM
    step = torch.ones(1, dtype=like.dtype, device=like.device)
    _, added = next(shift_updates(shift, step, params, first_order=True))
    factor = divided_by(shift, step, params) - 1
    if added.numel() != 1 or not bool(added.any()) or not bool(factor.any()):
        return _NO_SIZE
    return (1 / added.reshape(1) - 1) / factor, 1.0


def is_projected(shift: Shift) -> bool:
    """Whether what a shift moves freely lies where a projector leads."""
    return any(factor.kernel for factor in shift.terms[0].factors)


def _laid(value: Tensor, own: str, letters: str) -> Tensor:
    """A tensor with dimensions of one entry for the letters that it lacks."""
    value = value.permute([own.index(letter) for letter in letters if letter in own])
    return value[tuple(slice(None) if letter in own else None for letter in letters)]
