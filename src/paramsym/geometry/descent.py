"""Rotations and everything else in turns: down to a point that is best nearby."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paramsym.geometry.rotations import RotationNorm
from paramsym.geometry.turns import Turns

_FALL = 1e-11  # of the cost, in one round, below which the point counts as stationary


def descend(
    turns: Turns,
    spaces: Sequence[str],
    rounds: int,
    progress: Callable[[str], None] | None,
) -> None:
    """To a point that is balanced, and at which the norm is stationary along rotations, too.

    Every step lowers the norm, so that it ends no higher than where the others are balanced alone.
    The norm has many such points along rotations, and which is found depends on the start.

    Args:
        turns: the other families, where they are balanced.
        spaces: those whose rotations take part, `Movers.rotations`.
        rounds: at most so many rounds.
        progress: called with one line per turn.
    """
    for done in range(rounds):
        before = turns.reached.value
        for space in spaces:
            turn = RotationNorm(turns.symmetry, turns.current, space).descended()
            turns.apply(turns.symmetry.element({space: turn}))
        turns.settle(1, None)
        value = turns.reached.value
        if progress:
            progress(f"rotations {done + 1}: {value:.9g}")
        if before - value <= _FALL * before:
            break
    turns.settle(rounds, progress)
