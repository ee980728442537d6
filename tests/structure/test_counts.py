"""Counts are dimensions: from shapes alone, equal to the dense rank at generic weights."""

from __future__ import annotations

import logging
import random
import time
import warnings

import pytest
import torch
from torch import nn

from paramsym import find_symmetry, orbit_dimension
from paramsym.structure import counting, tangent
from paramsym.structure.counting import Count, generic_dimension, random_weights
from paramsym.structure.rank import matrix_rank
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import OrbitTooLarge
from tests.tracing.networks import TABLE, Row, build
from tests.tracing.random_networks import STEPS, RandomNetwork

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def dense(symmetry: ParameterSymmetry, model: nn.Module) -> int:
    """The dense rank at random weights."""
    state = {n: p.double() if p.is_floating_point() else p for n, p in model.state_dict().items()}
    return orbit_dimension(symmetry, {**state, **random_weights(symmetry, state)})


def raw(symmetry: ParameterSymmetry) -> int:
    """The sum of all dimensions, which is no count."""
    shifts = sum(shift.size for shift in symmetry.shifts)
    return sum(map(symmetry.dimension, symmetry.spaces)) + shifts


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_count_from_shapes_is_the_measured_one(row: Row) -> None:
    logging.disable(logging.ERROR)
    model, inputs = build(row)
    symmetry = find_symmetry(model, inputs, outputs=row.outputs)
    found = generic_dimension(symmetry, model.state_dict())
    assert found == Count(row.nullity - row.unexplained) and found.is_exact
    on_meta = {n: p.to("meta") for n, p in model.state_dict().items()}
    assert generic_dimension(symmetry, on_meta) == found


def test_sums_of_dimensions_are_larger() -> None:
    """The negative control: what was printed before."""
    model, inputs = build(next(row for row in TABLE if row.name == "GPT-2 untied"))
    symmetry = find_symmetry(model, inputs)
    assert generic_dimension(symmetry, model.state_dict()).value == 481 < raw(symmetry)


def _drawn(seed: int) -> RandomNetwork:
    draw = random.Random(seed)
    names = sorted(STEPS)
    count = draw.randint(2, 6)
    steps = [(draw.choice(names), draw.randrange(8), draw.randrange(8)) for _ in range(count)]
    return RandomNetwork(draw.choice("vsi"), steps, draw.randrange(4), draw.randrange(8))


def test_random_networks_are_counted_as_densely() -> None:
    for seed in range(40):
        model = _drawn(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symmetry = find_symmetry(model, (model.inputs,))
        found, truth = generic_dimension(symmetry, model.state_dict()), dense(symmetry, model)
        assert found.value == truth if found.is_exact else found.value >= truth, (seed, model.taken)
        assert found.value <= sum(p.numel() for p in model.parameters())


def test_what_is_not_eliminated_is_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two linear layers around a narrow one: a stabiliser, which only numbers tell."""
    model = nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 2))
    symmetry = find_symmetry(model, (torch.randn(3, 2),))
    truth = generic_dimension(symmetry, model.state_dict())
    assert truth.is_exact and truth.value == dense(symmetry, model) < raw(symmetry)
    monkeypatch.setattr(counting, "_WORK", 0)
    found = generic_dimension(symmetry, model.state_dict())
    assert not found.is_exact and truth.value < found.value <= 32
    assert str(found).startswith("at most ") and "mlp" in found.why and "overlap" in found.why


@pytest.mark.parametrize("tall", [2, 3, 4, 5])
def test_a_basis_is_eliminated_only_where_entries_suffice(tall: int) -> None:
    """GL(4) between readers and writers of every width, against the dense rank."""
    model = nn.Sequential(nn.Linear(tall, 4, bias=False), nn.Linear(4, 3, bias=False))
    symmetry = find_symmetry(model, (torch.randn(3, tall),))
    shapes = {n: tuple(p.shape) for n, p in model.state_dict().items()}
    moves = counting.families(symmetry, shapes)
    assert bool(counting.peeled(moves)[0]) == (tall >= 4)
    found = generic_dimension(symmetry, model.state_dict())
    assert found == Count(dense(symmetry, model)) and found.is_exact


def _resnet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    import transformers

    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
        return model.eval(), (torch.zeros(1, 3, 64, 64),)


def test_running_statistics_of_resnet_are_held() -> None:
    model, inputs = _resnet()
    symmetry = find_symmetry(model, inputs)
    start = time.process_time()
    found = generic_dimension(symmetry, model.state_dict())
    assert time.process_time() - start < 1.0
    assert found == Count(41_856)
    moved = generic_dimension(symmetry, model.state_dict(), hold_buffers=False)
    assert moved == Count(41_856 + 26_560)


def test_gpt2_is_counted_without_numbers() -> None:
    import transformers

    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
        symmetry = find_symmetry(model, (torch.zeros(1, 7, dtype=torch.long),))
    start = time.process_time()
    found = generic_dimension(symmetry, model.state_dict())
    assert time.process_time() - start < 1.0
    unreached = 1017 * 768  # positions that seven tokens do not have
    assert found == Count(raw(symmetry) - 0 + unreached)
    heads, norms = 2 * 12 * 12 * 64**2, 24 * 768
    assert sum(map(symmetry.dimension, symmetry.spaces)) == heads + norms


def test_too_large_for_a_dense_rank_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    symmetry = find_symmetry(model, (torch.randn(3, 3),))
    assert orbit_dimension(symmetry, model.state_dict()) == 4
    monkeypatch.setattr(tangent, "GENERATOR_LIMIT", 3)
    with pytest.raises(OrbitTooLarge, match=r"4 generators.*at most 3.*generic_dimension"):
        orbit_dimension(symmetry, model.state_dict())


@pytest.mark.parametrize("kind", ["v", "s", "i"])
@pytest.mark.parametrize(
    "steps",
    [
        [("scalar", 3, 7), ("scalar", 7, 5)],
        [("scalar", 2, 3), ("spelled_linear", 1, 2), ("to_sequence", 4, 0), ("normed_reader", 7, 1)],
    ],
)
def test_single_numbers_have_no_rows(kind: str, steps: list) -> None:
    """Parameters without axes take part in the count (they raised an IndexError)."""
    model = RandomNetwork(kind, steps)
    assert any(p.ndim == 0 for p in model.parameters())
    symmetry = find_symmetry(model, (model.inputs,))
    found = generic_dimension(symmetry, model.state_dict())
    assert found == Count(dense(symmetry, model))


def test_noise_of_an_empty_projector_is_no_row() -> None:
    rows = torch.tensor([[1.0, 2.0], [3e-16, -1e-16]], dtype=torch.float64)
    assert matrix_rank(rows).rank == 1
    small = torch.tensor([[1.0, 2.0], [3e-10, -1e-10]], dtype=torch.float64)
    assert matrix_rank(small).rank == 2  # small, and well above rounding
