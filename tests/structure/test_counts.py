"""Counts are dimensions: from shapes alone, equal to the dense rank at generic weights."""

from __future__ import annotations

import logging
import random
import time
import warnings

import pytest
import torch
from torch import nn

from paramsym import act, find_symmetry, orbit_dimension
from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Orthogonal,
    OrthogonalFixingOnes,
    PositiveScaling,
    Scaling,
    UnitComplex,
)
from paramsym.structure import counting, orbit
from paramsym.structure.axes import Product, parse_axis
from paramsym.structure.counting import Count, generic_dimension, random_weights
from paramsym.structure.orbit import OrbitTooLarge
from paramsym.structure.rank import matrix_rank
from paramsym.structure.shift import Factor, Shift, Term, Window
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.windows import families
from tests.tracing import zoo
from tests.tracing.networks import TABLE, Row, build, derived
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
    model, _ = build(row)
    symmetry = derived(row)
    found = generic_dimension(symmetry, model.state_dict())
    assert found == Count(row.nullity - row.unexplained) and found.is_exact
    on_meta = {n: p.to("meta") for n, p in model.state_dict().items()}
    assert generic_dimension(symmetry, on_meta) == found


def test_sums_of_dimensions_are_larger() -> None:
    """The negative control: what was printed before."""
    model, _ = build(next(row for row in TABLE if row.name == "GPT-2 untied"))
    symmetry = derived(next(row for row in TABLE if row.name == "GPT-2 untied"))
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
    assert str(found).startswith("at most ") and "may overlap" in found.why
    assert "mlp" in found.overlapping


GROUPS = [GeneralLinear(4), Orthogonal(4), OrthogonalFixingOnes(4), Scaling(4),
          ComplexScaling(4), UnitComplex(4)]  # fmt: skip


def _rank(symmetry: ParameterSymmetry) -> int:
    """The dense rank of hand-written generators at random weights."""
    state = {n: torch.zeros(symmetry.shape(n)) for n in symmetry.signature}
    return orbit_dimension(symmetry, random_weights(symmetry, state))


def _eliminated(symmetry: ParameterSymmetry) -> int:
    shapes = {n: symmetry.shape(n) for n in symmetry.signature}
    return counting.peeled(counting.families(symmetry, shapes))[0]


@pytest.mark.parametrize("columns", range(1, 7))
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_family_is_eliminated_where_its_entries_suffice(group: Group, columns: int) -> None:
    """Exactly where the dense rank is the dimension, and nowhere else."""
    axes = parse_axis("b"), parse_axis(str(columns))
    symmetry = ParameterSymmetry({"b": Space("b", group)}, {"w": axes})
    rank = _rank(symmetry)
    assert _eliminated(symmetry) == (rank if rank == group.dimension else 0)


@pytest.mark.parametrize("columns", range(1, 7))
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_two_families_are_eliminated_only_if_independent(group: Group, columns: int) -> None:
    """A group on the rows of a tensor, and a multiple of one vector added to each row."""
    window = Window("w", "ab", (4, columns), (columns, 1))
    gain = Factor(Window("v", "b", (columns,), (1,)), power=-1.0)
    shift = Shift("s", "f", "a", (4,), (Term(window, factors=(gain,)),))
    axes = parse_axis("b"), parse_axis(str(columns))
    signature = {"w": axes, "v": (parse_axis(str(columns)),)}
    symmetry = ParameterSymmetry({"b": Space("b", group)}, signature, (shift,))
    total = group.dimension + 4
    found = _eliminated(symmetry)
    assert found in (0, total) and (found == 0 or _rank(symmetry) == total)
    assert found == total or columns <= 4  # it does find them where there is room


@pytest.mark.parametrize("columns", range(1, 7))
@pytest.mark.parametrize("group", [Orthogonal(4), OrthogonalFixingOnes(4)], ids=str)
def test_rotations_a_scale_and_a_constant_are_told_apart(group: Group, columns: int) -> None:
    window = Window("w", "ab", (4, columns), (columns, 1))
    shift = Shift("s", "f", "b", (columns,), (Term(window),))
    spaces = {"b": Space("b", group), "c": Space("c", PositiveScaling(1))}
    axes = parse_axis("b"), Product((parse_axis(str(columns)), parse_axis("c")))
    symmetry = ParameterSymmetry(spaces, {"w": axes}, (shift,))
    total = group.dimension + 1 + columns
    found = _eliminated(symmetry)
    assert found in (0, total) and (found == 0 or _rank(symmetry) == total)
    assert (found == total) == (columns >= 4)


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
        inputs = (torch.zeros(1, 7, dtype=torch.long),)
    symmetry = find_symmetry(model, inputs)
    start = time.process_time()
    found = generic_dimension(symmetry, model.state_dict())
    assert time.process_time() - start < 1.0
    unreached = 1017 * 768  # positions that seven tokens do not have
    constant = 1017  # a constant along each of them is one of those already
    assert found == Count(raw(symmetry) - constant + unreached)
    heads, norms = 2 * 12 * 12 * 64**2, 24 * 768
    assert sum(map(symmetry.dimension, symmetry.spaces)) == heads + norms


def test_too_large_for_a_dense_rank_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    symmetry = find_symmetry(model, (torch.randn(3, 3),))
    assert orbit_dimension(symmetry, model.state_dict()) == 4
    monkeypatch.setattr(orbit, "GENERATOR_LIMIT", 3)
    with pytest.raises(OrbitTooLarge, match=r"4 generators.*at most 3.*generic_dimension"):
        orbit_dimension(symmetry, model.state_dict())


@pytest.mark.parametrize("kind", ["v", "s", "i"])
@pytest.mark.parametrize(
    "steps",
    [
        [("scalar", 3, 7), ("scalar", 7, 5)],
        [
            ("scalar", 2, 3),
            ("spelled_linear", 1, 2),
            ("to_sequence", 4, 0),
            ("normed_reader", 7, 1),
        ],
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


@pytest.mark.parametrize("name", ["GPT-NeoX", "MultiheadAttention", "convolutions", "Phi-3"])
def test_a_family_moves_nothing_outside_its_boxes(name: str) -> None:
    model, _ = zoo.build(name)
    symmetry = zoo.derived(name)
    state = {n: p.double() for n, p in model.state_dict().items() if p.is_floating_point()}
    outside = 0
    for moves in families(symmetry, {n: tuple(p.shape) for n, p in state.items()}):
        g = symmetry.sample(torch.Generator().manual_seed(0), only=[moves.name])
        moved = act(symmetry, g, state)
        for n, before in state.items():
            held = torch.ones(before.shape, dtype=torch.bool)
            own = symmetry.ties.get(n, n)
            for box in (box for box in moves.boxes if box.parameter == own):
                held[tuple(slice(a, b) for a, b in box.ranges)] = False
            assert torch.equal(before[held], moved[n][held])
            outside += int(held.sum()) if not held.all() else 0
    assert outside  # some boxes are parts of a tensor
