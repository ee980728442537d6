"""Several calls of a model in one pass, each at inputs and parameters of its own.

Small models cost by the number of operations and not by their size: 32 calls in one pass take as
long as three to ten by themselves. Not every model allows it. A branch that asks for the numbers
of what is stacked, a hand-written backward, or an operator without a rule for batches ends in an
error, and the caller calls once more, one by one. So that no rule is trusted, one call of the first
passes, and of some later ones, is held against the same call alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paramsym.checking.generic import Arguments, Draws
from paramsym.recording.graph import Graph

# What vmap raises where an operator has no batching rule or a branch depends on numbers.
REFUSED = (RuntimeError, ValueError, TypeError, NotImplementedError)
_AGREE = 1e-6  # relative to the largest number: rounding is near 1e-13, another function near 1

_ROOM = 1 << 26  # entries of what calls in one pass keep, and of one tensor for a batch of rows

Function = Callable[[Sequence[torch.Tensor], Arguments], torch.Tensor]


class NotDifferentiable(RuntimeError):
    """The backward pass of a model fails where its forward pass runs."""


@dataclass(frozen=True)
class Room:
    """Entries that one call computes, and those of its widest tensor: what a pass has room for.

    A window of attention that pads seven tokens to 512 makes thousands of times more of them than a
    small model has parameters.
    """

    kept: int
    widest: int

    @classmethod
    def of(cls, graph: Graph) -> Room:
        """What a call of a recorded network takes."""
        sizes = [math.prod(value.shape) for call in graph.calls for value in call.outputs]
        return cls(sum(sizes), max(sizes, default=0))

    @property
    def calls(self) -> int:
        """How many calls have room in one pass."""
        return _ROOM // max(1, self.kept)

    def rows(self, calls: int) -> int:
        """How many rows of each of so many calls have room in one backward pass."""
        return max(1, _ROOM // max(1, calls * self.widest))

    def entries(self, calls: int, rows: int) -> int:
        """What so many calls of so many rows hold."""
        return calls * (self.kept + min(rows, self.rows(calls)) * self.widest)


def gradients(
    name: str, values: torch.Tensor, leaves: Sequence[torch.Tensor], weights: torch.Tensor
) -> Sequence[torch.Tensor | None]:
    """Gradients of weighted sums of values, many at a time where the operators allow it.

    Raises `NotDifferentiable` where there are none; `name` is what an error calls the model.
    """
    options = {"retain_graph": True, "allow_unused": True}
    try:
        with batching():
            return torch.autograd.grad(values, leaves, weights, is_grads_batched=True, **options)
    except RuntimeError:  # an operator without a batching rule, or a hand-written backward
        pass
    try:
        each = [torch.autograd.grad(values, leaves, w, **options) for w in weights]
    except Exception as error:
        raise NotDifferentiable(
            f"audit(model={name}): its backward pass stops with {type(error).__name__}: "
            f"{str(error).partition(' Hint:')[0]} A forward pass that can be differentiated was "
            "expected. A state that is written in place while it is read does this: switch it off "
            "(use_cache=False among the inputs), or write clones."
        ) from error
    return [
        torch.stack(present) if (present := [p for p in parts if p is not None]) else None
        for parts in zip(*each, strict=True)
    ]


@contextmanager
def batching() -> Iterator[None]:
    """A context for vmap: what has no batching rule is looped over without a word."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        yield


def together(
    function: Function, leaves: Sequence[torch.Tensor], draws: Draws
) -> torch.Tensor | None:
    """function(leaves[k], draws[k]) of all calls k in one pass, (calls, …), or None.

    Args:
        function: from parameters and arguments to one tensor.
        leaves: the parameters of all calls, (calls, *shape) each.
        draws: the arguments of all calls.

    Returns:
        The values, differentiable in the leaves; None where the model cannot be batched.
    """

    def one(own: tuple[torch.Tensor, ...], inputs: tuple) -> torch.Tensor:
        return function(own, draws.arguments(inputs))

    batched = tuple(0 if drawn else None for drawn in draws.drawn)
    try:
        with batching(), sdpa_kernel(SDPBackend.MATH):  # others are not differentiable by masks
            return torch.vmap(one, (0, batched), randomness="same")(
                tuple(leaves), tuple(draws.leaves)
            )
    except REFUSED:
        return None


def agree(found: torch.Tensor, alone: torch.Tensor) -> bool:
    """Whether one call of a pass is what it is by itself, up to rounding."""
    if found.shape != alone.shape:
        return False
    limit = _AGREE * float(alone.nan_to_num(0.0, 0.0, 0.0).abs().max()) if alone.numel() else 0.0
    return torch.allclose(found, alone, rtol=_AGREE, atol=limit, equal_nan=True)
