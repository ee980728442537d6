"""Weights that are computed: adapters beside a layer, in the spellings that are in use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coverage.measure import Measured, measured

DRAWN = torch.Generator().manual_seed(4)
ROWS, COLUMNS, OUT, RANK, BATCH = 5, 4, 3, 2, 24
INPUTS = torch.randn(BATCH, COLUMNS, generator=DRAWN)


def count(model: nn.Module, inputs: Tensor = INPUTS) -> Measured:
    found = measured(model, (inputs,))
    assert found.error < 1e-9
    assert found.refuted == ()
    return found


def drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=DRAWN))


# -- entrywise products of two products ------------------------------------------------------------
Scale = Callable[[Tensor], Tensor]


class Hadamard(nn.Module):
    """A layer beside the entrywise product of two matrices of low rank."""

    def __init__(self, outputs: int, inputs: int, scale: Scale) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.scale = scale
        self.a, self.b = drawn(outputs, RANK), drawn(RANK, inputs)
        self.c, self.d = drawn(outputs, RANK), drawn(RANK, inputs)

    def forward(self, x: Tensor) -> Tensor:
        change = self.scale((self.a @ self.b) * (self.c @ self.d))
        return self.base(x) + functional.linear(x, change)


SCALES: dict[str, Scale] = {
    "a number": lambda w: 4.0 * w,
    "a constant": lambda w: w * torch.tensor(4.0),
    "a constant before": lambda w: torch.tensor(4.0) * w,
    "a constant of one entry": lambda w: w * torch.full((1, 1), 4.0),
    "by a constant": lambda w: w / torch.tensor(4.0),
    "no short fraction": lambda w: w * torch.tensor(8 / 3),
}


@pytest.mark.parametrize("name", SCALES)
def test_entrywise_products_are_absorbed_by_the_layer(name: str) -> None:
    """All entries of the four factors move freely, as the weight beside them takes up the rest."""
    scale = SCALES[name]
    model = nn.Sequential(
        Hadamard(ROWS, COLUMNS, scale), nn.Tanh(), nn.Linear(ROWS, OUT, bias=False)
    )
    found = count(model)
    assert (found.explained, found.unexplained) == (2 * RANK * (ROWS + COLUMNS), 0)


def test_a_product_with_itself_is_not_linear_in_its_factors() -> None:
    class Squared(Hadamard):
        def forward(self, x: Tensor) -> Tensor:
            product = self.a @ self.b
            return self.base(x) + functional.linear(x, torch.tensor(4.0) * (product * product))

    found = count(nn.Sequential(Squared(ROWS, COLUMNS, SCALES["a number"]), nn.Tanh()))
    assert found.explained < RANK * (ROWS + COLUMNS) + 2 * RANK * (ROWS + COLUMNS)
    assert found.unexplained > 0
