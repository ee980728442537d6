"""Rows of tables that the network cannot reach, whatever the numbers in its input are.

A table of relative positions has more buckets than a short sequence has distances; a table of
segment types is read at segment zero where none are given. Which rows are read follows from the
shapes of the example inputs alone, so the network is evaluated where it depends on nothing else.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from paramsym.tracing.builder import Builder
from paramsym.tracing.data import Evaluator, moving_values
from paramsym.tracing.primitives import Lookup
from paramsym.tracing.tensor import Tensor


def unreached_rows(build: Builder, parameters: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Rows (positions on the first axis) that no lookup reads, by parameter."""
    graph = build.graph
    given = {value.id for value in graph.values if value.kind == "input"}
    evaluator = Evaluator(graph, moving_values(graph) | given)
    reads: dict[int, list[torch.Tensor | None]] = defaultdict(list)
    for op in build.ops:
        for tensor in op.inputs:
            reads[tensor.owner.serial].append(None)  # read as a whole
        if isinstance(op, Lookup) and op.dims == (0,) and op.inputs[0].base is None:
            owner = reads[op.inputs[0].serial]
            if op.index is not None and op.index.value is not None:
                owner[-1] = evaluator.number(op.index.value)
    found = {}
    for name, tensor in parameters.items():
        positions = reads.get(tensor.serial, [])
        known = [p for p in positions if p is not None]
        if positions and len(known) == len(positions):
            reached = torch.cat([p.reshape(-1) for p in known])
            if rest := set(range(tensor.shape[0])) - set(reached.tolist()):
                found[name] = tuple(sorted(rest))
    return found
