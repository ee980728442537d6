"""A derivation needs hardly a deeper stack for a deeper network.

BERT of 24 layers had no derivation at all: asking on which parameters a tensor depends walked down
the network by recursion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym.recording.record import record
from paramsym.tracing.infer import infer

WIDTH = 4


class Deep(nn.Module):
    """Blocks one behind the other."""

    def __init__(self, block: Callable[[], nn.Module], layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    def __init__(self, step: Callable[[Block, Tensor], Tensor]) -> None:
        super().__init__()
        self.step, self.one, self.two = step, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.size = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(()))
        self.table = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


STEPS: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "plain": lambda m, x: torch.relu(m.one(x)),
    "linear": lambda m, x: m.one(x),
    "residual": lambda m, x: x + m.two(torch.tanh(m.one(x))),
    "norms first": lambda m, x: x + m.two(functional.gelu(m.one(m.norm(x)))),
    "norms last": lambda m, x: m.norm(x + m.two(functional.gelu(m.one(x)))),
    "gains alone": lambda m, x: (x + m.two(torch.relu(m.one(x)))) * m.table + m.norm.bias,
    "scaled": lambda m, x: x + m.size * torch.relu(m.one(x)),
    "gated": lambda m, x: x * torch.sigmoid(m.one(x)) + m.table,
    "joined": lambda m, x: torch.cat([x[:, :2], m.one(x)[:, 2:]], 1),
    "views": lambda m, x: m.one(x).unflatten(1, (2, 2)).transpose(1, 2).flatten(1),
    "differences": lambda m, x: x - m.one(x).square() - m.table,
    "masked": lambda m, x: torch.where(x > 0, m.one(x), m.size * x),
    "products": lambda m, x: x @ (m.one.weight @ m.two.weight),
}  # fmt: skip


class Stored(nn.Module):
    """A weight that is made of parameters in many steps."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(layers))
        self.gains = nn.ParameterList(torch.randn(WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.eye(WIDTH).to(x)
        for part, gain in zip(self.parts, self.gains, strict=True):
            made = (made @ part) * gain + part.T
        return x @ made


def frames(model: nn.Module, x: Tensor) -> int:
    """How deep the stack becomes while a symmetry is derived."""
    graph, depth, found = record(model, (x,)), 0, 0

    def called(frame, event, _) -> None:
        nonlocal depth, found
        depth += (event == "call") - (event == "return")
        found = max(found, depth)

    sys.setprofile(called)
    try:
        infer(graph)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("name", [*STEPS, "stored"])
def test_the_stack_grows_by_no_more_than_one_call_a_layer(name: str) -> None:
    """A search for what absorbs a change goes one call deeper for each parameter that it finds."""
    torch.manual_seed(0)

    def depth(layers: int) -> int:
        if name == "stored":
            return frames(Stored(layers).double(), torch.randn(5, WIDTH).double())
        block = STEPS[name]
        return frames(Deep(lambda: Block(block), layers).double(), torch.randn(5, WIDTH).double())

    assert depth(18) <= depth(9) + 9
