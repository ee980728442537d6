"""Which scales multiply which weights: every weight as an edge of one digraph.

The nodes are the logarithms y of all scales and the ground, y₀ = 0. A weight w under e^{y_v − y_u}
is an edge u → v: with a threshold θ for its tensor and sign, log|w| + y_v − y_u ≤ θ says that
y_u ≥ y_v + log|w| − θ. Of weights with the same two nodes only the largest of each sign counts.
Small blocks are kept as one list of edges, and only large ones block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paramsym.algebra import ComplexScaling
from paramsym.geometry.costs import counts, scales_of
from paramsym.structure.data import batch_of
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Leg

GROUND = 0
FEW = 1 << 13  # weights of a block that is kept as edges


class Edges(NamedTuple):
    """Weights as edges u → v: u, v, the slot (2 · tensor, or + 1 if negative), and log|w|."""

    lowering: np.ndarray
    raising: np.ndarray
    slot: np.ndarray
    size: np.ndarray

    def at(self, y: np.ndarray) -> np.ndarray:
        """log|w| where the scales are e^y."""
        return self.size + y[self.raising] - y[self.lowering]

    def where(self, chosen: np.ndarray) -> Edges:
        """Some of them, by their numbers or a mask."""
        return Edges(*(part[chosen] for part in self))

    @staticmethod
    def joined(parts: Iterable[Edges]) -> Edges:
        """All edges of several lists."""
        return Edges(*map(np.concatenate, zip(_NONE, *parts, strict=True)))


_NONE = Edges(*(np.zeros(0, dtype=t) for t in (np.int64, np.int64, np.int64, np.float64)))


@dataclass(frozen=True)
class Rows:
    """The weights of one block, the largest of each sign for each pair of nodes.

    Attributes:
        tensor: the number of the parameter that the block belongs to.
        upper: the largest weights, with one axis for each that scales stand on; (1,) where none do.
        lower: the smallest ones, or `upper` itself where no two weights share their nodes.
        raising, lowering: the nodes v and u of e^{y_v − y_u}, broadcast over the same axes.
    """

    tensor: int
    upper: Tensor
    lower: Tensor
    raising: Tensor
    lowering: Tensor


@dataclass(frozen=True)
class Family:
    """Where the scales of one space lie among the nodes: y = factor · (the node's number)."""

    start: int
    shape: tuple[int, ...]
    factor: float

    def of(self, y: np.ndarray) -> np.ndarray:
        """Its part of the numbers of all nodes, a view."""
        return y[self.start : self.start + math.prod(self.shape)].reshape(self.shape)


@dataclass(frozen=True)
class Incidence:
    """All weights of a model as edges; `held` are spaces that fit no edge, with the reason."""

    tensors: list[str]
    few: Edges
    rows: list[Rows]
    families: dict[str, Family]
    nodes: int
    held: dict[str, str]

    def split(self, y: np.ndarray) -> dict[str, Tensor]:
        """The logarithms of the scales by space, from the numbers of the nodes, (nodes,)."""
        return {n: torch.from_numpy(f.factor * f.of(y)) for n, f in self.families.items()}


def incidence_of(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], spaces: Sequence[str]
) -> Incidence:
    """The weights of all parameters as edges between the scales of some spaces.

    Args:
        symmetry: whose spaces they are.
        params: the complete state dict, read once. Buffers cost nothing, tied tensors count once,
            and a gain that is stored as γ − 1 counts as γ.
        spaces: names of spaces with scales. A weight under more than two of them, or under two
            that cannot be told apart as one that raises and one that lowers it, is no edge: then
            a space is left out and named in `held`.
    """
    names = [
        n for n in symmetry.blocks
        if n not in symmetry.buffers and n not in symmetry.ties
        and counts(params[n]) and params[n].numel()
    ]  # fmt: skip
    factors, held = _oriented([b for n in names for b in symmetry.blocks[n]], symmetry, spaces)
    families, nodes = {}, GROUND + 1
    for name, factor in factors.items():
        space = symmetry.spaces[name]
        family = Family(nodes, (*batch_of(symmetry, space), scales_of(space)), factor)
        families[name] = family
        nodes += math.prod(family.shape)
    rows = []
    paired = {n for n in families if isinstance(symmetry.spaces[n].group, ComplexScaling)}
    for k, name in enumerate(names):
        tensor = added(params[name].detach(), symmetry.offsets.get(name, 0.0))
        rows += [_rows(k, b, b.view(tensor), families, paired) for b in symmetry.blocks[name]]
    large = [r for r in rows if r.upper.numel() > FEW]
    return Incidence(names, _edges(rows), large, families, nodes, held)


def _edges(blocks: Sequence[Rows]) -> Edges:
    """The weights of the small ones among some blocks, as edges; zeros are none."""
    lowering, raising, size, slot, counts = [], [], [], [], []
    for rows in (block for block in blocks if block.upper.numel() <= FEW):
        shape = rows.upper.shape
        size += [rows.upper.double().numpy().ravel(), -rows.lower.double().numpy().ravel()]
        lowering += 2 * [rows.lowering.expand(shape).reshape(-1).numpy()]
        raising += 2 * [rows.raising.expand(shape).reshape(-1).numpy()]
        slot += [2 * rows.tensor, 2 * rows.tensor + 1]
        counts += 2 * [rows.upper.numel()]
    if not size:
        return _NONE
    edges = Edges(
        np.concatenate(lowering), np.concatenate(raising), np.repeat(slot, counts),
        np.concatenate(size),
    )  # fmt: skip
    edges = edges.where(edges.size > 0)
    return edges._replace(size=np.log(edges.size))


