"""Small networks in which two points of one orbit were once not found to be such, and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Made = tuple[nn.Module, Any]


class Net(nn.Module):
    """A function of some layers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Attention(nn.Module):
    """Self-attention beside a skip, behind a layer norm if asked for."""

    def __init__(self, width: int = 8, heads: int = 2, bias: bool = True, norm: bool = False,
                 out: int = 3) -> None:  # fmt: skip
        super().__init__()
        self.heads = heads
        self.i = nn.Linear(5, width)
        self.n = nn.LayerNorm(width) if norm else nn.Tanh()
        self.q, self.k, self.v, self.p = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.o = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        x = self.i(x)
        y = self.n(x)
        if isinstance(self.n, nn.Tanh):
            x = y
        parts = (f(y).view(batch, time, self.heads, -1).transpose(1, 2)
                 for f in (self.q, self.k, self.v))  # fmt: skip
        q, k, v = parts
        mixed = torch.softmax(q @ k.mT / 2, -1) @ v
        return self.o(x + self.p(mixed.transpose(1, 2).reshape(batch, time, -1)))


class MaskedLanguageModel(nn.Module):
    """A square transform between an embedding and the head that is tied to it."""

    def __init__(self, n: int = 6) -> None:
        super().__init__()
        self.e, self.t = nn.Embedding(11, n), nn.Linear(n, n)
        self.first, self.last = nn.LayerNorm(n), nn.LayerNorm(n)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.last(F.gelu(self.t(self.first(self.e(tokens)))))
        return h @ self.e.weight.T


class Positional(nn.Module):
    """A grouped convolution over time beside a skip, as speech encoders have it."""

    def __init__(self, groups: int, normed: bool) -> None:
        super().__init__()
        self.i, self.n, self.o = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        plain = nn.Conv1d(8, 8, 4, padding=2, groups=groups)
        self.c = weight_norm(plain, name="weight", dim=2) if normed else plain

    def forward(self, x: Tensor) -> Tensor:
        h = self.i(x)
        return self.o(self.n(h + F.gelu(self.c(h.mT)[..., :-1]).mT))


def olmo2() -> Made:
    """Query and key norms over all heads at once: signs are a system of parities."""
    import transformers

    config = transformers.Olmo2Config(
        vocab_size=11, hidden_size=16, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, pad_token_id=None,
    )  # fmt: skip
    return transformers.Olmo2ForCausalLM(config), {"input_ids": torch.arange(14).view(2, 7) % 11}


def mlp(activation: nn.Module) -> nn.Module:
    """Hidden layers of seven and six units."""
    return nn.Sequential(
        nn.Linear(5, 7), activation, nn.Linear(7, 6), activation, nn.Linear(6, 3)
    )  # fmt: skip


def rows() -> tuple[Tensor]:
    return (torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),)


def sequences() -> tuple[Tensor]:
    return (torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)),)


def tokens() -> tuple[Tensor]:
    return (torch.arange(10).view(2, 5),)
