"""Pieces of benchmarks/privacy_baselines.py: what an evaluator finds out, and what it does not."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym import act, act_inputs, find_symmetry
from paramsym.algebra import Orthogonal, SignedPermutation


@pytest.fixture
def study(monkeypatch):
    """Modules of the benchmark by their names."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return lambda name: importlib.import_module(f"privacy_{name}")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def drawn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("width", [9, 4])
def test_the_owner_of_the_parameters_finds_what_its_first_layer_sees(study, generator, width):
    measures = study("measures")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 7)).double()
    x = drawn(generator, 20, 6)
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    g, plain = symmetry.sample(generator), model.state_dict()
    seen, held = act_inputs(symmetry, g, x), act(symmetry, g, plain)
    found = measures.by_owner(plain, held, seen)
    w = plain["0.weight"]
    assert measures.error(found @ w.T, x @ w.T) < 1e-10
    assert (measures.error(found, x) < 1e-10) == (width >= 6)
    # Other parameters than those that were moved tell nothing of A.
    other = act(symmetry, symmetry.sample(generator, only=["mlp"]), plain) | {
        "0.weight": drawn(generator, width, 6)
    }
    assert measures.error(measures.by_owner(other, held, seen), x) > 0.3


def test_known_pairs_find_a_linear_map_and_no_other(study, generator):
    measures = study("measures")
    x, asked, a = drawn(generator, 30, 6), drawn(generator, 9, 6), drawn(generator, 6, 6)
    assert measures.error(measures.known_pairs(x @ a.T, x, asked @ a.T), asked) < 1e-8
    wrong = measures.known_pairs(x.roll(1, 0) @ a.T, x, asked @ a.T)
    assert measures.error(wrong, asked) > 0.5
    few = measures.known_pairs(x[:5] @ a.T, x[:5], asked @ a.T)
    assert measures.error(few, asked) > 0.1


def test_an_estimate_with_the_covariance_is_better_than_what_was_sent(study, generator):
    measures = study("measures")
    basis = drawn(generator, 2, 6)
    public, x = drawn(generator, 500, 2) @ basis, drawn(generator, 40, 2) @ basis
    seen = x + 0.5 * drawn(generator, 40, 6)
    estimate = measures.denoised(seen, public, 0.5)
    assert measures.error(estimate, x) < 0.8 * measures.error(seen, x)
    # The slow twin: the mean of a Gaussian given x + noise, one query at a time.
    covariance = torch.cov(public.T)
    gain = covariance @ torch.linalg.inv(covariance + 0.25 * torch.eye(6))
    for row, guess in zip(seen, estimate, strict=True):
        assert torch.allclose(public.mean(0) + gain @ (row - public.mean(0)), guess)


def test_inner_products_stay_under_rotations_and_neighbours_under_all_bases(study, generator):
    measures = study("measures")
    labels = torch.arange(60) % 3
    centres = 4 * drawn(generator, 3, 8)
    x = centres[labels] + 0.3 * drawn(generator, 60, 8)
    rotation, _ = torch.linalg.qr(drawn(generator, 8, 8))
    dense = drawn(generator, 8, 8) @ torch.diag(torch.logspace(0, 1, 8, dtype=torch.float64))
    assert measures.gram(x @ rotation.T, x) < 1e-12 < 0.1 < measures.gram(x @ dense.T, x)
    plain, there = measures.whitened(x), measures.whitened(x @ dense.T)
    assert torch.allclose(plain @ plain.T, there @ there.T)
    assert measures.neighbours(x @ dense.T, labels) == 1
    assert measures.neighbours(x @ dense.T, labels[torch.randperm(60, generator=generator)]) < 0.7
    assert measures.neighbours(drawn(generator, 60, 8), labels) < 0.7


def test_noise_at_equal_utility_is_where_a_point_is_lost(study):
    baselines = study("baselines")
    assert abs(baselines.at_equal_utility(lambda s: s / 10, steps=12) - 0.1) < 1e-3
    assert baselines.at_equal_utility(lambda s: 1.0, steps=12) == 0
    assert baselines.at_equal_utility(lambda s: 0.0, steps=12) > 0.999


def test_bytes_that_are_counted_are_those_that_are_sent(study, generator):
    ways, baselines = study("ways"), study("baselines")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)).requires_grad_(False)
    x = torch.rand(5, 64, generator=generator)
    way = baselines.three_steps(model, x)
    assert way.set_up == 2 * 4 * sum(value.numel() for value in model.state_dict().values())
    sent = way.send(x)
    assert len(sent) == 5 * 64 * 4 and len(way.answer(sent)) == 5 * 10 * 4
    assert torch.allclose(way.read(way.answer(sent)), model(x), atol=1e-5)
    assert not torch.allclose(way.seen(sent), x, atol=0.1)
    plain = ways.by_tensors("plain", model, model.state_dict(), working="evaluator", set_up=0)
    assert not torch.allclose(
        plain.read(way.answer(sent)), plain.read(plain.answer(sent)), atol=0.05
    )


def test_a_square_network_answers_under_encryption(study, generator):
    encryption, baselines = study("encryption"), study("baselines")
    if encryption.reason() is not None:
        assert "pip install tenseal" in encryption.reason()
        return
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 7), baselines.Square(), nn.Linear(7, 10))
    x = torch.rand(1, 64, generator=generator)
    way = encryption.one_by_one(model.requires_grad_(False).state_dict())
    sent = way.send(x)
    assert (way.read(way.answer(sent)) - model(x)).abs().max() < 1e-3
    assert len(way.send(x)) > 100_000 and way.send(x) != sent  # drawn anew for each query


@pytest.mark.parametrize("group", [Orthogonal(6), SignedPermutation(6)], ids=str)
def test_a_seed_undoes_its_own_key_and_no_other(study, generator, group):
    findings = study("findings")
    x = drawn(generator, 4, 6)
    sent = findings._undone(group, 5, x, back=False)
    assert not torch.allclose(sent, x, atol=0.1)
    assert torch.allclose(findings._undone(group, 5, sent), x)
    assert torch.allclose(findings._undone(group, 5 + 2**33, sent), x)  # 32 bits of a seed count
    assert not torch.allclose(findings._undone(group, 6, sent), x, atol=0.1)


def test_labelled_public_data_of_the_kind_give_inputs_away(study, generator):
    measures = study("measures")
    spread = drawn(generator, 3, 5, 5)
    labels, public_labels = torch.arange(3000) % 3, torch.arange(2400) % 3
    x = torch.einsum("sij,sj->si", spread[labels], drawn(generator, 3000, 5) + 1)
    public = torch.einsum("sij,sj->si", spread[public_labels], drawn(generator, 2400, 5) + 1)
    dense = drawn(generator, 5, 5)
    found = measures.by_labels(x @ dense.T, labels, public, public_labels)
    assert measures.error(found, x) < 0.2
    wrong = measures.by_labels(
        x @ dense.T, labels[torch.randperm(3000, generator=generator)], public, public_labels
    )
    assert measures.error(wrong, x) > 0.5
