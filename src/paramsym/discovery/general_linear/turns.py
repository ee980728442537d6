"""A fixed rotation in front of a frame, which puts its jump away from given columns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .arguments import as_columns, require_real
from .reflections import Reflections, triangular


@dataclass(frozen=True)
class Turn:
    """A fixed orthogonal Q that brings chosen columns to the far side of the jump."""

    reflections: Reflections
    signs: Tensor  # (h, 1)

    def times(self, v: Tensor) -> Tensor:
        return self.signs * self.reflections.transposed(v)

    def transposed(self, v: Tensor) -> Tensor:
        return self.reflections.times(self.signs * v)


def turn_away(away: Tensor | None, margin: float, where: str) -> Turn | None:
    """Q with Q·away = −[R; 0], R upper triangular with positive diagonal."""
    if not 0 <= margin <= 2:
        raise ValueError(
            f"{where}(margin={margin}): a distance of unit vectors was expected, from 0 to 2. "
            "Leave it at 1e-3: rounding enters as its inverse."
        )
    if away is None:
        return None
    columns = as_columns(f"{where}(away)", away, "away").detach()
    found = triangular(columns, stable=True)
    signs = columns.new_ones(len(columns), 1)
    signs[: columns.shape[1], 0] = -found.triangle.diagonal().sign()
    return Turn(found.reflections, signs)


def came(columns: Tensor, turn: Turn | None, where: str) -> Tensor:
    """S as columns, which fit those that are kept away."""
    found = as_columns(where, columns)
    if turn is None:
        return found
    require_real(where, away=turn.signs, columns=columns)
    if len(found) != len(turn.signs):
        raise ValueError(
            f"{where}: columns of {len(found)} entries came, and {len(turn.signs)} were expected, "
            "as away=… has them. Make a frame for each size."
        )
    return found
