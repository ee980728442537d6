"""What tensors are by how they were made: centrings, shares, averages of averages, squares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from paramsym.primitives import Contract, Map, Reduce, Sum
from paramsym.primitives.tensor import Tensor


def centred_dims(terms: Sequence[tuple[Tensor, float]]) -> tuple[int, ...]:
    """The axes along which a sum is x less its mean; () where it is another sum."""
    if [sign for _, sign in terms] != [1, -1]:
        return ()
    (x, _), (y, _) = terms
    return _reduced(x, y, "mean")


def _reduced(x: Tensor, y: Tensor, how: str) -> tuple[int, ...]:
    """The axes of x that y is a sum or mean along, each kept as one entry; () for other tensors."""
    made = y.owner.producer
    if not isinstance(made, Reduce) or not _is_of(made, x, how):
        return ()
    kept = tuple(1 if k in made.dims else n for k, n in enumerate(x.shape))
    whole = y.offset == y.owner.offset and _steps(y) == _steps(y.owner)
    return made.dims if whole and (1,) * (x.ndim - y.ndim) + y.shape == kept else ()


def _is_of(made: Reduce, x: Tensor, how: str) -> bool:
    if made.how == "norm2" and how == "sum":  # of the squares that x is
        return square_of(x) == (made.inputs[0], made.weight)
    return made.how == how and made.inputs[0] is x


def _steps(x: Tensor) -> list[int]:
    """The strides of the axes that have several entries."""
    return [step for n, step in zip(x.shape, x.strides, strict=True) if n > 1]


def sums_to_one(
    x: Tensor, y: Tensor, axes: tuple[tuple[Any, ...], ...], power: int
) -> int | None:  # fmt: skip
    """The axis along which a product or quotient sums to one: x / Σx, and averages of averages."""
    if power == 1:
        return _averaged(x, y, axes)
    xs, ys, zs = axes
    dims = _reduced(x, y, "sum") if xs == zs and ys == zs[len(zs) - len(ys) :] else ()
    return dims[0] if power == -1 and len(dims) == 1 else None


def _averaged(x: Tensor, y: Tensor, axes: tuple[tuple[Any, ...], ...]) -> int | None:
    """The axis of Σₐ xₐ·yₐ along which it sums to one: averages of averages are averages."""
    lost = {label for label in (*axes[0], *axes[1]) if label not in axes[2]}
    if x.stochastic is None or y.stochastic is None:
        return None
    one, other = axes[0][x.stochastic], axes[1][y.stochastic]
    for summed, along, inner, outer in ((one, other, *axes[:2]), (other, one, *axes[1::-1])):
        sizes = {(x if axis is axes[0] else y).shape[axis.index(summed)]
                 for axis in (inner, outer) if summed in axis}  # fmt: skip
        met = summed in outer and len(sizes) == 1 and along not in inner
        if met and lost == {summed} and along in axes[2]:
            return axes[2].index(along)
    return None


def broadcast(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The shape of an entrywise function of tensors whose axes of one entry are repeated."""
    columns = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return [max(sizes) if all(sizes) else 0 for sizes in columns][::-1]


def square_of(x: Tensor) -> tuple[Tensor, float] | None:
    """(y, c) if x is c times the entrywise square of y."""
    op = x.producer
    if isinstance(op, Map) and op.name in ("square", "abs2"):
        return op.inputs[0], 1.0
    if isinstance(op, Contract) and op.is_square and op.power == 1:
        xs, ys, zs = op.axes
        return (op.inputs[0], 1.0) if xs == ys == zs else None
    if isinstance(op, Sum) and len(op.inputs) == 1 and op.inputs[0].shape == x.shape:
        found = square_of(op.inputs[0])
        return None if found is None else (found[0], found[1] * op.weight(0))
    return None
