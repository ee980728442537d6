"""The numbers of data: what no parameter enters, as far as the trace knows it."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

import torch

from paramsym.primitives.numbers import read_off
from paramsym.primitives.tensor import Tensor
from paramsym.recording.graph import Graph, Value
from paramsym.recording.replay import Replay, is_drawn, numbers_of


def moving_values(graph: Graph, without: Collection[str] = ()) -> set[int]:
    """Ids of the values that depend on a parameter or on a buffer of the state dict."""
    sources = [*graph.parameters.values(), *graph.buffers.values()]
    moving = (v for v in sources if v.name not in graph.held and v.name not in without)
    return _led_to(graph, {v.id for v in moving})


def drawn_values(graph: Graph) -> set[int]:
    """Ids of the values that depend on numbers that the forward pass draws, each time others."""
    return _led_to(graph, {v.id for c in graph.calls if is_drawn(c) for v in c.outputs})


def fed_values(graph: Graph) -> set[int]:
    """Ids of the values that depend on an input, or on numbers that are drawn."""
    given = {value.id for value in graph.values if value.kind == "input"}
    return _led_to(graph, given) | drawn_values(graph)


def _led_to(graph: Graph, found: set[int]) -> set[int]:
    """Ids of these values and of all that are computed from their numbers."""
    if not found:
        return found
    for call in graph.calls:  # a window moves with its owner, also if no call made it
        if any(v.id in found or v.storage in found for v in numbers_of(call)):
            found.update(v.id for v in call.outputs)
    found.update(v.id for v in graph.values if v.storage in found)
    return found


def led_from(graph: Graph, found: set[int]) -> set[int]:
    """Ids of these values and of all that they are computed from."""
    found = set(found)
    for call in reversed(graph.calls):
        if any(v.id in found for v in call.outputs):
            found.update(at for v in call.operands for at in (v.id, v.storage))
    return found


class Evaluator(Replay):
    """Runs recorded calls on the numbers that the trace has.

    Raises `LookupError` for `closed` values (by id) and for constants without numbers; an evaluator
    that `invents` gives these random ones.
    """

    def __init__(self, graph: Graph, closed: AbstractSet[int] = frozenset(), invents: bool = False):
        super().__init__(graph)
        self.closed, self.invents = closed, invents
        self.generator = torch.Generator().manual_seed(0)

    def number(self, value: Value) -> torch.Tensor | None:
        """The numbers of a value; None where the trace does not have them."""
        try:
            found = self.constant(value)
        except Exception:  # it is closed, or cannot be run
            return None
        return None if found.is_meta else found  # made under a default device without numbers

    def of(self, tensor: Tensor) -> torch.Tensor | None:
        """The numbers of a typed tensor; None where the trace does not have them."""
        if tensor.value is not None:
            return self.number(tensor.value)
        if tensor.recipe is not None:
            function, sources = tensor.recipe
            given = [self.of(source) for source in sources]
            return None if any(x is None for x in given) else function(*given)
        if tensor.owner is tensor or (whole := self.of(tensor.owner)) is None:
            return None
        return read_off(whole, tensor.owner.layout, tensor.layout)

    def constant(self, value: Value) -> torch.Tensor:
        if value.id in self.closed and value.id not in self.known:
            raise LookupError(value)
        return super().constant(value)

    def source(self, value: Value) -> torch.Tensor:
        if not self.invents:
            raise LookupError(value)
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return torch.rand(value.shape, generator=self.generator).to(value.dtype)
        return torch.zeros(value.shape, dtype=value.dtype)
