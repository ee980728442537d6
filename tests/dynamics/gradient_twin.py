"""The slow twin of `conserved_quantities`: which fields are gradients, by finite differences."""

from __future__ import annotations

import torch
from torch import Tensor

from paramsym import ParameterSymmetry, tangent
from paramsym.structure.rank import matrix_rank
from paramsym.structure.tangent import TangentOperator

Params = dict[str, Tensor]


def number_of_laws(symmetry: ParameterSymmetry, params: Params, seed: int = 0) -> int:
    """The rank of all combinations of generators, with constant coefficients, that are gradients.

    Σ c_j X_j is a gradient where ω_c(u, v) = ⟨u, D_v X_c⟩ − ⟨v, D_u X_c⟩ vanishes for all u, v and
    at all parameters: three random points and more pairs than generators. Combinations that move
    buffers, and families that leave no loss alone, are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    operator = tangent(symmetry, params)
    trained = [n for n in operator.names if n not in symmetry.buffers]
    columns = torch.cat([torch.arange(s.start, s.stop) for s in
                         (operator.columns[n] for n in trained)])  # fmt: skip
    buffers = [operator.columns[n] for n in operator.names if n in symmetry.buffers]
    if not operator.blocks:
        return 0
    exact = torch.cat([torch.full((b.size,), b.is_shift or symmetry.spaces[b.name].exact)
                       for b in operator.blocks])  # fmt: skip
    rows = [torch.diag((~exact).double())]
    fields = operator.dense()
    rows += [fields[:, columns_of].T for columns_of in buffers]
    for _ in range(3):
        point = _moved(operator, params, generator, 0.5)
        rows.append(_curls(operator, point, trained, columns, generator))
    _, values, right = torch.linalg.svd(torch.cat(rows), full_matrices=True)
    rank = int((values > 1e-8).sum())  # rows are relative to the length of the fields
    return matrix_rank(right[rank:] @ fields[:, columns], 1e-6).rank


def _moved(operator: TangentOperator, params: Params, generator, size: float) -> Params:
    held = operator.symmetry.buffers
    return {
        n: p + size * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        if n in operator.names and n not in held else p
        for n, p in params.items()
    }  # fmt: skip


def _curls(operator, point: Params, trained: list[str], columns: Tensor, generator) -> Tensor:
    """ω_j(u, v) for every generator j and pairs of random directions, of shape (pairs, g)."""
    count = 2 + int((2.2 * operator.shape[0]) ** 0.5)
    sizes = [point[n].numel() for n in trained]
    directions = torch.randn(count, sum(sizes), generator=generator, dtype=torch.float64)
    pairs = []
    for v in directions:
        parts = {n: d.reshape(point[n].shape)
                 for n, d in zip(trained, v.split(sizes), strict=True)}  # fmt: skip

        def at(step: float, parts: Params = parts) -> Tensor:
            there = {n: p + step * parts[n] if n in parts else p for n, p in point.items()}
            return tangent(operator.symmetry, there).dense()[:, columns]

        slope = (8 * (at(1e-3) - at(-1e-3)) - (at(2e-3) - at(-2e-3))) / 12e-3
        pairs.append(slope @ directions.T)  # (g, directions)
    found = torch.stack(pairs)  # (v, g, u)
    curl = found - found.permute(2, 1, 0)
    curl = curl / found.abs().max().clamp_min(1e-300)
    upper = torch.triu_indices(count, count, 1)
    return curl.permute(0, 2, 1)[upper[0], upper[1]]