def _rows(
    tensor: int, block: Block, x: Tensor, families: Mapping[str, Family], paired: set[str]
) -> Rows:
    """One block, all axes that no scale stands on left out by their extremes.

    Of `paired` families a scale is a modulus, of the coordinates k and k + n/2 alike.
    """
    legs = [leg for leg in block.legs if leg.space in families and leg.power]
    x = torch.view_as_real(x) if x.is_complex() else x
    kept = sorted({axis for leg in legs for axis in (*leg.copies, leg.axis)})
    upper, lower = _extremes(x, kept, [leg.axis for leg in legs if leg.space in paired])
    if not kept:
        one = torch.tensor([GROUND])
        return Rows(tensor, upper.reshape(1), lower.reshape(1), one, one)
    ends = dict.fromkeys((1, -1), torch.full((1,) * len(kept), GROUND))
    for leg in legs:
        family = families[leg.space]
        side = 1 if leg.power * family.factor > 0 else -1
        ends[side] = _nodes(family, [kept.index(a) for a in (*leg.copies, leg.axis)], len(kept))
    return Rows(tensor, upper, lower, ends[1], ends[-1])


def _extremes(x: Tensor, kept: list[int], pairs: list[int]) -> tuple[Tensor, Tensor]:
    """The largest and the smallest weight along the other axes, and within pairs on some."""
    left = [axis for axis in range(x.ndim) if axis not in kept]
    upper = x.amax(left) if left else x
    lower = x.amin(left) if left else x
    for at in map(kept.index, pairs):
        upper = upper.unflatten(at, (2, -1)).amax(at)
        lower = lower.unflatten(at, (2, -1)).amin(at)
    return upper, lower


def _nodes(family: Family, axes: Sequence[int], count: int) -> Tensor:
    """The nodes of a family that stands on some of `count` axes, broadcast over the others."""
    nodes = torch.arange(family.start, family.start + math.prod(family.shape))
    order = sorted(range(len(axes)), key=axes.__getitem__)
    sizes = dict(zip(axes, family.shape, strict=True))
    shape = [sizes.get(k, 1) for k in range(count)]
    return nodes.reshape(family.shape).permute(order).reshape(shape)


# -- orientation -------------------------------------------------------------------------------


def _oriented(
    blocks: Sequence[Block], symmetry: ParameterSymmetry, spaces: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Factors of the spaces by which every weight is raised at most once and lowered at most once.

    With y = factor · z and |factor| = 1/|power|, z enters every weight by ±1; the sign is chosen
    such that the two spaces on a weight have opposite ones, for which the graph of spaces must be
    balanced.
    """
    held: dict[str, str] = {}
    count = {s: _scales(symmetry, s) for s in spaces}
    while True:
        moved = [s for s in spaces if s not in held]
        legs = [[g for g in b.legs if g.space in moved and g.power] for b in blocks]
        clash = next(_crowded(count, legs), None) or next(_uneven(legs), None)
        if clash is None:
            sides, clash = _sides(moved, legs, count)
            if clash is None:
                power = {g.space: abs(float(g.power)) for found in legs for g in found}
                return {s: sides[s] / power.get(s, 1.0) for s in moved}, held
        held[clash[0]] = clash[1]


def _scales(symmetry: ParameterSymmetry, name: str) -> int:
    """How many scales or moduli a space has in all its copies."""
    space = symmetry.spaces[name]
    return math.prod(batch_of(symmetry, space)) * scales_of(space)


def _crowded(count: dict[str, int], legs: Sequence[list[Leg]]) -> Iterator[tuple[str, str]]:
    for found in legs:
        if len(found) > 2:
            smallest = min(found, key=lambda leg: count[leg.space])
            yield smallest.space, "a weight carries it and two other scales: no range along it"


def _uneven(legs: Sequence[list[Leg]]) -> Iterator[tuple[str, str]]:
    seen: dict[str, float] = {}
    for leg in (leg for found in legs for leg in found):
        if seen.setdefault(leg.space, abs(float(leg.power))) != abs(float(leg.power)):
            yield leg.space, "it enters weights with several powers: no range along it"


def _sides(
    spaces: Sequence[str], legs: Sequence[list[Leg]], count: dict[str, int]
) -> tuple[dict[str, float], tuple[str, str] | None]:
    """A sign for each space by which two on one weight pull opposite ways; or who cannot.

    Of two that conflict it is the one of fewer scales: a query–key space rather than the gain
    before it.
    """
    why = "it raises weights together with another scale: no range along it"
    beside: dict[str, list[tuple[str, float]]] = {s: [] for s in spaces}
    for found in legs:
        if len(found) == 2:
            one, other = found
            needed = -math.copysign(1.0, one.power * other.power)
            beside[one.space].append((other.space, needed))
            beside[other.space].append((one.space, needed))
    sides: dict[str, float] = {}
    for first in spaces:
        if first in sides:
            continue
        sides[first], reached = 1.0, [first]
        while reached:
            here = reached.pop()
            for there, needed in beside[here]:
                if there not in sides:
                    sides[there] = sides[here] * needed
                    reached.append(there)
                elif sides[there] != sides[here] * needed:
                    return sides, (min(here, there, key=count.__getitem__), why)
    return sides, None
