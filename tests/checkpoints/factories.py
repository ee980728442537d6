"""Factories that return what no model is."""

import sys

import torch
from torch import nn

from tests.models import Small


def scripted() -> nn.Module:
    """TorchScript."""
    return torch.jit.script(nn.Sequential(nn.Linear(5, 3), nn.ReLU()))


def traced() -> object:
    """TorchScript, by tracing."""
    return torch.jit.trace(Small().eval(), torch.randn(4, 5))


def quantised() -> nn.Module:
    """Weights that are packed into eight bits."""
    return torch.ao.quantization.quantize_dynamic(Small(), {nn.Linear}, torch.qint8)


def eight_bits() -> nn.Module:
    """Weights of eight bits."""
    model = Small()
    model.first.weight = nn.Parameter(model.first.weight.detach().to(torch.float8_e4m3fn))
    return model


def halves() -> nn.Module:
    """Layers of two precisions, which PyTorch does not multiply."""
    model = Small()
    model.first.half()
    model.last.bfloat16()
    return model


def lazy() -> nn.Module:
    """Layers without a size."""
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 3))


def zero_width() -> nn.Module:
    """A layer without units."""
    return nn.Sequential(nn.Linear(5, 0), nn.ReLU(), nn.Linear(0, 3))


def nothing() -> None:
    """None."""


def forty_two() -> int:
    """An integer."""
    return 42


def leaves() -> nn.Module:
    """Ends the process."""
    sys.exit(3)


def endless() -> nn.Module:
    """Calls itself."""
    return endless()


def _returning(value: object) -> nn.Module:
    class Returning(Small):
        def forward(self, x: torch.Tensor) -> object:  # type: ignore[override]
            super().forward(x)
            return value

    return Returning()


def returns_none() -> nn.Module:
    """Its output is None."""
    return _returning(None)


def returns_integers() -> nn.Module:
    """Its output is a tensor of whole numbers."""

    class Largest(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(1)

    return Largest()


def returns_an_integer() -> nn.Module:
    """Its output is an int."""
    return _returning(3)


def raises() -> nn.Module:
    """Its forward stops."""

    class Raising(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no such key")

    return Raising()


def exits() -> nn.Module:
    """Its forward ends the process."""

    class Exiting(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sys.exit(5)

    return Exiting()


def recurs() -> nn.Module:
    """Its forward calls itself."""

    class Recurring(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

    return Recurring()


def bad_property() -> nn.Module:
    """Its example inputs cannot be asked for."""

    class Bad(Small):
        @property
        def example_inputs(self) -> None:  # type: ignore[override]
            raise ValueError("not today")

    return Bad()


def odd_inputs() -> nn.Module:
    """Its example inputs are no tensors."""
    model = Small()
    model.example_inputs = lambda: "x"  # type: ignore[assignment]
    return model
