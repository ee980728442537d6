"""Two towers that are compared: by products, angles and distances, in several spellings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coverage.measure import Measured, measured

DRAWN = torch.Generator().manual_seed(4)
INPUTS = (torch.randn(8, 3, 6, generator=DRAWN), torch.randn(8, 3, 6, generator=DRAWN))
Compare = Callable[[Tensor, Tensor], Tensor]


class Towers(nn.Module):
    """Two networks whose outputs are compared."""

    def __init__(self, compare: Compare, width: int = 4) -> None:
        super().__init__()
        self.compare = compare
        self.left = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, width))
        self.right = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.compare(self.left(x), self.right(y))


def count(compare: Compare) -> Measured:
    torch.manual_seed(0)
    found = measured(Towers(compare), INPUTS)
    assert found.error < 1e-11
    assert found.refuted == ()
    return found


PRODUCTS: dict[str, Compare] = {
    "product and sum": lambda a, b: (a * b).sum(-1),
    "einsum": lambda a, b: torch.einsum("btk,btk->bt", a, b),
    "bmm": lambda a, b: torch.bmm(a, b.mT),
    "dot": lambda a, b: torch.linalg.vecdot(a, b),
    "mean of a product": lambda a, b: (a * b).mean(dim=2, keepdim=True),
}
ANGLES: dict[str, Compare] = {
    "cosine": lambda a, b: functional.cosine_similarity(a, b, dim=-1),
    "normalised": lambda a, b: (
        (functional.normalize(a, dim=-1) * functional.normalize(b, dim=-1)).sum(-1)
    ),
    "by norms": lambda a, b: (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)),
    "all pairs": lambda a, b: functional.cosine_similarity(a[:, :, None], b[:, None], dim=-1),
}  # fmt: skip
DISTANCES: dict[str, Compare] = {
    "squares": lambda a, b: ((a - b) ** 2).sum(-1),
    "norm": lambda a, b: (a - b).norm(dim=-1),
    "cdist": torch.cdist,
    "expanded": lambda a, b: (a[:, :, None] - b[:, None]).square().sum(-1),
    "without epsilon": lambda a, b: functional.pairwise_distance(a, b, eps=0.0),
}
SCALES_OF_ANGLES = 2  # each tower has a length of its own


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_a_general_basis(name: str) -> None:
    found = count(PRODUCTS[name])
    assert (found.explained, found.unexplained) == (16, 0)


@pytest.mark.parametrize("name", ANGLES)
def test_angles_have_an_orthogonal_basis_and_two_lengths(name: str) -> None:
    found = count(ANGLES[name])
    assert (found.explained, found.unexplained) == (6 + SCALES_OF_ANGLES, 0)


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_have_motions_of_space(name: str) -> None:
    found = count(DISTANCES[name])
    assert (found.explained, found.unexplained) == (6 + 4, 0)


def test_an_epsilon_that_is_added_is_the_centre_of_the_rotations() -> None:
    """‖a − b + ε·1‖: rotations about −ε·1, as the biases of a and b take the number up."""
    found = count(lambda a, b: functional.pairwise_distance(a, b, eps=0.1))
    assert (found.explained, found.unexplained) == (6 + 4, 0)


def test_other_norms_compare_coordinates() -> None:
    for p in (1.0, 3.0):
        found = count(lambda a, b, p=p: functional.pairwise_distance(a, b, p=p, eps=0.0))
        assert found.explained <= 4
