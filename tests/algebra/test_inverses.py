"""Inverses in single precision: rounded once, not digit by digit."""

import torch

from paramsym.algebra import GeneralLinear

ROWS = 400


def _lost(inverse: torch.Tensor, matrix: torch.Tensor) -> float:
    """How far from the exact inverse, relative to its size."""
    exact = torch.linalg.inv(matrix.double())
    return float((inverse.double() - exact).norm() / exact.norm())


def test_inverse_and_dual_keep_the_digits_of_single_precision():
    group = GeneralLinear(ROWS)
    g = group.sample(torch.Generator().manual_seed(0), dtype=torch.float32)
    assert g.matrix is not None
    inverse, dual = group.inverse(g).matrix, group.dual(g).matrix
    assert inverse is not None and dual is not None
    assert inverse.dtype == dual.dtype == torch.float32
    assert torch.equal(inverse.mT, dual)
    assert _lost(inverse, g.matrix) < 1e-7
    assert _lost(torch.linalg.inv(g.matrix), g.matrix) > 1e-6  # the control: single precision


def test_double_precision_and_gradients_pass():
    group = GeneralLinear(3)
    g = group.sample(torch.Generator().manual_seed(0), dtype=torch.float64)
    assert g.matrix is not None
    inverse = group.inverse(g).matrix
    assert inverse is not None and torch.equal(inverse, torch.linalg.inv(g.matrix))
    single = g.matrix.float().requires_grad_()
    made = group.inverse(type(g)(matrix=single)).matrix
    assert made is not None
    (found,) = torch.autograd.grad(made.sum(), single)
    ones = torch.ones(3, 3, dtype=torch.float64)  # d Σ A⁻¹ = −A⁻ᵀ 1 A⁻ᵀ
    assert torch.allclose(found.double(), -(inverse.mT @ ones @ inverse.mT), atol=1e-5)
