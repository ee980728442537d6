"""Parameters with another origin: a gain that is stored as γ − 1 acts as γ.

Where all that a network does with a parameter is to add one and the same number, the group acts on
the sum, and the number is kept beside the symmetry. Otherwise the addition is an ordinary function.
"""

from __future__ import annotations

from collections import defaultdict

from paramsym.lowering.builder import Builder
from paramsym.primitives import Map, Opaque, Primitive, Shifted, ShiftedDiagonal, Sum
from paramsym.primitives import index as ix
from paramsym.primitives.gains import gain_of
from paramsym.primitives.tensor import Tensor
from paramsym.structure.origin import Diagonal

Uses = defaultdict[int, list[Primitive]]  # by the identity of the tensor that owns the storage


def settle_origins(build: Builder) -> None:
    """Decide for every shifted parameter whether the shift is a change of origin."""
    uses: Uses = defaultdict(list)
    for op in build.ops:
        for tensor in op.inputs:
            uses[id(tensor.owner)].append(op)
    shown = read_as_they_are(build)

    replaced: dict[int, Primitive] = {}
    for op in [op for op in build.ops if isinstance(op, Shifted)]:
        settle = _settle_diagonal if isinstance(op, ShiftedDiagonal) else _settle_vector
        made = settle(build, op, uses, shown)
        if made is not None:
            replaced[id(op)] = op.out.producer = made
    build.ops = [replaced.get(id(op), op) for op in build.ops]


def _final(tensor: Tensor, uses: Uses) -> list[Primitive]:
    """What is done with a tensor, seen through copies."""
    found = []
    for op in uses[id(tensor.owner)]:
        found += _final(op.out, uses) if _is_copy(op) else [op]
    return found


def read_as_they_are(build: Builder) -> set[int]:
    """The tensors that the model returns, or that steer a choice, seen through copies."""
    found: set[int] = set()
    for tensor in (*map(build.tensor, build.graph.outputs), *build.anchors):
        tensor = tensor.owner
        found.add(id(tensor))
        while (op := tensor.producer) is not None and _is_copy(op):
            tensor = op.inputs[0].owner
            found.add(id(tensor))
    return found


def _is_copy(op: Primitive) -> bool:
    return isinstance(op, Sum) and op.power_step() is not None


def _settle_vector(build: Builder, op: Shifted, uses: Uses, shown: set[int]) -> Primitive | None:
    """p + c takes the place of p where every use of p adds c; otherwise it is a function of p."""
    gain = gain_of(op.inputs[0])
    owner = None if gain is None else gain.source
    every = [] if owner is None else _final(owner, uses)
    same = all(isinstance(o, Shifted) and o.constant == op.constant for o in every)
    if owner is None or op.out.shape != owner.shape or not same or id(owner) in shown:
        return Map(out=op.out, inputs=op.inputs, where=op.where, name="shift", shift=op.constant)
    if owner.name in build.shifted:  # computed anew for each use: one and the same
        return Sum(out=op.out, inputs=(build.shifted[owner.name][0],), where=op.where)
    build.shifted[owner.name] = (op.out, op.constant)
    return None


def _settle_diagonal(build: Builder, op: Shifted, uses: Uses, shown: set[int]) -> Primitive | None:
    """W + c·I takes the place of W where nothing else reads W, as its recogniser has made sure."""
    source = op.inputs[0]
    every = _final(source, uses)
    alone = every == [op] and id(source.owner) not in shown
    if source.base is None and source.kind == "parameter" and alone:
        build.shifted[source.name] = (op.out, Diagonal(op.constant))
        return None
    reason = f"the identity is added to it at {op.where}"
    for node in source.axes:
        ix.freeze(node, reason)
    return Opaque(out=op.out, inputs=op.inputs, where=op.where, reason=reason)
