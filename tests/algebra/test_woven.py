"""Woven rotations: dense, orthogonal, read off their matrix, quick; beside the plain product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.algebra import Orthogonal, OrthogonalFixingOnes
from paramsym.algebra.linear import random_orthogonal
from paramsym.algebra.woven import Woven, grid, woven_of

SIZES = (256, 384, 512, 896, 1000)


def _drawn(n: int, seed: int, fixing: bool = False) -> torch.Tensor:
    group = OrthogonalFixingOnes(n) if fixing else Orthogonal(n)
    matrix = group.sample_woven(torch.Generator().manual_seed(seed), dtype=torch.float64).matrix
    assert matrix is not None
    return matrix


@given(n=st.integers(1, 20000))
def test_a_grid_has_all_coordinates_and_saves_what_it_says(n: int) -> None:
    sides = grid(n)
    if sides is not None:
        assert sides[0] * sides[1] == n
        assert 4 * sum(sides) <= n
    divisors = [k for k in range(2, n) if n % k == 0] if n <= 600 else []
    if n >= 256 and any(4 * (k + n // k) <= n for k in divisors):
        assert sides is not None


@pytest.mark.parametrize("fixing", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_a_woven_rotation_is_dense_and_belongs_to_its_group(n: int, fixing: bool) -> None:
    matrix = _drawn(n, n, fixing)
    group = OrthogonalFixingOnes(n) if fixing else Orthogonal(n)
    assert group.contains_matrix(matrix, tol=1e-13)
    assert (matrix != 0).all()
    # a vector of one coordinate goes to all of them, none of which stands out
    assert matrix.abs().max() < 1 - 1e-6 if not fixing else True
    assert not group.contains_matrix(matrix + 1e-9)


@settings(max_examples=30, deadline=None)
@given(
    n=st.sampled_from(SIZES), seed=st.integers(0, 99), axis=st.integers(0, 2),
    dtype=st.sampled_from([torch.float64, torch.float32]), undone=st.booleans(),
)  # fmt: skip
def test_two_steps_are_the_product_with_the_matrix(
    n: int, seed: int, axis: int, dtype: torch.dtype, undone: bool
) -> None:
    exact = _drawn(n, seed)
    exact = exact.mT if undone else exact
    found = woven_of(exact.to(dtype))
    assert found is not None
    assert found.rows_first != undone
    x = torch.randn(3, 5, 2, n, dtype=torch.float64)[..., 0, :].movedim(-1, axis)
    wanted = torch.tensordot(exact, x, dims=([1], [axis])).movedim(0, axis)
    made = found.times(x.to(dtype), axis)
    assert made.shape == x.shape
    assert (made - wanted).abs().max() <= 100 * torch.finfo(dtype).eps
    assert (found.matrix() - exact).abs().max() <= 8 * torch.finfo(dtype).eps


def test_what_is_not_woven_is_not_taken_for_it() -> None:
    generator = torch.Generator().manual_seed(0)
    haar = random_orthogonal(generator, 512, 1.0, (), torch.float64)
    assert woven_of(haar) is None
    woven = _drawn(512, 1)
    assert woven_of(woven @ _drawn(512, 2)) is None  # two of them are another rotation
    for place in ((0, 0), (511, 511), (100, 3)):
        other = woven.clone()
        other[place] += 1e-9
        assert woven_of(other) is None
    assert woven_of(2 * woven) is None  # no rotation
    assert woven_of(woven[None]) is None
    assert woven_of(_drawn(256, 1)[:250, :250]) is None
    assert woven_of(torch.full((256, 256), torch.nan)) is None
    assert woven_of(torch.zeros(256, 256)) is None


def test_a_matrix_that_is_written_to_is_looked_at_again() -> None:
    matrix = _drawn(256, 0)
    assert woven_of(matrix) is not None
    matrix[0, 0] += 1
    assert woven_of(matrix) is None


def test_a_matrix_of_inference_mode_has_no_version_and_is_looked_at_each_time() -> None:
    with torch.inference_mode():
        matrix = _drawn(256, 0)
        assert woven_of(matrix) is not None
        matrix[0, 0] += 1
        assert woven_of(matrix) is None


def test_the_identity_is_woven() -> None:
    found = woven_of(torch.eye(256))
    assert found is not None
    x = torch.randn(256, 3)
    assert torch.equal(found.times(x, 0).abs(), x.abs())


def test_undoing_gives_back() -> None:
    found = woven_of(_drawn(384, 5))
    assert isinstance(found, Woven)
    x = torch.randn(384, 4, dtype=torch.float64)
    assert torch.allclose(found.undone().times(found.times(x, 0), 0), x, atol=1e-13)


def test_where_a_grid_is_not_worth_it_the_rotation_is_a_plain_one() -> None:
    for n in (64, 257, 514):
        assert grid(n) is None
        drawn = Orthogonal(n).sample_woven(torch.Generator().manual_seed(3), dtype=torch.float64)
        plain = Orthogonal(n).sample(torch.Generator().manual_seed(3), dtype=torch.float64)
        assert drawn.matrix is not None and plain.matrix is not None
        assert torch.equal(drawn.matrix, plain.matrix)


def test_a_small_strength_stays_near() -> None:
    generator = torch.Generator().manual_seed(0)
    near = Orthogonal(256).sample_woven(generator, 1e-3, torch.float64).matrix
    assert near is not None
    assert 1e-5 < (near - torch.eye(256)).abs().max() < 0.1
