"""Scales of stacked tensors whose slices are read one by one, as copies for each slice.

A loop over `w1[e]`, `w2[e]` gives the units of each slice e a scale of their own, block by block.
The slices lie on another axis than the units, so that one type per axis can say it only if all of
them have it: then it is one scale that stands over the slices, in their fixed order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block
from paramsym.primitives.index import Node
from paramsym.primitives.tensor import Tensor
from paramsym.tracing.said import Said
from paramsym.tracing.scales import Generator

Axis = tuple[int, int]  # owner of a storage, and the axis of the slices
Blocks = Mapping[tuple[int, int], Block]


@dataclass(frozen=True, eq=False)
class Stack:
    """One scale for each slice, with the axes that count the slices."""

    generator: Generator
    base: Node
    axes: tuple[Axis, ...]
    slices: tuple[Generator, ...]


def stacks(generators: list[Generator], blocks: Blocks, bases: dict[Axis, Node]) -> Iterator[Stack]:
    """The scales that all slices of some tensors have, one for each slice; `bases` is what counts
    the slices, which is added to."""
    families: dict[tuple, dict[int, Generator]] = defaultdict(dict)
    for generator in generators:
        place = _slice(generator, blocks)
        if place is not None:
            position, pattern = place
            families[pattern][position] = generator
    for pattern, found in families.items():
        size, axes = pattern[0], tuple(sorted({item[:2] for item in pattern[-1]}))
        if found.keys() != set(range(size)):
            continue
        known = {bases[axis].serial: bases[axis] for axis in axes if axis in bases}
        if len(known) > 1:
            continue
        base = next(iter(known.values()), None)
        base = base or ix.leaf(size, frozen="its slices are read one by one")
        bases |= dict.fromkeys(axes, base)
        first = found[0]
        exponents = {u: p for k in range(size) for u, p in found[k].exponents.items()}
        whole = Generator(
            first.component, exponents, first.scales, first.signed, False, first.exact
        )
        yield Stack(whole, base, axes, tuple(found.values()))


class Found(Protocol):
    """What is known of the spaces of a network while they are found."""

    carriers: list[Any]
    mixed: dict[int, list[Any]]
    rank: dict[int, int]
    leaves: dict[int, Node]
    names: dict[int, list[str]]
    parameters: dict[str, Tensor]
    slots: dict[int, list[tuple[str, int, tuple]]]
    slices: dict[tuple[str, int], Node]
    said: Said


def count_slices(found: Found, stack: Stack) -> bool:
    """Let the axes of a stack count their slices; false where something else is said of them."""
    owners = {owner for owner, _ in stack.axes}
    sized = {u[0] for c in found.carriers if c.leaf is None for u in c.exponents}
    if sized & owners or found.mixed[stack.generator.component[0]]:
        return False
    if not found.said.keeps((n, axis) for owner, axis in stack.axes for n in found.names[owner]):
        return False
    base = stack.base
    if base.serial not in found.rank:  # before everything that stands over it
        found.rank[base.serial] = -1 - len(found.slices)
        found.leaves[base.serial] = base
    for owner, axis in stack.axes:
        for name in found.names[owner]:
            if (name, axis) not in found.slices:
                stride = found.parameters[name].strides[axis]
                found.slots[base.serial].append((name, axis, (owner, 0, stride)))
            found.slices[name, axis] = base
    return True


def _slice(generator: Generator, blocks: Blocks) -> tuple[int, tuple] | None:
    """Which slice alone a scale touches, and its pattern in there."""
    if len(generator.component) != 1:
        return None
    positions, sizes, pattern = set(), set(), set()
    for (owner, start, strides), power in generator.exponents.items():
        block = blocks[owner, start]
        axes = [k for k, node in enumerate(block.tensor.axes) if _is_sliced(block.tensor, k, node)]
        if len(axes) != 1 or (place := block.places[axes[0]]) is None:
            return None
        (axis,) = axes
        positions.add(place.start)
        sizes.add(block.tensor.shape[axis])
        inside = start - place.start * block.tensor.strides[axis]
        pattern.add((owner, axis, inside, strides, power))
    if len(positions) != 1 or len(sizes) != 1:
        return None
    kind = (generator.component, generator.scales, generator.signed, generator.exact)
    return positions.pop(), (sizes.pop(), kind, frozenset(pattern))


def _is_sliced(tensor: Tensor, axis: int, node: Node) -> bool:
    """Whether an axis of a tensor counts single slices, each by itself."""
    parts = ix.terms(node)
    return len(parts) == tensor.shape[axis] > 1 and all(part.size == 1 for part in parts)
