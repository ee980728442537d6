"""Maps along one axis of a tensor, each for one map or for a batch of them.

A batch of maps has leading dimensions B. It acts on a tensor whose leading dimensions broadcast
with B, one map for each place in the batch; `axis` counts the dimensions of the tensor acted on,
batch included.
"""

import torch
from torch import Tensor


def normalise_axis(x: Tensor, axis: int, batch_dims: int) -> int:
    """The axis counted from the front, or an error where it is missing or part of the batch."""
    positive = axis + x.dim() if axis < 0 else axis
    if not batch_dims <= positive < x.dim():
        raise ValueError(
            f"axis {axis} of a tensor of shape {tuple(x.shape)}: expected an axis from "
            f"{batch_dims} to {x.dim() - 1}, because the first {batch_dims} dimensions are the "
            "batch of the acting elements. Count the axis in the tensor as it is passed."
        )
    return positive


def take(x: Tensor, order: Tensor, axis: int) -> Tensor:
    """Reorders an axis: y[…, i, …] = x[…, order[i], …], with order of shape (*B, n)."""
    batch_dims = order.dim() - 1
    axis = normalise_axis(x, axis, batch_dims)
    if batch_dims == 0:
        return x.index_select(axis, order)
    batch = torch.broadcast_shapes(order.shape[:-1], x.shape[:batch_dims])
    x = x.expand(*batch, *x.shape[batch_dims:])
    order = order.expand(*batch, order.shape[-1])
    shape = [*batch, *(1 for _ in x.shape[batch_dims:])]
    shape[axis] = order.shape[-1]
    target = list(x.shape)
    target[axis] = order.shape[-1]
    return x.gather(axis, order.reshape(shape).expand(target))


def along(diagonal: Tensor, x: Tensor, axis: int) -> Tensor:
    """A diagonal of shape (*B, n), shaped to multiply x along one axis."""
    batch_dims = diagonal.dim() - 1
    axis = normalise_axis(x, axis, batch_dims)
    shape = [*diagonal.shape[:-1], *(1 for _ in x.shape[batch_dims:])]
    shape[axis] = diagonal.shape[-1]
    return diagonal.reshape(shape)


def multiply(matrix: Tensor, x: Tensor, axis: int) -> Tensor:
    """A matrix of shape (*B, m, n) times an axis of length n."""
    batch_dims = matrix.dim() - 2
    axis = normalise_axis(x, axis, batch_dims)
    dtype = torch.promote_types(matrix.dtype, x.dtype)
    matrix = matrix.to(dtype)
    rows = x.to(dtype).movedim(axis, -1)  # (*B, …, n)
    if batch_dims == 0:
        return (rows @ matrix.mT).movedim(-1, axis)
    # One matrix product for each place in the batch: everything else is flattened to rows.
    rest = rows.shape[batch_dims:-1]
    rows = rows.reshape(*rows.shape[:batch_dims], -1, rows.shape[-1])  # (*B, r, n)
    moved = rows @ matrix.mT  # (*B, r, m)
    return moved.reshape(*moved.shape[:-2], *rest, moved.shape[-1]).movedim(-1, axis)


def require_length(x: Tensor, axis: int, size: int, group: object) -> None:
    """Raises where the axis is not as long as the space that the group acts on."""
    if not -x.dim() <= axis < x.dim() or x.shape[axis] != size:
        raise ValueError(
            f"{group} acts on {size} coordinates, but axis {axis} of a tensor of shape "
            f"{tuple(x.shape)} does not have that length. Pass the axis that carries the space."
        )
