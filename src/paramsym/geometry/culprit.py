"""The one entry that, changed alone, explains how two points next to each other differ.

What is left between a and the nearest point of the orbit of b is to first order δ e_i + v, with v
tangent to the orbit at a: balance and bases spread a change over all that they touch. With P the
projector off the tangent space, P r = δ P e_i, so that the entry is the one for which

    |⟨P r, e_i⟩| / ‖P e_i‖

is largest. Entries with equal P e_i explain it equally well: a bias and one that takes it up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.structure.layout import widened
from paramsym.structure.orbit import unreached_columns
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import real_entries, tangent

_LARGEST = 40_000_000  # entries of the matrix of all generators
_ZERO = 1e-10  # of the largest singular value
_FREE = 1e-6  # of an entry: what moves along the orbit by nearly all of it explains nothing
_ALIKE = 1e-6  # of the best: those that explain it as well

Place = tuple[str, tuple[int, ...]]


def explained(
    symmetry: ParameterSymmetry, a: Mapping[str, Tensor], moved: Mapping[str, Tensor]
) -> list[Place]:
    """The entries of a that explain its difference from a near point, each alone and equally well.

    Args:
        symmetry: whose orbit it is.
        a: the point at which tangents are taken.
        moved: the near point.

    Returns:
        Names and indices; nothing where the matrix of all generators would be too large.
    """
    wide = {n: widened(p.detach()) for n, p in a.items()}
    operator = tangent(symmetry, wide)
    generators, entries = operator.shape
    names = [n for n in operator.names if not wide[n].is_complex()]
    if generators * entries > _LARGEST or len(names) < len(operator.names):
        return []
    rest = torch.cat([(wide[n] - widened(moved[n])).reshape(-1) for n in names])
    dead = torch.cat([torch.full((real_entries(wide[n]),), n in symmetry.dead) for n in names])
    still = dead | unreached_columns(operator, tuple(names))
    kept = torch.ones_like(rest)
    if generators:
        _, sizes, basis = torch.linalg.svd(operator.dense(), full_matrices=False)
        basis = basis[sizes > _ZERO * sizes[:1].clamp(min=1e-300)]
        rest = rest - basis.mT @ (basis @ rest)
        kept = (1 - basis.square().sum(0)).clamp(min=0)
    score = torch.where((kept > _FREE) & ~still, rest.abs() / kept.sqrt().clamp(min=1e-300), 0.0)
    best = (score >= (1 - _ALIKE) * score.amax()).nonzero()[:, 0].tolist() if len(score) else []
    return [_place(operator.columns, wide, names, column) for column in best]


def _place(
    columns: Mapping[str, slice], params: Mapping[str, Tensor], names: list[str], column: int
) -> Place:
    name = next(n for n in names if columns[n].start <= column < columns[n].stop)
    index = torch.unravel_index(torch.tensor(column - columns[name].start), params[name].shape)
    return name, tuple(int(k) for k in index)
