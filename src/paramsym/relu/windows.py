"""Windows over the last axes of an array, as tables of places; what convolution and pooling do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.coefficients import Coefficients, check_size
from paramsym.relu.entries import Entries, as_floats
from paramsym.relu.errors import ReLUError

PADDING, BEYOND = -1, -2  # places outside the array: padding, and what `ceil` adds to it


def windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int | tuple[int, int]] | None = None,
    dilation: Sequence[int] | None = None,
    ceil: bool = False,
) -> np.ndarray:
    """The flat places that each window reads: (…, *windows, *kernel), negative outside the array.

    Args:
        kernel: sizes of a window along the last axes.
        stride: from one window to the next; the kernel if None.
        padding: on either side of each axis, or (before, after).
        dilation: from one place of a window to the next.
        ceil: whether a last window that leaves the padded array counts.
    """
    n = len(kernel)
    steps = list(stride or kernel)
    gaps = list(dilation or [1] * n)
    sides = [p if isinstance(p, tuple) else (p, p) for p in padding or [0] * n]
    places = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))
    lead = [(0, 0)] * (len(shape) - n)
    lengths = shape[len(shape) - n :]
    reach = [g * (k - 1) + 1 for g, k in zip(gaps, kernel, strict=True)]
    over = [
        _overhang(length, side, span, step) if ceil else 0
        for length, side, span, step in zip(lengths, sides, reach, steps, strict=True)
    ]
    if any(length + sum(side) < span
           for length, side, span in zip(lengths, sides, reach, strict=True)):  # fmt: skip
        raise ReLUError(
            f"a window of {tuple(reach)}", f"at most the padded sizes of {tuple(shape)}",
            "a convolution or pooling", "Check the size of the input.",
        )  # fmt: skip
    padded = np.pad(places, [*lead, *sides], constant_values=PADDING)
    padded = np.pad(padded, [*lead, *((0, o) for o in over)], constant_values=BEYOND)
    axes = tuple(range(len(shape) - n, len(shape)))
    views = sliding_window_view(padded, tuple(reach), axis=axes)
    every = (slice(None),) * (len(shape) - n)
    return views[
        (*every, *(slice(None, None, s) for s in steps), *(slice(None, None, g) for g in gaps))
    ]


def _overhang(length: int, side: tuple[int, int], span: int, step: int) -> int:
    """How far the last window may leave the padded array: it must begin inside the array or left
    of it."""
    room = length + sum(side) - span
    count = -(-room // step)
    if count * step >= length + side[0]:
        count -= 1
    return max(0, count * step - room)


def convolution(
    shape: Sequence[int],
    weight: Entries,
    stride: Sequence[int] | None,
    padding: Sequence[int | tuple[int, int]] | None,
    dilation: Sequence[int] | None,
    groups: int,
) -> tuple[Coefficients, tuple[int, ...]]:
    """The matrix of a convolution (as deep learning has it: a correlation), and what it makes.

    Args:
        shape: (…, channels, *sizes) of what it reads.
        weight: (outputs, channels / groups, *kernel).
    """
    outputs, inputs, *kernel = weight.values.shape
    lead, channels = tuple(shape[: -1 - len(kernel)]), shape[-1 - len(kernel)]
    if channels != inputs * groups or outputs % groups:
        raise ReLUError(
            f"an array of shape {tuple(shape)}", f"{inputs * groups} channels",
            "a convolution", "Check the shape of the input.",
        )  # fmt: skip
    places = windows(shape, kernel, stride or [1] * len(kernel), padding, dilation)
    sizes = places.shape[len(lead) + 1 : len(lead) + 1 + len(kernel)]
    batch, count = int(np.prod(lead, dtype=np.int64)), int(np.prod(sizes, dtype=np.int64))
    taps = int(np.prod(kernel, dtype=np.int64))
    check_size(batch * outputs * inputs * count * taps)
    # (batch, group, 1, input of the group, window, tap) against (group, output of it, input, tap)
    reads = places.reshape(batch, groups, 1, inputs, count, taps)
    made = (batch, groups, outputs // groups, inputs, count, taps)
    columns = np.broadcast_to(reads, made)
    weights = np.arange(weight.values.size).reshape(groups, outputs // groups, inputs, 1, taps)
    output = np.arange(batch * outputs * count).reshape(batch, groups, -1, 1, count, 1)
    return (
        _matrix(
            batch * outputs * count, shape,
            np.broadcast_to(output, made), columns, weight, np.broadcast_to(weights, made),
        ),
        (*lead, outputs, *sizes),
    )  # fmt: skip


def averaging(
    shape: Sequence[int], places: np.ndarray, kernel: int, padded: bool, divisor: int | None
) -> tuple[Coefficients, tuple[int, ...]]:
    """The matrix of the means over windows, and what it makes.

    Args:
        places: of `windows`, with `kernel` axes for the windows at the end.
        padded: whether padding counts as a zero of the window.
        divisor: what the sums are divided by, in place of the number of places.
    """
    made = places.shape[: places.ndim - kernel]
    flat = places.reshape(int(np.prod(made, dtype=np.int64)), -1)
    counts = (flat > BEYOND if padded else flat >= 0).sum(axis=1)
    if divisor is not None:
        counts = np.full_like(counts, divisor)
    kinds, which = np.unique(counts, return_inverse=True)
    shares = np.array([fmpq(1, int(k)) if k else fmpq(0) for k in kinds], dtype=object)
    if all(k & (k - 1) == 0 for k in kinds.tolist()):
        shares = 1.0 / kinds.astype(np.float64)
    rows = np.broadcast_to(np.arange(len(flat))[:, None], flat.shape)
    weights = np.broadcast_to(which.reshape(-1, 1), flat.shape)
    held = Entries(shares, np.zeros(len(shares)))
    return _matrix(len(flat), shape, rows, flat, held, weights), made


def adaptive(length: int, count: int) -> Entries:
    """The table (count, length) of means over the parts ⌊i·n/c⌋ … ⌈(i+1)·n/c⌉ of an axis."""
    table = np.full((count, length), fmpq(0), dtype=object)
    for i in range(count):
        first, end = i * length // count, -(-(i + 1) * length // count)
        table[i, first:end] = fmpq(1, end - first)
    if length % count == 0 and (length // count) & (length // count - 1) == 0:
        table = as_floats(table)
    return Entries(table, np.zeros(table.shape))


def _matrix(
    height: int, shape: Sequence[int], rows: np.ndarray, columns: np.ndarray,
    weight: Entries, weights: np.ndarray,
) -> Coefficients:  # fmt: skip
    """The matrix with the entry weight[weights] at each of the places that lie in the array."""
    inside = columns.reshape(-1) >= 0
    flat = Entries(weight.values.reshape(-1), weight.slack.reshape(-1), weight.formats)
    return Coefficients.summed(
        height, int(np.prod(shape, dtype=np.int64)),
        rows.reshape(-1)[inside], columns.reshape(-1)[inside],
        flat.at(weights.reshape(-1)[inside]),
    )  # fmt: skip
