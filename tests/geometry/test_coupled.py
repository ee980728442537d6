"""Certificates where scales and bases move together, and where parts are small against the rest."""

import pytest
import torch
from torch import nn

from paramsym import act, balance, find_symmetry
from paramsym.geometry.means import balancing_basis
from paramsym.geometry.result import Status


class Adapter(nn.Module):
    """A large low-rank branch beside the identity ties its bases to the scales of its input."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.i, self.o = nn.Linear(3, 4, bias=False), nn.Linear(4, 3, bias=False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        for layer in (self.down, self.up):
            layer.weight.data *= size

    def forward(self, x):
        h = torch.relu(self.i(x))
        return self.o(h + self.up(self.down(h)))


@pytest.mark.parametrize(("rounds", "least"), [(60, 1e-8), (80, 1e-9), (3000, 0.0)])
def test_no_point_is_called_nearer_than_it_is_along_scales_and_bases_together(rounds, least):
    torch.manual_seed(0)
    model = Adapter(4.0).double()
    symmetry = find_symmetry(model, (torch.randn(4, 3).double(),))
    params = {n: p.detach() for n, p in model.state_dict().items()}
    step = {"residual": torch.ones(4).double(), "mlp": torch.eye(2).double()}
    far = act(symmetry, symmetry.velocity(step).exp(), params)
    best = balance(symmetry, params, shifts=False, rounds=3000).value
    result = balance(symmetry, far, shifts=False, rounds=rounds)
    above = result.value - best
    assert least * best <= above <= result.gap + 1e-13 * best
    # the control: once the turns have come to their end the same bound does certify
    assert (result.status is Status.OPTIMAL) == (rounds == 3000)


def small(size: float) -> tuple:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    symmetry = find_symmetry(model.double(), (torch.randn(4, 3).double(),))
    params = {n: p.detach().clone() for n, p in model.state_dict().items()}
    for name in ("0.weight", "0.bias"):
        params[name][0] *= size
    return symmetry, params


@pytest.mark.parametrize("size", [1e-6, 1e-16, 1e-30])
def test_a_unit_that_hardly_weighs_anything_has_a_best_scale_all_the_same(size):
    symmetry, params = small(size)
    result = balance(symmetry, params)
    assert result.status is Status.OPTIMAL and not result.held
    into = result.params["0.weight"][0].square().sum() + result.params["0.bias"][0].square()
    assert float(result.params["2.weight"][:, 0].square().sum()) == pytest.approx(float(into))


def test_a_unit_that_weighs_nothing_has_none():
    assert balance(*small(0.0)).status is Status.UNATTAINED


@pytest.mark.parametrize("share", [1e-9, 2e-11])
def test_directions_that_are_small_in_both_matrices_keep_their_place_in_the_mean(share):
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator).double())[0]
    sizes = torch.tensor([1.0, 0.7, 0.5, share]).double()
    covariant = turn @ torch.diag(sizes) @ turn.mT
    dual = turn @ torch.diag(sizes * torch.tensor([1.0, 2.0, 0.5, 1.0]).double()) @ turn.mT
    basis, lost = balancing_basis(covariant, dual)
    back = torch.linalg.inv(basis)
    difference = basis @ covariant @ basis.mT - back.mT @ dual @ back
    assert not lost and float(torch.linalg.cond(basis)) < 2
    assert float(difference.abs().max()) < 1e-12


def test_weights_without_numbers_and_halves_of_turns_are_refused():
    symmetry, params = small(1.0)
    with pytest.raises(ValueError, match="has no numbers"):
        balance(symmetry, {n: p.to("meta") for n, p in params.items()})
    with pytest.raises(ValueError, match="whole number of turns"):
        balance(symmetry, params, rounds=1.5)  # type: ignore[arg-type]
