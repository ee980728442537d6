"""Rows taken by a list of positions next to each other are the window that a slice would be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.coverage.measure import measured

POSITIONS = {
    "list": lambda f: (f[..., :-2, :], f[..., [-2], :], f[..., [-1], :]),
    "slice": lambda f: (f[..., :-2, :], f[..., -2:-1, :], f[..., -1:, :]),
    "tensor": lambda f: (
        f[..., torch.tensor([0, 1]), :],
        f.index_select(2, torch.tensor([2])),
        f[..., torch.tensor([3]), :],
    ),
}


class FusedAttention(nn.Module):
    """Queries of two heads, one key and one value from one layer, turned by rotary embedding."""

    def __init__(self, cut: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]):
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(6, 16), nn.Linear(8, 6), nn.Linear(6, 3)
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        fused = self.qkv(x).view(batch, time, 4, 4)
        query, key, value = (part.transpose(1, 2) for part in self.cut(fused))
        angle = torch.arange(time)[:, None] * torch.tensor([1.0, 0.3, 1.0, 0.3])
        query, key = (z * angle.cos() + _half_turn(z) * angle.sin() for z in (query, key))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(F.gelu(self.out(found.transpose(1, 2).reshape(batch, time, 8))))


def _half_turn(z: torch.Tensor) -> torch.Tensor:
    return torch.cat([-z[..., 2:], z[..., :2]], -1)


@pytest.mark.parametrize("spelling", POSITIONS)
def test_a_list_of_neighbours_is_a_slice(spelling: str) -> None:
    found = measured(FusedAttention(POSITIONS[spelling]), (torch.randn(3, 5, 6),))
    assert found.error < 1e-9 and not found.refuted
    assert (found.unexplained, found.explained) == (0, 24)


class Written(nn.Module):
    """Reads rows by a list or a slice, and writes to them or to what they were taken from."""

    def __init__(self, take: Callable[[torch.Tensor], torch.Tensor], writes: str):
        super().__init__()
        self.first, self.last, self.take, self.writes = (
            nn.Linear(4, 6),
            nn.Linear(6, 3),
            take,
            writes,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).view(-1, 3, 2)
        part = self.take(hidden)
        if self.writes == "part":
            part.copy_(part.tanh() + 1.5)
        if self.writes == "whole":
            hidden.copy_(hidden.tanh() + 1.5)
        wide = torch.cat([hidden[:, :1], part, hidden[:, 2:]], 1).relu()
        return self.last((wide + hidden).flatten(1))


@pytest.mark.parametrize("writes", ["neither", "part", "whole"])
@pytest.mark.parametrize("spelling", ["list", "slice"])
def test_a_copy_is_no_view(writes: str, spelling: str) -> None:
    take = {"list": lambda h: h[:, [1]], "slice": lambda h: h[:, 1:2]}[spelling]
    found = measured(Written(take, writes), (torch.randn(9, 4),))
    assert found.error < 1e-9 and not found.refuted


class Decoder(nn.Module):
    """A norm over channels, then a transposed convolution (U-Net, SAM, EoMT)."""

    def __init__(self, dims: int, groups: int, **windows: int) -> None:
        super().__init__()
        plain, transposed = (getattr(nn, f"{kind}{dims}d") for kind in ("Conv", "ConvTranspose"))
        self.first, self.norm = plain(3, 4, 1), nn.LayerNorm(4, eps=0.01)
        self.up = transposed(4, 4, groups=groups, **windows)
        self.last = plain(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).tanh().movedim(1, -1)).movedim(-1, 1)
        return self.last(nn.functional.gelu(self.up(x)))


APART = {"kernel_size": 2, "stride": 2}
OVERLAPPING = {"kernel_size": 4, "stride": 2, "padding": 1}


@pytest.mark.parametrize(
    ("dims", "groups", "windows", "missing"),
    [
        (1, 1, APART, 0),
        (2, 1, APART, 0),
        (2, 2, APART, 0),
        (2, 1, {"kernel_size": 3, "stride": 3}, 0),
        # a constant in front is not one behind: named in the findings
        (2, 1, OVERLAPPING, 8),
        (1, 1, APART | {"output_padding": 1}, 6),
        (1, 1, APART | {"dilation": 2}, 4),
    ],
)
def test_each_place_of_a_transposed_convolution(
    dims: int, groups: int, windows: dict[str, int], missing: int
) -> None:
    """Where no two inputs write one output, constants pass: biases slide against the weight."""
    model = Decoder(dims, groups, **windows)
    found = measured(model, (torch.randn(6, 3, *[4] * dims),))
    assert found.error < 1e-9 and not found.refuted
    assert found.unexplained == missing
    slides = {s.terms[0].target.parameter for s in found.symmetry.shifts}
    assert ("norm.bias" in slides) == (not missing and groups == 1)
