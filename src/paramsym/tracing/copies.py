"""Over which leaves an order may depend: heads may order their coordinates each by itself.

The order of a leaf may differ between the units of another leaf if that one accompanies it in
every tensor, at the same places of every operation, and if nothing compares its units.
"""

from __future__ import annotations

from collections.abc import Mapping

from paramsym.tracing import index as ix
from paramsym.tracing.blocks import Layout, tensor_blocks
from paramsym.tracing.builder import Builder, Tensor


def order_copies(
    build: Builder,
    layout: Layout,
    parameters: Mapping[str, Tensor],
    company: Mapping[int, set[int]],
) -> dict[int, set[int]]:
    """For each leaf, by serial number, the leaves on which its order may depend."""
    over = _present_together(build, layout, parameters)
    for leaf, found in company.items():
        if leaf in over:
            over[leaf] &= found
    _couple(build, over)
    return over


def _present_together(
    build: Builder, layout: Layout, parameters: Mapping[str, Tensor]
) -> dict[int, set[int]]:
    """The leaves that stand beside a leaf in every block of every tensor."""
    over: dict[int, set[int]] = {}
    tensors = [*parameters.values()]
    for op in build.ops:
        tensors += [op.out, *op.inputs]
    for tensor in {id(t): t for t in tensors if t.moves}.values():
        for block in tensor_blocks(tensor, layout):
            present = [leaf.serial for _, leaf, _ in block.slots()]
            for leaf in present:
                others = {x for x in present if x != leaf}
                over[leaf] = others if leaf not in over else over[leaf] & others
    return over


def _couple(build: Builder, over: dict[int, set[int]]) -> None:
    """What compares copies leaves them one order: a softmax over heads compares the same
    coordinate of every head."""
    for op in build.ops:
        if op.kind in ("softmax", "normalize"):
            along = {op.data["dim"]} if op.kind == "softmax" else {*op.data["dims"]}
            axes = [{leaf.serial for leaf in ix.leaves(axis)} for axis in op.out.axes]
            compared = set().union(*(axes[k] for k in along))
            for leaf in set().union(*axes) - compared:
                if leaf in over:
                    over[leaf] -= compared
