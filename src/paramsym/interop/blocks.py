"""The logical matrices of parameters, for optimisers that treat a matrix as a map.

A parameter is often several matrices in one tensor: queries, keys and values side by side, a gate
and what it gates, one matrix for each expert. The axis types of a symmetry say so: a direct sum is
cut into its terms, an axis that counts copies of what the others carry into its entries. An update
that orthogonalises (Muon) belongs on the matrices between two feature spaces; where one side is the
data's (tokens, pixels, classes) or there is one side only, entries are treated by themselves.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from paramsym.algebra import GeneralLinear, Group, Orthogonal
from paramsym.geometry.commuting import orthogonal_part
from paramsym.geometry.updates import Kind, Update
from paramsym.recording.running import uncollected
from paramsym.structure.axes import AxisType, Fixed, Product, Sum, nodes_of, spaces_of
from paramsym.structure.pieces import cutting, plain
from paramsym.structure.symmetry import ParameterSymmetry

Role = Literal["hidden", "outer", "vector"]
Run = tuple[int, int]
Runs = tuple[Run, ...]  # entries of an axis: from each start to before its stop
Piece = tuple[AxisType, Runs]
_INNER = Kind.INNER_PRODUCTS
_ENTRYWISE = Update("any step by entries", Kind.ENTRYWISE)


@dataclass(frozen=True)
class Block:
    """One logical matrix, or vector, of a parameter.

    Attributes:
        parameter: its name.
        at: for each axis of the parameter the entries that are meant, as runs (start, stop).
        axes: what the rows and the columns carry; of a vector what its entries do.
        groups: for each of these the groups of its spaces, by name.
        role: "hidden" between two feature spaces, "outer" where one side is the data's, "vector".
        updates: which steps commute with every orthogonal element of these groups; none where a
            cut goes through a space that can be turned.
        shape: rows and columns; of a vector its length.
    """

    parameter: str
    at: tuple[Runs, ...]
    axes: tuple[AxisType, ...]
    groups: tuple[dict[str, Group], ...]
    role: Role
    updates: tuple[Kind, ...]
    shape: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The entries of a parameter's tensor, in the shape of the block; a view if it can be."""
        for axis, runs in enumerate(self.at):
            if runs != ((0, tensor.shape[axis]),):
                parts = [tensor.narrow(axis, a, b - a) for a, b in runs]
                tensor = parts[0] if len(parts) == 1 else torch.cat(parts, axis)
        return tensor.reshape(self.shape)

    def put(self, tensor: Tensor, value: Tensor) -> None:
        """Write a value of the shape of the block into its entries of a parameter's tensor."""
        places = [torch.cat([torch.arange(a, b) for a, b in runs]) for runs in self.at]
        grid = (p.view(-1, *[1] * (len(places) - k)) for k, p in enumerate(places, start=1))
        tensor[tuple(p.to(tensor.device) for p in grid)] = value.reshape([len(p) for p in places])

    def numbers(self) -> dict[str, Any]:
        """The block as a document says it."""
        return {
            "role": self.role, "shape": self.shape, "at": self.at,
            "axes": [str(axis) for axis in self.axes],
            "groups": [{name: str(g) for name, g in groups.items()} for groups in self.groups],
            "updates": [update.name.lower() for update in self.updates],
        }  # fmt: skip


