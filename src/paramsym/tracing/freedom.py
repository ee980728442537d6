"""Which scales and signs are free: solutions of the equations as generators.

A generator is a free function on a set of leaves together with the exponent with which every
parameter block carries it. Solutions on a set are taken first on the largest sets; a solution on a
smaller set is new only if it is not the restriction of one that is known.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from paramsym.tracing.blocks import Block, Layout, tensor_blocks
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.equations import (
    NEGLIGIBLE,
    Component,
    Unknown,
    block_unknowns,
    equations,
)
from paramsym.tracing.index import Node
from paramsym.tracing.solve import Number, Row, System, exact


@dataclass(eq=False)
class Generator:
    """A free scale function on the leaves of `component`; `signed` if it may also be negative."""

    component: Component
    exponents: dict[Unknown, Number]  # on parameter blocks, zeros left out
    scales: bool = True
    signed: bool = False
    known: bool = False  # already contained in a change of basis
    exact: bool = True  # False where it holds up to the negligible ε of a norm


def candidate_pairs(tensors: Iterable[Tensor], layout: Layout) -> set[Component]:
    """Sets of two or three leaves that one parameter counts jointly."""
    pairs: set[Component] = set()
    for tensor in tensors:
        for block in tensor_blocks(tensor, layout):
            for place in block.places:
                for count in (2, 3):
                    for chosen in itertools.combinations(place.leaves if place else (), count):
                        found = {leaf.serial for leaf, _ in chosen}
                        if len(found) == count:  # a leaf that meets itself is no second index
                            pairs.add(tuple(sorted(found)))
            if tensor.ndim == 3 and all(block.places):
                first, *others = [[n for n, _ in p.leaves] for p in block.places if p]
                for a, b in itertools.product(first, itertools.chain(*others)):
                    if not a.frozen.startswith("it is a position") and a is not b:
                        if not b.frozen.startswith("it is a position"):
                            pairs.add(tuple(sorted((a.serial, b.serial))))
    return pairs


class Freedom:
    """Solves for all generators of scales and signs of a lowered network."""

    def __init__(
        self, build: Builder, layout: Layout, parameters: dict[str, Tensor],
        mixing: list[Generator],
    ):  # fmt: skip
        self.layout = layout
        self.pairs = candidate_pairs(parameters.values(), layout)
        self.blocks: list[Block] = [
            block for tensor in parameters.values() for block in tensor_blocks(tensor, layout)
        ]
        self.members: dict[Component, list[Unknown]] = defaultdict(list)
        for block in self.blocks:
            for component, unknown in block_unknowns(block, self.pairs):
                self.members[component].append(unknown)
        self.negligible = self._negligible(build)
        self.scales = self._collect(build, signs=False)
        self.signs = self._collect(build, signs=True)
        self.generators: list[Generator] = list(mixing)
        for component in sorted(self.members, key=lambda c: -len(c)):
            self._solve(component)
        self.generators = [g for g in self.generators if not g.known]

    def _negligible(self, build: Builder) -> dict[Component, list[Unknown]]:
        """Scales that enter a norm with a tiny ε."""
        result: dict[Component, list[Unknown]] = defaultdict(list)
        for op in build.ops:
            if op.kind == "normalize" and 0 < op.data["epsilon"] <= NEGLIGIBLE:
                for block in tensor_blocks(op.inputs[0], self.layout):
                    for component, unknown in block_unknowns(block, self.pairs):
                        result[component].append(unknown)
        return result

    def _collect(self, build: Builder, signs: bool) -> dict[Component, System]:
        systems: dict[Component, System] = {}
        for component, equation, reason in equations(build, self.layout, self.pairs, signs):
            if component not in self.members:
                continue
            system = systems.get(component)
            if system is None:
                system = systems[component] = System(2 if signs else 0)
            system.add(equation, reason)
        return systems

    def _solve(self, component: Component) -> None:
        members = self.members[component]
        system = self.scales.get(component, System())
        table = system.spread(members)
        found: list[Generator] = []
        if table:
            solutions = system.solve(dict.fromkeys(members, 1))
            table = system.spread(members)
            found = [_generator(component, table, row) for row in solutions]
            for generator, row in zip(found, solutions, strict=True):
                touched = self.negligible.get(component, ())
                generator.exact = not any(system.value(u, row) for u in touched)
            found = self._new(component, [g for g in found if g.exponents])
        if component:
            self._add_signs(component, found)
        self.generators += found

    def _new(self, component: Component, found: list[Generator]) -> list[Generator]:
        """Those that are no restrictions of generators on larger sets."""
        inside = set(component)
        known = []
        for generator in self.generators:
            if generator.scales and inside <= set(generator.component):
                known.append(self._restrict(generator, component))
        pivots: dict[Unknown, Row] = {}
        for vector in known:
            _reduce_into(pivots, vector)
        return [g for g in found if _reduce_into(pivots, dict(g.exponents))]

    def _restrict(self, generator: Generator, component: Component) -> Row:
        """The part of a generator that depends on the smaller set alone (up to a common factor)."""
        row: Row = defaultdict(int)
        for (owner, start, strides), value in generator.exponents.items():
            if component:
                index = [generator.component.index(c) for c in component]
                row[owner, start, tuple(strides[i] for i in index)] += value
            else:
                row[owner, start, ()] += value
        return {u: v for u, v in row.items() if v}

    # -- signs -------------------------------------------------------------------------------
    def _add_signs(self, component: Component, found: list[Generator]) -> None:
        system = self.signs.get(component)
        members = self.members[component]
        if system is None or not system.spread(members):
            return
        system.simplify()
        pivots: dict[Unknown, Row] = {}
        inside = set(component)
        for generator in self.generators:
            if generator.signed and inside <= set(generator.component):
                restricted = self._restrict(generator, component)
                _reduce_into(pivots, {u: v % 2 for u, v in restricted.items()}, 2)
        for generator in found:
            integral = all(v.denominator == 1 for v in generator.exponents.values())
            if integral and self._is_sign_solution(system, generator):
                generator.signed = True
                _reduce_into(pivots, {u: v % 2 for u, v in generator.exponents.items()}, 2)
        solutions = system.solve(dict.fromkeys(members, 1))
        table = system.spread(members)
        for row in solutions:
            generator = _generator(component, table, row, 2)
            generator.scales, generator.signed = False, True
            if generator.exponents and _reduce_into(pivots, dict(generator.exponents), 2):
                found.append(generator)

    def _is_sign_solution(self, signs: System, generator: Generator) -> bool:
        """Whether a scale generator, read modulo 2, meets all equations for signs."""
        exponents = generator.exponents
        classes: dict[object, set[int]] = defaultdict(set)
        for unknown in self.members[generator.component]:
            representative, ratio = signs.find(unknown)
            parity = int(exponents.get(unknown, 0)) % 2
            if representative in signs.zero:
                if parity:
                    return False
            elif ratio:
                classes[representative].add(parity)
        if any(len(found) > 1 for found in classes.values()):
            return False
        known: Row = {u: next(iter(found)) for u, found in classes.items()}
        for row in signs.rows:
            if not all(signs.find(u)[0] in known for _, u in row):
                return False  # an activation stands between: undecided is not free
            if sum(int(c * known[signs.find(u)[0]]) for c, u in row) % 2:
                return False
        return True


def _generator(component: Component, table: dict, row: Row, modulo: int = 0) -> Generator:
    """A solution on the parameter blocks, zeros left out."""
    exponents = {}
    for representative, value in row.items():
        for unknown, ratio in table.get(representative, ()):
            power = ratio * value
            if power := power % modulo if modulo else power:
                exponents[unknown] = exact(power)
    return Generator(component, exponents)


def _reduce_into(pivots: dict, vector: Row, modulo: int = 0) -> bool:
    """Gaussian elimination step: add a vector to a basis; False if it was dependent."""
    row = {k: v for k, v in vector.items() if v}
    while row:
        lead = min(row)
        if lead not in pivots:
            scale = row[lead]
            pivots[lead] = {k: exact(Fraction(v) / scale) for k, v in row.items()}
            return True
        factor = row[lead]
        for k, v in pivots[lead].items():
            value = row.get(k, 0) - factor * v
            if modulo:
                value = value % modulo
            if value:
                row[k] = value
            else:
                row.pop(k, None)
    return False


def leaf_table(blocks: Iterable[Block]) -> dict[int, Node]:
    """Leaves by identity."""
    return {leaf.serial: leaf for b in blocks for p in b.places if p for leaf, _ in p.leaves}
