"""Which scales and signs are free.

Let x be multiplied by exp(L_x) with L_x a function of its units. Equality of functions splits, by
the usual decomposition into main effects and interactions, into one linear system for every set of
leaves (a *component*): the part of L that depends on exactly these leaves. Each primitive demands,
for each component, that some combinations of these parts vanish. Signs obey the same equations
modulo 2.

A solution is a *generator*: a free function on a set of leaves together with the exponent with
which every parameter block carries it. Solutions are taken first on the largest sets; one on a
smaller set is new only if it is not the restriction of one that is known.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from paramsym.primitives import NEGLIGIBLE, Normalize
from paramsym.primitives.blocks import Block, Layout, tensor_blocks
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import Equation, ScaleSite, Unknown
from paramsym.primitives.solve import Number, Row, System, exact
from paramsym.primitives.tensor import Tensor
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.signs import Signs
from paramsym.tracing.wholes import is_single

Component = tuple[int, ...]  # serial numbers of leaves, sorted


class Together(frozenset[Component]):
    """The two or three leaves of which each is worth considering."""

    @cached_property
    def members(self) -> frozenset[int]:
        """All leaves that are worth considering with others."""
        return frozenset(serial for component in self for serial in component)


def block_unknowns(block: Block, joint: Together) -> Iterator[tuple[Component, Unknown]]:
    """Every component of a block's scale, with its unknown."""
    owner, start = block.key
    slots = [(leaf, stride) for _, leaf, stride in block.slots]
    yield (), (owner, start, ())
    for leaf, stride in slots:
        yield (leaf.serial,), (owner, start, (stride,))
    for component, chosen in _jointly(slots, joint, lambda item: item[0].serial):
        yield component, (owner, start, tuple(stride for _, stride in chosen))


def _jointly(items: list, joint: Together, serial) -> Iterator[tuple[Component, list]]:
    """Two or three of some items whose leaves are worth considering together."""
    items = [item for item in items if serial(item) in joint.members]
    for count in (2, 3):
        for chosen in itertools.combinations(items, count):
            ordered = sorted(chosen, key=serial)
            component = tuple(serial(item) for item in ordered)
            if component in joint:
                yield component, ordered


def sites(
    joint: Joint, pairs: Together, wanted: Collection[Component]
) -> Iterator[tuple[Component, ScaleSite]]:
    """Every wanted component of a joint, for its scales and for its signs."""
    blocks = [(block, joint.slots(k)) for k, block in enumerate(joint.inputs)]
    blocks.append((joint.out, joint.slots(-1)))
    for component, chosen in _components(joint, pairs):
        if component in wanted:
            *parts, result = [_unknown(block, slots, chosen) for block, slots in blocks]
            yield component, ScaleSite(joint, chosen, parts, result, signs=False)
            yield component, ScaleSite(joint, chosen, parts, result, signs=True)


def _components(joint: Joint, pairs: Together) -> Iterator[tuple[Component, tuple]]:
    """Every component of the scales of a joint, with the places of its leaves."""
    places = [
        (label, position, leaf)
        for label, place in joint.where.items()
        for position, (leaf, _) in enumerate(place.leaves)
    ]
    yield (), ()
    for item in places:
        yield (item[2].serial,), (item,)
    for component, chosen in _jointly(places, pairs, lambda item: item[2].serial):
        yield component, tuple(chosen)


def _unknown(block: Block, slots: dict, chosen: tuple) -> Unknown | None:
    """The unknown of a block for a component, or None where that part is zero."""
    if not block.tensor.moves or block.tensor.zero:
        return None
    strides = []
    for label, position, _ in chosen:
        stride = slots.get((label, position))
        if stride is None:
            return None
        strides.append(stride)
    return (*block.key, tuple(strides))


