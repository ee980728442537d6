"""Certificates where scales and bases move together, and where parts are small against the rest."""

import pytest
import torch
from torch import nn

from paramsym import act, balance, find_symmetry
from paramsym.geometry.means import balancing_basis
from paramsym.geometry.result import Status
from paramsym.geometry.secants import Secants


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


@pytest.mark.parametrize(("rounds", "least"), [(4, 1e-4), (7, 1e-7), (3000, 0.0)])
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
    rounding = 1e-13 * best
    assert least * best - rounding <= above <= result.gap + rounding
    # the control: once the turns have come to their end the same bound does certify
    assert (result.status is Status.OPTIMAL) == (rounds == 3000)


@pytest.mark.parametrize("size", [4.0, 10.0, 100.0])
def test_what_turns_alone_are_slow_to_find_the_last_turns_foresee(size, monkeypatch):
    torch.manual_seed(0)
    model = Adapter(size).double()
    symmetry = find_symmetry(model, (torch.randn(4, 3).double(),))
    params = {n: p.detach() for n, p in model.state_dict().items()}
    best = balance(symmetry, params, shifts=False)
    assert best.status is Status.OPTIMAL and best.rounds < 30
    for seed in range(3):
        g = symmetry.sample(torch.Generator().manual_seed(seed), only=[*best.moment])
        result = balance(symmetry, act(symmetry, g, params), shifts=False)
        assert result.status is Status.OPTIMAL and result.rounds < 40
        assert result.value == pytest.approx(best.value, rel=1e-12)
    monkeypatch.setattr(Secants, "step", lambda _: {})  # the control: the turns alone
    assert balance(symmetry, params, shifts=False).status is Status.LOCAL


def test_of_a_quadratic_the_span_of_the_moves_is_searched_exactly():
    generator = torch.Generator().manual_seed(0)
    root, least = torch.randn(6, 4, generator=generator).double(), torch.ones(4).double()
    secants, x, symmetry = Secants(), torch.zeros(4).double(), small(1.0)[0]
    first = next(n for n, space in symmetry.spaces.items() if space.size == 4)
    for k in range(5):  # four moves that span everything
        secants.meet({first: root.mT @ root @ (x - least)})
        if k < 4:
            move = torch.randn(4, generator=generator).double()
            secants.follow(symmetry.velocity({first: move}).exp())
            x = x + move
    torch.testing.assert_close(x + secants.step()[first], least)
    secants.forget()
    assert not secants.step()


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


class Interface(nn.Module):
    """More units in between than either side reads or writes: both sides slide out of sight."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.b, self.o = nn.Linear(3, 2), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.o(self.b(torch.relu(self.i(x))))


@pytest.mark.parametrize("least", [1.0, 1e-6, 1e-10, 1e-14])
@pytest.mark.parametrize("name", ["b.weight", "o.weight"])
def test_slides_keep_the_function_where_nothing_or_nearly_nothing_is_left_to_slide(name, least):
    torch.manual_seed(0)
    model, x = Interface().double(), torch.randn(5, 3).double()
    symmetry = find_symmetry(model, (x,))
    params = {n: p.detach() for n, p in model.state_dict().items()}
    left, sizes, right = torch.linalg.svd(params[name], full_matrices=False)
    params[name] = left @ torch.diag(sizes * torch.tensor([1.0, least]).double()) @ right

    def output(state):
        return torch.func.functional_call(model, state, (x,))

    g = symmetry.sample(torch.Generator().manual_seed(0), 3.0)
    for start in (params, act(symmetry, g, params)):
        torch.testing.assert_close(output(start), output(params), rtol=1e-13, atol=1e-13)
        result = balance(symmetry, start, rounds=20)
        assert any(name.startswith("shift") for name in result.moment)
        torch.testing.assert_close(output(result.params), output(params), rtol=1e-13, atol=1e-13)
        squares = sum(float(p.square().sum()) for p in result.params.values())
        assert squares == pytest.approx(result.value, rel=1e-14) and squares < result.before
    # the control: a slide along what the reader does see changes the function
    seen = params | {"b.weight": params["b.weight"] + 0.1}
    assert float((output(seen) - output(params)).abs().max()) > 1e-3
