"""Assignments of units, against all orders and without keys."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym import ParameterSymmetry, Space, act
from paramsym.algebra import Orthogonal, Permutation, SignedPermutation
from paramsym.geometry.orders import assigned, ordered
from paramsym.geometry.pair import Pair
from paramsym.structure.axes import parse_axis
from tests.geometry.orbits import State, generator

CLEAR = 1e-10


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10_000), st.booleans())
def test_the_assignment_is_the_best_of_all_orders(n: int, seed: int, whole: bool) -> None:
    scores = normal(seed, 2, n, n)
    scores = scores.round() if whole else scores  # ties
    found, _ = assigned(scores, CLEAR)
    for own, order in zip(scores, found, strict=True):
        assert sorted(order.tolist()) == list(range(n))
        best = max(float(own[range(n), list(each)].sum()) for each in permutations(range(n)))
        assert float(own[range(n), order].sum()) == pytest.approx(best, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_units_have_equals_where_an_exchange_loses_nothing(n: int, seed: int) -> None:
    scores = normal(seed, n, n).round()
    order, doubt = assigned(scores, CLEAR)
    taken = scores[:, order]
    equals = {
        i for i in range(n) for j in range(n)
        if i != j and taken[i, i] + taken[j, j] - taken[i, j] - taken[j, i] <= 0
    }  # fmt: skip
    assert doubt == len(equals)


def test_generic_scores_leave_no_doubt() -> None:
    assert assigned(normal(0, 6, 6) + 10 * torch.eye(6), CLEAR)[1] == 0
    assert assigned(torch.ones(6, 6), CLEAR)[1] == 6  # the control
    assert assigned(torch.ones(1, 1), CLEAR)[1] == 0


def layer(group, **shapes: tuple[str, ...]) -> ParameterSymmetry:
    signature = {n: tuple(parse_axis(axis) for axis in axes) for n, axes in shapes.items()}
    return ParameterSymmetry({"h": Space("h", group)}, signature)


def pair_of(symmetry: ParameterSymmetry, seed: int, noise: float = 0.0) -> tuple[Pair, State]:
    shapes = {n: [a.size(symmetry.sizes) for a in axes] for n, axes in symmetry.signature.items()}
    x = {n: normal(seed + k, *shape) for k, (n, shape) in enumerate(shapes.items())}
    y = act(symmetry, symmetry.sample(generator(seed)), x)
    y = {n: p + noise * normal(seed + 9, *p.shape) for n, p in y.items()}
    return Pair(symmetry, y, dict(x)), y


@pytest.mark.parametrize("group", [Permutation(9), SignedPermutation(9)], ids=["plain", "signed"])
def test_keys_say_what_the_assignment_says(group) -> None:
    symmetry = layer(group, w=("h", "5"), v=("3", "h*"), b=("h",))
    space = symmetry.spaces["h"]
    for seed in range(10):
        pair, y = pair_of(symmetry, seed)
        by_keys, doubt = ordered(pair, space, pair.places["h"], keyed=True)
        by_scores, other = ordered(pair, space, pair.places["h"], keyed=False)
        assert doubt == other == 0
        assert by_keys.order is not None and by_scores.order is not None
        assert torch.equal(by_keys.order, by_scores.order)
        pair.apply({"h": by_keys})
        assert all(torch.allclose(pair.moving[n], y[n], atol=1e-12) for n in y)


def test_keys_that_do_not_agree_are_no_order() -> None:
    """Under noise the answer is the assignment's, keyed or not."""
    symmetry = layer(Permutation(9), w=("h", "5"))
    pair, _ = pair_of(symmetry, 1, noise=0.3)
    found = [ordered(pair, symmetry.spaces["h"], pair.places["h"], keyed)[0].order
             for keyed in (True, False)]  # fmt: skip
    assert found[0] is not None and found[1] is not None
    assert torch.equal(found[0], found[1])


def test_equal_units_are_in_doubt_where_doubt_is_asked_for() -> None:
    symmetry = layer(Permutation(6), w=("h", "5"))
    w = normal(0, 6, 5)
    w[3] = w[1]
    pair = Pair(symmetry, {"w": w}, {"w": w.flip(0)})
    for keyed in (True, False):
        found, doubt = ordered(pair, symmetry.spaces["h"], pair.places["h"], keyed)
        assert doubt == (2 if keyed else 0) and found.order is not None  # sweeps do not ask
        assert torch.equal(w.flip(0)[found.order], w)


def test_heads_are_matched_before_their_bases_are_known() -> None:
    """Scores blind to what acts within a head are largest at the true assignment."""
    spaces = {"head": Space("head", Permutation(4)), "o": Space("o", Orthogonal(3), over=("head",))}
    signature = {"w": (parse_axis("(head o)"), parse_axis("7")),
                 "v": (parse_axis("5"), parse_axis("(head o*)"))}  # fmt: skip
    symmetry = ParameterSymmetry(spaces, signature)
    for seed in range(5):
        pair, _ = pair_of(symmetry, seed)
        planted = symmetry.sample(generator(seed))["head"]
        for keyed in (True, False):
            found, doubt = ordered(pair, spaces["head"], pair.places["head"], keyed)
            assert doubt == 0 and found.order is not None
            assert torch.equal(found.order, planted.order)  # type: ignore[union-attr]
