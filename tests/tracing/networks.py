"""The networks of the measured table (ARCHITECTURE, section 5), at generic parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


@dataclass(frozen=True)
class Row:
    """One row of the table.

    `unexplained` counts null directions that are no orbit of any group. There is one such row: the
    network with squares is three quadratic forms written as combinations of the same six squares
    (w_i·x)², and such a writing moves in a family of dimension 6 beyond the scale of each unit
    (42 parameters map onto the 3·10 coefficients of three forms in four variables). That is a
    variety of sums of powers, not an orbit, and the subject of `paramsym.waring`.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    parameters: int
    nullity: int
    outputs: Callable[[Any], Any] | None = None
    unexplained: int = 0


def randomise(model: nn.Module, seed: int = 3) -> nn.Module:
    """Generic parameters near the initial ones, and generic running statistics."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            size = 0.3 if parameter.ndim < 2 else 0.5
            parameter += size * noise.to(parameter)
        for name, buffer in model.named_buffers():
            noise = torch.rand(buffer.shape, generator=generator)
            if name.endswith("running_mean"):
                buffer.copy_(0.2 * noise - 0.1)
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + noise)
    return model.eval()


def _perceptron(activation: type[nn.Module]) -> tuple[nn.Module, Any]:
    act = activation
    layers = (nn.Linear(5, 7), act(), nn.Linear(7, 6), act(), nn.Linear(6, 3))
    return nn.Sequential(*layers), (torch.randn(4, 5),)


def _linear() -> tuple[nn.Module, Any]:
    layers = (nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3))
    return nn.Sequential(*layers), (torch.randn(4, 4),)


def _square() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), Square(), nn.Linear(6, 3, bias=False))
    return model, (torch.randn(4, 4),)


def _convolutional(batch_norm: bool) -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = []
    for before, after in ((2, 4), (4, 5)):
        layers.append(nn.Conv2d(before, after, 3))
        layers += [nn.BatchNorm2d(after)] if batch_norm else []
        layers.append(nn.ReLU())
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]
    return nn.Sequential(*layers), (torch.randn(4, 2, 8, 8),)


def _flattened() -> tuple[nn.Module, Any]:
    layers = (
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip
    return nn.Sequential(*layers), (torch.randn(4, 1, 6, 6),)


def _tokens(length: int, vocabulary: int = 11) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, vocabulary, (3, length))}


def _gpt2(tied: bool) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=6, tie_word_embeddings=tied
    )
    return GPT2LMHeadModel(config), _tokens(6)


def _llama(heads: int, tied: bool) -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, num_key_value_heads=heads,
        intermediate_size=12, vocab_size=11, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config), _tokens(5)


def _bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=12,
        vocab_size=11, max_position_embeddings=6,
    )  # fmt: skip
    return BertModel(config), _tokens(6)


def _vit() -> tuple[nn.Module, Any]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=12,
        image_size=8, patch_size=4, num_channels=1,
    )  # fmt: skip
    return ViTModel(config), {"pixel_values": torch.randn(3, 1, 8, 8)}


def _t5() -> tuple[nn.Module, Any]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(num_layers=2, d_model=8, num_heads=2, d_kv=4, d_ff=12, vocab_size=11)
    return T5EncoderModel(config), _tokens(6)


TABLE = [
    Row("MLP ReLU", lambda: _perceptron(nn.ReLU), 111, 13),
    Row("MLP tanh", lambda: _perceptron(nn.Tanh), 111, 0),
    Row("MLP GELU", lambda: _perceptron(nn.GELU), 111, 0),
    Row("MLP linear", _linear, 83, 68),
    Row("square activation", _square, 42, 12, unexplained=6),
    Row("CNN", lambda: _convolutional(False), 279, 9),
    Row("CNN batch norm", lambda: _convolutional(True), 297, 27),
    # 3 channels + 5 units. (The design counts 9: one unit that its inputs hardly ever closed.)
    Row("CNN flatten", _flattened, 107, 8),
    Row("GPT-2 untied", lambda: _gpt2(False), 1984, 481),
    Row("GPT-2 tied", lambda: _gpt2(True), 1896, 426),
    Row("Llama grouped untied", lambda: _llama(1, False), 1176, 132),
    Row("Llama tied", lambda: _llama(2, True), 1216, 136),
    Row("BERT", _bert, 1304, 425, lambda found: found.last_hidden_state),
    Row("ViT", _vit, 1336, 450, lambda found: found.last_hidden_state),
    Row("T5 encoder", _t5, 1088, 228),
]


def build(row: Row) -> tuple[nn.Module, Any]:
    """The network of a row at generic parameters, and inputs for it."""
    torch.manual_seed(5)
    model, inputs = row.build()
    return randomise(model), inputs


@cache
def derived(row: Row) -> ParameterSymmetry:
    """The symmetry of a row's network, derived once for all tests that start from it."""
    model, inputs = build(row)
    return find_symmetry(model, inputs, outputs=row.outputs)
