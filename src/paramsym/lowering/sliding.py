"""Numbers that are added to computed values: (W x + b) + 1 is W x + (b + 1).

A modulation x·(1 + g(c)) + h(c) adds one to what a linear map writes, or to some windows of it. The
number is then one of the bias: the group acts on b + 1, and the sum scales and turns like any other
product. That needs that all who read a window add the same number to it, and that nobody else reads
the bias; a table of rows that are looked up serves as well as a bias.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from paramsym.lowering.builder import Builder
from paramsym.lowering.origins import read_as_they_are
from paramsym.primitives import Lookup, Map, Primitive, ShiftedWindows, Sum
from paramsym.primitives.tensor import Tensor
from paramsym.structure.origin import Windows

_LARGEST = 1 << 22  # entries of a computed value that are looked at one by one
_RUNS = 64  # windows with a number of their own

Uses = defaultdict[int, list[tuple[Primitive, Tensor]]]  # by the identity of an owner


@dataclass
class _Demand:
    """What is added to every entry of a value, NaN where nobody reads it, and who adds it."""

    numbers: torch.Tensor
    adding: list[Map] = field(default_factory=list)
    passed: list[Tensor] = field(default_factory=list)  # copies and windows that lead there


def slide_origins(build: Builder) -> None:
    """Let biases and tables take the numbers that are added to what is computed of them."""
    uses: Uses = defaultdict(list)
    for op in build.ops:
        for tensor in (*op.inputs, *op.given):
            uses[id(tensor.owner)].append((op, tensor))
    seen = read_as_they_are(build)
    roots = {id(o): o for op in build.ops if _adds(op) and (o := _root(op.inputs[0])) is not None}
    for owner in roots.values():
        demand = _demand(owner, uses, seen)
        if demand is not None and demand.adding:
            _settle(build, owner, demand, uses, seen)


def _adds(op: Primitive) -> bool:
    return isinstance(op, Map) and op.name == "shift" and bool(op.shift)


def _copied(op: Primitive | None) -> float:
    """The factor by which an operation multiplies its only input, 0 for any other operation."""
    same = isinstance(op, Sum) and len(op.inputs) == 1 and op.inputs[0].shape == op.out.shape
    return op.weight(0) if same and isinstance(op, Sum) else 0.0


def _root(tensor: Tensor) -> Tensor | None:
    """The computed value of which a tensor is a window, a copy or a multiple."""
    owner = tensor.owner
    while _copied(owner.producer):
        owner = owner.producer.inputs[0].owner
    return owner if isinstance(owner.producer, (Sum, Lookup)) else None


def _demand(owner: Tensor, uses: Uses, seen: set[int]) -> _Demand | None:
    """What the readers of a value add to it; None where they do not agree."""
    if id(owner) in seen or math.prod(owner.shape) > _LARGEST or owner.offset:
        return None
    size = 1 + sum((n - 1) * s for n, s in zip(owner.shape, owner.strides, strict=True))
    storage = torch.full((size,), math.nan, dtype=torch.float64)
    entries = torch.arange(size)
    found = _Demand(storage)
    for op, tensor in uses[id(owner)]:
        wanted = torch.zeros(tensor.shape, dtype=torch.float64)
        if isinstance(op, Map) and _adds(op):
            assert op.shift is not None
            wanted += op.shift
            found.adding.append(op)
            found.passed.append(tensor)
        elif factor := _copied(op):
            inner = _demand(op.out, uses, seen)
            if inner is None:
                return None
            if inner.adding:
                wanted = inner.numbers / factor
                found.adding += inner.adding
                found.passed += [tensor, op.out, *inner.passed]
        at = torch.as_strided(entries, *tensor.layout)
        known = storage[at]
        merged = torch.where(wanted.isnan(), known, wanted)
        if bool((~known.isnan() & (known != merged)).any()):
            return None
        storage[at] = merged
        if not torch.equal(storage[at].nan_to_num(), merged.nan_to_num()):
            return None  # an entry that is read twice
    found.numbers = torch.as_strided(storage, *owner.layout)
    return found


def _settle(build: Builder, owner: Tensor, demand: _Demand, uses: Uses, seen: set[int]) -> None:
    """Move what is added to a value into one of the parameters that it is computed of."""
    if not _take(build, owner, demand.numbers, uses, seen):
        return
    for tensor in demand.passed:
        tensor.value = None  # its numbers are no longer the recorded ones
    replaced = {
        id(m): Sum(out=m.out, inputs=m.inputs, where=m.where, name=m.name) for m in demand.adding
    }
    for made in replaced.values():
        made.out.producer = made
    build.ops = [replaced.get(id(m), m) for m in build.ops]


def _take(build: Builder, owner: Tensor, wanted: torch.Tensor, uses: Uses, seen: set[int]) -> bool:
    """Move what is added to a value into a parameter that it is computed of, if there is one."""
    op = owner.producer
    for k in [0] if isinstance(op, Lookup) else range(len(op.inputs)):
        is_shown = id(op.inputs[k].owner) in seen
        windows = None if is_shown else _windows(build, op, k, wanted, uses)
        if windows is not None:
            _move(build, op, k, windows)
            owner.value = None
            return True
    if not isinstance(op, Sum):
        return False
    for k, term in enumerate(op.inputs):
        summed = isinstance(term.producer, (Sum, Lookup)) and term.shape == owner.shape
        alone = term.base is None and len(uses[id(term)]) == 1 and id(term) not in seen
        if summed and alone and _take(build, term, wanted / op.weight(k), uses, seen):
            owner.value = None
            return True
    return False


def _windows(
    build: Builder, op: Primitive, k: int, wanted: torch.Tensor, uses: Uses
) -> Windows | None:
    """What an operand of a sum, or a table, has to have added; None where it cannot be."""
    tensor = op.inputs[k]
    parameter = tensor.owner
    alone = parameter.kind == "parameter" and parameter.producer is None
    if not alone or parameter.integral or parameter.name in build.shifted:
        return None
    if len(uses[id(parameter)]) != 1 or parameter.offset:
        return None
    count = math.prod(parameter.shape)
    if isinstance(op, Lookup):
        if op.dims != (0,) or tensor is not parameter or tensor.ndim < 2:
            return None
        count = math.prod(parameter.shape[1:])
        rows = wanted.movedim(list(range(op.at, op.at + op.count)), list(range(op.count)))
        at = torch.arange(count).expand(math.prod(rows.shape) // max(count, 1), count)
        return _runs(count, at.reshape(-1), rows.reshape(-1))
    assert isinstance(op, Sum)
    at = torch.as_strided(torch.arange(count), *tensor.layout).expand(wanted.shape)
    return _runs(count, at.reshape(-1), wanted.reshape(-1) / op.weight(k))


def _runs(count: int, at: torch.Tensor, wanted: torch.Tensor) -> Windows | None:
    """One number for each entry of a parameter, as windows; None where entries need two."""
    known = ~wanted.isnan()
    numbers = torch.zeros(count, dtype=torch.float64)
    numbers[at[known]] = wanted[known]
    if not torch.equal(numbers[at[known]], wanted[known]):
        return None
    changes = (numbers.diff() != 0).nonzero().reshape(-1) + 1
    bounds = [0, *changes.tolist(), count]
    runs = tuple(
        (a, b, float(numbers[a]))
        for a, b in zip(bounds, bounds[1:], strict=False)
        if float(numbers[a]) and b > a
    )
    return Windows(count, runs) if 0 < len(runs) <= _RUNS else None


def _move(build: Builder, op: Primitive, k: int, windows: Windows) -> None:
    """Put the sum of a parameter and its numbers in the place of the parameter."""
    tensor = op.inputs[k]
    parameter = tensor.owner
    made = build.new(parameter.shape, parameter.axes)
    shifted = ShiftedWindows(out=made, inputs=(parameter,), where=op.where, windows=windows)
    made.producer, made.moves = shifted, True
    build.ops.insert(build.ops.index(op), shifted)
    whole = tensor.owner is tensor
    seen = made if whole else build.view(made, tensor.shape, tensor.strides, tensor.offset)
    op.inputs = tuple(seen if n == k else x for n, x in enumerate(op.inputs))
    build.shifted[parameter.name] = (made, windows if windows.uniform is None else windows.uniform)
