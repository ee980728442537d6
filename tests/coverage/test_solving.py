"""Solutions of linear systems are linear in the right side; the matrix stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.coverage.measure import measured

Solve = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

EYE = torch.eye(5)
FORMS: dict[str, Solve] = {
    "unit triangle": lambda a, b: torch.linalg.solve_triangular(
        a, b, upper=False, unitriangular=True
    ),
    "triangle": lambda a, b: torch.linalg.solve_triangular(a + 3 * EYE, b, upper=True),
    "from the right": lambda a, b: (
        torch.linalg.solve_triangular(a + 3 * EYE, b.mT, upper=True, left=False).mT
    ),
    "solve": lambda a, b: torch.linalg.solve(a + 3 * EYE, b),
    "inverse": lambda a, b: torch.linalg.inv(a + 3 * EYE) @ b,
    "exponential": lambda a, b: torch.matrix_exp(a / 9) @ b,
    "data": lambda a, b: torch.linalg.solve_triangular(
        torch.ones(5, 5).tril(), b + 0 * a[..., :1], upper=False
    ),
}


class Delta(nn.Module):
    """Values that are corrected by what keys predict of each other."""

    def __init__(self, solve: Solve):
        super().__init__()
        self.k, self.v, self.o = nn.Linear(7, 4), nn.Linear(7, 3), nn.Linear(3, 6)
        self.solve = solve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.k(x)
        return self.o(self.solve(keys @ keys.mT, self.v(x)))


@pytest.mark.parametrize("name", FORMS)
def test_bases_of_the_right_side_change(name: str) -> None:
    found = measured(Delta(FORMS[name]), (torch.randn(4, 5, 7),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    assert found.unexplained == 0
    groups = {str(space.group) for space in found.symmetry.spaces.values()}
    assert "GeneralLinear(3)" in groups
    assert name == "data" or "Orthogonal(4)" in groups


class Features(nn.Module):
    """Control: the units themselves are what a system mixes."""

    def __init__(self, solve: Solve):
        super().__init__()
        self.first, self.last = nn.Linear(7, 5), nn.Linear(5, 3)
        self.matrix, self.solve = nn.Parameter(torch.randn(5, 5)), solve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.solve(self.matrix, self.first(x).mT).mT.tanh())


@pytest.mark.parametrize("name", [name for name in FORMS if name != "data"])
def test_units_that_a_system_mixes_are_held(name: str) -> None:
    found = measured(Features(FORMS[name]), (torch.randn(4, 9, 7),))
    assert found.error < 1e-9 and not found.refuted


def test_a_clamp_between_computed_bounds_is_a_maximum() -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.o(self.a(x).clamp(min=self.b(x)))

    found = measured(Clamped(), (torch.randn(9, 4),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    assert found.explained >= 5
