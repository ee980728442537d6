"""What tensors are by how they were made: centrings, shares, averages of averages, squares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from paramsym.primitives import Contract, Map, Reduce, Sum
from paramsym.primitives.tensor import Tensor
from paramsym.recording.layout import steps


def centred_dims(terms: Sequence[tuple[Tensor, float]]) -> tuple[int, ...]:
    """The axes along which a sum is x less its mean; () where it is another sum."""
    if [sign for _, sign in terms] != [1, -1]:
        return ()
    (x, _), (y, _) = terms
    mean = _reduction(x, y)
    return mean.dims if mean is not None and mean.how == "mean" and mean.inputs[0] is x else ()


def _reduction(x: Tensor, y: Tensor) -> Reduce | None:
    """What y was reduced by, if its axes are those of x and each that was lost is one entry."""
    made = y.owner.producer
    if not isinstance(made, Reduce):
        return None
    kept = tuple(1 if k in made.dims else n for k, n in enumerate(x.shape))
    whole = y.offset == y.owner.offset and steps(y) == steps(y.owner)
    return made if whole and (1,) * (x.ndim - y.ndim) + y.shape == kept else None


Total = tuple[int, float]  # an axis, and what the entries along it sum to


def total_of(
    x: Tensor, y: Tensor, axes: tuple[tuple[Any, ...], ...], power: int
) -> Total | None:  # fmt: skip
    """What a product or quotient is known to sum to: x / Σx to one, and averages of averages."""
    xs, ys, zs = axes
    if xs == zs and ys == zs[len(zs) - len(ys) :]:
        divisor = y if power == -1 else _inverse(y) if power == 1 else None
        if divisor is not None and (found := _shares(x, divisor)) is not None:
            return found
    return _averaged(x, y, axes) if power == 1 else None


def _shares(x: Tensor, y: Tensor) -> Total | None:
    """The sum of x / y along the axis along which y is a multiple of the sum of x."""
    made = _reduction(x, y)
    if made is None or len(made.dims) != 1:
        return None
    if made.how in ("sum", "mean") and made.inputs[0] is x:
        return made.dims[0], float(x.shape[made.dims[0]] if made.how == "mean" else 1)
    found = square_of(x) if made.how == "norm2" else None
    if found is None or found[0] is not made.inputs[0] or not made.weight:
        return None
    return made.dims[0], found[1] / made.weight


def _inverse(y: Tensor) -> Tensor | None:
    """The tensor whose reciprocals another holds."""
    op = y.producer
    if isinstance(op, Sum) and len(op.inputs) == 1 and op.weight(0) == 1:
        return _inverse(op.inputs[0])
    return op.inputs[0] if isinstance(op, Map) and op.name == "reciprocal" else None


def seen_total(base: Tensor, view: Tensor) -> Total | None:
    """The known sum of a tensor as a view sees it, along the whole axis and from its start on."""
    if base.total is None:
        return None
    along, total = base.total
    own = length, step = base.shape[along], base.strides[along]
    axes = list(zip(view.shape, view.strides, strict=True))
    if own not in axes:
        return None
    k = axes.index(own)
    others = [(n, s) for n, s in axes[:k] + axes[k + 1 :] if n > 1]
    start, inside = divmod(view.offset - base.offset, step)
    inside += sum(s * (n - 1) for n, s in others if s < step)
    whole = all(s < step or s % (step * length) == 0 for _, s in others)
    return (k, total) if start % length == 0 and inside < step and whole else None


def _averaged(x: Tensor, y: Tensor, axes: tuple[tuple[Any, ...], ...]) -> Total | None:
    """The sum of Σₐ xₐ·yₐ along an axis: averages of averages are averages."""
    lost = {label for label in (*axes[0], *axes[1]) if label not in axes[2]}
    if x.total is None or y.total is None:
        return None
    one, other = axes[0][x.total[0]], axes[1][y.total[0]]
    for summed, along, inner, outer in ((one, other, *axes[:2]), (other, one, *axes[1::-1])):
        sizes = {(x if axis is axes[0] else y).shape[axis.index(summed)]
                 for axis in (inner, outer) if summed in axis}  # fmt: skip
        met = summed in outer and len(sizes) == 1 and along not in inner
        if met and lost == {summed} and along in axes[2]:
            return axes[2].index(along), x.total[1] * y.total[1]
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
