"""The network of one row of a batch, from the functions of the whole batch."""

from __future__ import annotations

import numpy as np

from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Network
from paramsym.relu.piecewise import Piecewise
from paramsym.relu.restriction import restricted


def network_of_rows(x: Piecewise, y: Piecewise, name: str) -> Network:
    """The function that every row of an output is of the same row of the input.

    Args:
        x: the input, (rows, …); an input of one axis is one row itself.
        y: the functions of it, (rows, …).

    Raises `ReLUError` if rows are mixed, or treated differently.
    """
    if x.ndim < 2:
        return y.network(name)
    rows = x.shape[0]
    if y.shape[:1] != (rows,):
        raise ReLUError(
            f"an output of shape {y.shape} for an input of shape {x.shape}",
            f"{rows} rows, one for each of the batch", name, "Keep the batch as the first axis.",
        )  # fmt: skip
    each = x.size // rows
    found: Network | None = None
    for row in range(rows):
        part = restricted(y[row], np.arange(row * each, (row + 1) * each))
        net = part.network(name) if part is not None else None
        if net is None or (found is not None and not same_network(net, found)):
            raise ReLUError(
                "rows of a batch that are mixed, or treated differently",
                "a function of each row by itself", name,
                "Batch statistics need .eval(); move other operations along the first axis out.",
            )  # fmt: skip
        found = found or net
    assert found is not None
    return found


def same_network(a: Network, b: Network) -> bool:
    """Whether two networks have the same numbers, in the same precision."""
    if not (a.born_float and b.born_float):
        return a == b
    return a.widths == b.widths and all(
        np.array_equal(p, q)
        for left, right in zip(a.floats, b.floats, strict=True)
        for p, q in zip(left, right, strict=True)
    )
