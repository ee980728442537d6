"""Units of one network among those of another, where no interface is known."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym import act, find_symmetry
from paramsym.algebra import GeneralLinear, Group, Orthogonal, SignedPermutation, dense
from paramsym.privacy.attacks.public_weights import reinitialised, without_scales
from paramsym.privacy.attacks.unit_matching import (
    _invariant,
    carriers_of,
    distance,
    match_units,
    matches_units,
)
from paramsym.structure.symmetry import ParameterSymmetry

KINDS: dict[str, Callable[[int], Group]] = {
    "invertible ends": GeneralLinear,
    "rotated ends": Orthogonal,
    "signed orders": SignedPermutation,
}


def _mlp(bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 20, bias=bias), nn.Tanh(), nn.Linear(20, 15, bias=bias), nn.Tanh(),
        nn.Linear(15, 4, bias=bias),
    ).double()  # fmt: skip


def _cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 6, 3, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    ).double()  # fmt: skip


NETWORKS = {
    "mlp without biases": (_mlp, (2, 6)),
    "mlp": (lambda: _mlp(bias=True), (2, 6)),
    "cnn": (_cnn, (2, 3, 5, 5)),
}


def _found(network: str, kind: str) -> tuple[ParameterSymmetry, dict[str, Tensor]]:
    make, shape = NETWORKS[network]
    model = make()
    example = torch.randn(shape, dtype=torch.float64)
    whole = find_symmetry(
        model, (example,), free_inputs={"input": 1} if len(shape) > 2 else True, free_outputs=True
    )
    return without_scales(whole).restrict(KINDS[kind]), dict(model.state_dict())


def _matrix(symmetry: ParameterSymmetry, element, name: str) -> Tensor:
    return dense(element[name], symmetry.sizes[name], torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_point_of_the_orbit_gives_the_element(network: str, kind: str) -> None:
    symmetry, params = _found(network, kind)
    generator = torch.Generator().manual_seed(1)
    key = symmetry.sample(generator, dtype=torch.float64)
    assert matches_units(symmetry)
    found = match_units(symmetry, params, act(symmetry, key, params), generator)
    assert distance(symmetry, found, params, act(symmetry, key, params)) < 1e-12
    for name in symmetry.spaces:
        own, true = (_matrix(symmetry, g, name) for g in (found, key))
        if "without" in network:  # tanh is odd: −1 on all spaces at once is the identity
            own = own * (own * true).sum().sign()
        assert float((own - true).norm() / true.norm()) < 1e-10, name
    other = reinitialised(params, generator)  # the control
    strange = match_units(symmetry, other, act(symmetry, key, params), generator)
    assert distance(symmetry, strange, other, act(symmetry, key, params)) > 0.3


@pytest.mark.parametrize("kind", ["rotated ends", "signed orders"])
def test_near_the_orbit_orders_are_still_right(kind: str) -> None:
    symmetry, params = _found("mlp without biases", kind)
    generator = torch.Generator().manual_seed(2)
    key = symmetry.sample(generator, dtype=torch.float64)
    near = {n: x + 0.1 * x.std() * torch.randn_like(x) for n, x in params.items()}
    found = match_units(symmetry, params, act(symmetry, key, near), generator)
    for name in ("mlp", "mlp.2"):
        assert torch.equal(_matrix(symmetry, found, name).abs(), _matrix(symmetry, key, name).abs())
    assert 0.01 < distance(symmetry, found, params, act(symmetry, key, near)) < 0.2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_invariants_see_the_units_alone(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(9, generator=generator)
    turn = Orthogonal(4).sample(generator, dtype=torch.float64).matrix
    stretch = GeneralLinear(4).sample(generator, 3.0, dtype=torch.float64).matrix
    for matrix, stretched in ((turn, False), (turn, True), (stretch, True)):
        assert matrix is not None
        plain, moved = _invariant(w, stretched), _invariant(w[order] @ matrix.T, stretched)
        torch.testing.assert_close(moved, plain[order][:, order])
    assert stretch is not None
    apart = _invariant(w @ stretch.T, False) - _invariant(w, False)
    assert float(apart.norm()) > 1e-3  # inner products are no invariant of invertible maps


def test_scales_are_not_read() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    symmetry = find_symmetry(model, (torch.randn(2, 4),), free_inputs=True, free_outputs=True)
    assert not matches_units(symmetry) and matches_units(without_scales(symmetry))
    names = {(c.tensor, c.axis, c.dual) for c in carriers_of(symmetry, "mlp")}
    assert names == {("0.weight", 0, False), ("0.bias", 0, False), ("2.weight", 1, True)}
