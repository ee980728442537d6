"""Small models that the tests of the command and of the checkpoints build."""

import torch
from torch import nn


class Small(nn.Module):
    """A ReLU network with batch norm, so that there are buffers as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.last = nn.Linear(7, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in [*self.parameters(), self.norm.running_mean]:
                tensor.normal_(generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(4, 5, generator=torch.Generator().manual_seed(1)),)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.normal_(generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.table(tokens))))


class TwoLinear(nn.Sequential):
    """44 parameters, whose families have 84 dimensions in sum."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.Linear(6, 2))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.normal_(generator=generator)

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),)


class Wide(nn.Sequential):
    """A ReLU network with units enough to tell whether one was derived from another."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 20))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.normal_(generator=generator)

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(4, 20, generator=torch.Generator().manual_seed(1)),)


def two_inputs() -> nn.Module:
    """Takes two keyword inputs and carries no example inputs."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(3, 5)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.first(x) + self.second(y)).sum(1)

    return Both()


def branching() -> nn.Module:
    """Its control flow depends on weights, so that it cannot be traced."""

    class Branching(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.first.weight.sum().item() > 0 else x

    return Branching()


def views() -> nn.Module:
    """Two parameters that overlap in memory."""
    model = Small()
    storage = torch.randn(70)
    model.first.weight = nn.Parameter(storage[:35].view(7, 5))
    model.last.weight = nn.Parameter(storage[20:41].view(3, 7))
    return model


def transposed() -> nn.Module:
    """A parameter that is not contiguous."""
    model = Small()
    model.first.weight = nn.Parameter(torch.randn(5, 7).T)
    return model


def poisoned() -> nn.Module:
    """A weight that is not a number."""
    model = Small()
    with torch.no_grad():
        model.first.weight[2, 3] = float("nan")
    return model


def broken() -> nn.Module:
    """A factory that fails."""
    raise RuntimeError("no such size")


def on_meta() -> nn.Module:
    """A model without numbers."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


number = 3
