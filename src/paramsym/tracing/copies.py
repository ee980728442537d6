"""Over which leaves an order may depend: heads may order their coordinates each by itself.

The order of a leaf may differ between the units of another leaf if that one accompanies it in
every tensor, at the same places of every operation. Where the units of a leaf are compared with
each other, they tell no copies apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from paramsym.lowering.builder import Builder
from paramsym.primitives.blocks import Layout, tensor_blocks
from paramsym.primitives.tensor import Tensor


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
            present = [leaf.serial for _, leaf, _ in block.slots]
            for leaf in present:
                others = {x for x in present if x != leaf}
                over[leaf] = others if leaf not in over else over[leaf] & others
    return over
