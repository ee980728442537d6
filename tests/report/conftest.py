"""Findings of several networks, found once."""

from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym.checkpoints import open_checkpoint
from paramsym.checkpoints.factory import FactorySource
from paramsym.report import Findings, examine, write_page
from tests.browsing import browser

__all__ = ["browser"]


class Hostile(nn.Module):
    """Names that would be markup if they were not escaped."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("<script>alert(1)</script>", "a&b\"c'd"):
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.children()
        return torch.linalg.pinv(second(torch.relu(first(x))))


def stack(depth: int) -> nn.Module:
    """Equal layers, to be shown as one."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(6, 9), nn.Linear(9, 6), nn.LayerNorm(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.write = nn.Linear(4, 6), nn.Linear(6, 3)
            self.layers = nn.ModuleList(Layer() for _ in range(depth))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.read(x)
            for layer in self.layers:
                x = layer(x)
            return self.write(x)

    return Stack()


@pytest.fixture(scope="session")
def small() -> Findings:
    return examine(open_checkpoint("tests.models:Small"), audit=True)


@pytest.fixture(scope="session")
def hostile() -> Findings:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    return examine(FactorySource("<b>bold</b>", Hostile(), (x,)))


@pytest.fixture(scope="session")
def deep() -> Findings:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    return examine(FactorySource("deep", stack(12), (x,)))


@pytest.fixture(scope="session")
def pages(small, hostile, deep, tmp_path_factory) -> dict[str, Path]:
    """The pages as files."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, findings in (("small", small), ("hostile", hostile), ("deep", deep)):
        found[name] = folder / f"{name}.html"
        write_page(findings, found[name])
    return found
