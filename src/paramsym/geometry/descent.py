"""Rotations and everything else in turns: down to a point that is best nearby."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.rotations import RotationNorm, rotation_moments
from paramsym.geometry.turns import Turns
from paramsym.structure.action import act

_FALL = 1e-11  # of the cost, in one round, below which the point counts as stationary


def descended(
    turns: Turns,
    found: Balanced,
    spaces: Sequence[str],
    rounds: int,
    progress: Callable[[str], None] | None,
) -> Balanced:
    """A point that is balanced, and at which the norm is stationary along rotations, too.

    Every step lowers the norm, so that it ends no higher than where the others are balanced alone.
    The norm has many such points along rotations, and which is found depends on the start.

    Args:
        turns: the other families, where they are balanced.
        found: what they found.
        spaces: those whose rotations take part, `Movers.rotations`.
        rounds: at most so many rounds.
        progress: called with one line per turn.
    """
    first, symmetry, value = found, turns.symmetry, found.value
    for done in range(rounds):
        for space in spaces:
            turn = RotationNorm(symmetry, turns.current, space).descended()
            step = symmetry.element({space: turn})
            turns.current = act(symmetry, step, turns.current)
            turns.element = step @ turns.element
        before, value = value, turns.run(1, None).value
        if progress:
            progress(f"rotations {done + 1}: {value:.9g}")
        if before - value <= _FALL * before:
            break
    found = turns.run(rounds, progress)
    moments = rotation_moments(symmetry, turns.current)
    moment = found.moment | {space: moments[space] for space in spaces}
    status = found.status if found.status is Status.UNATTAINED else Status.LOCAL
    return replace(found, before=first.before, status=status, moment=moment)
