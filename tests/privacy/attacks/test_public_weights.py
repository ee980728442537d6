"""A key, next to parameters that everybody has."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, find_symmetry
from paramsym.algebra import GeneralLinear, Group, Monomial, Orthogonal, SignedPermutation, dense
from paramsym.privacy import Job, Key, NotApplicable
from paramsym.privacy.attacks import public_weights
from paramsym.privacy.attacks.public_weights import (
    key_from_public_weights,
    reinitialised,
    without_scales,
)
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from tests.privacy.attacks.digit_jobs import job, mlp, symmetry_of_mlp

KINDS: dict[str, Callable[[int], Group]] = {
    "all that the function allows": GeneralLinear,
    "scaled orders": lambda n: Monomial(n, signed=True),
    "rotations": Orthogonal,
    "signed orders": SignedPermutation,
}


def _error(symmetry: ParameterSymmetry, found: GroupElement, key: GroupElement, name: str) -> float:
    own, true = (dense(g[name], symmetry.sizes[name], torch.float64) for g in (found, key))  # type: ignore[arg-type]
    return float((own - true).norm() / true.norm())


def _small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)
    ).double()


@cache
def _symmetry_of_small() -> ParameterSymmetry:
    example = torch.zeros(3, 6, dtype=torch.float64)
    return find_symmetry(_small(), (example,), free_inputs=True, free_outputs=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_space_of_the_key_is_found(kind: str) -> None:
    symmetry, params = _symmetry_of_small().restrict(KINDS[kind]), _small().state_dict()
    generator = torch.Generator().manual_seed(5)
    key = symmetry.sample(generator, dtype=torch.float64)
    sent = act(symmetry, key, params)
    found = key_from_public_weights(symmetry, params, sent, generator)
    assert found.distance < 1e-12
    assert max(_error(symmetry, found.element, key, name) for name in symmetry.spaces) < 1e-10
    other = key_from_public_weights(
        symmetry, _small(1).state_dict(), sent, generator
    )  # a fresh one
    assert other.distance > 0.3 and _error(symmetry, other.element, key, "input") > 0.5


def test_weights_without_biases_are_enough() -> None:
    """Alignment has nothing to begin with then; inner products of units have."""
    symmetry = without_scales(symmetry_of_mlp()).restrict(Orthogonal)
    params = {n: x * ("weight" in n) for n, x in mlp().state_dict().items()}
    generator = torch.Generator().manual_seed(6)
    key = symmetry.sample(generator, dtype=torch.float64)
    found = key_from_public_weights(symmetry, params, act(symmetry, key, params), generator)
    assert max(_error(symmetry, found.element, key, n) for n in symmetry.spaces) < 1e-10


def test_copies_are_left_to_alignment() -> None:
    model = _Attention()
    symmetry = find_symmetry(model, (torch.randn(2, 5, 8).double(),), free_outputs=True)
    params, generator = model.state_dict(), torch.Generator().manual_seed(7)
    assert any(space.over for space in symmetry.spaces.values())
    key = symmetry.sample(generator, dtype=torch.float64)
    sent = act(symmetry, key, params)
    assert key_from_public_weights(symmetry, params, sent, generator).distance < 1e-6
    fresh = reinitialised(params, generator)
    assert key_from_public_weights(symmetry, fresh, sent, generator).distance > 0.1


class _Attention(nn.Module):
    """Two heads over a width of eight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8).double() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("optimizer", "scalings"),
    [("adam", False), ("adam", True), ("sgd", False), ("sgd", True), (None, False)],
    ids=["adam", "adam with rates", "sgd", "sgd with rates", "inference"],
)
def test_a_public_initialisation_gives_the_job_away(optimizer: str | None, scalings: bool) -> None:
    attempt = public_weights.attempt(job(optimizer, scalings=scalings))
    assert attempt.value <= 1e-10 and attempt.succeeded and attempt.claim == "data"
    assert attempt.control >= 0.5 and attempt.control_failed


@pytest.mark.parametrize("optimizer", ["sgd", None], ids=["sgd", "inference"])
def test_a_narrow_network_gives_away_what_it_sees(optimizer: str | None) -> None:
    attempt = public_weights.attempt(job(optimizer, hidden=24))
    assert "(24 of 64)" in attempt.measure
    assert attempt.value <= 1e-10 and attempt.control >= 0.5


def test_so_does_one_from_which_training_has_gone_on() -> None:
    attempt = public_weights.attempt(job("adam", steps=30))
    assert attempt.value <= 1e-10 and attempt.control_failed  # orders are right, or they are not
    assert "agree to 0.0e+00" not in attempt.says
    attempt = public_weights.attempt(job("sgd", steps=10))
    assert 1e-6 < attempt.value <= 0.1 and attempt.control_failed  # a rotation is off by as much


def test_where_inputs_stay_parameters_are_decoded() -> None:
    model = mlp()
    example = torch.zeros(3, 64, dtype=torch.float64)
    symmetry = find_symmetry(model, (example,), training=True)
    plain = job("adam")
    held = Key.generate(symmetry, torch.Generator().manual_seed(1), "adam", "cross_entropy")
    attempt = public_weights.attempt(replace(plain, key=held))
    assert attempt.claim == "model" and "parameters" in attempt.measure
    assert attempt.value <= 1e-12


def test_without_public_weights_it_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="everybody has"):
        public_weights.attempt(job("adam", public_weights=False))


@pytest.mark.parametrize("optimizer", ["sgd", None], ids=["sgd", "inference"])
def test_single_precision_hides_its_rounding_and_no_more(optimizer: str | None) -> None:
    symmetry = _symmetry_of_small()
    model, generator = _small().float(), torch.Generator().manual_seed(8)
    key = Key.generate(symmetry, generator, optimizer, "mse" if optimizer else None)
    inputs = torch.randn(50, 6, generator=generator)
    attempt = public_weights.attempt(Job(model, key, inputs, initial=model.state_dict()))
    assert 1e-9 < attempt.value < 1e-4 and attempt.control > 0.5