def equations(
    circuit: Circuit, pairs: Together, wanted: Collection[Component], beside: bool = False
) -> Iterator[tuple[bool, Component, Equation, str]]:
    """All equations on the wanted components: whether for signs, on which one, and their cause.

    Either those of the function, or those of operations that lead to kept buffers alone.
    """
    for joint in circuit.joints:
        if (joint.op in circuit.build.beside) is not beside:
            continue
        cause = f"{joint.op.title} at {joint.op.where}"
        for component, site in sites(joint, pairs, wanted):
            for equation in joint.op.scales(site):
                kept = [(c, u) for c, u in equation if u is not None]
                if kept:
                    yield site.signs, component, kept, cause
    held = [] if beside else list(circuit.held)
    for value in [] if beside else circuit.build.graph.outputs:
        tensor = circuit.build.tensor(value)
        held += [(b, "it is an output of the model") for b in tensor_blocks(tensor, circuit.layout)]
    for block, reason in held:
        for component, unknown in block_unknowns(block, pairs):
            if component in wanted:
                yield False, component, [(1, unknown)], reason
                yield True, component, [(1, unknown)], reason


@dataclass(eq=False)
class Generator:
    """A free scale function on the leaves of `component`; `signed` if it may also be negative.

    `odd` says so of one that is left to a change of basis, too.
    """

    component: Component
    exponents: dict[Unknown, Number]  # on parameter blocks, zeros left out
    scales: bool = True
    signed: bool = False
    odd: bool = False
    known: bool = False  # already contained in a change of basis
    exact: bool = True  # False where it holds up to the negligible ε of a norm


def candidate_pairs(tensors: Iterable[Tensor], layout: Layout) -> Together:
    """Sets of two or three leaves that one parameter counts jointly."""
    pairs: set[Component] = set()
    for tensor in tensors:
        for block in tensor_blocks(tensor, layout):
            for place in block.places:
                pairs.update(_on_one_axis([leaf for leaf, _ in place.leaves] if place else []))
            counted = [[n for n, _ in p.leaves] for p in block.places if p and p.leaves]
            if len(counted) == 3:
                pairs.update(_across_axes(counted))
    return Together(pairs)


def _on_one_axis(leaves: list[Node]) -> Iterator[Component]:
    """Two or three leaves whose product is (part of) one axis."""
    for count in (2, 3):
        for chosen in itertools.combinations(leaves, count):
            found = {leaf.serial for leaf in chosen}
            if len(found) == count:  # a leaf that meets itself is no second index
                yield tuple(sorted(found))


def _across_axes(axes: list[list[Node]]) -> Iterator[Component]:
    """The first axis of a stack of matrices with either axis of the matrices, positions aside.

    Its own leaves are taken one by one, and where there are two, together.
    """
    first, *others = [[n for n in leaves if not _is_position(n)] for leaves in axes]
    for b in itertools.chain(*others):
        for a in first:
            if a is not b:
                yield tuple(sorted((a.serial, b.serial)))
        if len(whole := {n.serial for n in (*first, b)}) == 3 == 1 + len(first):
            yield tuple(sorted(whole))  # the matrices are counted by group and place


def _is_position(leaf: Node) -> bool:
    return leaf.frozen.startswith("it is a position")


def _system(signs: bool) -> System:
    return System(2 if signs else 0)


