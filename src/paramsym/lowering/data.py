"""The numbers of data: what no parameter enters, as far as the trace knows it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch

from paramsym.primitives.numbers import read_off, run_call
from paramsym.primitives.tensor import Tensor
from paramsym.recording.graph import Call, Graph, Value

# whatever else they do, these draw numbers; dropout and its kind depend on the mode
RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "uniform", "bernoulli", "exponential", "geometric", "cauchy", "log_normal", "random", "poisson",
    "multinomial", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
}  # fmt: skip

# of what these are told, only the shape counts, or that of the second operand
_SHAPES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty",
}  # fmt: skip
_SHAPED = {"expand_as", "view_as", "reshape_as"}


def numbers_of(call: Call) -> list[Value]:
    """The operands of a call whose entries matter."""
    if call.name in _SHAPES:
        return [v for v in call.operands[1:]]
    return list(call.operands[:1]) if call.name in _SHAPED else list(call.operands)


def moving_values(graph: Graph) -> set[int]:
    """Ids of the values that depend on a parameter or on a buffer of the state dict."""
    sources = [*graph.parameters.values(), *graph.buffers.values()]
    moving = {v.id for v in sources if v.name not in graph.held}
    for call in graph.calls:  # a window moves with its owner, also if no call made it
        if any(v.id in moving or v.storage in moving for v in numbers_of(call)):
            moving.update(v.id for v in call.outputs)
    moving.update(v.id for v in graph.values if v.storage in moving)
    return moving


class Evaluator:
    """Runs recorded calls on the numbers that the trace has.

    Raises `LookupError` for `closed` values (by id) and for constants without numbers; an evaluator
    that `invents` gives these random ones.
    """

    def __init__(self, graph: Graph, closed: AbstractSet[int] = frozenset(), invents: bool = False):
        self.graph, self.closed, self.invents = graph, closed, invents
        self.known: dict[int, torch.Tensor] = {}
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
        if value.id in self.known:
            return self.known[value.id]
        if value.id in self.closed:
            raise LookupError(value)
        if value.data is not None:
            made = value.data
        elif value.call is not None:
            self.run(value.call, self.known)
            return self.known[value.id]
        elif value.storage != value.id:
            owner = self.constant(self.graph.values[value.storage])
            first = value.offset - self.graph.values[value.storage].offset
            made = torch.as_strided(
                owner, value.shape, value.strides, first + owner.storage_offset()
            )
        elif not self.invents:
            raise LookupError(value)
        elif value.dtype.is_floating_point or value.dtype.is_complex:
            made = torch.rand(value.shape, generator=self.generator).to(value.dtype)
        else:
            made = torch.zeros(value.shape, dtype=value.dtype)
        self.known[value.id] = made
        return made

    def run(self, call: Call, known: dict[int, torch.Tensor]) -> None:
        matter = {v.id for v in numbers_of(call)}
        shapes = {v.id: torch.zeros(v.shape, dtype=v.dtype)
                  for v in call.operands if v.id not in matter and v.id not in known}  # fmt: skip
        for value in call.operands:
            if value.id in matter and value.id not in known:
                known[value.id] = self.constant(value)
        made = {**known, **shapes}
        run_call(call, made)
        known.update((v.id, made[v.id]) for v in call.outputs)
