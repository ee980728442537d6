"""Recorded calls run again on numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from paramsym.recording.graph import Call, Graph, Value, values_in

# whatever else they do, these draw numbers; dropout and its kind depend on the mode
RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "uniform", "bernoulli", "exponential", "geometric", "cauchy", "log_normal", "random", "poisson",
    "multinomial", "binomial", "_standard_gamma", "_sample_dirichlet", "gumbel_softmax",
    "fractional_max_pool2d", "fractional_max_pool3d",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
}  # fmt: skip


def is_drawn(call: Call) -> bool:
    """Whether a call draws numbers, or may in some mode."""
    return call.name in RANDOM or "dropout" in call.name


# of what these are told, only the shape counts, or that of the second operand
_SHAPES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty",
}  # fmt: skip
_SHAPED = {"expand_as", "view_as", "reshape_as", "to", "type_as"}


def numbers_of(call: Call) -> Sequence[Value]:
    """The operands of a call whose entries matter."""
    if call.name in _SHAPES:
        return call.operands[1:]
    return call.operands[:1] if call.name in _SHAPED else call.operands


def run_call(call: Call, known: dict[int, torch.Tensor]) -> None:
    """Run a traced call on numbers by value, and enter its results beside them.

    Raises `LookupError` where an operand has no number.
    """
    args, kwargs = pytree.tree_map(
        lambda leaf: known[leaf.id] if isinstance(leaf, Value) else leaf,
        (call.args, call.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, Value),
    )
    with torch.no_grad():
        result = call.target(*args, **kwargs)
    results = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    for value, tensor in zip(values_in(call.result), results, strict=True):
        known[value.id] = tensor


class Replay:
    """The numbers of recorded values: kept data, windows on others, and calls that are run again.

    Raises `LookupError` for a value that nothing gives a number; `source` may know one.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.known: dict[int, torch.Tensor] = {}

    def source(self, value: Value) -> torch.Tensor:
        """The numbers of a value that no call made and of which the trace keeps none."""
        raise LookupError(value)

    def constant(self, value: Value) -> torch.Tensor:
        """The numbers of a value."""
        if value.id in self.known:
            return self.known[value.id]
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
        else:
            made = self.source(value)
        self.known[value.id] = made
        return made

    def run(self, call: Call, known: dict[int, torch.Tensor]) -> None:
        """Run a call, after those that lead to its operands."""
        matter = {v.id for v in numbers_of(call)}
        made: dict[int, torch.Tensor] = {}
        for value in call.operands:
            if value.id in matter and value.id not in known:
                known[value.id] = self.constant(value)
            blank = torch.empty_strided if value.id not in known else None
            made[value.id] = (
                known[value.id]
                if blank is None
                else blank(value.shape, value.strides, dtype=value.dtype)
            )
        run_call(call, made)
        known.update((v.id, made[v.id]) for v in call.outputs)
