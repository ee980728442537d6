"""Low-rank adapters: the mean of products, which no basis of the factors changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym import merge_adapters
from paramsym.merging.adapters import METHODS, Pair, product_norm, truncated


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def adapters(count: int = 3, rank: int = 4, spread: float = 0.3, seed: int = 0) -> list[Pair]:
    """Adapters that differ a little from each other, as those of one start do."""
    first = normal(30, rank, seed=seed), normal(rank, 20, seed=seed + 1)
    return [
        (first[0] + spread * normal(30, rank, seed=seed + 2 * k),
         first[1] + spread * normal(rank, 20, seed=seed + 2 * k + 1))
        for k in range(1, count + 1)
    ]  # fmt: skip


def in_other_bases(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    found = []
    for k, (B, A) in enumerate(pairs):
        g = normal(A.shape[0], A.shape[0], seed=seed + k) + 2 * torch.eye(A.shape[0])
        found.append((B @ torch.linalg.inv(g), g @ A))
    return found


def dense_mean(pairs: Sequence[Pair], shares: Sequence[float], scaling: Sequence[float]) -> Tensor:
    return torch.stack(
        [w * s * (B @ A) for w, s, (B, A) in zip(shares, scaling, pairs, strict=True)]
    ).sum(0)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_products_are_the_dense_truncated_decomposition(
    seed: int, count: int, rank: int, wanted: int
) -> None:
    pairs = adapters(count, rank, seed=seed)
    wanted = min(wanted, count * rank)
    weights, scaling = [1.0 + k for k in range(count)], [0.5 * (k + 1) for k in range(count)]
    found = merge_adapters(pairs, weights, wanted, scaling=scaling)
    shares = [w / sum(weights) for w in weights]
    dense = dense_mean(pairs, shares, scaling)
    U, S, Vh = torch.linalg.svd(dense)
    best = U[:, :wanted] * S[:wanted] @ Vh[:wanted]
    made = found.scaling * (found.B @ found.A)
    assert found.rank == wanted and found.scaling == scaling[0]
    assert (made - best).norm() <= 1e-10 * dense.norm()
    eckart_young = float(S[wanted:].norm() / S.norm())
    assert found.error == pytest.approx(eckart_young, abs=1e-12)
    assert found.errors["products"] <= found.errors["aligned"] + 1e-9 or wanted < rank
    torch.testing.assert_close(found.B.T @ found.B, found.A @ found.A.T, rtol=1e-8, atol=1e-10)


@given(st.integers(0, 10**6), st.sampled_from(METHODS), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_neither_method_depends_on_the_bases_and_the_naive_mean_does(
    seed: int, method: str, count: int
) -> None:
    pairs = adapters(count, seed=seed)
    here = merge_adapters(pairs, method=method)
    there = merge_adapters(in_other_bases(pairs, seed + 100), method=method)
    product = here.B @ here.A
    assert (there.B @ there.A - product).norm() < 1e-8 * product.norm()
    for name in METHODS:
        assert there.errors[name] == pytest.approx(here.errors[name], rel=1e-6, abs=1e-10)
    assert abs(there.errors["naive"] - here.errors["naive"]) > 1e-3


def test_the_errors_are_those_of_dense_matrices() -> None:
    pairs = in_other_bases(adapters(), 5)
    dense = dense_mean(pairs, [1 / 3] * 3, [1.0] * 3)
    naive = sum(B for B, _ in pairs) @ sum(A for _, A in pairs) / 9
    for method in METHODS:
        found = merge_adapters(pairs, method=method)
        error = float((found.B @ found.A - dense).norm() / dense.norm())
        assert found.error == found.errors[method] == pytest.approx(error, rel=1e-9)
        wrong = float((naive - dense).norm() / dense.norm())
        assert found.errors["naive"] == pytest.approx(wrong, rel=1e-9)
        assert found.error < 0.3 * wrong


def test_equal_adapters_in_other_bases_merge_to_themselves() -> None:
    pairs = in_other_bases(adapters(1) * 3, 8)
    for method in METHODS:
        found = merge_adapters(pairs, method=method)
        assert found.error < 1e-12
        torch.testing.assert_close(found.B @ found.A, pairs[0][0] @ pairs[0][1])
    assert found.errors["naive"] > 0.1


def test_scaling_is_the_one_of_the_first_whatever_its_sign() -> None:
    pairs = adapters(2)
    for scaling in (2.0, [2.0, 2.0], [-0.5, 3.0]):
        for method in METHODS:
            found = merge_adapters(pairs, method=method, scaling=scaling)
            every = [2.0, 2.0] if scaling == 2.0 else scaling
            dense = dense_mean(pairs, [0.5, 0.5], every)
            made = found.scaling * (found.B @ found.A)
            assert found.scaling == every[0]
            assert float((made - dense).norm() / dense.norm()) == pytest.approx(found.error)


def test_ranks_may_differ_for_products_alone() -> None:
    pairs = [*adapters(1, 4), *adapters(1, 2, seed=9)]
    found = merge_adapters(pairs)
    assert found.rank == 4
    assert math.isnan(found.errors["naive"]) and math.isnan(found.errors["aligned"])
    assert merge_adapters(pairs, rank=6).error < 1e-12
    with pytest.raises(ValueError, match=r"ranks \[2, 4\]"):
        merge_adapters(pairs, method="aligned")


def test_adapters_that_are_still_zero_have_no_effect_and_no_error() -> None:
    (B, A), _ = adapters(2)
    for method in METHODS:
        found = merge_adapters([(torch.zeros_like(B), A)] * 2, method=method)
        assert found.error == 0.0 and float((found.B @ found.A).norm()) == 0.0
        assert bool(found.A.isfinite().all() and found.B.isfinite().all())
        one = merge_adapters([(B, A), (torch.zeros_like(B), A)], method=method)
        assert float((one.B @ one.A).norm()) > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_above_what_the_matrix_has(method: str) -> None:
    pairs = [(normal(3, 5, seed=k), normal(5, 4, seed=k + 9)) for k in range(2)]
    found = merge_adapters(pairs, method=method)
    dense = dense_mean(pairs, [0.5, 0.5], [1.0, 1.0])
    error = float((found.B @ found.A - dense).norm() / dense.norm())
    assert error == pytest.approx(found.error, abs=1e-12)
    assert (found.error < 1e-12) == (method == "products")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precision_is_kept_and_all_is_computed_in_double(dtype: torch.dtype) -> None:
    pairs = [(B.to(dtype), A.to(dtype)) for B, A in adapters()]
    found = merge_adapters(pairs, rank=12)
    assert found.B.dtype == found.A.dtype == dtype
    assert found.error < 1e-12
    wide = dense_mean([(B.double(), A.double()) for B, A in pairs], [1 / 3] * 3, [1.0] * 3)
    made = found.B.double() @ found.A.double()
    assert float((made - wide).norm() / wide.norm()) < 10 * torch.finfo(dtype).eps


def test_nothing_that_came_is_changed_or_shared() -> None:
    pairs = adapters(2)
    kept = [(B.clone(), A.clone()) for B, A in pairs]
    for method in METHODS:
        merge_adapters(pairs, method=method).B.zero_()
    for pair, before in zip(pairs, kept, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(pair, before, strict=True))


def test_a_wide_matrix_is_never_formed() -> None:
    B, A = torch.ones(300_000, 1), torch.ones(1, 300_000)  # 360 GB as a product
    assert product_norm(B, A) == pytest.approx(300_000, rel=1e-3)
    assert truncated((B, A), 1)[0].shape == (300_000, 1)
    assert merge_adapters([(B, A), (2 * B, A)]).error < 1e-10


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pairs": []}, "no models"),
        ({"pairs": [(torch.ones(3, 2), torch.ones(3, 4))]}, "pair 0 has B (3, 2) and A (3, 4)"),
        ({"pairs": [(torch.ones(3, 2, 1, 1), torch.ones(2, 4, 3, 3))]}, "flatten kernels"),
        ({"pairs": [(torch.ones(3, 2), torch.ones(2, 4)), (torch.ones(5, 2), torch.ones(2, 4))]},
         "pair 1"),
        ({"pairs": [(torch.ones(3, 2), torch.ones(2, 4).double())]}, "dtypes"),
        ({"pairs": [(torch.full((3, 2), math.nan), torch.ones(2, 4))]}, "not finite"),
        ({"method": "svd"}, "method='svd'"),
        ({"rank": 0}, "rank=0"),
        ({"rank": 13}, "between 1 and 12"),
        ({"rank": 3, "method": "aligned"}, "one rank was expected throughout"),
        ({"scaling": 0.0}, "other than zero"),
        ({"scaling": [1.0]}, "one for each"),
        ({"weights": [1.0, 2.0, math.inf]}, "positive numbers"),
    ],
)  # fmt: skip
def test_what_are_no_adapters_of_one_weight_is_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError) as error:
        merge_adapters(**{"pairs": adapters(), **change})
    assert text in str(error.value) and "expected" in str(error.value)
