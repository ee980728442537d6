"""Where units pass one entrywise function between linear maps: u = U·σ(V·x + b).

Most actions that depend on the data live at such a place, whatever stands before and behind it: a
matrix g may act on what σ gets, by V → gV and b → gb, and another one on what σ gives, by U → U·C.
σ may be written in many operators, as long as they are entrywise and see nothing else; maps along
other axes (a convolution's windows, means over positions, masks) pass both matrices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paramsym.lowering.builder import Builder
from paramsym.primitives import index as ix
from paramsym.primitives.base import Primitive
from paramsym.primitives.maps import Map
from paramsym.primitives.products import Contract
from paramsym.primitives.reductions import Reduce
from paramsym.primitives.sums import Choice, Shifted, Sum
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.windows import Mix
from paramsym.structure.axes import parts_of
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
    """What the function gets and gives, as owners, and the parameters that write and read them."""

    given: Tensor
    made: Tensor
    node: ix.Node
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
    written = _written(build, symmetry, space)
    inner = {x.owner.serial for op, _, _ in written for x in op.inputs}
    tops = [(op.out, axis, found) for op, axis, found in written if op.out.serial not in inner]
    if len(tops) != 1:
        raise NotPointwise(f"its parameters write {len(tops)} tensors of units")
    given, axis, writers = tops[0]
    node = given.axes[axis]
    for op, _, _ in written:
        if op.out is not given:  # a partial sum is that of one total
            _require_read_by(build, op.out, {id(other) for other, _, _ in written})
    made = _last(build, given)
    readers = tuple(_readers(build, made, node))
    _require_used_once(build, [*writers, *readers])
    return Joined(given, made, node, tuple(writers), readers)


# -- in front of it ------------------------------------------------------------------------------


def _written(
    build: Builder, symmetry: ParameterSymmetry, space: str
) -> list[tuple[Primitive, int, list[Carrier]]]:
    """The operations whose output is linear in parameters of a space, along which axis of it.

    Multiples of what nothing is added to belong to the function behind them.
    """
    found: list[tuple[Primitive, int, list[Carrier]]] = []
    for op in build.ops:
        for axis in range(op.out.ndim):
            writers = _writers(op.out, axis)
            if writers and all(_carries(symmetry, carrier, space) for carrier in writers):
                found.append((op, axis, writers))
    while True:
        inner = {x.owner.serial for op, _, _ in found for x in op.inputs}
        kept = [w for w in found if w[0].out.serial in inner or not _is_multiple(w[0])]
        if len(kept) == len(found):
            return found
        found = kept


def _is_multiple(op: Primitive) -> bool:
    return isinstance(op, Sum) and len(op.inputs) == 1


def _carries(symmetry: ParameterSymmetry, carrier: Carrier, space: str) -> bool:
    """Whether an axis counts the units of a space and nothing else."""
    types = symmetry.signature.get(carrier.parameter)
    if types is None:
        return False
    sizes = {name: each.size for name, each in symmetry.spaces.items()}
    axis = types[carrier.axis]
    parts = [part for part in parts_of(axis) if space in dict(part.factors)]
    return axis.size(sizes) == sizes[space] and bool(parts) and not any(p.frame for p in parts)


def _writers(tensor: Tensor, axis: int) -> list[Carrier] | None:
    """The parameters in which a tensor is linear along an axis; None where it is more than that."""
    owner = tensor.owner
    at = _along(owner, tensor.axes[axis])
    if at is None:
        return None
    op = owner.producer
    if op is None:
        return [Carrier(owner.name, at)] if _is_parameter(owner) else None
    ins, out = op.labels()
    pairs = zip(op.inputs, ins, strict=True)
    parts = [(x, labels.index(out[at])) for x, labels in pairs if out[at] in labels]
    if isinstance(op, Contract):
        return _product(op, parts)
    if isinstance(op, Sum) or _is_aside(op, at):
        return _terms(op, parts)
    return None


def _terms(op: Primitive, parts: list[tuple[Tensor, int]]) -> list[Carrier] | None:
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


# -- the function --------------------------------------------------------------------------------


def _last(build: Builder, given: Tensor) -> Tensor:
    """The one tensor that others read of all that are entrywise functions of a given one."""
    inside = _functions(build, given)
    if inside.keys() & {build.tensor(v).owner.serial for v in build.graph.outputs}:
        raise NotPointwise("its units are an output of the model")
    met = [op for op in build.ops if op.out.serial not in inside and _reads(op, inside)]
    ends = [t for t in inside.values() if any(_reads(op, {t.serial: t}) for op in met)]
    if not ends:
        raise NotPointwise("nothing reads its units")
    if len(ends) != 1 or ends[0] is given:
        places = ", ".join(f"{op.title} at {op.where}" for op in met[:3])
        raise NotPointwise(f"no entrywise function is all that reads its units: they meet {places}")
    return ends[0]


def _functions(build: Builder, given: Tensor) -> dict[int, Tensor]:
    """A tensor and all that are entrywise functions of it alone."""
    inside = {given.serial: given}
    for op in build.ops:  # in order
        if _reads(op, inside) and _is_entrywise(op, inside):
            inside[op.out.serial] = op.out
    return inside


def _reads(op: Primitive, inside: dict[int, Tensor]) -> bool:
    return any(x.owner.serial in inside for x in (*op.inputs, *op.given))


def _is_entrywise(op: Primitive, inside: dict[int, Tensor]) -> bool:
    """Whether an operation is a function of entries of known tensors, and of numbers."""
    if not isinstance(op, (Map, Sum, Shifted, Choice, Contract)):
        return False
    if any(x.owner.serial not in inside for x in op.given):
        return False
    ins, out = op.labels()
    for x, labels in zip(op.inputs, ins, strict=True):
        if x.owner.serial in inside:
            if labels != out:
                return False
        elif x.moves or not all(n == 1 for n in x.shape):
            return False
    return True


# -- behind it -----------------------------------------------------------------------------------


def _readers(build: Builder, made: Tensor, node: ix.Node) -> list[Carrier]:
    """The parameters that multiply a tensor along its units.

    Raises `NotPointwise` where something else reads it.
    """
    found = []
    for op in build.ops:
        if any(x.owner is made for x in op.given):
            raise NotPointwise(f"its units are data of {op.title} at {op.where}")
        for k, x in enumerate(op.inputs):
            if x.owner is not made:
                continue
            at = _along(x, node)
            if at is not None and (reader := _factor(op, k, at)) is not None:
                found.append(reader)
            elif at is not None and _passes(op, k, at):
                _require_inside(build, op.out)
                found += _readers(build, op.out, node)
            else:
                raise NotPointwise(f"its units meet {op.title} at {op.where}")
    if not found:
        raise NotPointwise("no parameter reads its units")
    return found


def _factor(op: Primitive, k: int, at: int) -> Carrier | None:
    """The parameter that a product sums its input k against, along axis `at`."""
    if not isinstance(op, Contract) or op.is_square or op.power != 1:
        return None
    other, labels = op.inputs[1 - k], op.axes[1 - k]
    if (label := op.axes[k][at]) in op.axes[2] or label not in labels:
        return None
    owner = other.owner
    where = _along(owner, other.axes[labels.index(label)])
    return Carrier(owner.name, where) if where is not None and _is_parameter(owner) else None


def _passes(op: Primitive, k: int, at: int) -> bool:
    """Whether a matrix along axis `at` of input k comes out as itself along the output's."""
    if isinstance(op, Contract):
        label = op.axes[k][at]
        mine = op.power == 1 or k == 0
        return mine and not op.is_square and label in op.axes[2] and label not in op.axes[1 - k]
    return _is_multiple(op) or _is_aside(
        op, op.labels()[1].index(at) if at in op.labels()[1] else None
    )


