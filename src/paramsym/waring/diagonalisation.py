"""Sums of few powers, by simultaneous diagonalisation.

For f = Σ_t w_t (v_tᵀx)^d let k = ⌊(d − 1)/2⌋ and l = d − 1 − k. The derivative of f along y is, up
to a factor, the sum of w_t (v_tᵀy) times a power of degree d − 1, and flattened with k indices
along the rows it is

    F(y) = V_k diag(w_t v_tᵀy) V_lᵀ,     with the tensors v_t^{⊗k} in the columns of V_k.

If the catalecticant with k rows has rank r, the columns of V_k are independent in every
decomposition into r powers, so that on the images, where it is square, F(y) F(z)⁻¹ has these
columns as eigenvectors with the eigenvalues v_tᵀy/v_tᵀz, which differ for almost all y and z. There
is then at most one decomposition, and this is it; where eigenvalues are complex or a vector is
missing, no sum of r real powers is f.

Source: Leurgans, Ross and Abel, "A decomposition for three-way arrays" (1993), after Jennrich; for
symmetric tensors of higher degree by flattening.
"""

from __future__ import annotations

import numpy as np
import torch

from .forms import Array, Form
from .levenberg_marquardt import Found, found, polished, weighted

_DRAWS = 4  # pairs y, z; the ones with the best residual count


def applies(form: Form, rank: int, tolerance: float) -> bool:
    """Whether every sum of so many powers would have independent V_k, by the rank of F."""
    rows = (form.degree - 1) // 2
    if rows < 1:
        return False
    sizes = np.linalg.svd(form.catalecticant(rows), compute_uv=False)
    return int((sizes > tolerance * form.norm).sum()) == rank


def diagonalised(form: Form, rank: int, generator: torch.Generator) -> Found:
    """The only candidate for a sum of so many powers; its residual says whether it is one."""
    rows = (form.degree - 1) // 2
    left = np.linalg.svd(form.catalecticant(rows), full_matrices=False)[0][:, :rank]
    right = np.linalg.svd(form.catalecticant(form.degree - 1 - rows), full_matrices=False)[0]
    best: Found | None = None
    for _ in range(_DRAWS):
        drawn = torch.randn((2, form.variables), generator=generator, dtype=torch.float64)
        at, below = (
            left.T @ form.derivative(y).catalecticant(rows) @ right[:, :rank] for y in drawn.numpy()
        )
        if np.linalg.cond(below) > 1e12:
            continue
        _, every = np.linalg.eig(at @ np.linalg.inv(below))
        vectors = np.stack([_root(form.variables, rows, v) for v in (left @ every).T])
        there = polished(form, found(form, weighted(form, vectors), vectors))
        best = there if best is None or there.residual < best.residual else best
    if best is None:  # F(z) is singular for all z: not the derivatives of a sum
        vectors = np.eye(form.variables)[np.arange(rank) % form.variables]
        best = found(form, weighted(form, vectors), vectors)
    return best


def _root(variables: int, degree: int, power: Array) -> Array:
    """The unit vector whose power is nearest to a symmetric tensor, by singular values."""
    # an eigenvector is known up to a complex factor
    power = (power * np.exp(-1j * np.angle(power[np.abs(power).argmax()]))).real
    tensor = Form(variables, degree, power).catalecticant(1)
    vector = np.linalg.svd(tensor, full_matrices=False)[0][:, 0]
    return vector / np.linalg.norm(vector)
