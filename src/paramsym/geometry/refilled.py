"""A sum of exponentials with few numbers, whose masses are read anew from weights that have moved.

In a training loop the weights are others at each point, and all else is the same: which vectors and
which matrices between families there are. Here these are laid out once, as `small` has them, and
filled at each point in one pass over the weights, in their own precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paramsym.geometry.costs import LARGE, Reader, Readers, Shape
from paramsym.geometry.masses import norm_power
from paramsym.geometry.small import Array, Small
from paramsym.geometry.terms import Term, as_it_lies, is_apart, is_plain

_FEW = 1 << 14
_ROUNDING = {torch.float32: 2e-5, torch.float64: 0.0}


class _Block(NamedTuple):
    """A block of a parameter, and where its mass goes: to a matrix, to a row of the vectors and a
    slice of it, or, with neither, to the constant."""

    parameter: str
    reader: Reader
    matrix: Tensor | None
    line: Array | None


class Refilled:
    """f(y) of vectors and of matrices between two families, at weights that are given each time.

    Attributes:
        anchored: whether no family leads back to itself, from scales that multiply a mass to those
            that divide it. Then all scales have a best value where each has weights on both sides:
            from one to the next they end at what is fixed.
        rounding: what the rounding of masses and slopes can add to a gap, as a share of the cost.
    """

    def __init__(
        self, small: Small, blocks: Sequence[_Block], anchored: bool, kind: torch.dtype
    ) -> None:
        self.small, self.blocks, self.anchored = small, blocks, anchored
        self.kind, self.rounding = kind, _ROUNDING[kind]

    @staticmethod
    def of(
        shapes: Mapping[str, Shape], readers: Iterable[Readers], params: Mapping[str, Tensor]
    ) -> Refilled | None:
        """The layout of what some readers find at parameters of these kinds; None where there is
        more than vectors and small matrices of real numbers on the CPU."""
        found = [(r, block) for r in readers for block in r.blocks]
        kind = params[found[0][0].parameter].dtype if found else None
        if kind not in _ROUNDING:
            return None
        terms = [_blank(block, kind) for _, block in found]
        for (own, block), term in zip(found, terms, strict=True):
            plain = _is_plain(params[own.parameter], kind) and not own.origin and not block.pairs
            if not plain or not _fits(term):
                return None
        return _laid_out(shapes, [(r.parameter, block) for r, block in found], terms)

    def fits(self, params: Mapping[str, Tensor]) -> bool:
        """Whether parameters are of the kind that it was laid out for."""
        return all(_is_plain(params[block.parameter], self.kind) for block in self.blocks)

    def read(self, params: Mapping[str, Tensor]) -> Small:
        """f at weights as they are now; it is the same object each time."""
        f, constant = self.small, 0.0
        f.lines.fill(0.0)
        for name, reader, matrix, line in self.blocks:
            x = params[name].detach()
            if x.shape != reader.block.shape or not x.is_contiguous():
                x = reader.block.view(x)
            if matrix is not None:
                norm_power(x, reader.power, reader.summed, matrix)
            elif line is None:
                constant += float(_mass(x, reader))
            else:
                mass = _mass(x, reader)
                if mass.ndim > 1:
                    mass = mass.transpose(reader.factors[0].axes).reshape(-1)
                line += mass
        f.constant = constant
        return f


def _mass(x: Tensor, reader: Reader) -> Array:
    """What a block adds to f, in NumPy where PyTorch takes longer to be called than to compute."""
    if x.numel() > _FEW:
        return norm_power(x, reader.power, reader.summed).numpy()
    numbers = x.numpy()
    made = numbers * numbers if reader.power == 2 else np.abs(numbers)
    return made.sum(reader.summed) if reader.summed else made


def _is_plain(tensor: Tensor, kind: torch.dtype) -> bool:
    return tensor.dtype is kind and tensor.device.type == "cpu"


def _blank(reader: Reader, kind: torch.dtype) -> Term:
    """The term of a block, without numbers."""
    sizes = [n for k, n in enumerate(reader.block.shape) if k not in reader.summed]
    return Term(torch.empty(sizes, dtype=kind), reader.factors)


def _fits(term: Term) -> bool:
    """Whether a term is a constant, a vector, or a matrix that lies in the order of its axes."""
    if len(term.factors) < 2:
        return not term.factors or is_apart(term)
    if not is_plain(term) or term.mass.numel() > LARGE:
        return False
    axes = [axis for factor in as_it_lies(term) for axis in factor.axes]
    return axes == [*range(term.mass.ndim)]


def _laid_out(
    shapes: Mapping[str, Shape], readers: Sequence[tuple[str, Reader]], terms: Sequence[Term]
) -> Refilled:
    """The vectors and matrices of `small`, and which block fills which."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    places = {name: k for k, name in enumerate(sizes)}
    lines: dict[float, Array] = {}
    pairs, graph = [], {name: set[str]() for name in sizes}
    for term in terms:
        if len(term.factors) == 1:
            lines.setdefault(term.factors[0].power, np.zeros(sum(sizes.values())))
        elif term.factors:
            a, b = as_it_lies(term)
            matrix = term.mass.reshape(sizes[a.family], sizes[b.family]).numpy()
            pairs.append((matrix, (places[a.family], places[b.family]), (a.power, b.power)))
            if a.power * b.power < 0:
                above, below = (a, b) if a.power > 0 else (b, a)
                graph[above.family].add(below.family)
    small = Small(sizes, lines, pairs, 0.0, None)
    blocks = []
    for (name, reader), term in zip(readers, terms, strict=True):
        line = None
        if len(term.factors) == 1:
            (factor,) = term.factors
            end = ends[factor.family]
            own = slice(end - sizes[factor.family], end)
            line = small.lines[small.row[factor.power]][own]
        matrix = term.mass if len(term.factors) == 2 else None
        blocks.append(_Block(name, reader, matrix, line))
    return Refilled(small, blocks, _is_acyclic(graph), terms[0].mass.dtype)


def _is_acyclic(graph: Mapping[str, set[str]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True
