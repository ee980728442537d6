"""Distances between parameters, over what determines the function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paramsym.merging.states import State, has_values
from paramsym.structure.symmetry import ParameterSymmetry


def determining(symmetry: ParameterSymmetry, params: State) -> dict[str, Tensor]:
    """The parameters that the function depends on, ties once.

    Buffers, dead parameters and rows of tables that no input reaches are left out.
    """
    aside = {*symmetry.buffers, *symmetry.dead, *symmetry.ties}
    found = {}
    for name, tensor in params.items():
        if name in symmetry.signature and name not in aside and has_values(tensor):
            found[name] = _reached(tensor, symmetry.unreached.get(name, ()))
    return found


def _reached(tensor: Tensor, rows: tuple[int, ...]) -> Tensor:
    if not rows:
        return tensor
    keep = torch.ones(len(tensor), dtype=torch.bool, device=tensor.device)
    keep[list(rows)] = False
    return tensor[keep]


def squared_distance(a: State, b: State) -> float:
    """Σ |a − b|² over the tensors of a, in double precision."""
    return sum(float((a[n].double() - b[n].to(a[n].device).double()).norm()) ** 2 for n in a)


def relative_distances(symmetry: ParameterSymmetry, a: State, b: State) -> dict[str, float]:
    """|a − b| / √(|a|² + |b|²) for every tensor, and under the empty name for all together.

    It is 0 for equal ones, 1 for orthogonal ones, and at most √2.
    """
    x, y = determining(symmetry, a), determining(symmetry, b)
    apart = {n: squared_distance({n: x[n]}, y) for n in x}
    size = {n: sum(float(each[n].double().norm()) ** 2 for each in (x, y)) for n in x}
    found = {n: _ratio(apart[n], size[n]) for n in x}
    return {"": _ratio(sum(apart.values()), sum(size.values())), **found}


def _ratio(apart: float, size: float) -> float:
    return math.sqrt(apart / size) if apart else 0.0
