"""Brackets of one gradient field, of two, and so on, until their span meets what is known."""

from __future__ import annotations

from collections.abc import Callable

from .forward import WrongDerivative
from .modular import ModularSpan
from .span import FloatSpan

_PATIENCE = 3  # levels in a row that add nothing
_FEWEST, _MOST = 4, 64  # brackets of one batch
_IDLE = 2  # batches in a row that add nothing, after which the next level is tried


class NotConserved(ValueError):
    """What a symmetry claims to be conserved is moved by a gradient field."""


def grown(
    add: Callable[[int, int], int], span: ModularSpan | FloatSpan, target: int, deepest: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Add brackets of one field, two, and so on; the rank after each level, and what is amiss.

    Args:
        add: puts a number of brackets of so many fields into the span; by how much it has grown.
        span: what they span.
        target: the rank at which the bounds meet.
        deepest: the most fields in a bracket.
    """
    ranks: list[int] = []
    reasons: tuple[str, ...] = ()
    for level in range(1, deepest + 1):
        idle = 0
        try:
            while span.rank < target and idle < _IDLE:
                count = min(max(target - span.rank + 2, _FEWEST), _MOST)
                idle = 0 if add(level, count) else idle + 1
        except WrongDerivative as error:
            reasons = (f"brackets of {level} fields are left out: {error}",)
            break
        ranks.append(span.rank)
        if span.rank >= target or (level > _PATIENCE and ranks[-1 - _PATIENCE] == ranks[-1]):
            break
    if span.rank > target:
        raise not_conserved(f"some of the {span.rank} independent brackets")
    if span.rank < target:
        grows = ""  # what one level says nothing about
        if len(ranks) > 1:
            grows = f", which {'still' if ranks[-2] < ranks[-1] else 'do not'} grow at the end"
        reasons += (
            f"{target - span.rank} directions are neither moved by brackets of up to {len(ranks)} "
            f"fields{grows}, nor held by what a symmetry conserves",
        )
    return tuple(ranks), reasons


def not_conserved(what: str) -> NotConserved:
    """The error for gradient fields that move what a symmetry is to conserve."""
    return NotConserved(
        f"count_conservation_laws(…): {what} moves what the symmetry is to conserve, but a law "
        "must be orthogonal to all of them. The symmetry is wrong or belongs to another model; "
        "check it by paramsym.verify(model, symmetry, example_inputs), or leave it out."
    )
