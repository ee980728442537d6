"""Tiny models, and what can be attached to them."""

import random

import torch
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from paramsym.checkpoints.quieting import quiet

SIZES = dict(
    hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=24,
    vocab_size=50, bos_token_id=1, eos_token_id=2, pad_token_id=0, max_position_embeddings=16,
)  # fmt: skip
GPT2 = dict(n_embd=16, n_head=2, n_layer=2, vocab_size=50, n_positions=8, bos_token_id=1,
            eos_token_id=2)  # fmt: skip
# each with all there is of its kind: grouped queries, biases, tied tables, parallel residuals
MODELS = {
    "llama": ("Llama", dict(num_key_value_heads=2)),
    "tied": ("Llama", dict(num_key_value_heads=4, tie_word_embeddings=True)),
    "biased": ("Llama", dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "mistral": ("Mistral", dict(num_key_value_heads=2)),
    "qwen2": ("Qwen2", dict(num_key_value_heads=2)),
    "gemma": ("Gemma", dict(num_key_value_heads=2, head_dim=4)),
    "mixtral": ("Mixtral", dict(num_key_value_heads=2, num_local_experts=4)),
    "neox": ("GPTNeoX", {}),
    "phi": ("Phi", {}),
    "gpt2": ("GPT2", {}),
    "untied gpt2": ("GPT2", dict(tie_word_embeddings=False)),
}
CONFIG = {"r": 4, "lora_alpha": 3}


def model_of(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """A model with random weights; gains are near one."""
    kind, more = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**(GPT2 if kind == "GPT2" else SIZES), **more)
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    with quiet():
        model = getattr(transformers, kind + head)(config)
    return randomised(model, dtype, seed)


def randomised(model: nn.Module, dtype: torch.dtype, seed: int) -> nn.Module:
    """Random numbers in the place of all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.eval().to(dtype).named_parameters():
            gain = p.ndim == 1 and name.endswith("weight")
            p.copy_(gain + 0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 50, (1, 6), generator=torch.Generator().manual_seed(seed))


def lora_of(
    model: nn.Module, seed: int = 0, share: float = 1.0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Pairs of random ranks on linear layers, Conv1D and tables, as peft names them."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def small(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(shape, generator=generator).to(dtype) / shape[-1] ** 0.5

    made: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        kind, stem, rank = type(module).__name__, f"base_model.model.{name}", chance.randint(1, 5)
        if kind in ("Linear", "Conv1D") and chance.random() < share:
            shape = tuple(module.weight.shape)
            outputs, inputs = shape if kind == "Linear" else shape[::-1]
            made[f"{stem}.lora_A.weight"] = small(rank, inputs)
            made[f"{stem}.lora_B.weight"] = small(outputs, rank)
        elif kind == "Embedding" and chance.random() < share:
            rows, width = module.weight.shape
            made[f"{stem}.lora_embedding_A"] = small(rank, rows)
            made[f"{stem}.lora_embedding_B"] = small(width, rank)
    return made


def settings_of(name: str) -> dict:
    return {**CONFIG, "fan_in_fan_out": "gpt2" in name}


class Draft(nn.Module):
    """A head that predicts the next state of a stream from a token and the last state."""

    def __init__(self, config) -> None:
        super().__init__()
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        x = self.fc(torch.cat([embedding, hidden], -1))
        places = torch.arange(x.shape[1])[None]
        found = self.layer(x, position_embeddings=self.rotary(x, places), position_ids=places)
        return found[0] if isinstance(found, tuple) else found


class Autoencoder(nn.Module):
    """A sparse autoencoder on a stream."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.W_enc, self.W_dec = (
            nn.Parameter(torch.empty(width, features)),
            nn.Parameter(torch.empty(features, width)),
        )
        self.b_enc, self.b_dec = (
            nn.Parameter(torch.empty(features)),
            nn.Parameter(torch.empty(width)),
        )

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x - self.b_dec) @ self.W_enc + self.b_enc)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x) @ self.W_dec + self.b_dec
