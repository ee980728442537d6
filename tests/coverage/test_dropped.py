"""Tokens that the last layer writes and nobody reads, and what they leave free before them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.coverage.measure import measured

INPUTS = (torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(3)),)


class Vision(nn.Module):
    """Patches with a class token, one block, and a head that reads a part of the tokens."""

    def __init__(self, read: str, labels: int = 7, gain: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.read = read
        self.patches = nn.Linear(6, 5)
        self.token = nn.Parameter(torch.zeros(1, 1, 5))
        self.positions = nn.Parameter(torch.zeros(1, 5, 5))
        self.before = nn.LayerNorm(5)
        self.mixing = nn.Linear(5, 5)
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 5)
        self.gain = nn.Parameter(torch.ones(5)) if gain else None
        self.after = nn.LayerNorm(5) if norm else nn.Identity()
        self.head = nn.Linear(5, labels)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x)], 1) + self.positions
        q = self.mixing(self.before(h))
        h = h + torch.tanh(q @ q.mT) @ q
        added = self.down(torch.tanh(self.up(self.before(h))))
        h = h + (added if self.gain is None else self.gain * added)
        if self.read == "token":
            return self.head(self.after(h[:, 0]))
        if self.read == "patches":
            return self.head(self.after(h[:, 1:].mean(1)))
        if self.read == "all":
            return self.head(self.after(h).mean(1))
        return self.head(self.after(h[:, 0])), h[:, 1:]


@pytest.mark.parametrize("gain", [False, True], ids=["plain", "layer scale"])
@pytest.mark.parametrize("read", ["token", "patches", "all"])
def test_the_last_norm_hides_a_common_shift_from_whatever_is_read(read: str, gain: bool) -> None:
    torch.manual_seed(0)
    found = measured(Vision(read, gain=gain), INPUTS)
    assert found.error < 1e-12
    assert found.refuted == ()
    assert found.unexplained == 0 or read == "token"  # whose query is one vector: few inputs
    moved = {name for shift in found.symmetry.shifts for name in shift.parameters}
    assert "down.weight" in moved


def test_what_is_returned_as_well_is_read() -> None:
    torch.manual_seed(0)
    found = measured(Vision("both"), INPUTS)
    assert found.error < 1e-12
    assert found.refuted == ()
    assert not [s for s in found.symmetry.shifts if s.parameters == ("down.weight",)]


@pytest.mark.parametrize("labels", [2, 5], ids=["narrow", "wide"])
def test_a_narrow_head_has_a_kernel(labels: int) -> None:
    """(5 − labels) directions for each of the seven units."""
    torch.manual_seed(0)
    found = measured(Vision("patches", labels, norm=False), INPUTS)
    assert found.error < 1e-12
    assert found.refuted == ()
    free = [s.dimension for s in found.symmetry.shifts if s.parameters == ("down.weight",)]
    assert free == ([7 * (5 - labels)] if labels < 5 else [])


@pytest.mark.parametrize("combine", ["softmax", "log_softmax", "norm", "centring"])
def test_a_sink_that_is_dropped_has_been_seen_by_all_others(combine: str) -> None:
    """A learned score joins the others, is combined with them, and dropped."""

    class Sinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(6, 5), nn.Linear(6, 5)
            self.sink = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT
            joined = torch.cat([scores, self.sink.expand(*scores.shape[:-1], 1)], -1)
            if combine == "norm":
                joined = torch.nn.functional.layer_norm(joined, joined.shape[-1:])
            elif combine == "centring":
                joined = joined - joined.mean(-1, keepdim=True)
            else:
                joined = getattr(torch, combine)(joined, -1)
            return torch.tanh(joined[..., :-1] @ x)

    torch.manual_seed(0)
    found = measured(Sinks(), INPUTS, check=False)
    assert found.error < 1e-12
    assert not [s for s in found.symmetry.shifts if "sink" in s.parameters]
