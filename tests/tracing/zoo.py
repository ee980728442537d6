"""The architectures that must be covered, each with a tiny random configuration, and a measure.

Sizes of batch, time and width are chosen distinct where a model allows it, so that axes that
happen to have equal lengths are never confused unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.recording.precision import converted, converted_inputs, functional
from paramsym.recording.running import Walk

Built = tuple[nn.Module, Any]


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Generic parameters and running statistics, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator).to(p))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.2 * torch.randn(b.shape, generator=generator).to(b))
            elif name.endswith("running_var"):
                b.copy_(0.5 + torch.rand(b.shape, generator=generator).to(b))
    return model.eval()


def errors(
    model: nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Any,
    dtype: torch.dtype = torch.float64,
    strength: float = 0.5,
    each: bool = True,
    seed: int = 1,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
) -> dict[str, float]:
    """Relative function errors: of everything together, of each space and shift, of a wrong move.

    Outputs that are (nearly) zero are measured against the largest output. This is on purpose
    no part of `paramsym.verify`, which is thereby checked as well.
    """
    state = converted(model, dtype)
    args, kwargs = converted_inputs(inputs, dtype)
    walk = Walk(model, state.keys())

    def run(params: dict[str, Tensor]) -> list[Tensor]:
        copies = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)
        with torch.no_grad():
            return functional(model, params, copies, kwargs, outputs, training, walk)

    before = run(state)
    top = max(float(y.abs().max()) for y in before if y.numel())

    def error(params: dict[str, Tensor]) -> float:
        worst = 0.0
        for y, z in zip(before, run(params), strict=True):
            if y.numel():
                size = max(float(y.abs().max()), 1e-3 * top, 1e-3)
                change = float((y - z).abs().max()) / size
                worst = max(worst, change if change == change else float("inf"))
        return worst

    def moved(only: list[str] | None) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return act(symmetry, symmetry.sample(generator, strength, only=only, dtype=dtype), state)

    found = {"everything": error(moved(None))}
    if each:
        for name in [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]:
            found[name] = error(moved([name]))
    generator = torch.Generator().manual_seed(seed)
    wrong = {
        n: t + 0.1 * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        if t.is_floating_point() else t
        for n, t in state.items()
    }  # fmt: skip
    return {**found, "a wrong move": error(wrong)}


# -- transformers -------------------------------------------------------------------------------


def _tokens(time: int = 7, vocabulary: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"input_ids": torch.randint(3, vocabulary, (2, time), generator=generator)}


def _pixels(size: int = 16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}


_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 12}  # fmt: skip
_TEXT = {**_SIZES, "vocab_size": 11}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip


def _hf(model: str, config: str, inputs: Callable[[], Any], eager: bool = False, **sizes: Any):
    def build() -> Built:
        import transformers

        made = getattr(transformers, config)(**sizes)
        if config not in ("ResNetConfig", "ConvNextConfig"):
            made._attn_implementation = "eager" if eager else "sdpa"
        return getattr(transformers, model)(made), inputs()

    return build


def _causal(name: str, eager: bool = False, **sizes: Any) -> Callable[[], Built]:
    return _hf(f"{name}ForCausalLM", f"{name}Config", _tokens, eager, **sizes)


TRANSFORMERS: dict[str, Callable[[], Built]] = {
    "GPT-2": _hf("GPT2LMHeadModel", "GPT2Config", _tokens, n_layer=2, n_embd=16, n_head=4,
                 vocab_size=11, n_positions=9),
    "GPT-2 eager": _hf("GPT2LMHeadModel", "GPT2Config", _tokens, True, n_layer=2, n_embd=16,
                       n_head=4, vocab_size=11, n_positions=9),
    "Llama": _causal("Llama", **_GROUPED),
    "Llama eager": _causal("Llama", True, **_GROUPED),
    "Mistral": _causal("Mistral", **_GROUPED),
    "Qwen2": _causal("Qwen2", **_GROUPED),
    "Qwen3": _causal("Qwen3", **_GROUPED, head_dim=4),
    "Gemma": _causal("Gemma", **_GROUPED, head_dim=4),
    "Phi-3": _causal("Phi3", **_GROUPED),
    "GPT-NeoX": _causal("GPTNeoX", **_TEXT, rotary_pct=0.5),
    "OPT": _causal("OPT", hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=12,
                   vocab_size=11, word_embed_proj_dim=16, max_position_embeddings=16),
    "BERT": _hf("BertModel", "BertConfig", _tokens, **_TEXT, max_position_embeddings=9),
    "RoBERTa": _hf("RobertaModel", "RobertaConfig", _tokens, **_TEXT, max_position_embeddings=16),
    "DistilBERT": _hf("DistilBertModel", "DistilBertConfig", _tokens, dim=16, n_layers=2, n_heads=4,
                      hidden_dim=12, vocab_size=11, max_position_embeddings=9),
    "T5": _hf("T5ForConditionalGeneration", "T5Config",
              lambda: {**_tokens(), "decoder_input_ids": _tokens(5)["input_ids"]}, num_layers=2,
              d_model=16, num_heads=4, d_kv=4, d_ff=12, vocab_size=11),
    "ViT": _hf("ViTForImageClassification", "ViTConfig", _pixels, **_SIZES, image_size=16,
               patch_size=8),
    "DINOv2": _hf("Dinov2Model", "Dinov2Config", _pixels, hidden_size=16, num_hidden_layers=2,
                  num_attention_heads=4, mlp_ratio=2, image_size=16, patch_size=8),
    "ResNet": _hf("ResNetForImageClassification", "ResNetConfig", lambda: _pixels(32),
                  embedding_size=4, hidden_sizes=[4, 8], depths=[2, 2], layer_type="basic"),
    "ConvNeXt": _hf("ConvNextForImageClassification", "ConvNextConfig", lambda: _pixels(64),
                    hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1]),
}  # fmt: skip


# -- modules of torch ---------------------------------------------------------------------------


def _normal(*shape: int, seed: int = 4) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _attention() -> Built:
    return nn.MultiheadAttention(8, 2, batch_first=True), tuple(_normal(2, 5, 8) for _ in range(3))


def _encoder(first: bool) -> Callable[[], Built]:
    def build() -> Built:
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=first)
        return layer, (_normal(2, 5, 8),)

    return build


def _recurrent(cell: type[nn.Module], **more: Any) -> Callable[[], Built]:
    return lambda: (cell(3, 4, num_layers=2, bidirectional=True, **more), (_normal(5, 2, 3),))


TORCH: dict[str, Callable[[], Built]] = {
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _encoder(False),
    "TransformerEncoderLayer, norm first": _encoder(True),
    "Transformer": lambda: (nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
                            (_normal(2, 5, 8), _normal(2, 3, 8))),
    "LSTM": _recurrent(nn.LSTM),
    "GRU": _recurrent(nn.GRU),
    "RNN": _recurrent(nn.RNN),
    "RNN relu": _recurrent(nn.RNN, nonlinearity="relu"),
}  # fmt: skip


# -- feed-forward and convolutional -------------------------------------------------------------


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def radial(x: Tensor) -> Tensor:
    """Rescale a vector by a function of its length."""
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x * torch.tanh(length) / length


def perceptron(activation: Callable[[Tensor], Tensor] | nn.Module) -> Callable[[], Built]:
    """Two hidden layers."""

    def build() -> Built:
        # a copy, as tests may convert what they are given
        made = deepcopy(activation) if isinstance(activation, nn.Module) else Apply(activation)
        layers = [nn.Linear(5, 7), made, nn.Linear(7, 6), made, nn.Linear(6, 3)]
        return nn.Sequential(*layers), (_normal(9, 5),)

    return build


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | nn.Module] = {
    "ReLU": nn.ReLU(), "leaky ReLU": nn.LeakyReLU(0.2), "PReLU": nn.PReLU(), "ReLU6": nn.ReLU6(),
    "squared ReLU": lambda x: torch.relu(x).square(), "GELU": nn.GELU(), "tanh": nn.Tanh(),
    "sin": torch.sin, "identity": nn.Identity(), "softmax": nn.Softmax(-1), "radial": radial,
    "hardtanh": nn.Hardtanh(), "SiLU": nn.SiLU(), "ReLU in place": nn.ReLU(inplace=True),
}  # fmt: skip


class Convolutional(nn.Module):
    """Grouped and depthwise kernels, three norms, a skip, a concatenation and a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.batch = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.grouped = nn.Conv2d(4, 6, 3, padding=1, groups=2)
        self.group = nn.GroupNorm(2, 6)
        self.up = nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.join = nn.Conv2d(7, 5, 1)
        self.layer = nn.LayerNorm(5)
        self.out = nn.Linear(5 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.batch(self.stem(x)))
        x = x + torch.relu(self.deep(x))
        y = torch.relu(self.group(self.grouped(x)))
        y = self.up(nn.functional.max_pool2d(y, 2))
        y = torch.relu(self.join(torch.cat([x, y], 1)))
        y = self.layer(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = nn.functional.adaptive_avg_pool2d(y, 4)
        return self.out(y.flatten(1))


PLAIN: dict[str, Callable[[], Built]] = {
    **{f"MLP, {name}": perceptron(f) for name, f in ACTIVATIONS.items()},
    "convolutions": lambda: (Convolutional(), (_normal(3, 2, 8, 8),)),
}

ZOO: dict[str, Callable[[], Built]] = {**PLAIN, **TORCH, **TRANSFORMERS}


def build(name: str) -> Built:
    """A network of the zoo at generic parameters, with inputs."""
    torch.manual_seed(0)
    model, inputs = ZOO[name]()
    return randomise(model), inputs


@cache
def derived(name: str) -> ParameterSymmetry:
    """The symmetry of a network of the zoo, derived once for all tests that start from it."""
    return find_symmetry(*build(name))


def without_cache(model: nn.Module, inputs: Any) -> Any:
    """Inputs of a decoder without a cache: an exported program returns it otherwise."""
    config = getattr(model, "config", None)
    decoder = getattr(config, "use_cache", None) is not None
    return {**inputs, "use_cache": False} if decoder and isinstance(inputs, dict) else inputs


def names(items: Sequence[str]) -> list[str]:
    """Identifiers of a parametrised test."""
    return [item.replace(" ", "-") for item in items]
