"""Networks whose weights are slices of one parameter, and their twins with a parameter for each.

What a slice of a stacked weight may do is what a weight of its own may do, so that both have as
many dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

HEADS, KEPT, WIDTH = 2, 3, 4
Slices = Callable[[Tensor], list[Tensor]]

# How slices of shape s are kept in one parameter: joined, and taken apart again.
STACKS: dict[str, tuple[Callable[[list[Tensor]], Tensor], Slices]] = {
    "first": (torch.stack, lambda w: [*w]),
    "last": (lambda s: torch.stack(s, -1), lambda w: [*w.unbind(-1)]),
    "in the middle": (lambda s: torch.stack(s, 1), lambda w: [w[:, k] for k in range(w.shape[1])]),
    "joined": (torch.cat, lambda w: [*w.unflatten(0, (-1, HEADS)).unbind(0)]),
    "alternating": (
        lambda s: torch.stack(s, 2).flatten(1, 2),
        lambda w: [*w.unflatten(1, (KEPT, -1)).unbind(2)],
    ),
    "in steps": (
        lambda s: torch.stack(s, 2).flatten(1, 2),
        lambda w: [w[:, k :: w.shape[1] // KEPT] for k in range(w.shape[1] // KEPT)],
    ),
    "twice": (
        lambda s: torch.stack([torch.stack(s), torch.stack(s[::-1]) + 1]),
        lambda w: [*w[0, : w.shape[1] - 1], w[1, 0]],
    ),
}


class Stacked(nn.Module):
    """Some weights in one parameter, or each in its own."""

    SHAPES: tuple[tuple[int, ...], ...] = ()

    def __init__(self, stack: str, apart: bool = False):
        super().__init__()
        self.enter, self.leave = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.out = nn.Parameter(torch.randn(HEADS, KEPT, WIDTH) * 0.4)
        join, self.take = STACKS[stack]
        weights = [torch.randn(shape) * 0.4 for shape in self.SHAPES]
        whole = join(weights)
        self.whole = None if apart else nn.Parameter(whole)
        self.parts = nn.ParameterList(p.clone() for p in self.take(whole)) if apart else None

    def slices(self) -> list[Tensor]:
        return [*self.parts] if self.whole is None else self.take(self.whole)  # type: ignore[misc]


class Attention(Stacked):
    """Queries, keys and values."""

    SHAPES = ((HEADS, KEPT, WIDTH),) * 3

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        q, k, v = (torch.einsum("bnd,hed->bhne", x, w) for w in self.slices())
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.leave(x + torch.einsum("bhne,hed->bnd", mixed, self.out))


class Gates(Stacked):
    """Two gated layers, which share no unit."""

    SHAPES = ((HEADS, KEPT, WIDTH),) * 4

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        g, u, out, back = self.slices()
        made = torch.sigmoid(torch.einsum("bnd,hed->bnhe", x, g))
        made = made * torch.einsum("bnd,hed->bnhe", x, u)
        x = x + torch.tanh(torch.einsum("bnhe,hed->bnd", made, out))
        return self.leave(x + torch.einsum("bnhe,hed->bnd", made, back))


class Linears(Stacked):
    """Linear maps in pairs: each pair has a basis between."""

    SHAPES = ((HEADS, KEPT, WIDTH),) * 4

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        a, b, c, d = self.slices()
        for first, second in ((a, b), (c, d)):
            mixed = torch.einsum("bnhe,hed->bnd", torch.einsum("bnd,hed->bnhe", x, first), second)
            x = x + torch.tanh(mixed)
        return self.leave(x)


class Memory(Stacked):
    """Keys and values that are parameters, put in front of those of the data."""

    SHAPES = ((HEADS, KEPT, WIDTH),) * 2

    def __init__(self, stack: str, apart: bool = False):
        super().__init__(stack, apart)
        self.qkv = nn.ParameterList(torch.randn(HEADS, WIDTH, WIDTH) * 0.4 for _ in range(3))
        self.out = nn.Parameter(torch.randn(HEADS, WIDTH, WIDTH) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        q, k, v = (torch.einsum("bnd,hed->bhne", x, w) for w in self.qkv)
        keys, values = (m.expand(len(x), -1, -1, -1) for m in self.slices())
        mixed = (q @ torch.cat([keys, k], 2).mT).softmax(-1) @ torch.cat([values, v], 2)
        return self.leave(x + torch.einsum("bhne,hed->bnd", mixed, self.out))


NETWORKS = {kind.__name__: kind for kind in (Attention, Gates, Linears, Memory)}
