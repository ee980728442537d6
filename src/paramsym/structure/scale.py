"""Shifts in proportion to the tensors that they move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from paramsym.structure.element import SHIFT, GroupElement, Slide
from paramsym.structure.shift import Shift, Term
from paramsym.structure.sliding import divided_by, shift_updates, standstill

Params = Mapping[str, torch.Tensor]


def slides_first(element: GroupElement) -> GroupElement:
    """The element of the same parts whose shifts come first, as random as it was.

    `to_scale` fits shifts to the units as they lie in the weights, and an order before them would
    put others there.
    """
    parts = sorted(element.parts, key=lambda part: not isinstance(part, Slide))
    return GroupElement(element.symmetry, tuple(parts))


def to_scale(element: GroupElement, params: Params) -> GroupElement:
    """The element with each shift about as large as what it moves, and not larger.

    A symmetry knows no weights, so its samples shift by a customary amount. Next to small weights
    larger shifts would cost precision, and the inverse of a small gain would cost more; next to
    large weights small ones would move next to nothing. Where an entry of the offset moves a unit,
    a row or column of its own, it is that unit that counts: scales may make units as different as
    they like, and the rounding of a large one next to a small one is all that is left of the small.

    What is divided by 1 + Σ δ·divisor is at most doubled.

    A shift that would divide by a gain of zero has no size that fits, and is left out.
    """
    shifts = element.symmetry.shift_of
    parts = []
    for part in element.parts:
        if not isinstance(part, Slide):
            parts.append(part)
        elif not standstill(shifts[part.shift], params):
            offset = _fitted(shifts[part.shift], part.offset / SHIFT, params)
            parts.append(replace(part, offset=offset))
    return GroupElement(element.symmetry, tuple(parts))


def _fitted(shift: Shift, delta: torch.Tensor, params: Params) -> torch.Tensor:
    """An offset, its entries first made to fit their units, and then all of them the tensors."""
    units = tuple(term for term in shift.terms if _moves_units(shift, term))
    even = torch.full_like(delta, _size(delta))  # so that entries keep their proportions
    excess = torch.ones_like(delta)
    for term, update in shift_updates(replace(shift, terms=units), even, params, first_order=True):
        own = term.target.view(params)
        whole = _size(own) or 0.1
        own, made = (_by_unit(shift, term, x) for x in (own, update.expand(own.shape)))
        own = torch.where(own > 0, own, whole)
        excess = torch.maximum(excess, (made / own).to(excess))
    delta = delta / excess
    worst = 1.0
    for term, update in shift_updates(shift, delta, params, first_order=True):
        worst = max(worst, _size(update) / (_size(params[term.target.parameter]) or 0.1))
    delta = delta / worst
    return delta / max(1.0, 2 * abs(float(divided_by(shift, delta, params)) - 1))


def _moves_units(shift: Shift, term: Term) -> bool:
    """Whether each entry of the offset moves several numbers that no other moves."""
    return bool(shift.letters) and {*shift.letters} < {*term.target.letters}


def _by_unit(shift: Shift, term: Term, x: torch.Tensor) -> torch.Tensor:
    """The root mean square for each entry of the offset, of its shape."""
    letters = term.target.letters
    kept = [letters.index(letter) for letter in shift.letters]
    rest = [k for k in range(len(letters)) if k not in kept]
    x = x.detach().abs().double().permute(*kept, *rest).flatten(len(kept))
    return x.square().mean(-1).sqrt()


def _size(tensor: torch.Tensor) -> float:
    """The root mean square."""
    return float(tensor.detach().abs().double().square().mean().sqrt())
