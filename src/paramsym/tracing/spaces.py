"""Which spaces a network has, which group acts on each, and on which slots.

Changes of basis come first, because they contain scales, signs and permutations; then what is left
of scales and signs; then the permutations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    UnitComplex,
)
from paramsym.algebra.lattice import monomial
from paramsym.lowering.builder import Builder, Tensor
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, Layout, tensor_blocks
from paramsym.primitives.gains import Frame, combine
from paramsym.primitives.index import Node
from paramsym.primitives.solve import Number
from paramsym.tracing.bases import Bases, BasisClass
from paramsym.tracing.carrier import Carrier
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.copies import order_copies, told_by_type
from paramsym.tracing.reasons import Reasons
from paramsym.tracing.said import Said
from paramsym.tracing.scales import Freedom, Generator
from paramsym.tracing.stacks import count_slices, stacks
from paramsym.tracing.units import Units
from paramsym.tracing.wholes import size_on


class Spaces:
    """Solves the constraints of a lowered network and decides on its spaces."""

    def __init__(self, build: Builder):
        self.build = build
        self.layout = Layout()
        self.every = _moving_tensors(build)
        self.dead = _unread(build, self.every)
        self.parameters = {n: t for n, t in self.every.items() if n not in self.dead}
        self.circuit = Circuit(build, self.layout)
        self.mixing = Bases(self.circuit)
        self.rank: dict[int, int] = {}  # leaves in the order in which parameters show them
        self.leaves: dict[int, Node] = {}
        self.slots: dict[int, list[tuple[str, int, tuple]]] = defaultdict(list)
        self.blocks: dict[tuple[int, int], Block] = {}
        self.names: dict[int, list[str]] = defaultdict(list)  # by storage
        for name, tensor in self.parameters.items():
            self.names[tensor.owner.serial].append(name)
            for block in tensor_blocks(tensor, self.layout):
                self.blocks[block.key] = block
                for axis, leaf, stride in block.slots:
                    self.rank.setdefault(leaf.serial, len(self.rank))
                    self.leaves[leaf.serial] = leaf
                    if self.circuit.is_read(block.key):
                        self.slots[leaf.serial].append((name, axis, (*block.key, stride)))
        self.mixing.settle_copies(self.parameters.values())
        self.over = order_copies(build, self.layout, self.parameters, self.mixing.company)
        self.said = Said(self.parameters, self.circuit)
        self.carriers: list[Carrier] = []
        self._find_mixing()
        self.freedom = Freedom(self.circuit, self.parameters, [*self._contained()])
        self.reasons = Reasons(build.ops, self.mixing, self.freedom, self.slots)
        self.slices: dict[tuple[str, int], Node] = {}  # parameter, axis -> what counts its slices
        self.stacked: dict[tuple[int, int], Node] = {}  # owner, axis -> what may count its slices
        self.uneven = self._find_scales()  # those that one type per axis cannot say
        self._find_stacks(self.uneven)
        self.units = Units(self)

    def before(self, leaf: Node, bases: set[int]) -> tuple[Node, ...]:
        """Those bases that come before a leaf, outermost first: copies are never circular."""
        own = self.rank[leaf.serial]
        kept = [b for b in bases if b in self.rank and self.rank[b] < own and not self.mixed[b]]
        return tuple(self.leaves[b] for b in sorted(kept, key=self.rank.__getitem__))

    def _find_mixing(self) -> None:
        self.mixed: dict[int, list[Carrier]] = defaultdict(list)  # by leaf
        self.class_of: dict[tuple, tuple[Carrier, int, tuple]] = {}
        members: dict[tuple, list[tuple]] = defaultdict(list)
        for found in self.slots.values():
            for _, _, slot in found:
                if slot in self.mixing:
                    members[self.mixing.find(slot)[0]].append(slot)
        for root, slots in members.items():
            known = self.mixing.classes[root]
            leaf, group = ix.resolve(known.leaf), known.group
            turns = isinstance(group, (ComplexScaling, UnitComplex))
            # the order of frequencies is fixed, but pairs may still turn; other frozen axes not
            if not turns and leaf.frozen:
                known.held = known.held or leaf.frozen
            if group is None or known.held:
                continue
            over = self._copies_of(known, leaf, turns)
            carrier = Carrier(leaf, group, over, mixing=known, why=next(iter(known.why), ""))
            self._enter_mixing(carrier, slots, known.frame or ())
            if not self._is_said(carrier):
                self._withdraw(carrier)
        for carrier in self.carriers:
            carrier.over = self._all_copies(carrier)
        self._separate_copies()

    def _all_copies(self, carrier: Carrier) -> tuple[Node, ...]:
        """The bases of a change of basis, with those behind it that have none themselves."""
        assert carrier.mixing is not None
        bases = {leaf.serial for leaf in carrier.mixing.over or ()}
        mine = {b for b in bases & set(self.rank) if not self.mixed[b]}
        mine |= {leaf.serial for leaf in carrier.over}
        return tuple(self.leaves[b] for b in sorted(mine, key=self.rank.__getitem__))

    def _copies_of(self, known: BasisClass, leaf: Node, turns: bool) -> tuple[Node, ...]:
        """The bases that count the copies of a change of basis; of pairs, also later ones."""
        bases = {b.serial for b in (known.over or set())}
        if not turns:
            return self.before(leaf, bases)
        shown = sorted(bases & set(self.rank), key=self.rank.__getitem__)
        return tuple(self.leaves[b] for b in shown)

    def _enter_mixing(self, carrier: Carrier, slots: list[tuple], origin: Frame) -> None:
        """Let the slots of a class carry a change of basis, in frames relative to its origin."""
        self.carriers.append(carrier)
        self.mixed[carrier.serial].append(carrier)
        carrier.slots |= {*slots}
        turn = self.mixing.find(slots[0])[1]  # what writes a space is covariant
        for slot in slots:
            _, parity, frame = self.mixing.find(slot)
            relative = combine(frame, origin, -1)
            if turn < 0:
                relative = combine((), relative, -1)
            self.class_of[slot] = (carrier, parity * turn, relative)

    def _withdraw(self, carrier: Carrier) -> None:
        """Forget a change of basis and what its slots carry."""
        self.carriers.remove(carrier)
        self.mixed[carrier.serial].remove(carrier)
        for slot in [s for s, found in self.class_of.items() if found[0] is carrier]:
            self.class_of.pop(slot)

    def _separate_copies(self) -> None:
        """A leaf that indexes the copies of another change of basis keeps its own units."""
        bases = {leaf.serial for carrier in self.carriers for leaf in carrier.over}
        for carrier in [c for c in self.carriers if c.leaf and c.serial in bases]:
            self._withdraw(carrier)

    def _is_said(self, carrier: Carrier) -> bool:
        """Whether types can say where a change of basis acts."""

        def value(slot: tuple) -> Any:
            found = self.class_of.get(slot)
            return found if found is not None and found[0] is carrier else None

        return self.said.admits(carrier.serial, value)

    def _find_scales(self) -> list[Generator]:
        uneven, position = [], {}
        for tensor in self.parameters.values():
            position.setdefault(tensor.owner.serial, len(position))
        for generator in self.freedom.generators:
            first = min(generator.exponents, key=lambda u: (position[u[0]], u[1:]))
            if generator.exponents[first] < 0:  # what writes a space is covariant
                generator.exponents = {u: -p for u, p in generator.exponents.items()}
            if self._is_uniform(generator):
                self._enter_scale(generator)
            else:
                uneven.append(generator)
        return uneven

    def _enter_scale(self, generator: Generator) -> None:
        if not generator.component:
            group = monomial(1, False, generator.signed, generator.scales)
            made = Carrier(None, group, (), generator.exponents)
            made.why = "it has one unit, or only the size of the whole matters"
            made.exact = generator.exact
            self.carriers.append(made)
            return
        leaves = sorted(generator.component, key=self.rank.__getitem__)
        if any(self.mixed[base] for base in leaves[:-1]) or not self._is_placed(generator, leaves):
            return
        carrier_leaf = self.leaves[leaves[-1]]
        over = tuple(self.leaves[b] for b in leaves[:-1])
        group = monomial(carrier_leaf.size, False, generator.signed, generator.scales)
        made = Carrier(carrier_leaf, group, over, self._on_last(generator, leaves))
        made.why = self.reasons.of_scale(generator)
        made.exact = generator.exact
        self.carriers.append(made)

    def _find_stacks(self, uneven: list[Generator]) -> None:
        """Scales that differ from slice to slice of an axis: as copies over the slices where all
        have them, and otherwise one by one."""
        left = {*map(id, uneven)}
        for stack in stacks(uneven, self.blocks, self.stacked):
            whole = stack.generator
            if self._is_uniform(whole) and count_slices(self, stack):
                leaf, own = (
                    self.leaves[whole.component[0]],
                    self._on_last(whole, [*whole.component]),
                )
                group = monomial(leaf.size, False, whole.signed, whole.scales)
                self.carriers.append(Carrier(leaf, group, (stack.base,), own, exact=whole.exact))
                self.carriers[-1].why = "it is scaled slice by slice"
                left -= {*map(id, stack.slices)}
        for generator in uneven:
            if id(generator) in left and self._is_uniform(generator, pieces=True):
                self._enter_scale(generator)

    def _is_placed(self, generator: Generator, leaves: list[int]) -> bool:
        """Whether the type of each slot tells which copies are meant."""
        order = [generator.component.index(leaf) for leaf in leaves]
        for owner, start, strides in generator.exponents:
            block = self.blocks[owner, start]
            at = next(k for k, item in enumerate(block.slots) if item[2] == strides[order[-1]])
            for leaf, position in zip(leaves[:-1], order[:-1], strict=True):
                if told_by_type(block, at, leaf) != strides[position]:
                    return False
        return True

    def _on_last(self, generator: Generator, leaves: list[int]) -> dict:
        """Exponents by the slot of the carrying leaf."""
        at = generator.component.index(leaves[-1])
        return {
            (owner, start, strides[at]): power
            for (owner, start, strides), power in generator.exponents.items()
        }

    def _contained(self) -> Iterator[Generator]:
        """The scales and signs that changes of basis contain, so that they are not counted twice.

        GL and complex scalings contain a scale per copy (their modulus), orthogonal maps a sign.
        """
        for carrier in self.carriers:
            complex_kind = isinstance(carrier.group, (ComplexScaling, UnitComplex))
            own = () if complex_kind else (carrier.serial,)
            component = tuple(sorted([*own, *(leaf.serial for leaf in carrier.over)]))
            exponents = {}
            for slot, (owner_carrier, parity, _) in self.class_of.items():
                if owner_carrier is carrier:
                    strides = {leaf.serial: s for _, leaf, s in self.blocks[slot[:2]].slots}
                    strides |= self.mixing.telling.of(slot)
                    strides[carrier.serial] = slot[2]
                    exponents[(*slot[:2], tuple(strides[c] for c in component))] = parity
            scales = isinstance(carrier.group, (GeneralLinear, ComplexScaling))
            yield Generator(component, exponents, scales=scales, signed=True, known=True)

    def _is_uniform(self, generator: Generator, pieces: bool = False) -> bool:
        """Whether one type per axis can say it, or one for each of the `pieces` of another axis."""
        last = max(generator.component, key=self.rank.__getitem__, default=None)
        carried: dict[tuple, Number] = defaultdict(int)
        for (owner, start, strides), power in generator.exponents.items():
            stride = None if last is None else strides[generator.component.index(last)]
            carried[owner, start, stride] += power
        if last is None:
            names = {n for owner, _, _ in carried for n in self.names[owner]}
            parameters = [self.parameters[n] for n in names]
            return all(size_on(generator.exponents, t, self.layout) for t in parameters)
        return self.said.admits(last, lambda slot: carried.get(slot, 0), pieces)

    def in_order(self) -> list[Carrier]:
        """Bases before what stands over them, otherwise by appearance."""
        done: list[Carrier] = []
        pending = sorted(
            self.carriers,
            key=lambda c: (
                self.rank[c.serial] if c.leaf is not None else 1 << 60,
                len(c.over),
            ),
        )
        while pending:
            for carrier in pending:
                if all(base in done for base in carrier.bases):
                    done.append(carrier)
                    pending.remove(carrier)
                    break
            else:
                raise AssertionError("circular spaces")
        return done

    @cached_property
    def by_slot(self) -> dict[tuple, list[tuple[Carrier, Number]]]:
        """Scales with their powers by the slot that carries them."""
        table: dict[tuple, list[tuple[Carrier, Number]]] = defaultdict(list)
        for carrier in self.carriers:
            if carrier.leaf is not None:
                for slot, power in carrier.exponents.items():
                    table[slot].append((carrier, power))
        return dict(table)


def _unread(build: Builder, tensors: dict[str, Tensor]) -> set[str]:
    """Names of the tensors on which no output depends, as none does on what has no entries."""
    graph = build.graph
    used = {t.owner.serial for op in build.ops for t in op.inputs}
    used |= {build.tensor(v).owner.serial for v in graph.outputs}
    own = {n: build.tensor(graph.parameters.get(n) or graph.buffers[n]).serial for n in tensors}
    return {n for n, tensor in tensors.items() if own[n] not in used or 0 in tensor.shape}


def _moving_tensors(build: Builder) -> dict[str, Tensor]:
    """The tensors whose axes are typed, by their first name; with the origin that is used."""
    found: dict[str, Tensor] = {}
    graph = build.graph
    for value in [*graph.parameters.values(), *graph.buffers.values()]:
        if value.name not in found and value.name not in graph.held:
            shifted = build.shifted.get(value.name)
            found[value.name] = build.tensor(value) if shifted is None else shifted[0]
    return found