@dataclass(frozen=True)
class OptimizerGroups:
    """The blocks of all parameters of a model; each entry of a parameter is in one of them."""

    blocks: tuple[Block, ...]

    @cached_property
    def by_parameter(self) -> dict[str, tuple[Block, ...]]:
        """The blocks of each parameter, by its name."""
        pairs = itertools.groupby(self.blocks, lambda block: block.parameter)
        return {name: tuple(blocks) for name, blocks in pairs}

    def named(self, role: Role) -> list[str]:
        """The parameters all of whose blocks have a role; a vector's may be part of a matrix."""
        return [
            name for name, blocks in self.by_parameter.items()
            if all(block.role == role for block in blocks)
        ]  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The blocks by parameter, with the version of the format."""
        named = {name: [b.numbers() for b in own] for name, own in self.by_parameter.items()}
        return {"format": "paramsym/optimizer-blocks", "version": 1, "parameters": named}

    def text(self) -> str:
        """The document as JSON, a line for each parameter."""
        document = self.document()
        rows = (f"{json.dumps(n)}: {json.dumps(b)}" for n, b in document["parameters"].items())
        head = json.dumps({**document, "parameters": {}}).removesuffix("}}")
        return head + "\n" + ",\n".join(rows) + "\n}}\n"


@uncollected()
def optimizer_groups(symmetry: ParameterSymmetry, *, heads: bool = False) -> OptimizerGroups:
    """The logical matrices of every parameter, with the group on each side of them.

    Let the groups of the spaces on the two sides of a block M be G and H: the symmetry moves it by
    M ↦ g M h⁻¹. An update that is made of inner products commutes with the orthogonal part of
    G × H, one that orthogonalises a matrix as well, for polar(g M hᵀ) = g polar(M) hᵀ, and one that
    treats each entry by itself with orders and signs alone.

    Args:
        symmetry: of the model, from `find_symmetry`; its parameters may be on the meta device.
        heads: cut what stands over heads into one block for each, too.

    Returns:
        Blocks that together hold every entry of every parameter once. Running statistics and other
        buffers are left out; of tied parameters the first is named.

    Source: Jordan et al., Muon (2024), for hidden matrices, with queries, keys and values taken
    apart; the cut is read off the axis types here.
    """
    cut = _Cut(symmetry, heads)
    names = [name for name in symmetry.signature if name not in symmetry.buffers]
    return OptimizerGroups(tuple(block for name in names for block in cut.blocks(name)))


class _Cut:
    """How the parameters of a symmetry are cut into blocks."""

    def __init__(self, symmetry: ParameterSymmetry, heads: bool) -> None:
        self.symmetry = symmetry
        self.sizes = {name: space.size for name, space in symmetry.spaces.items()}
        kept = orthogonal_part(symmetry).spaces
        self.turned = {  # the others have orders and signs alone, with which any step commutes
            s.name for s in kept.values() if s.group != s.group & _ENTRYWISE.group(s.size)
        }
        self.siblings: dict[str, list[tuple[AxisType, ...]]] = defaultdict(list)
        for name, axes in symmetry.signature.items():
            self.siblings[_module(name)].append(axes)
        self.heads = {*self._heads()} if heads else set()

    def blocks(self, parameter: str) -> Iterator[Block]:
        whole = self.symmetry.signature[parameter]
        for starts, axes in plain(whole, self.sizes):
            yield from self._cut(parameter, tuple(axes), starts, cutting(whole))

    def _cut(
        self, parameter: str, axes: tuple[AxisType, ...], starts: tuple[int, ...], by: set[int]
    ) -> Iterator[Block]:
        """The blocks of a part of a parameter in which each axis has one type; the axes by which it
        is a part count matrices."""
        own = self._own(parameter, axes, by)
        counted = self.heads | self._told_apart([{*spaces_of(axes[k])} for k in own])
        pieces = [
            list(self._pieces(axis, counted) if k in own else self._entries(axis))
            for k, axis in enumerate(axes)
        ]
        cut = {s for k, axis in enumerate(axes) if k not in own for s in spaces_of(axis)}
        whole = self.turned.isdisjoint(cut)
        for chosen in itertools.product(*pieces):
            at = tuple(_from(n, runs) for n, (_, runs) in zip(starts, chosen, strict=True))
            yield self._block(parameter, [chosen[k] for k in own], at, whole)

    def _block(self, parameter: str, own: list[Piece], at: tuple[Runs, ...], whole: bool) -> Block:
        types = [type_ for type_, _ in own]
        counts = [sum(b - a for a, b in runs) for _, runs in own]
        if len(types) > 1:
            types, counts = [types[0], _flat(types[1:])], [counts[0], math.prod(counts[1:])]
        carried = [dict.fromkeys(spaces_of(type_)) for type_ in types]
        role: Role = "vector" if len(types) < 2 else "hidden" if all(carried) else "outer"
        groups = tuple({s: self.symmetry.spaces[s].group for s in names} for names in carried)
        entrywise = all(self.turned.isdisjoint(names) for names in carried)
        matrices = len(types) == 2 and not self._told_apart(carried)
        updates = (_INNER, *[Kind.MATRICES] * matrices, *[Kind.ENTRYWISE] * entrywise)
        updates = updates if whole else ()
        return Block(parameter, at, tuple(types), groups, role, updates, tuple(counts))

    def _own(self, parameter: str, axes: tuple[AxisType, ...], by: set[int]) -> list[int]:
        """The axes of the matrices; the others count them.

        These are axes that another one stands over, and all before the last two that carry
        something: of a bias, before the last one.
        """
        counting = self._counting(axes) | by
        sides = [k for k, x in enumerate(axes) if k not in counting and any(spaces_of(x))]
        count = 1 if self._is_bias(axes, parameter) else 2
        first = sides[-count] if len(sides) > count else sides[0] if counting and sides else 0
        return [k for k in range(first, len(axes)) if k not in counting]

    def _counting(self, axes: tuple[AxisType, ...]) -> set[int]:
        """The axes that carry nothing but what spaces on other axes stand over."""
        carrying = [{*spaces_of(axis)} for axis in axes]
        below = [self._below(mine) for mine in carrying]
        return {
            k for k, mine in enumerate(carrying)
            if mine and mine <= {s for j, base in enumerate(below) if j != k for s in base}
        }  # fmt: skip

    def _below(self, carried: Iterable[str]) -> set[str]:
        """What the spaces of an axis stand over, and do not carry themselves."""
        own = {*carried}
        wide = (self.symmetry.spaces[name] for name in own)
        return {base for space in wide if space.size > 1 for base in space.over} - own

    def _told_apart(self, sides: Sequence[Collection[str]]) -> set[str]:
        """What the first side carries and the others stand over, or the other way round.

        The groups of a grouped convolution: they are rows, and each has columns of its own.
        """
        rows, columns = {*sides[0]} if sides else set(), {s for side in sides[1:] for s in side}
        return self._below(rows) & columns | self._below(columns) & rows

    def _is_bias(self, axes: tuple[AxisType, ...], parameter: str) -> bool:
        """Whether it has the axes of another parameter of its module but for one."""
        return any(
            axes == (*other[:k], *other[k + 1 :])
            for other in self.siblings[_module(parameter)]
            if len(other) == len(axes) + 1
            for k in range(len(other))
        )

    def _heads(self) -> Iterator[str]:
        """What stands before a change of basis on some axis: heads, and the groups of heads."""
        for product in self._products():
            bases = [k for k, factor in enumerate(product.factors) if self._has_basis(factor)]
            for factor in product.factors[: bases[-1] if bases else 0]:
                if not self._has_basis(factor):
                    yield from spaces_of(factor)

    def _products(self) -> Iterator[Product]:
        axes = (axis for own in self.symmetry.signature.values() for axis in own)
        return (p for axis in axes for p in nodes_of(axis) if isinstance(p, Product))

    def _has_basis(self, axis: AxisType) -> bool:
        groups = (self.symmetry.spaces[s].group for s in spaces_of(axis))
        return any(isinstance(group, GeneralLinear | Orthogonal) for group in groups)

    # -- axes ----------------------------------------------------------------------------------
    def _entries(self, axis: AxisType) -> Iterator[Piece]:
        return ((Fixed(1), ((k, k + 1),)) for k in range(axis.size(self.sizes)))

    def _pieces(self, axis: AxisType, counted: set[str]) -> Iterator[Piece]:
        """Terms of direct sums at any depth with their entries; of what counts, each entry."""
        if isinstance(axis, Sum):
            start = 0
            for term in axis.terms:
                for type_, runs in self._pieces(term, counted):
                    yield type_, _from(start, runs)
                start += term.size(self.sizes)
        elif isinstance(axis, Product):
            for starts, factors in plain(axis.factors, self.sizes):
                yield from self._of_product(axis, factors, starts, counted)
        else:
            yield axis, ((0, axis.size(self.sizes)),)

    def _of_product(
        self, axis: Product, factors: list[AxisType], starts: tuple[int, ...], counted: set[str]
    ) -> Iterator[Piece]:
        """The pieces of a part of a product in which each factor has one type."""
        single = {k for k, f in enumerate(factors) if not counted.isdisjoint(spaces_of(f))}
        single |= cutting(axis.factors)
        pieces = [
            list(self._entries(f) if k in single else self._pieces(f, counted))
            for k, f in enumerate(factors)
        ]
        sizes = [factor.size(self.sizes) for factor in axis.factors]
        for chosen in itertools.product(*pieces):
            runs: Runs = ((0, 1),)
            for (_, inner), size, start in zip(chosen, sizes, starts, strict=True):
                runs = _within(runs, _from(start, inner), size)
            yield _flat([type_ for type_, _ in chosen]), runs


def _from(start: int, runs: Runs) -> Runs:
    """Runs counted from an entry."""
    return tuple((a + start, b + start) for a, b in runs)


def _within(outer: Runs, inner: Runs, size: int) -> Runs:
    """The entries of a row-major product: of an inner axis at every entry of the outer ones."""
    if inner == ((0, size),):
        return tuple((a * size, b * size) for a, b in outer)
    found: list[Run] = []
    for start, stop in outer:
        for k in range(start, stop):
            found.extend((k * size + a, k * size + b) for a, b in inner)
    return tuple(found)


def _flat(axes: Sequence[AxisType]) -> AxisType:
    """Several axes as one, row-major; what is one long is left out."""
    kept = [axis for axis in axes if axis != Fixed(1)] or [Fixed(1)]
    return kept[0] if len(kept) == 1 else Product(tuple(kept))


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]
