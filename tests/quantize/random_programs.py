"""Random small module graphs with scales: layers drawn one after another, and spoiled weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh)


class Residual(nn.Module):
    """h + f(h), rectified or not."""

    def __init__(self, inner: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inner, self.after = inner, after

    def forward(self, h: Tensor) -> Tensor:
        return self.after(h + self.inner(h))


class Gated(nn.Module):
    """down(σ(gate h) · up h)."""

    def __init__(self, width: int, inner: int, act: nn.Module, bias: bool) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=bias) for _ in range(2))
        self.down, self.act = nn.Linear(inner, width, bias=bias), act

    def forward(self, h: Tensor) -> Tensor:
        return self.down(self.act(self.gate(h)) * self.up(h))


class Pooled(nn.Module):
    """The mean over the pixels."""

    def forward(self, h: Tensor) -> Tensor:
        return h.mean((2, 3))


def program(seed: int) -> tuple[nn.Module, Tensor]:
    """A module in double precision and inputs; even seeds read vectors, odd ones images."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    model, x = (_on_images if seed % 2 else _on_vectors)(draw)
    model, x = model.double().eval(), x.double()
    _trained(model, draw)
    _spoil(model, draw)
    return model, x


def _on_vectors(draw: np.random.Generator) -> tuple[nn.Module, Tensor]:
    width, given = int(draw.integers(3, 6)), int(draw.integers(2, 5))
    bias = bool(draw.integers(2))
    layers: list[nn.Module] = [nn.Linear(given, width, bias=bias), _activation(draw)]
    tied: nn.Linear | None = None
    for _ in range(int(draw.integers(1, 5))):
        inner = int(draw.integers(3, 6))
        kind = int(draw.integers(6))
        if kind == 0:
            up, down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
            between = nn.Sequential(up, _activation(draw), down)
            layers.append(Residual(between, _either(draw, nn.ReLU)))
        elif kind == 1:
            layers.append(Gated(width, inner, _either(draw, nn.SiLU), bias))
        elif kind == 2:
            layers.append((nn.LayerNorm, nn.RMSNorm)[int(draw.integers(2))](width))
        elif kind == 3:
            layers.append(nn.BatchNorm1d(width))
        elif kind == 4 and tied is not None:
            again = nn.Linear(width, width, bias=bias)
            again.weight = tied.weight
            layers += [again, _activation(draw)]
        else:
            tied = nn.Linear(width, width, bias=bias)
            layers += [tied, _activation(draw)]
    layers.append(nn.Linear(width, 2, bias=bias))
    return nn.Sequential(*layers), torch.randn(3, given)


def _on_images(draw: np.random.Generator) -> tuple[nn.Module, Tensor]:
    width, bias = int(draw.choice([2, 4])), bool(draw.integers(2))

    def convolution(groups: int = 1) -> nn.Module:
        return nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=bias)

    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, bias=bias), _activation(draw)]
    for _ in range(int(draw.integers(1, 4))):
        kind = int(draw.integers(4))
        if kind == 0:
            inner = nn.Sequential(convolution(), _either(draw, nn.BatchNorm2d, width),
                                  _activation(draw), convolution())  # fmt: skip
            layers.append(Residual(inner, _either(draw, nn.ReLU)))
        elif kind == 1:
            layers += [convolution(int(draw.choice([2, width]))), _activation(draw)]
        elif kind == 2:
            layers += [nn.BatchNorm2d(width), _activation(draw)]
        else:
            layers += [convolution(), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [Pooled(), nn.Linear(width, 2, bias=bias)]
    return nn.Sequential(*layers), torch.randn(2, 1, 6, 6)


def _activation(draw: np.random.Generator) -> nn.Module:
    return ACTIVATIONS[int(draw.choice(4, p=[0.55, 0.25, 0.1, 0.1]))]()


def _either(draw: np.random.Generator, kind: Callable[..., nn.Module], *args: int) -> nn.Module:
    return kind(*args) if draw.integers(2) else nn.Identity()


def _trained(model: nn.Module, draw: np.random.Generator) -> None:
    """Gains, offsets and statistics as after training."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.weight)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_var.uniform_(0.5, 2.0)  # pyright: ignore


@torch.no_grad()
def _spoil(model: nn.Module, draw: np.random.Generator) -> None:
    """Rows and columns of zeros, whole tensors of zeros, weights of one sign, faint numbers."""
    for p in model.parameters():
        chance = draw.random()
        if chance < 0.06:
            p[int(draw.integers(len(p)))] = 0.0
        elif chance < 0.12 and p.ndim > 1:
            p[:, int(draw.integers(p.shape[1]))] = 0.0
        elif chance < 0.15:
            p.zero_()
        elif chance < 0.20:
            p.abs_()
        elif chance < 0.25:
            p.mul_(10 ** draw.uniform(-4, 2))
