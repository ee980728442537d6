"""Which spaces and shifts an element moves, and how, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paramsym.algebra import Element
from paramsym.structure.element import GroupElement, Slide

SHIFT = "shift"
_ROUNDING = 1e-5  # scales and entries of matrices nearer to those of the identity are no moves


@dataclass(frozen=True)
class Move:
    """How one space or shift is moved: `how` in words, `units` of `of` places by an order."""

    how: str
    units: int = 0
    of: int = 0

    def __str__(self) -> str:
        return f"{self.how} ({self.units:,} of {self.of:,} units)" if self.units else self.how


def moves_of(element: GroupElement) -> dict[str, Move]:
    """What an element moves by more than rounding, by space and shift."""
    found = {name: _move(element, name) for name in element.places}
    return {name: move for name, move in found.items() if move is not None}


def _move(element: GroupElement, name: str) -> Move | None:
    slides = [part for part in element.parts if isinstance(part, Slide) and part.shift == name]
    if slides:
        large = any(bool((slide.offset.abs() > _ROUNDING).any()) for slide in slides)
        return Move(SHIFT) if large else None
    try:
        value = element[name]
    except KeyError:  # parts with something between them that does not commute
        return Move("several moves in turn")
    return None if isinstance(value, torch.Tensor) else _moved(value)


def _moved(value: Element) -> Move | None:
    """The parts of a value that differ from the identity's."""
    words: list[str] = []
    units = of = 0
    if value.order is not None:
        places = torch.arange(value.order.shape[-1], device=value.order.device)
        units, of = int((value.order != places).sum()), value.order.numel()
        words += ["order"] if units else []
    if value.diagonal is not None:
        words += _scaled(value.diagonal)
    if value.matrix is not None:
        one = torch.eye(value.matrix.shape[-1]).to(value.matrix)
        words += ["basis"] if bool(((value.matrix - one).abs() > _ROUNDING).any()) else []
    if value.base is not None and (inner := _moved(value.base)) is not None:
        words.append(f"{inner.how} within units")
    return Move(", ".join(words), units, of) if words else None


def _scaled(diagonal: torch.Tensor) -> list[str]:
    if diagonal.is_complex():
        turned = bool(((diagonal / diagonal.abs() - 1).abs() > _ROUNDING).any())
        return ["phases"] * turned + _sized(diagonal.abs())
    return ["signs"] * bool((diagonal < 0).any()) + _sized(diagonal.abs())


def _sized(modulus: torch.Tensor) -> list[str]:
    return ["scales"] if bool(((modulus - 1).abs() > _ROUNDING).any()) else []
