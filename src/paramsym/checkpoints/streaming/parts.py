"""The parts of quantised weights, permuted and multiplied some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.streaming.quantised import ROUNDING, StoredMove
from paramsym.structure.fast import Rows
from paramsym.structure.panels import spans

_PANEL = 1 << 20  # bytes: what is permuted stays in the cache while it is
_COPIES = 24  # of a panel at most, where it is multiplied in float64
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry


def moved_rows(x: Rows, move: StoredMove, name: str, where: str) -> Iterator[torch.Tensor]:
    """The rows of a moved part, some at a time; each panel is good until the next is asked for.

    Args:
        x: the part, as it is stored.
        move: what is done to it.
        name: of the tensor, for errors.
        where: the files that it is in, for errors.

    Raises:
        CheckpointError: a scale leaves the range of its dtype.
    """
    if not x.shape:
        yield _multiplied(x[:], move, slice(None), name, where)
        return
    first, *others = move.orders
    whole = None if first is None else x[0 : x.shape[0]]
    rooms: dict[int, torch.Tensor] = {}
    for low, high in spans(x, _PANEL):
        panel = x[low:high] if whole is None else whole
        if first is not None:
            panel = _taken(panel, 0, first[low:high], rooms)
        for axis, order in enumerate(others, 1):
            panel = panel if order is None else _taken(panel, axis, order, rooms)
        yield _multiplied(panel, move, slice(low, high), name, where)


def _taken(
    x: torch.Tensor, axis: int, order: torch.Tensor, rooms: dict[int, torch.Tensor]
) -> torch.Tensor:
    """Entries of an axis in another order; new memory each time would cost more than that."""
    shape = (*x.shape[:axis], len(order), *x.shape[axis + 1 :])
    if axis not in rooms or rooms[axis].shape[0] < shape[0]:
        rooms[axis] = torch.empty(shape, dtype=x.dtype)
    made = rooms[axis][: shape[0]]
    bits = _BITS[x.dtype.itemsize]
    if axis == 0:
        torch.index_select(x.view(bits), 0, order, out=made.view(bits))
    else:  # several times as fast as torch along other axes
        source, target = x.view(bits).numpy(), made.view(bits).numpy()
        source.take(order.numpy(), axis=axis, out=target, mode="clip")
    return made


def bytes_needed(x: Rows, move: StoredMove) -> int:
    """Bytes that moving a part takes at most: all of it where its rows come in another order."""
    size = x.shape.numel() * x.dtype.itemsize
    whole = size if move.orders and move.orders[0] is not None else 0
    return whole + _COPIES * min(size, _PANEL)


def _multiplied(
    panel: torch.Tensor, move: StoredMove, rows: slice, name: str, where: str
) -> torch.Tensor:
    """Some rows of scales times their factors, in float64, rounded once."""
    if not move.factors:
        return panel
    exact = panel.double()
    for factor in move.factors:
        exact = exact * (factor[rows] if factor.ndim and len(factor) > 1 else factor)
    made = exact.to(panel.dtype)
    error = (made.double() - exact).abs()
    if not bool((error <= ROUNDING[panel.dtype] * exact.abs()).all()):
        low, high = (float(x) for x in exact.abs().aminmax())
        kind = str(panel.dtype).removeprefix("torch.")
        raise CheckpointError(
            where, f"the scales {name!r} become {low:.3g} to {high:.3g}, which {kind} cannot hold",
            f"scales in the range of {kind}", "Move by smaller scales, or leave them out",
        )  # fmt: skip
    return made
