"""Shifts in proportion to the tensors that they move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from paramsym.structure.element import SHIFT, GroupElement, Slide
from paramsym.structure.sliding import shift_updates


def to_scale(element: GroupElement, params: Mapping[str, torch.Tensor]) -> GroupElement:
    """The element with each shift about as large as the tensors that it moves, and not larger.

    A symmetry knows no weights, so its samples shift by a customary amount. Next to small weights
    larger shifts would cost precision, and the inverse of a small gain would cost more; next to
    large weights small ones would move next to nothing.
    """
    shifts = element.symmetry.shift_of

    def scaled(slide: Slide) -> Slide:
        worst, delta = 0.0, slide.offset / SHIFT
        for term, update in shift_updates(shifts[slide.shift], delta, params, first_order=True):
            own = _size(params[term.target.parameter]) or 0.1
            worst = max(worst, _size(update) / own)
        return replace(slide, offset=slide.offset / (SHIFT * max(1.0, worst)))

    parts = (scaled(part) if isinstance(part, Slide) else part for part in element.parts)
    return GroupElement(element.symmetry, tuple(parts))


def _size(tensor: torch.Tensor) -> float:
    """The root mean square."""
    return float(tensor.detach().abs().double().square().mean().sqrt())
