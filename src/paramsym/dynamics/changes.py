"""Whether tensors have been written between two steps of an optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.structure.whole import is_sharded, of_all_ranks, own_slice

_SAMPLED = 16  # entries of each tensor that are looked at


def places_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Some entries of each tensor, or of each slice of it, at equal distances."""
    found = {}
    for name, x in tensors.items():
        size = own_slice(x.detach()).numel()
        # every rank looks at as many entries, so that they can be put side by side
        count = _SAMPLED if is_sharded(x) else min(_SAMPLED, size)
        if count:
            steps = torch.arange(count, device=x.device)
            found[name] = steps * max(size - 1, 0) // max(count - 1, 1)
    return found


def sampled(tensors: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A few entries of each tensor; of one that is spread, those of all ranks, on each."""
    found = {}
    for name, at in places.items():
        if name in tensors:
            mine = own_slice(tensors[name].detach())
            found[name] = torch.take(mine, at) if mine.numel() else mine.new_zeros(at.shape)
    return of_all_ranks(found, tensors)


class Marks(NamedTuple):
    """What tells whether tensors have been written since: counts, and a few entries of each.

    Writes through `.data` are not counted, nor are those of batch norm to its statistics.
    """

    writes: dict[str, int]
    entries: dict[str, Tensor]
    momentum: dict[str, tuple[int, int]]

    def same(self, other: Marks, name: str, shrinking: float | None = None) -> bool:
        """Whether a parameter or buffer has not been written since, or only times 1 − ε."""
        if shrinking is not None:
            wanted = (1.0 - shrinking) * other.entries[name]
            slack = 4.0 * torch.finfo(wanted.dtype).eps
            return torch.allclose(self.entries[name], wanted, rtol=slack, atol=0.0)
        written = self.writes[name] != other.writes[name]
        return not written and torch.equal(self.entries[name], other.entries[name])


def changed(where: str, name: str, decoupled: bool) -> str:
    """What to say of a tensor that something else has moved."""
    expected = (
        "1 − η ω times what the step before left was expected, with the decoupled decay given"
        if decoupled
        else "What the step before left was expected: between two steps nothing else may move"
    )
    return (
        f"{where}: {name} was changed since the step before. {expected}. Begin a new "
        "ledger after loading, clamping or averaging weights; a loop that multiplies the "
        "parameters by 1 − η ω before each step says so: "
        "ConservationLedger(…, decoupled=ω)."
    )


def moving_buffer(where: str, name: str) -> str:
    """What to say of a buffer that moves where the function reads it."""
    return (
        f"{where}: the buffer {name!r} was changed since the step before; it was expected "
        "to stay, because the symmetry is that of evaluation mode, in which the function reads it. "
        "Train in that mode, model.eval(), or derive the symmetry of the other, "
        "find_symmetry(…, training=True)."
    )
