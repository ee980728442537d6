"""A slow aligner for tests: permutations alone, one space after the other, by assignment."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from paramsym import ParameterSymmetry, act
from paramsym.algebra import Permutation
from paramsym.structure.axes import Carried
from paramsym.structure.element import GroupElement


def permutations_of(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The same symmetry, with its orders alone."""
    return symmetry.restrict(groups=Permutation, translations=False)


def _rows(symmetry: ParameterSymmetry, space: str, params: dict[str, Tensor]) -> Iterator[Tensor]:
    """What a space moves, unit by unit: (size, everything else)."""
    for leg_block in (b for n in symmetry.parameters_of(space) for b in symmetry.blocks[n]):
        for leg in leg_block.legs:
            if leg.space == space:
                view = leg_block.view(params[leg_block.parameter].double())
                yield view.movedim(leg.axis, 0).reshape(view.shape[leg.axis], -1)


def _read(space: str, readings: dict) -> Iterator[Tensor]:
    for reading in readings.values():
        if isinstance(reading.type, Carried) and reading.type.factors[0][0] == space:
            yield reading.values.double().T


def align_orders(
    symmetry: ParameterSymmetry, a: dict[str, Tensor], b: dict[str, Tensor], data: Any = None
) -> SimpleNamespace:
    """Weight (or activation) matching over all orders without copies, by coordinate ascent."""
    element: GroupElement = symmetry.identity()
    spaces = [s for s in symmetry.spaces.values() if getattr(s.group, "permutes", 0) and not s.over]
    for _ in range(30):
        still = True
        for space in spaces:
            moved = act(symmetry, element, b)
            if data is None:
                pairs = [_rows(symmetry, space.name, x) for x in (a, moved)]
            else:
                pairs = [_read(space.name, x) for x in data]
            gram = sum(x @ y.T for x, y in zip(*pairs, strict=True))
            if not isinstance(gram, Tensor):
                continue
            order = torch.as_tensor(linear_sum_assignment(gram.numpy(), maximize=True)[1])
            if float(gram[range(len(order)), order].sum()) > float(gram.trace()) * (1 + 1e-9):
                element, still = symmetry.element({space.name: order}) @ element, data is not None
        if still:
            break
    return SimpleNamespace(element=element)


def align_nothing(symmetry: ParameterSymmetry, a: Any, b: Any, data: Any = None) -> SimpleNamespace:
    """The identity."""
    return SimpleNamespace(element=symmetry.identity())
