"""Claims that reach into parameters below rounding: not decidable there, and never confirmed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paramsym.algebra import GeneralLinear
from paramsym.checking.audit import audit
from paramsym.checking.find import find_symmetry
from paramsym.checking.hidden import numbers_of
from paramsym.checking.jacobian import Network
from paramsym.structure.symmetry import ParameterSymmetry
from tests.tracing.networks import randomise

X = (torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),)
SPACES = ("mlp", "mlp.2", "mlp.3")


def deep(factor: float = 1.0, seed: int = 0) -> nn.Module:
    """A ReLU network of four layers, all of whose weights are multiplied by a number."""
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(),
              nn.Linear(5, 3)]  # fmt: skip
    model = randomise(nn.Sequential(*layers)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(factor)
    return model


def wrong(name: str) -> ParameterSymmetry:
    """All matrices on one space, where a ReLU lets positive diagonal ones through."""
    symmetry = find_symmetry(deep(), X)
    space = symmetry.spaces[name]
    made = replace(space, group=GeneralLinear(space.size))
    return replace(symmetry, spaces={**symmetry.spaces, name: made})


@pytest.mark.parametrize("seed", range(2))
def test_a_right_claim_is_not_refuted_where_its_columns_vanish(seed: int) -> None:
    assert audit(deep(1.0, seed), X).undecided == ()
    found = audit(deep(1e-6, seed), X)
    assert not found.refuted and found.undecided and {*found.undecided} <= {*SPACES}
    assert not found.complete and found.verdict.startswith("not decidable here: mlp")
    assert f"{found.undecided[0]} is not decidable here" in str(found)


@pytest.mark.parametrize("name", SPACES)
def test_a_wrong_claim_is_refuted_at_ordinary_weights(name: str) -> None:
    found = audit(deep(), X, symmetry=wrong(name))
    assert set(found.refuted) == {name} and found.undecided == ()


@pytest.mark.parametrize("factor", [1e-4, 1e-6])
@pytest.mark.parametrize("name", SPACES)
def test_a_wrong_claim_is_confirmed_at_no_weights(name: str, factor: float) -> None:
    found = audit(deep(factor), X, symmetry=wrong(name))
    assert name in {*found.refuted, *found.undecided} and not found.complete


class Attention(nn.Module):
    """A softmax, which does not see the bias of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).T).softmax(-1)
        return weights @ self.value(x)


def test_rounding_of_zero_is_told_from_small_numbers() -> None:
    """A bias of keys has columns of rounding; a small value's are as small, and are numbers."""
    torch.manual_seed(0)
    model = randomise(Attention()).double()
    network = Network(model, X, None, False, torch.Generator().manual_seed(0))
    rows = torch.cat(network.rows(8, [1.0] * 4))
    start, columns = 0, {}
    for name in network.names:
        size = network.state[name].numel()
        columns[name] = torch.arange(start, start + size)
        start += size
    norms = rows.norm(dim=0)
    assert 0 < norms[columns["key.bias"]].max() < 1e-12 * norms.max()
    numbers = numbers_of(network)
    assert not numbers(columns["key.bias"]).any()
    assert numbers(columns["key.weight"]).all() and numbers(columns["value.bias"]).all()
    small = Network(deep(1e-6), X, None, False, torch.Generator().manual_seed(0))
    first = torch.arange(24)
    tiny = small.rows(8)[0].norm(dim=0)[first]
    assert tiny.max() < 1e-12 and torch.equal(numbers_of(small)(first), tiny > 0)


def test_a_bias_of_keys_stays_decidable() -> None:
    torch.manual_seed(0)
    model = randomise(Attention()).double()
    found = audit(model, X)
    assert found.complete and found.undecided == () and found.dead == 3
