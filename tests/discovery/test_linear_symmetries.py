"""Counts of linear symmetries that theory gives, generators that keep the function, controls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym.discovery import LinearSymmetries, linear_symmetries
from paramsym.discovery.linear.ansatz import Ansatz
from paramsym.discovery.linear.generators import Block
from paramsym.discovery.linear.linear_symmetries import LEVELS
from paramsym.discovery.linear.null_space import smallest

from .networks import (
    Apply,
    Branches,
    Tokens,
    dense,
    example,
    identity,
    leaky,
    perceptron,
    require_finite_symmetries,
    sampled,
)


def residuals_on_fresh_rows(model: nn.Module, matrices: Tensor) -> Tensor:
    """The largest |⟨∇F, Mθ⟩| / (‖∇F‖ ‖θ‖ ‖M‖) for each row of `matrices`."""
    sampler = sampled(model, "full", 77).sampler
    points = sampler.points(200)
    gradients = sampler.gradients(points)
    g, w = (
        torch.cat([d[n].flatten(1) for n in sampler.shapes], 1) for d in (gradients, points.weights)
    )
    size = g.norm(dim=1) * w.norm(dim=1)
    fields = matrices.reshape(len(matrices), w.shape[1], -1) / matrices.norm(dim=1)[:, None, None]
    return (
        (torch.einsum("sp,gpq,sq->sg", g, fields, w)[size > 0] / size[size > 0, None]).abs().amax(0)
    )


KNOWN = [
    ("linear", identity, (2, 3, 2), "full", 9),
    ("linear", identity, (4, 5, 4), "tensors", 25),
    ("linear", identity, (5, 6, 5), "tensors", 36),
    ("linear", identity, (5, 6, 5), "sides", 36),
    ("relu", torch.relu, (3, 4, 3), "full", 4),
    ("leaky", leaky, (3, 4, 3), "full", 4),
    ("square", torch.square, (3, 4, 3), "full", 4),
    ("relu", torch.relu, (5, 6, 5), "tensors", 6),
    ("relu", torch.relu, (5, 6, 5), "sides", 6),
]


@pytest.mark.parametrize(
    ("function", "sizes", "level", "dimension"),
    [case[1:] for case in KNOWN],
    ids=[f"{name}-{'-'.join(map(str, sizes))}-{level}" for name, _, sizes, level, _ in KNOWN],
)
def test_generators_are_as_many_as_theory_says_and_far_from_all_else(
    function: Callable[[Tensor], Tensor], sizes: tuple[int, int, int], level: str, dimension: int
):
    model = perceptron(sizes, function)
    found = linear_symmetries(model, example(sizes[0]), level)
    assert found.dimension == dimension and found.level == level
    assert found.gap.largest_null <= 1e-13 and found.gap.next >= 1e-4
    assert found.trivial == (2 if level == "sides" else 0) and found.dead == ()
    assert int(torch.linalg.matrix_rank(dense(found))) == dimension
    require_finite_symmetries(model, found)


def test_tanh_has_none_and_what_almost_passes_is_told_by_the_gap():
    found = linear_symmetries(perceptron((3, 4, 3), torch.tanh), example(3))
    assert found.level == "full" and found.generators == ()
    assert found.gap.largest_null == 0.0 and found.gap.next >= 1e-4


def test_generators_of_relu_are_no_symmetries_of_tanh_and_those_of_a_linear_network_none_of_relu():
    linear, relu, tanh = (perceptron((3, 4, 3), f) for f in (identity, torch.relu, torch.tanh))
    of_relu = dense(linear_symmetries(relu, example(3)))
    of_linear = dense(linear_symmetries(linear, example(3)))
    assert float(residuals_on_fresh_rows(relu, of_relu).max()) < 1e-13
    assert float(residuals_on_fresh_rows(linear, of_relu).max()) < 1e-13  # a smaller group
    assert float(residuals_on_fresh_rows(tanh, of_relu).min()) > 1e-3
    assert float(residuals_on_fresh_rows(relu, of_linear).min()) > 1e-3


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_finds_what_a_dense_decomposition_of_its_rows_finds(level: str):
    model = perceptron((2, 3, 2), torch.relu, bias=True)
    constraints = sampled(model, level)
    rows = torch.cat([*constraints()])
    trivial = constraints.ansatz.trivial()
    found = smallest(constraints, rows.shape[1], trivial, torch.Generator().manual_seed(0))
    _, values, right = torch.linalg.svd(rows)
    null = right[values < 1e-12 * values[0]].T
    ours = torch.cat([trivial, found.vectors[:, found.sizes < 1e-13]], dim=1)
    assert ours.shape == null.shape and ours.shape[1] == 3 + trivial.shape[1]
    torch.testing.assert_close(ours @ ours.T, null @ null.T, rtol=0.0, atol=1e-10)


def test_smaller_levels_find_less_and_what_they_find_is_within_the_larger():
    model = Branches((2, 3), identity)
    found = {level: linear_symmetries(model, example(3), level) for level in LEVELS}
    counts = {level: f.dimension for level, f in found.items()}
    # gl₅ of both branches together; gl₂ and gl₃ of each by itself
    assert counts == {"full": 25, "tensors": 25, "sides": 13}
    for small, large in (("sides", "tensors"), ("tensors", "full")):
        both = torch.cat([dense(found[large]), dense(found[small])])
        assert int(torch.linalg.matrix_rank(both)) == counts[large]


def test_the_rotation_between_equal_branches_is_found_where_pairs_are_searched():
    model = Branches((2, 2), identity)
    found = linear_symmetries(model, example(3), "tensors")
    assert found.dimension == 16 and "2 pairs" in found.searched
    require_finite_symmetries(model, found)
    mixing = [g for g in found.generators if any(_mixes(p) for p in g.parts)]
    assert mixing
    beside = linear_symmetries(model, example(3), "sides")
    assert beside.dimension == 8 and "not: several tensors mixed" in beside.searched
    assert not any(_mixes(p) for g in beside.generators for p in g.parts)
    # a function of each unit alone leaves the scales, and nothing between the branches
    assert linear_symmetries(Branches((2, 2), torch.relu), example(3), "tensors").dimension == 4


def _mixes(part: object) -> bool:
    return isinstance(part, Block) and part.source != part.target


@pytest.mark.slow  # smaller ones by sides: `KNOWN`, and the level that is chosen: below
def test_relu_30_32_30_by_sides():
    """As many parameters as a real layer has: P = 1,920, of which P² would be 3.7 million."""
    model = perceptron((30, 32, 30), torch.relu)
    found = linear_symmetries(model, example(30))
    assert found.level == "sides" and found.unknowns == 2 * (30**2 + 32**2)
    assert found.dimension == 32 and found.trivial == 2 and "2 trivial" in found.searched
    assert found.gap.largest_null <= 1e-11 and found.gap.next >= 1e-4
    weights = dict(model.double().named_parameters())
    for g in found.generators[:4]:
        velocity = g.velocity(weights)
        # one number per hidden unit, which scales its row of W₁ and, inversely, its column of W₂
        rates = (velocity["0.weight"] / weights["0.weight"]).detach()
        back = (velocity["2.weight"] / weights["2.weight"]).detach()
        assert float((rates - rates.mean(1, keepdim=True)).abs().max()) < 1e-11
        assert float((back + rates.mean(1)).abs().max()) < 1e-11


@pytest.mark.parametrize("hidden", [2, 3])
def test_one_input_and_one_output_have_the_orthogonal_group_of_a_quadratic_form(hidden: int):
    """f(x) = ⟨w₂, w₁⟩ x: so(h, h), of which GL_h acts on each tensor by itself."""
    model = perceptron((1, hidden, 1), identity)
    found = {level: linear_symmetries(model, example(1), level) for level in LEVELS}
    dimensions = {level: f.dimension for level, f in found.items()}
    group = hidden * (2 * hidden - 1)
    assert dimensions == {"full": group, "tensors": hidden**2, "sides": hidden**2}
    require_finite_symmetries(model, found["full"])


@given(
    sizes=st.tuples(*[st.integers(2, 4)] * 3),
    function=st.sampled_from([torch.relu, torch.abs, torch.tanh]),
    bias=st.booleans(),
)
@settings(max_examples=10, deadline=None)
def test_scales_of_units_are_all_that_perceptrons_have(
    sizes: tuple[int, int, int], function: Callable[[Tensor], Tensor], bias: bool
):
    found = linear_symmetries(perceptron(sizes, function, bias), example(sizes[0]), "tensors")
    assert found.dimension == (0 if function is torch.tanh else sizes[1])
    assert found.gap.largest_null <= 1e-13 and found.gap.next >= 1e-4


def test_a_norm_is_blind_to_scales_only_without_its_epsilon():
    def search(epsilon: float) -> LinearSymmetries:
        norm = nn.LayerNorm(3, eps=epsilon, elementwise_affine=False)
        return linear_symmetries(nn.Sequential(nn.Linear(2, 3, bias=False), norm), example(2))

    nearly, exactly = search(1e-5), search(0.0)
    # the same number added to a column, at six rates for each of two columns; and one scale
    assert (nearly.dimension, exactly.dimension) == (12, 13)
    assert 1e-8 < nearly.gap.next and exactly.gap.next >= 1e-4


def test_affine_generators_hold_the_linear_ones_and_shifts():
    softmax = nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1))
    linear = linear_symmetries(softmax, example(2))
    affine = linear_symmetries(softmax, example(2), affine=True)
    # the same number added to all rows of W, for each input, and to b: three constants, and each
    # times any of nine entries
    assert (linear.dimension, affine.dimension) == (27, 30)
    constant = torch.stack([g.dense(affine.shapes)[1] for g in affine.generators])
    assert int(torch.linalg.matrix_rank(constant, atol=1e-8)) == 3
    assert not any(bool(g.dense(linear.shapes)[1].any()) for g in linear.generators)
    relu = perceptron((2, 3, 2), torch.relu, bias=True)
    assert linear_symmetries(relu, example(2), affine=True).dimension == 3


def test_what_a_tiny_smoothing_breaks_is_no_symmetry():
    def smoothed(sharpness: float) -> nn.Module:
        return perceptron((3, 4, 3), lambda x: nn.functional.softplus(x, beta=sharpness))

    for sharpness, least in ((1e2, 1e-5), (1e3, 1e-8)):
        found = linear_symmetries(smoothed(sharpness), example(3))
        assert found.dimension == 0 and least < found.gap.next < 1e-3, found
    # the corner is narrower than anything that samples see: the limit that the docstring tells
    assert linear_symmetries(smoothed(1e8), example(3)).dimension == 4
    # and it is accepted where a user says that this is near enough
    accepted = linear_symmetries(smoothed(1e3), example(3), threshold=3e-2)
    assert accepted.dimension == 4 and 1e-6 < accepted.change < 1.0


def test_an_embedding_with_several_inputs_by_name():
    inputs = {"ids": torch.tensor([[1, 2], [0, 3]]), "scale": torch.ones(2, 1, 1)}
    for padding in (None, 0):
        found = linear_symmetries(Tokens(padding), inputs)
        assert found.dimension == 9 and found.idle == 0, found  # gl₃ between table and map
        assert "inputs" in found.searched and "stayed" not in found.searched


def test_what_stays_of_the_inputs_is_told():
    inputs = {"ids": torch.tensor([[1, 2], [0, 3]]), "scale": torch.randn(2, 1, 1)}
    found = linear_symmetries(Tokens(), inputs, fresh=False)
    assert "at the given inputs only: (2, 2) of int64, (2, 1, 1) of float32" in found.searched
    # row 4 of the table is never read: what moves it enters no constraint
    assert found.idle == 3 * sum(p.numel() for p in Tokens().parameters())


def test_buffers_are_constants_and_ties_are_one_tensor():
    normalised = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert linear_symmetries(normalised, (torch.randn(4, 2),), "sides").dimension == 6
    tied = perceptron((3, 3, 3), torch.relu)
    assert linear_symmetries(tied, example(3)).dimension == 3
    tied[2].weight = tied[0].weight
    found = linear_symmetries(tied, example(3))
    assert found.dimension == 0 and list(found.shapes) == ["0.weight"]


def test_a_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 2)).train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    linear_symmetries(model, example(2))
    assert model.training and model[1].training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_outputs_choose_the_function():
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x.argmax(-1)

    model = nn.Sequential(perceptron((2, 3, 2), identity), Pair())
    assert linear_symmetries(model, example(2), outputs=lambda pair: pair[0]).dimension == 9


def test_some_of_the_parameters_may_move_and_the_others_stay():
    deep = nn.Sequential(
        *perceptron((2, 3, 3), torch.relu), Apply(torch.relu), nn.Linear(3, 2, bias=False)
    )
    assert linear_symmetries(deep, example(2)).dimension == 6
    found = linear_symmetries(deep, example(2), names=["0.*", "2.*"])
    assert found.dimension == 3 and list(found.shapes) == ["0.weight", "2.weight"]
    assert "nothing that moves 4.weight, or by them" in found.searched
    assert linear_symmetries(deep, example(2), names="0.weight").dimension == 0


def test_auto_takes_the_largest_level_that_fits():
    model, levels = perceptron((4, 5, 4), torch.relu), []
    for limit in (1600, 1599, 799):
        found = linear_symmetries(model, example(4), limit=limit)
        levels.append(found.level)
        assert found.dimension == 5
    assert levels == ["full", "tensors", "sides"]


def test_a_result_says_what_it_is():
    text = str(linear_symmetries(perceptron((2, 3, 2), torch.relu), example(2)))
    assert "3 generators (level 'full')" in text and "searched: every entry" in text
    assert isinstance(LEVELS["full"]({"w": (1,)}, False), Ansatz)
