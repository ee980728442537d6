"""Rotary embeddings that take neighbours as pairs and give halves, or the other way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.coverage.measure import measured

Turn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _parts(z: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    if order == "half":
        return z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :]
    return z[..., 0::2], z[..., 1::2]


def _joined(a: torch.Tensor, b: torch.Tensor, order: str) -> torch.Tensor:
    return torch.cat([a, b], -1) if order == "half" else torch.stack([a, b], -1).flatten(-2)


def turn(before: str, after: str) -> Turn:
    """A rotation of pairs that stand in one order before and in another one after."""

    def run(z: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        a, b = _parts(z, before)
        return _joined(a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), after)

    return run


class Latent(nn.Module):
    """Two heads of four coordinates that are turned, behind three that are not."""

    def __init__(self, turned: Turn, shared: bool):
        super().__init__()
        self.q, self.k = nn.Linear(7, 14, bias=False), nn.Linear(7, 6, bias=False)
        self.r = nn.Linear(7, 4 if shared else 8, bias=False)
        self.v, self.out, self.turned = nn.Linear(7, 10, bias=False), nn.Linear(10, 13), turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        angle = torch.arange(time)[:, None] * torch.tensor([1.0, 0.4])
        parts = (f(x).view(batch, time, -1, n) for f, n in
                 ((self.q, 7), (self.k, 3), (self.r, 4), (self.v, 5)))  # fmt: skip
        q, k, r, v = (part.transpose(1, 2) for part in parts)
        plain, other = q.split([3, 4], -1)
        q = torch.cat([plain, self.turned(other, angle)], -1)
        k = torch.cat([k, self.turned(r, angle).expand(-1, 2, -1, -1)], -1)
        found = F.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).reshape(batch, time, 10))


class Attention(nn.Module):
    """Two heads of six coordinates in three pairs, with queries and keys turned by position."""

    def __init__(self, query: Turn, key: Turn):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(7, 12, bias=False) for _ in range(3))
        self.out = nn.Linear(12, 13)
        self.query, self.key = query, key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        angle = torch.arange(time)[:, None] * torch.tensor([1.0, 0.4, 0.15])
        q, k, v = (f(x).view(batch, time, 2, 6).transpose(1, 2) for f in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(self.query(q, angle), self.key(k, angle), v)
        return self.out(found.transpose(1, 2).reshape(batch, time, 12))


def by_complex_numbers(z: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The same by a product of complex numbers."""
    pairs = torch.view_as_complex(z.contiguous().view(*z.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(3)


ORDERS = ["half", "interleaved"]


@pytest.mark.parametrize("after", ORDERS)
@pytest.mark.parametrize("before", ORDERS)
def test_pairs_keep_their_complex_scales_in_every_order(before: str, after: str) -> None:
    found = measured(Attention(turn(before, after), turn(before, after)), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted
    assert (found.unexplained, found.explained) == (0, 2 * 6 + 2 * 36)


@pytest.mark.parametrize("shared", [False, True], ids=["own keys", "one key for all heads"])
def test_products_of_complex_numbers_are_rotations(shared: bool) -> None:
    found = measured(Latent(by_complex_numbers, shared), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    plain = measured(Latent(turn("interleaved", "interleaved"), shared), (torch.randn(3, 5, 7),))
    assert (found.unexplained, found.explained) == (0, plain.explained)


def test_a_product_of_complex_numbers_with_a_conjugate_is_no_rotation() -> None:
    """Control: what is conjugated in the queries alone shares no phase with the keys."""

    def run(z: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(z.contiguous().view(*z.shape[:-1], -1, 2)).conj()
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(3)

    found = measured(Attention(run, by_complex_numbers), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted


@pytest.mark.parametrize("before", ORDERS)
def test_orders_that_differ_between_queries_and_keys_are_told_apart(before: str) -> None:
    """Control: a query in halves against a key of neighbours multiplies other pairs."""
    other = ORDERS[1 - ORDERS.index(before)]
    found = measured(Attention(turn(before, "half"), turn(other, other)), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted


def test_a_shuffle_that_is_no_rotation_holds_the_pairs() -> None:
    """Control: one member of each pair is turned, and the other one is left."""

    def run(z: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        a, b = _parts(z, "interleaved")
        return _joined(a * angle.cos() - b * angle.sin(), b, "half")

    found = measured(Attention(run, run), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted
    groups = [str(space.group) for space in found.symmetry.spaces.values()]
    assert not any("Complex" in group for group in groups)


def test_a_part_without_entries_is_turned_by_nothing() -> None:
    """Half of one coordinate is none: what is empty is data, and holds nothing."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.out = nn.Linear(7, 4), nn.Linear(7, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angle = torch.arange(x.shape[1])[:, None] * torch.ones(0)
            q, k = (f(x).view(*x.shape[:2], 4, 1).transpose(1, 2) for f in (self.q, self.k))
            q, k = (torch.cat([z[..., :0] * angle.cos() - z[..., :0] * angle.sin(), z], -1)
                    for z in (q, k))  # fmt: skip
            mixed = F.scaled_dot_product_attention(q, k, k)
            return self.out(mixed.transpose(1, 2).flatten(2))

    found = measured(Narrow(), (torch.randn(3, 5, 7),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    assert found.unexplained == 0 and found.explained >= 4


class Published(nn.Module):
    """Attention as Meta published it: heads stay on axis 2 until they are turned, and one key for
    two queries is expanded behind the rotation."""

    def __init__(self, joined: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], keys: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 4 * n) for n in (2, keys, keys))
        self.out, self.joined, self.keys = nn.Linear(8, 9), joined, keys

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        factor = torch.polar(torch.ones_like(angle), angle)[None, :, None].to(torch.complex128)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return self.joined(torch.view_as_real(pairs * factor.to(pairs.dtype)), x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(*x.shape[:2], -1, 4) for f in (self.q, self.k, self.v))
        q, k = self.turn(q), self.turn(k)
        k, v = (self.repeated(z) for z in (k, v))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        weights = (q @ k.transpose(2, 3) / 2).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def repeated(self, z: torch.Tensor) -> torch.Tensor:
        batch, time, heads, width = z.shape
        if heads == 2:
            return z
        return z[:, :, :, None].expand(batch, time, heads, 2, width).reshape(batch, time, 2, width)


JOINED = {
    "flatten": lambda z, x: z.flatten(3).type_as(x),
    "reshape": lambda z, x: z.reshape(x.shape),
    "view": lambda z, x: z.view(x.shape),
}


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("joined", JOINED)
def test_views_of_the_parts_of_complex_numbers(joined: str, keys: int) -> None:
    """They are windows on the parts, whatever axes are exchanged behind."""
    found = measured(Published(JOINED[joined], keys), (torch.randn(8, 7, 6),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    assert found.unexplained == 0
    groups = {str(space.group) for space in found.symmetry.spaces.values()}
    assert "ComplexScaling(2)" in groups and "Permutation(2)" in groups
