"""Networks that attacks are tried on, and what their owner sends."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra import AbstractMonomial
from paramsym.privacy.attacks.polarity import with_signs


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def perceptron(*widths: int, seed: int = 0, bias: bool = True, activation=nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after, bias=bias), activation()]
    return drawn(nn.Sequential(*layers[:-1]), seed)


def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """A model whose weights, gains and statistics are generic, in double precision."""
    draws = generator(seed)
    model = model.double().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "running_var" in name:
                tensor.uniform_(0.5, 2.0, generator=draws)
            elif tensor.is_floating_point():
                size = max(1, tensor[0].numel()) if tensor.ndim > 1 else 9
                noise = torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype)
                gain = tensor.ndim == 1 and bool((tensor == 1).all())
                tensor.copy_(noise / size**0.5 + gain)
    return model


def convolutions(norm: bool) -> nn.Module:
    middle = [nn.BatchNorm2d(8)] if norm else []
    return drawn(
        nn.Sequential(
            nn.Conv2d(3, 8, 3), *middle, nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
        )
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A small decoder on embeddings, with a fixed vocabulary at its end."""

    def __init__(self, width: int = 8, vocabulary: int = 11):
        super().__init__()
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(inputs_embeds)))


class Polarised(nn.Module):
    """A perceptron whose hidden units have signs, σ_s(z) = s σ(s z)."""

    def __init__(self, plain: nn.Sequential, masks: list[Tensor]):
        super().__init__()
        self.layers, self.masks = plain, masks

    def forward(self, x: Tensor) -> Tensor:
        masks = iter(self.masks)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                x = layer(x)
            else:
                mask = next(masks)
                x = mask * layer(mask * x)
        return x


def freed(model: nn.Module, *shape: int, axis: int = -1, outputs: bool = False):
    """The symmetry of a model with its input freed along an axis."""
    x = normal(2, *shape, seed=99).to(next(model.parameters()).dtype)
    name = "inputs_embeds" if isinstance(model, Transformer) else "input"
    return find_symmetry(model, (x,), free_inputs={name: axis}, free_outputs=outputs)


def session(symmetry: ParameterSymmetry, params: dict, seed: int):
    """A random key, and the parameters that it moves."""
    element = symmetry.sample(generator(seed))
    return element, act(symmetry, element, params)


def masks_of(symmetry: ParameterSymmetry, spaces: list[str], seed: int = 0) -> dict[str, Tensor]:
    """A random sign for each unit of some spaces."""
    draws = generator(seed)
    return {
        name: 1.0 - 2.0 * torch.randint(2, (symmetry.sizes[name],), generator=draws).double()
        for name in spaces
    }


def masked(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Parameters with polarity masks put on, or taken off again.

    Args:
        symmetry: of the network, without masks.
        params: the complete state dict.
        masks: by space ±1 for each of its units.
    """
    signed = with_signs(symmetry)
    values = {n: _value(signed, n, mask) for n, mask in masks.items()}
    return act(signed, signed.element(values), params)


def _value(signed: ParameterSymmetry, name: str, mask: Tensor) -> tuple[Tensor, Tensor] | Tensor:
    group = signed.spaces[name].group
    permutes = isinstance(group, AbstractMonomial) and group.permutes
    return (torch.arange(len(mask)), mask) if permutes else mask
