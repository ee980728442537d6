"""The obvious audit, slow: one Jacobian at many inputs, one SVD of it, one of the claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paramsym.checking.claimed import claimed_directions
from paramsym.checking.jacobian import Network
from paramsym.structure.rank import find_gap
from paramsym.structure.symmetry import ParameterSymmetry

_CALLS = 250  # for every unit to switch at some input
_SAME = 1 - 1e-8  # cosine of the angle between a direction and a space that it lies in


def slow_audit(
    model: torch.nn.Module,
    inputs: Any,
    symmetry: ParameterSymmetry,
    outputs: Callable[[Any], Any] | None = None,
) -> tuple[int, int]:
    """(nullity, how many dimensions of it are claimed or dead)."""
    network = Network(model, inputs, outputs, False, torch.Generator().manual_seed(7))
    rows = []
    for k in range(_CALLS):
        (found,) = network.rows(4, [2.0 ** (8 * k / _CALLS)])  # one by one
        rows.append(found / torch.linalg.vector_norm(found, dim=1, keepdim=True))
    null, dead = _null_space(torch.cat(rows))
    claims = torch.cat([claimed_directions(symmetry, network).rows, dead.T])
    _, sizes, right = torch.linalg.svd(claims, full_matrices=False)
    known = right[sizes > 1e-7 * max([1e-300, *sizes.tolist()])].T
    cosines = torch.linalg.svdvals(null.T @ known)
    return null.shape[1], int((cosines > _SAME).sum())


def _null_space(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal columns that span the null space, and those of them that are dead parameters."""
    norms = torch.linalg.vector_norm(rows, dim=0)
    alive = norms > 1e-12 * norms.max()
    _, values, right = torch.linalg.svd(rows[:, alive] / norms[alive], full_matrices=True)
    values = torch.cat([values, values.new_zeros(len(right) - len(values))])
    flat = right[find_gap(values, 1e-8).rank :].T / norms[alive, None]
    dead = torch.eye(len(alive), dtype=rows.dtype)[:, ~alive]
    null = torch.zeros(len(alive), flat.shape[1], dtype=rows.dtype)
    null[alive] = torch.linalg.qr(flat).Q
    return torch.cat([null, dead], dim=1), dead