class Freedom:
    """Solves for all generators of scales and signs of a lowered network."""

    def __init__(self, circuit: Circuit, parameters: dict[str, Tensor], mixing: list[Generator]):
        self.circuit, layout = circuit, circuit.layout
        self.pairs = candidate_pairs(parameters.values(), layout)
        self.blocks: list[Block] = [
            block for tensor in parameters.values() for block in tensor_blocks(tensor, layout)
            if circuit.is_read(block.key)
        ]  # fmt: skip
        self.members: dict[Component, list[Unknown]] = defaultdict(list)
        for block in self.blocks:
            for component, unknown in block_unknowns(block, self.pairs):
                self.members[component].append(unknown)
        self.negligible = self._negligible()
        self.scales: dict[Component, System] = {}
        self.signs: dict[Component, System] = {}
        self._collect()
        self.mixing = mixing
        self.generators: list[Generator] = list(mixing)
        for component in sorted(self.members, key=lambda c: -len(c)):
            self._solve(component)
        self.generators = [g for g in self.generators if not g.known]

    def _negligible(self) -> dict[Component, list[Unknown]]:
        """Scales that enter a norm with a tiny ε."""
        result: dict[Component, list[Unknown]] = defaultdict(list)
        for op in self.circuit.build.ops:
            if isinstance(op, Normalize) and 0 < op.epsilon <= NEGLIGIBLE:
                for block in tensor_blocks(op.inputs[0], self.circuit.layout):
                    for component, unknown in block_unknowns(block, self.pairs):
                        result[component].append(unknown)
        return result

    def _collect(self) -> None:
        """Write the systems of all components that some parameter has."""
        self._enter(beside=False)
        if not (kept := self.circuit.build.kept):
            return
        # what buffers keep is measured by what the function needs, whose solutions stay the same
        for systems in (self.scales, self.signs):
            for component, members in self.members.items():
                system = systems.setdefault(component, _system(systems is self.signs))
                known = {system.find(unknown)[0] for unknown in members if unknown[0] not in kept}
                system.older = known.union(system.parent, (y for y, _ in system.parent.values()))
        self._enter(beside=True)

    def _enter(self, beside: bool) -> None:
        for signs, component, equation, reason in equations(
            self.circuit, self.pairs, self.members.keys(), beside
        ):
            systems = self.signs if signs else self.scales
            system = systems.get(component)
            if system is None:
                system = systems[component] = _system(signs)
            system.add(equation, reason)

    def _solve(self, component: Component) -> None:
        members = self.members[component]
        system = self.scales.get(component, System())
        table = system.spread(members)
        found: list[Generator] = []
        if table:
            solutions = system.solve(self._weights(members))
            table = system.spread(members)
            found = [_generator(component, table, row) for row in solutions]
            for generator, row in zip(found, solutions, strict=True):
                touched = self.negligible.get(component, ())
                generator.exact = not any(system.value(u, row) for u in touched)
            found = self._new(component, [g for g in found if g.exponents])
        self._add_signs(component, found)
        self.generators += found

    def _weights(self, members: Iterable[Unknown]) -> dict[Unknown, int]:
        """What should be simple: the same solutions are chosen with kept buffers as without."""
        kept = self.circuit.build.kept
        return {unknown: int(unknown[0] not in kept) for unknown in members}

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

    def wholes(self) -> Iterator[Row]:
        """The scales of wholes, negative ones among them, that changes of basis contain, and
        scales of units."""
        for generator in (*self.mixing, *self.generators):
            if generator.scales and (generator.known or generator.odd and generator.component):
                yield self._restrict(generator, ())

    # -- signs -------------------------------------------------------------------------------
    def _add_signs(self, component: Component, found: list[Generator]) -> None:
        system = self.signs.get(component)
        members = self.members[component]
        if system is None or not system.spread(members):
            return
        system.simplify()
        pivots = self._known_signs(component)
        signs = Signs(system, members)
        for generator in found:
            integral = all(v.denominator == 1 for v in generator.exponents.values())
            generator.odd = integral and signs.allow(generator.exponents)
            if generator.odd and self._is_signed(generator):
                generator.signed = True
                _reduce_into(pivots, {u: v % 2 for u, v in generator.exponents.items()}, 2)
        solutions = system.solve(self._weights(members))
        table = system.spread(members)
        for row in solutions:
            generator = _generator(component, table, row, 2)
            generator.scales, generator.signed = False, True
            if not generator.exponents or not self._is_signed(generator):
                continue
            if _reduce_into(pivots, dict(generator.exponents), 2):
                found.append(generator)

    def _known_signs(self, component: Component) -> dict[Unknown, Row]:
        """A basis of the signs on a component that are restrictions of known ones."""
        pivots: dict[Unknown, Row] = {}
        inside = set(component)
        for generator in self.generators:
            if generator.signed and inside <= set(generator.component):
                restricted = self._restrict(generator, component)
                _reduce_into(pivots, {u: v % 2 for u, v in restricted.items()}, 2)
        return pivots

    def _is_signed(self, generator: Generator) -> bool:
        """Whether a sign is one of units: that of a whole space is left to its change of basis."""
        return bool(generator.component) or all(
            is_single(block) for block in self.blocks if (*block.key, ()) in generator.exponents
        )


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
