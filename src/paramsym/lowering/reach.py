"""Rows of tables that the network cannot reach, whatever the numbers in its input are.

A table of relative positions has more buckets than a short sequence has distances; a table of
segment types is read at segment zero where none are given. Which rows are read follows from the
shapes of the example inputs alone, so the network is evaluated where it depends on nothing else.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from paramsym.lowering.beyond import BEYOND, parts_of
from paramsym.lowering.builder import Builder
from paramsym.lowering.data import Evaluator
from paramsym.primitives import Lookup, Primitive
from paramsym.primitives.tensor import Tensor


def unreached_rows(build: Builder, parameters: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Rows (positions on the first axis) that nothing reads beside rows that are read, by name."""
    reads = _reads(build)
    found = {}
    for name, tensor in parameters.items():
        positions = reads.get(tensor.serial)
        rest = _beyond(tensor)
        if positions is not None:
            rest |= set(range(tensor.shape[0])) - positions
        if rest:
            found[name] = tuple(sorted(rest))
    return found


def _beyond(tensor: Tensor) -> set[int]:
    """The rows of a table that is cut which are beyond the cut."""
    parts = parts_of(tensor.axes[0]) if tensor.ndim and tensor.kind == "parameter" else ()
    return {k + n for k, part in parts if part.frozen == BEYOND for n in range(part.size)}


def _reads(build: Builder) -> dict[int, set[int]]:
    """The rows that are read of each tensor of which only rows are read."""
    rows: dict[int, set[int]] = defaultdict(set)
    whole: set[int] = set()
    for op in build.ops:
        index = _rows_of(op, build.fixed)
        for k, tensor in enumerate(op.inputs):
            if k == 0 and index is not None:
                rows[tensor.serial] |= set(index.reshape(-1).tolist())
            else:
                whole.add(tensor.owner.serial)
    return {serial: found for serial, found in rows.items() if serial not in whole}


def _rows_of(op: Primitive, evaluator: Evaluator) -> torch.Tensor | None:
    """Which rows a lookup in a table reads, where the shapes of the inputs alone say it."""
    if not isinstance(op, Lookup) or op.dims != (0,) or op.inputs[0].base is not None:
        return None
    return None if op.index is None else evaluator.of(op.index)
