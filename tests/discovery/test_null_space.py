"""Block inverse iteration with refinement beside a dense singular value decomposition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paramsym.discovery.linear.noise import differences, noise, noise_differences
from paramsym.discovery.linear.null_space import Smallest, gram_of, smallest


def rows_with(sizes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of given singular values, relative to √count, and the right singular vectors."""
    n = len(sizes)
    left = torch.linalg.qr(torch.randn(count, n, generator=generator, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    return (left * sizes * count**0.5) @ right.T, right


def solved(rows: Tensor, generator: torch.Generator, deflated: Tensor | None = None) -> Smallest:
    none = rows.new_zeros(rows.shape[1], 0)
    return smallest(
        lambda: rows.split(37), rows.shape[1], none if deflated is None else deflated, generator
    )


@pytest.mark.parametrize("null", [0, 1, 7, 8, 9, 40])
def test_the_null_space_is_that_of_a_dense_decomposition(null: int, generator: torch.Generator):
    sizes = torch.cat([torch.logspace(-3, -1, 90 - null), torch.zeros(null)]).double()
    rows, right = rows_with(sizes, 130, generator)
    found = solved(rows, generator)
    assert int((found.sizes < 1e-12).sum()) == null
    vectors = found.vectors[:, :null]
    assert float((rows @ vectors).abs().max() if null else 0.0) < 1e-14
    exact = right[:, 90 - null :]
    assert float((vectors - exact @ (exact.T @ vectors)).norm()) < 1e-11
    dense = torch.linalg.svdvals(rows).flip(0) / 130**0.5
    torch.testing.assert_close(found.sizes[null], dense[null], rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("small", [1e-7, 1e-9, 1e-11, 1e-13])
def test_a_direction_that_is_nearly_null_keeps_its_size(small: float, generator: torch.Generator):
    """Eigenvalues of the Gram matrix would call all of them zero."""
    sizes = torch.cat([torch.full((50,), 0.1), torch.tensor([small, 0.0, 0.0])]).double()
    rows, right = rows_with(sizes, 80, generator)
    found = solved(rows, generator)
    assert float(found.sizes[1]) < 1e-15 and found.sizes[2] == pytest.approx(small, rel=0.1)
    gram, count = gram_of([rows], 53)
    assert count == 80
    if small < 1e-8:
        assert float(torch.linalg.eigvalsh(gram)[2]) < 1e-16


def test_known_null_vectors_are_left_out(generator: torch.Generator):
    sizes = torch.cat([torch.full((20,), 0.1), torch.zeros(3)]).double()
    rows, right = rows_with(sizes, 40, generator)
    found = solved(rows, generator, right[:, 20:22])
    assert int((found.sizes < 1e-12).sum()) == 1
    assert float((found.vectors.T @ right[:, 20:22]).abs().max()) < 1e-12
    torch.testing.assert_close(
        found.vectors.T @ found.vectors, torch.eye(found.vectors.shape[1], dtype=torch.float64)
    )


def test_unknowns_that_no_row_has_are_no_null_vectors(generator: torch.Generator):
    rows, _ = rows_with(torch.full((20,), 0.1).double(), 40, generator)
    rows = torch.cat([rows[:, :10], rows.new_zeros(40, 3), rows[:, 10:]], dim=1)
    found = solved(rows, generator)
    assert found.dead == 3 and float(found.sizes[0]) > 0.05
    assert not bool(found.vectors[10:13].any())


def test_a_gram_matrix_in_panels_is_the_product(generator: torch.Generator):
    rows = torch.randn(90, 1600, generator=generator, dtype=torch.float64)
    gram, count = gram_of(rows.split(40), 1600)
    torch.testing.assert_close(gram, rows.T @ rows / count)


def test_noise_is_recovered_from_differences_and_a_smooth_function_has_none(
    generator: torch.Generator,
):
    t = torch.arange(10, dtype=torch.float64)[:, None, None]
    smooth = torch.sin(1e-3 * t + torch.linspace(0, 1, 400).double()[None, :, None])
    errors = 1e-6 * torch.randn(10, 400, 2, generator=generator, dtype=torch.float64)
    found = differences(smooth + errors * torch.tensor([1.0, 100.0]).double())
    assert found.shape == (400, 2)
    assert found.square().mean(0).sqrt().tolist() == pytest.approx([1e-6, 1e-4], rel=0.1)
    assert float((found[:, 0] > 1e-7).double().mean()) > 0.95  # few are quiet by chance
    assert float(differences(smooth).max()) < 1e-15


def test_noise_of_single_precision_is_seen_inside_of_double(generator: torch.Generator):
    weights = {"w": torch.randn(64, 5, generator=generator, dtype=torch.float64)}

    def exact(params) -> Tensor:
        return params["w"].tanh().sum(1, keepdim=True)

    def rounded(params) -> Tensor:
        return params["w"].float().tanh().double().sum(1, keepdim=True)

    coarse, fine = (noise(f, weights, generator).median() for f in (rounded, exact))
    assert 1e-9 < float(coarse) < 1e-6 and float(coarse / fine) > 1e6


def test_points_of_a_line_together_and_one_by_one_have_the_same_differences(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
):
    weights = {k: torch.randn(5, 3, generator=generator, dtype=torch.float64) for k in "ab"}
    calls = []

    def rounded(there):
        calls.append(len(there["a"]))
        return (there["a"] * there["b"]).float().sin().double()

    def found() -> Tensor:
        calls.clear()
        return noise_differences(rounded, weights, torch.Generator().manual_seed(1))

    together = found()
    assert set(calls) == {50}
    monkeypatch.setattr("paramsym.discovery.linear.noise._ENTRIES", 1)
    assert torch.equal(found(), together) and set(calls) == {5} and float(together.abs().max())
