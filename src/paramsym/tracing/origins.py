"""Parameters with another origin: a gain that is stored as γ − 1 acts as γ.

Where all that a network does with a parameter is to add one and the same number, the group acts on
the sum, and the number is kept beside the symmetry. Otherwise the addition is an ordinary function.
"""

from __future__ import annotations

from collections import defaultdict

from paramsym.structure.origin import Diagonal
from paramsym.tracing import index as ix
from paramsym.tracing.builder import Builder
from paramsym.tracing.gains import gain_of
from paramsym.tracing.primitives import Map, Opaque, Primitive, Shifted, ShiftedDiagonal, Sum
from paramsym.tracing.tensor import Tensor


def settle_origins(build: Builder) -> None:
    """Decide for every shifted parameter whether the shift is a change of origin."""
    uses: dict[int, list[Primitive]] = defaultdict(list)
    for op in build.ops:
        for tensor in op.inputs:
            uses[id(tensor.owner)].append(op)

    def final(tensor: Tensor) -> list[Primitive]:
        """What is done with a tensor, seen through copies."""
        found = []
        for op in uses[id(tensor.owner)]:
            copied = isinstance(op, Sum) and op.power_step() is not None
            found += final(op.out) if copied else [op]
        return found

    replaced: dict[int, Primitive] = {}
    for op in [op for op in build.ops if isinstance(op, Shifted)]:
        if isinstance(op, ShiftedDiagonal):
            replaced |= _settle_diagonal(build, op, final(op.inputs[0]))
            continue
        gain = gain_of(op.inputs[0])
        owner = None if gain is None else gain.source
        every = [] if owner is None else final(owner)
        same = all(isinstance(o, Shifted) and o.constant == op.constant for o in every)
        if owner is None or op.out.shape != owner.shape or not same:
            made: Primitive = Map(
                out=op.out, inputs=op.inputs, where=op.where, name="shift", shift=op.constant
            )
        elif owner.name in build.shifted:  # computed anew for each use: one and the same
            made = Sum(out=op.out, inputs=(build.shifted[owner.name][0],), where=op.where)
        else:
            build.shifted[owner.name] = (op.out, op.constant)
            continue
        replaced[id(op)] = op.out.producer = made
    build.ops = [replaced.get(id(op), op) for op in build.ops]


def _settle_diagonal(
    build: Builder, op: ShiftedDiagonal, every: list[Primitive]
) -> dict[int, Primitive]:
    """W + c·I takes the place of W where nothing else reads W, as its recogniser has made sure."""
    source = op.inputs[0]
    if source.base is None and source.kind == "parameter" and every == [op]:
        build.shifted[source.name] = (op.out, Diagonal(op.constant))
        return {}
    reason = f"the identity is added to it at {op.where}"
    for node in source.axes:
        ix.freeze(node, reason)
    made = Opaque(out=op.out, inputs=op.inputs, where=op.where, reason=reason)
    op.out.producer = made
    return {id(op): made}
