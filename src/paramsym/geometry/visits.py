"""The best move of one space while all others stay, in closed form.

    signs         the sign of the diagonal of C
    phases        the argument of Σ y x̄
    rotations     U Vᵀ of C = U S Vᵀ (Schönemann, 1966, A generalized solution of the orthogonal
                  Procrustes problem); where ones stay fixed, on their complement
    orders        an assignment (Kuhn, 1955) that maximises the sum of scores

Each says how clearly it was determined: `doubt` counts what could as well have been chosen
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element, Group, UnitComplex
from paramsym.algebra.linear import OrthogonalFixingOnes
from paramsym.geometry.orders import ordered
from paramsym.geometry.pair import Pair, Place
from paramsym.structure.space import Space


class Visit(NamedTuple):
    """A value for a space, and how many of its parts nothing determined."""

    value: Element
    doubt: int


def visited(pair: Pair, space: Space, places: Sequence[Place], keyed: bool = False) -> Visit:
    """The best value of a space, read from some places.

    Args:
        pair: the two points.
        space: the space.
        places: where it is read.
        keyed: whether orders may be read off keys of the units, where these tell them apart.
    """
    group = space.group
    if isinstance(group, AbstractMonomial):
        if group.permutes:
            return Visit(*ordered(pair, space, places, keyed))
        return _signs(pair, places)
    if isinstance(group, UnitComplex):
        return _phases(pair, group, places)
    return _rotation(pair, group, places)


def _signs(pair: Pair, places: Sequence[Place]) -> Visit:
    read = pair.diagonal(places)
    sign = torch.where(read < 0, -1.0, 1.0).double()
    return Visit(Element(diagonal=sign), int((read.abs() <= pair.clear * _largest(read)).sum()))


def _phases(pair: Pair, group: Group, places: Sequence[Place]) -> Visit:
    c = pair.cross(places)
    half = group.size // 2
    real = c[..., :half, :half] + c[..., half:, half:]
    imaginary = c[..., half:, :half] - c[..., :half, half:]
    z = torch.complex(*(part.diagonal(dim1=-2, dim2=-1).contiguous() for part in (real, imaginary)))
    size = z.abs()
    clear = size > pair.clear * _largest(size)
    phase = torch.where(clear, z / size.clamp(min=1e-300), 1.0)
    return Visit(Element(diagonal=phase), int((~clear).sum()))


def _rotation(pair: Pair, group: Group, places: Sequence[Place]) -> Visit:
    c = pair.cross(places)
    n = group.size
    if isinstance(group, OrthogonalFixingOnes):  # along ones, where nothing else is left, by one
        ones = torch.full((n, n), 1 / n, dtype=c.dtype)
        c = c - ones @ c
        c = c - c @ ones
        c = c + torch.linalg.matrix_norm(c)[..., None, None] * ones
    left, values, right = torch.linalg.svd(c)
    unclear = values <= pair.clear * values[..., :1].clamp(min=1e-300)
    return Visit(Element(matrix=left @ right), int(unclear.sum()))


def _largest(read: Tensor) -> Tensor:
    return read.abs().amax() if read.numel() else read.new_zeros(())