def _is_aside(op: Primitive, at: int | None) -> bool:
    """Whether an operation is a fixed linear map along other axes than `at` of its output."""
    if at is None or not isinstance(op, (Mix, Reduce)) or not op.is_linear:
        return False
    label = op.labels()[1][at]
    return label in op.labels()[0][0] and label not in op.dims


# -- what all of them ask ------------------------------------------------------------------------


def _is_parameter(owner: Tensor) -> bool:
    return owner.producer is None and owner.kind == "parameter" and bool(owner.name)


def _along(tensor: Tensor, node: ix.Node) -> int | None:
    """The one axis of a tensor that counts these units."""
    same = [k for k, n in enumerate(tensor.axes) if ix.resolve(n) is ix.resolve(node)]
    return same[0] if len(same) == 1 else None


def _require_inside(build: Builder, tensor: Tensor) -> None:
    if any(build.tensor(v).owner is tensor for v in build.graph.outputs):
        raise NotPointwise("its units are an output of the model")


def _require_read_by(build: Builder, tensor: Tensor, allowed: set[int]) -> None:
    """Require that a part of a sum of units is read by that sum alone."""
    _require_inside(build, tensor)
    for op in build.ops:
        if id(op) not in allowed and any(x.owner is tensor for x in (*op.inputs, *op.given)):
            raise NotPointwise(f"a part of its units meets {op.title} at {op.where}")


def _require_used_once(build: Builder, carriers: Iterable[Carrier]) -> None:
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
