"""Torch lends a number an axis where an operator asks for one: nothing is a defect of ours."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry, verify
from tests.tracing.zoo import randomise

ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda t: t.cumsum(0), "cummax": lambda t: t.cummax(0).values,
    "softmax": lambda t: t * t.softmax(0), "log softmax": lambda t: t + t.log_softmax(-1),
    "sum": lambda t: t.sum(0), "mean": lambda t: t.mean(-1), "largest": lambda t: t.amax(0),
    "sort": lambda t: t.sort(0).values, "length": lambda t: t.norm(dim=0),
    "index": lambda t: t.index_select(0, torch.tensor([0])).sum(),
    "gather": lambda t: t.gather(0, torch.tensor(0)), "place": lambda t: t * (1 + t.argmax(0)),
}  # fmt: skip


class Scaled(nn.Module):
    """Hidden units times a function of one number."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 2)
        self.number, self.function = nn.Parameter(torch.tensor(0.7)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.sin(self.function(self.number) * self.enter(x)))


@pytest.mark.parametrize("name", ALONG)
def test_a_number_has_no_axis(name: str) -> None:
    model, x = randomise(Scaled(ALONG[name])), (torch.randn(5, 3),)
    symmetry = find_symmetry(model, x)
    assert not symmetry.unknown and symmetry.spaces
    assert verify(model, symmetry, x).error < 1e-9
