"""Where units pass one entrywise function between linear maps: u = U·σ(V·x + b).

Most actions that depend on the data live at such a place, whatever stands before and behind it: a
matrix g may act on what σ gets, by V → gV and b → gb, and another one on what σ gives, by U → U·C.
"""

from __future__ import annotations

from dataclasses import dataclass

from paramsym.lowering.builder import Builder
from paramsym.primitives import index as ix
from paramsym.primitives.maps import Map
from paramsym.primitives.products import Contract
from paramsym.primitives.sums import Sum
from paramsym.primitives.tensor import Tensor
from paramsym.structure.symmetry import ParameterSymmetry


class NotPointwise(ValueError):
    """Units that do not pass one entrywise function between two linear maps of parameters."""


@dataclass(frozen=True)
class Carrier:
    """A parameter, and its axis that counts the units."""

    parameter: str
    axis: int


@dataclass(frozen=True)
class Joined:
    """One entrywise function, the axis of the units on what it gets, and who writes and reads."""

    map: Map
    axis: int
    writers: tuple[Carrier, ...]
    readers: tuple[Carrier, ...]


def joined(build: Builder, symmetry: ParameterSymmetry, space: str) -> Joined:
    """The entrywise function that the units of a space pass between linear maps.

    Args:
        build: the lowered network.
        symmetry: what was derived of it, for the names of its spaces.
        space: one of these.

    Raises:
        NotPointwise: there is none, or more than one; or the units are read by anything else than
            products with parameters that are used nowhere else.
    """
    found, refused = [], []
    for op in build.ops:
        if not isinstance(op, Map) or not op.out.moves or op.shift is not None:
            continue
        for axis in range(op.out.ndim):
            writers = _writers(op.inputs[0], axis)
            if writers and all(_carries(symmetry, c, space) for c in writers):
                try:
                    readers = _readers(build, op.out, axis)
                except NotPointwise as error:
                    refused.append(str(error))
                else:
                    found.append(Joined(op, axis, tuple(writers), tuple(readers)))
    if len(found) != 1:
        raise NotPointwise("; ".join(refused) or _counted(found))
    once(build, [*found[0].writers, *found[0].readers])
    return found[0]


def _counted(found: list[Joined]) -> str:
    if not found:
        return "no entrywise function stands between its parameters"
    return f"{len(found)} entrywise functions do, {', '.join(j.map.title for j in found)}"


def _carries(symmetry: ParameterSymmetry, carrier: Carrier, space: str) -> bool:
    types = symmetry.signature.get(carrier.parameter)
    return types is not None and str(types[carrier.axis]) in (space, f"{space}*")


def _writers(tensor: Tensor, axis: int) -> list[Carrier] | None:
    """The parameters in which a tensor is linear along an axis; None where it is more than that."""
    owner = tensor.owner
    at = _along(owner, tensor.axes[axis])
    if at is None:
        return None
    op = owner.producer
    if op is None:
        return [Carrier(owner.name, at)] if owner.name and owner.kind == "parameter" else None
    if not isinstance(op, (Sum, Contract)):
        return None
    ins, out = op.labels()
    pairs = zip(op.inputs, ins, strict=True)
    parts = [(x, labels.index(out[at])) for x, labels in pairs if out[at] in labels]
    return _terms(op, parts) if isinstance(op, Sum) else _product(op, parts)


def _terms(op: Sum, parts: list[tuple[Tensor, int]]) -> list[Carrier] | None:
    """The writers of a sum: those of all its terms, each of which has the axis."""
    found: list[Carrier] = []
    for part in parts:
        if (those := _writers(*part)) is None:
            return None
        found += those
    return found if len(parts) == len(op.inputs) else None


def _product(op: Contract, parts: list[tuple[Tensor, int]]) -> list[Carrier] | None:
    """The writer of a product: the parameter that is its one factor with the axis."""
    if len(parts) != 1 or (op.power != 1 and parts[0][0] is op.inputs[1]):
        return None
    return _writers(*parts[0]) if parts[0][0].owner.producer is None else None


def _readers(build: Builder, out: Tensor, axis: int) -> list[Carrier]:
    """The parameters that multiply a tensor along an axis.

    Raises `NotPointwise` where something else reads it.
    """
    node = out.axes[axis]
    if any(build.tensor(v).owner is out.owner for v in build.graph.outputs):
        raise NotPointwise("its units are an output of the model")
    found = []
    for op in build.ops:
        for k, x in enumerate(op.inputs):
            if x.owner is out.owner:
                if (reader := _factor(op, k, x, node)) is None:
                    raise NotPointwise(f"its units meet {op.title} at {op.where}")
                found.append(reader)
        if any(x.owner is out.owner for x in op.given):
            raise NotPointwise(f"its units are data of {op.title} at {op.where}")
    if not found:
        raise NotPointwise("nothing reads its units")
    return found


def _factor(op: object, k: int, x: Tensor, node: ix.Node) -> Carrier | None:
    """The parameter that a product sums its input k against, along an axis."""
    if not isinstance(op, Contract) or op.is_square or op.power != 1:
        return None
    at = _along(x, node)
    other, labels = op.inputs[1 - k], op.axes[1 - k]
    if at is None or (label := op.axes[k][at]) in op.axes[2] or label not in labels:
        return None
    owner = other.owner
    where = _along(owner, other.axes[labels.index(label)])
    if where is None or owner.kind != "parameter" or owner.producer is not None:
        return None
    return Carrier(owner.name, where)


def _along(tensor: Tensor, node: ix.Node) -> int | None:
    """The one axis of a tensor that counts these units."""
    same = [k for k, n in enumerate(tensor.axes) if ix.resolve(n) is ix.resolve(node)]
    return same[0] if len(same) == 1 else None


def once(build: Builder, carriers: list[Carrier]) -> None:
    """Require that every parameter enters one operation only."""
    for carrier in carriers:
        reading = [
            op for op in build.ops for x in (*op.inputs, *op.given)
            if x.owner.name == carrier.parameter
        ]  # fmt: skip
        if len(reading) != 1:
            raise NotPointwise(
                f"{carrier.parameter!r} is used {len(reading)} times: "
                f"{', '.join(f'{op.title} at {op.where}' for op in reading)}"
            )
