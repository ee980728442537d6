"""The memory of a lowered network: typed tensors, and windows on them without a copy.

A window shares the storage of its owner and states its strides; which units its axes count is read
off them when somebody asks (`tensor.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from paramsym.lowering.flat import flat_axes
from paramsym.lowering.made import seen_total
from paramsym.primitives import index as ix
from paramsym.primitives.index import Node
from paramsym.primitives.numbers import read_off
from paramsym.primitives.tensor import Tensor, compose, contiguous
from paramsym.recording.graph import Graph, Value
from paramsym.recording.layout import steps


class AbstractMemory(ABC):
    """What a `Builder` does with storages and windows; how one is copied is left to it."""

    graph: Graph
    tensors: dict[int, Tensor]
    mirrors: dict[int, tuple[Value, Tensor]]
    flat: dict[int, frozenset[int]]
    relaid: dict[int, Tensor]

    @abstractmethod
    def alias(self, x: Tensor) -> Tensor:
        """A copy of a tensor in row-major layout."""

    # -- storages ------------------------------------------------------------------------------
    def new(self, shape: Sequence[int], nodes: Sequence[Node] | None, **extra: Any) -> Tensor:
        """A tensor with storage of its own, in row-major layout."""
        shape = tuple(int(n) for n in shape)
        if nodes is not None:
            nodes = [ix.UNIT if n == 1 else node for n, node in zip(shape, nodes, strict=True)]
        return Tensor(
            shape, contiguous(shape), nodes=None if nodes is None else list(nodes), builder=self,
            **extra,
        )  # fmt: skip

    def frozen(self, shape: Sequence[int], reason: str, **extra: Any) -> Tensor:
        """A tensor none of whose units may be exchanged."""
        return self.new(shape, [ix.leaf(int(n), frozen=reason) for n in shape], **extra)

    def tensor(self, value: Value) -> Tensor:
        """The typed tensor of a traced value."""
        found = self.tensors.get(value.id)
        if found is not None:
            return found
        if value.storage in self.mirrors:
            found = self._through_mirror(value)
            if found is not None:
                return found
        if value.storage != value.id and value.storage in self.tensors:
            base = self._stored(value.storage)
            made = Tensor(
                value.shape, value.strides, value.offset, base.owner, builder=self,
                moves=base.moves, zero=base.zero,
            )  # fmt: skip
            made.total = seen_total(base, made)
            if not base.moves:
                made.base, made.nodes = None, self._axes_of_data(value)
        elif (why := self.graph.held.get(value.name)) and value.storage == value.id:
            made = self.frozen(value.shape, why, moves=False)
        elif value.kind in ("parameter", "buffer"):
            made = self.new(value.shape, [ix.leaf(n) for n in value.shape], name=value.name)
            made.kind = value.kind
        else:
            made = self.new(value.shape, self._axes_of_data(value), moves=False)
        made.value = value
        self.tensors[value.id] = made
        return made

    def _stored(self, storage: int) -> Tensor:
        """The tensor of a storage, in the layout that windows on it go by.

        A parameter is row-major, as its entries are named; one that lies otherwise (transposed,
        channels last) is read through a copy that lies as it does.
        """
        base, owner = self.tensors[storage], self.graph.values[storage]
        if not base.moves or base.base is not None or owner.kind not in ("parameter", "buffer"):
            return base
        if steps(base) == steps(owner):
            return base
        if storage not in self.relaid:
            made = self.relaid[storage] = self.alias(base)
            made.strides, made.offset = owner.strides, owner.offset
        return self.relaid[storage]

    def _data_axes(self, shape: Sequence[int]) -> list[Node]:
        return [ix.leaf(n, frozen="its order is given by data") for n in shape]

    def _axes_of_data(self, value: Value) -> list[Node]:
        """Axes in a given order, but for those along which the data are all the same."""
        nodes = self._data_axes(value.shape)
        for k in flat_axes(value, self.graph, self.flat):
            nodes[k] = ix.leaf(value.shape[k])
        return nodes

    def constant(self, numbers: torch.Tensor, nodes: Sequence[Node] | None = None) -> Tensor:
        """Data that the rule itself knows; in the order that they have if no axes are given."""
        shape = tuple(numbers.shape)
        nodes = self._data_axes(shape) if nodes is None else nodes
        return self.new(shape, nodes, moves=False, recipe=(lambda: numbers, ()))

    # -- windows -------------------------------------------------------------------------------
    def view(self, x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0):
        """A window on the storage of x, whose own layout is row-major after a copy if needed."""
        owner = x.owner
        if not x.moves:
            layout, window = x.layout, (tuple(shape), tuple(strides), offset)
            recipe = (lambda numbers: read_off(numbers, layout, window)), (x,)
            why = "its order is given by data"
            return self.frozen(shape, why, moves=False, zero=x.zero, recipe=recipe)
        return Tensor(
            tuple(shape), tuple(strides), offset, owner, builder=self, moves=x.moves, zero=x.zero
        )

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Row-major reshape."""
        if -1 in shape:
            known = -math.prod(shape)
            shape = [math.prod(x.shape) // known if n == -1 else n for n in shape]
        if tuple(shape) == x.shape:
            return x
        if x.base is not None or x.strides != contiguous(x.shape):
            x = self.alias(x)
        return self.view(x, shape, contiguous(shape), x.offset)

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Reorder axes."""
        dims = [d % x.ndim for d in dims]
        out = self.view(x, [x.shape[d] for d in dims], [x.strides[d] for d in dims], x.offset)
        if out.nodes is None and x.nodes is not None:
            out.nodes = [x.nodes[d] for d in dims]
        return out

    def narrow(self, x: Tensor, dim: int, start: int, length: int) -> Tensor:
        """A contiguous piece of one axis."""
        dim %= x.ndim
        shape = [length if k == dim else n for k, n in enumerate(x.shape)]
        return self.view(x, shape, x.strides, x.offset + start * x.strides[dim])

    def select(self, x: Tensor, dim: int, at: int) -> Tensor:
        """One entry of an axis, which disappears."""
        dim %= x.ndim
        piece = self.narrow(x, dim, at, 1)
        keep = [k for k in range(x.ndim) if k != dim]
        return self.view(
            piece, [x.shape[k] for k in keep], [piece.strides[k] for k in keep], piece.offset
        )

    def expand(self, x: Tensor, dim: int, size: int) -> Tensor:
        """A new axis of copies before position `dim`."""
        shape, strides = list(x.shape), list(x.strides)
        shape.insert(dim, size)
        strides.insert(dim, 0)
        return self.view(x, shape, strides, x.offset)

    # -- copies that are read through a view ---------------------------------------------------
    def mirror(self, value: Value, source: Tensor) -> None:
        """Let a copy of a view be read through the view, as long as windows on it allow that.

        A copy of `x.view(…, 3, heads, width)` would otherwise tie what its three parts count.
        """
        self.mirrors[value.id] = (value, source)
        self.tensors[value.id] = source

    def _through_mirror(self, value: Value) -> Tensor | None:
        """A window on a copy as a window on the original, or None after copying in earnest."""
        copy, source = self.mirrors[value.storage]
        composed = compose(value, copy, source)
        if composed is not None:
            shape, strides, offset = composed
            made = self.view(source, shape, strides, offset)
            made.value = value
            self.tensors[value.id] = made
            return made
        del self.mirrors[value.storage]
        real = self.alias(source)
        real.strides, real.offset, real.value = copy.strides, copy.offset, copy
        self.tensors[copy.id] = real
        return None
