"""From solved constraints to a `ParameterSymmetry`: names, axis types, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from paramsym.algebra import AbstractMonomial, Trivial
from paramsym.lowering.builder import Builder
from paramsym.lowering.lower import lower
from paramsym.lowering.reach import unreached_rows
from paramsym.primitives import index as ix
from paramsym.primitives.defects import report
from paramsym.primitives.index import Node
from paramsym.recording.graph import Graph
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    with_inside,
)
from paramsym.structure.feature import Feature
from paramsym.structure.placing import misplaced
from paramsym.structure.shift import Shift
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.carrier import Carrier
from paramsym.tracing.describe import described
from paramsym.tracing.motions import find_shifts
from paramsym.tracing.naming import Namer
from paramsym.tracing.sizes import sizes
from paramsym.tracing.spaces import Spaces
from paramsym.tracing.types import type_of
from paramsym.tracing.written import with_written


def infer(graph: Graph, still: Graph | None = None) -> ParameterSymmetry:
    """Derive the parameter symmetry of a traced network.

    Args:
        graph: what was recorded.
        still: where the graph has virtual maps, the record of the same network without. Shifts are
            derived from it, as they leave inputs and outputs where they are.
    """
    build = Builder(graph)
    try:
        build = lower(graph)
        fixed = None if still is None else Spaces(lower(still))
        found = _Writer(Spaces(build), fixed).symmetry()
    except Exception as error:  # held as a whole is always sound
        build.where = "the whole network"
        return _nothing(graph, build, report(build, "its derivation", error))
    try:
        return with_written(found, graph, lambda kept: _kept(graph, kept))
    except Exception as error:  # written buffers stay as they are
        report(build, "the buffers that it writes", error)
        return replace(found, unknown=dict(build.unknown))


def _kept(graph: Graph, kept: Sequence[str]) -> ParameterSymmetry:
    """The symmetry, without shifts, in which some buffers are the same before and after."""
    return _Writer(Spaces(lower(graph, kept))).symmetry(shifts=False)


def _nothing(graph: Graph, build: Builder, why: str) -> ParameterSymmetry:
    """The symmetry that moves nothing, with one reason for all."""
    held = {
        v.name: _held(v.shape, why) for v in [*graph.parameters.values(), *graph.buffers.values()]
    }
    signature = {name: axes for name, (axes, _) in held.items()}
    inputs, outputs = _taken(graph, signature, {})
    return ParameterSymmetry(
        {}, signature, ties=_ties(graph), buffers=tuple(n for n in held if n in graph.buffers),
        reasons={name: reasons for name, (_, reasons) in held.items()}, unknown=dict(build.unknown),
        inputs=inputs, outputs=outputs,
    )  # fmt: skip


class _Writer:
    """Writes down what was found, one type per axis."""

    def __init__(self, found: Spaces, still: Spaces | None = None):
        self.found, self.still = found, still or found

    def symmetry(self, shifts: bool = True) -> ParameterSymmetry:
        """The whole object, with its `shifts` or without."""
        Namer(self.found).name()
        spaces = {c.name: self._space(c) for c in self.found.in_order()}
        signature, reasons = self._signature()
        for name, base, where in list(misplaced(spaces, signature)):
            why = f"{where} does not tell its copies for each unit of {base} apart"
            size = spaces[name].size
            spaces[name] = replace(spaces[name], group=Trivial(size), over=(), why=why)
        graph = self.found.build.graph
        for value in [*graph.parameters.values(), *graph.buffers.values()]:
            if (why := graph.held.get(value.name)) is not None:
                signature[value.name], reasons[value.name] = _held(value.shape, why)
        inputs, outputs = _taken(graph, signature, spaces)
        buffers = tuple(n for n in signature if n in graph.buffers)
        sizes = {name: space.size for name, space in spaces.items()}
        return ParameterSymmetry(
            spaces, signature,
            tuple(described(s, signature, sizes) for s in (self._shifts() if shifts else ())),
            tuple(n for n in self.still.every if n in self.still.dead and n not in buffers),
            _ties(graph),
            {n: c for n, (_, c) in self.found.build.shifted.items()}, buffers, reasons,
            dict(self.found.build.unknown),
            unreached_rows(self.still.build, self.still.parameters),
            dict(self.found.build.random), inputs, outputs,
            probed=dict(self.found.build.probed),
        )  # fmt: skip

    def _shifts(self) -> tuple[Shift, ...]:
        """The additive freedom; none where its derivation fails, which leaves the groups."""
        try:
            return find_shifts(self.still.circuit, self.still.parameters, sizes(self.still))
        except Exception as error:
            self.found.build.where = "the whole network"
            report(self.found.build, "its shifts", error)
            return ()

    def _signature(self) -> tuple[dict[str, tuple[AxisType, ...]], dict[str, tuple[str, ...]]]:
        """The types of the axes of each tensor, and why some of them are fixed."""
        signature: dict[str, tuple[AxisType, ...]] = {}
        reasons: dict[str, tuple[str, ...]] = {}
        for name, tensor in self.found.every.items():
            if name in self.found.dead:
                signature[name], reasons[name] = _held(tensor.shape, "no output depends on it")
                continue
            signature[name] = tuple(
                self._slices(name, axis) or type_of(self.found, name, axis)
                for axis in range(tensor.ndim)
            )
            found = tuple(_reason(node) for node in tensor.axes)
            if any(found):
                reasons[name] = found
        return signature, reasons

    def _space(self, c: Carrier) -> Space:
        return Space(c.name, c.group, tuple(base.name for base in c.bases), c.why, c.exact)

    def _slices(self, name: str, axis: int) -> AxisType | None:
        """The type of an axis whose slices are counted by a space of their own."""
        base = self.found.slices.get((name, axis))
        if base is None:
            return None
        return Carried(((self.found.units.by[base.serial].name, Fraction(1)),))


def _held(shape: tuple[int, ...], why: str) -> tuple[tuple[AxisType, ...], tuple[str, ...]]:
    """The types of a tensor whose entries have to stay, with the same reason for each axis."""
    return tuple(map(Fixed, shape)), tuple(why for _ in shape)


def _taken(
    graph: Graph, signature: dict[str, tuple[AxisType, ...]], spaces: Mapping[str, Space]
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """The virtual weights taken out of a signature, as the feature axes of inputs and outputs.

    W ↦ T W from W = 1 in front of the model is x ↦ T x. Behind it, Wᵀ S⁻¹ f = f at W = 1, so that
    what the weight carries is the dual of what the output does.
    """
    sides: dict[str, dict[str, Feature]] = {"input": {}, "output": {}}
    for name, virtual in graph.virtual.items():
        axis, outer = signature.pop(name)
        if not isinstance(outer, Fixed):
            raise AssertionError(f"{name!r} changes basis as {outer} before its virtual map")
        axis = axis if virtual.side == "input" else _dual(axis, spaces)
        sides[virtual.side][virtual.name] = Feature(axis, virtual.axis)
    return sides["input"], sides["output"]


def _dual(axis: AxisType, spaces: Mapping[str, Space]) -> AxisType:
    """The dual type; orders and signs, which are their own duals, are written as they were."""
    if not isinstance(axis, Carried):
        return with_inside(axis, lambda part: _dual(part, spaces))
    if axis.frame:
        return axis.T
    groups = {name: spaces[name].group for name, _ in axis.factors}
    own = {n for n, g in groups.items() if isinstance(g, AbstractMonomial) and not g.scales}
    return Carried(tuple((n, power if n in own else -power) for n, power in axis.factors))


def _ties(graph: Graph) -> dict[str, str]:
    """Further names of tensors that have several."""
    return {
        name: value.name
        for name, value in {**graph.parameters, **graph.buffers}.items()
        if name != value.name
    }


def _reason(node: Node) -> str:
    return next((leaf.frozen for leaf in ix.leaves(node) if leaf.frozen), "")
