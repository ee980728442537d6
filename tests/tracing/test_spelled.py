"""Functions that ask for numbers before they compute: spelled out, they are what torch computes."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import TraceError, audit, find_symmetry
from paramsym.recording.spelled import SPELLED

X, Y = torch.randn(2, 5, 7, dtype=torch.float64)
VAR = torch.rand(5, 7, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "function", "args", "kwargs"),
    [
        ("cov", torch.cov, (X,), {}),
        ("cov", torch.cov, (X[0],), {"correction": 0}),
        ("cov", torch.cov, (X + 1j * Y,), {}),
        ("corrcoef", torch.corrcoef, (X,), {}),
        ("corrcoef", torch.corrcoef, (X[0],), {}),
        ("gaussian_nll_loss", functional.gaussian_nll_loss, (X, Y, VAR), {}),
        ("gaussian_nll_loss", functional.gaussian_nll_loss, (X, Y, VAR[:, :1]), {"full": True}),
        ("gaussian_nll_loss", functional.gaussian_nll_loss, (X, Y, VAR[:, 0]), {"eps": 0.5}),
        ("gaussian_nll_loss", functional.gaussian_nll_loss, (X, Y, VAR), {"reduction": "sum"}),
        ("gaussian_nll_loss", functional.gaussian_nll_loss, (X, Y, VAR), {"reduction": "none"}),
    ],
)
def test_the_numbers_are_those_of_torch(name: str, function, args: tuple, kwargs: dict) -> None:
    torch.testing.assert_close(SPELLED[name](*args, **kwargs), function(*args, **kwargs))


class Told(nn.Module):
    """A loss of features, by its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.up, self.down = way, nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.down(torch.relu(self.up(x)))
        if self.way == "gaussian":
            return functional.gaussian_nll_loss(made, x[:, :3], made.exp())
        if self.way == "weighed":
            return torch.cov(made.T, fweights=torch.arange(1, 12))
        return torch.cov(made.T) if self.way == "cov" else torch.corrcoef(made.T)


@pytest.mark.parametrize("way", ["gaussian", "cov", "corrcoef"])
def test_a_model_that_ends_in_one_is_traced(way: str) -> None:
    torch.manual_seed(0)
    model, x = Told(way), (torch.randn(11, 4),)
    symmetry = find_symmetry(model, x)
    found = audit(model, x, symmetry=symmetry)
    assert not symmetry.unknown and not found.refuted and found.unexplained == 0


def test_weights_of_observations_are_refused_as_before() -> None:
    with pytest.raises(TraceError, match="cov"):
        find_symmetry(Told("weighed"), (torch.randn(11, 4),))
