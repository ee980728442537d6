"""Roles of units by what meets where data meet data: the parts of an attention, and the streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.primitives import Choice, Contract, Lookup, Map, Softmax, Sum
from paramsym.primitives.index import Node, leaves
from paramsym.primitives.joint import At, Joint, Slot
from paramsym.primitives.tensor import Tensor
from paramsym.tracing.circuit import Circuit


def roles_of(circuit: Circuit) -> tuple[dict[int, str], list[tuple[Slot, str]], set[int]]:
    """Roles of leaves that are contracted, kept or shared where data meet data, and of their slots;
    and the leaves along which data are added to data."""
    roles: dict[int, str] = {}
    slots: list[tuple[Slot, str]] = []
    sums: set[int] = set()
    data, weights = _kinds_of_data(circuit.build)
    for joint in circuit.joints:
        op = joint.op
        if len(op.inputs) < 2 or not all(t.owner.serial in data for t in op.inputs):
            continue
        if isinstance(op, (Sum, Choice)):
            sums.update(leaf.serial for axis in op.out.axes for leaf in leaves(axis))
        if not isinstance(op, Contract):
            continue
        softmax = [t.owner.serial in weights for t in op.inputs]
        xs, ys, zs = op.axes
        if set(xs) | set(ys) == set(zs) and not any(softmax):
            continue  # a gate: nothing is summed
        for role, at, leaf in _roles_in(joint, op, softmax):
            roles.setdefault(leaf.serial, role)
            slots += [(slot, role) for slot in _slots_at(joint, at)]
    return roles, slots, sums


def _roles_in(joint: Joint, op: Contract, softmax: list[bool]) -> Iterator[tuple[str, At, Node]]:
    """The leaves of a joint that have a role, and where they stand."""
    for label, place in joint.where.items():
        if role := _role_in(label, op, softmax):
            yield from ((role, (label, k), leaf) for k, (leaf, _) in enumerate(place.leaves))


def _slots_at(joint: Joint, at: At) -> set[Slot]:
    """The slots of all inputs of a joint at one place."""
    strides = [(key, joint.slots(k).get(at)) for k, key in enumerate(joint.keys)]
    return {(*key, stride) for key, stride in strides if stride is not None}


def _role_in(label: Any, op: Contract, softmax: list[bool]) -> str:
    """What one label of a contraction of data with data is for."""
    xs, ys, zs = op.axes
    if label in xs and label in ys:
        if label in zs:
            return "attn.head"
        return "" if any(softmax) else "attn.qk"
    if (softmax[0] and label in ys) or (softmax[1] and label in xs):
        return "attn.vo"
    return ""


def _kinds_of_data(build: Builder) -> tuple[set[int], set[int]]:
    """Storages that depend on inputs, and those that hold the weights of a softmax."""
    data: set[int] = set()
    weights: set[int] = set()
    for op in build.ops:
        inside = {t.owner.serial for t in op.inputs}
        if isinstance(op, Lookup) or inside & data or any(map(_is_input, op.inputs)):
            data.add(op.out.owner.serial)
        passes = isinstance(op, (Sum, Choice, Map)) and inside & weights
        if isinstance(op, Softmax) or passes:
            weights.add(op.out.owner.serial)
    return data, weights


def _is_input(tensor: Tensor) -> bool:
    owner = tensor.owner
    return owner.producer is None and owner.kind not in ("parameter", "buffer") or not tensor.moves
