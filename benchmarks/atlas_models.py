"""Families of the atlas that no table of transformers names: other packages, and plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, Any]
Table = dict[str, Callable[[], Built]]
BATCH, TIME, WIDTH = 3, 7, 5


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# -- diffusers --------------------------------------------------------------------------------
_BLOCKS = {"block_out_channels": (8, 12), "layers_per_block": 1, "norm_num_groups": 2}
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 1}
_DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UNet2DModel": (
        {"sample_size": 8, "in_channels": 3, "out_channels": 3, **_BLOCKS,
         "down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2},
        {"sample": (2, 3, 8, 8), "timestep": (2,)},
    ),
    "UNet2DConditionModel": (
        {"sample_size": 8, "in_channels": 4, "out_channels": 4, **_BLOCKS,
         "cross_attention_dim": 6, "attention_head_dim": 2,
         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        {"sample": (2, 4, 8, 8), "timestep": (2,), "encoder_hidden_states": (2, 5, 6)},
    ),
    "AutoencoderKL": (
        {**_BLOCKS, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2},
        {"sample": (2, 3, 8, 8)},
    ),
    "VQModel": (
        {**_BLOCKS, "latent_channels": 3, "num_vq_embeddings": 11,
         "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2},
        {"sample": (2, 3, 8, 8)},
    ),
    "DiTTransformer2DModel": (
        {**_HEADS, "in_channels": 3, "out_channels": 3, "sample_size": 4, "norm_num_groups": 2,
         "num_embeds_ada_norm": 11},
        {"hidden_states": (2, 3, 4, 4), "timestep": (2,), "class_labels": (2,)},
    ),
    "PixArtTransformer2DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "sample_size": 4, "norm_num_groups": 2,
         "cross_attention_dim": 8, "caption_channels": 6, "use_additional_conditions": False},
        {"hidden_states": (2, 4, 4, 4), "timestep": (2,), "encoder_hidden_states": (2, 5, 6)},
    ),
    "SD3Transformer2DModel": (
        {**_HEADS, "sample_size": 4, "patch_size": 2, "in_channels": 4, "out_channels": 4,
         "joint_attention_dim": 6, "caption_projection_dim": 8, "pooled_projection_dim": 5,
         "pos_embed_max_size": 4},
        {"hidden_states": (2, 4, 4, 4), "timestep": (2,), "encoder_hidden_states": (2, 5, 6),
         "pooled_projections": (2, 5)},
    ),
    "PriorTransformer": (
        {**_HEADS, "embedding_dim": 6, "num_embeddings": 5, "additional_embeddings": 4},
        {"hidden_states": (2, 6), "timestep": (2,), "proj_embedding": (2, 6),
         "encoder_hidden_states": (2, 5, 6)},
    ),
}  # fmt: skip
_WHOLE = {"timestep": 11, "class_labels": 11}  # inputs that count, and below what


def diffusers() -> Table:
    """Classes of diffusers, where it is installed."""
    try:
        import diffusers as package
    except ImportError:
        return {}
    return {f"diffusers.{name}": partial(_of_diffusers, package, name) for name in _DIFFUSERS}


def _of_diffusers(package: Any, name: str) -> Built:
    options, shapes = _DIFFUSERS[name]
    inputs = {
        key: torch.arange(shape[0]) * 3 % _WHOLE[key] if key in _WHOLE else _drawn(*shape)
        for key, shape in shapes.items()
    }
    return getattr(package, name)(**options).eval(), inputs


# -- message passing --------------------------------------------------------------------------
# Nothing leads to the last node: where each has a neighbour, means of a constant are the constant.
_EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 4], [1, 2, 3, 4, 5, 0, 0, 3, 5, 1]])
_CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "GCNConv": {}, "GraphConv": {}, "SAGEConv": {}, "GATConv": {"heads": 2}, "TAGConv": {"K": 2},
    "GATv2Conv": {"heads": 2}, "TransformerConv": {"heads": 2}, "ChebConv": {"K": 2},
    "SGConv": {"K": 2}, "LEConv": {}, "ARMAConv": {}, "ClusterGCNConv": {}, "MFConv": {},
    "ResGatedGraphConv": {}, "SuperGATConv": {"heads": 2}, "FeaStConv": {"heads": 2},
    "GeneralConv": {}, "FiLMConv": {}, "EGConv": {"num_heads": 2, "num_bases": 3},
}  # fmt: skip


def graph() -> Table:
    """Convolutions of torch_geometric, where it is installed: two with a ReLU between them."""
    try:
        from torch_geometric import nn as package
    except ImportError:
        return {}
    return {
        f"torch_geometric.{name}": partial(_of_graphs, getattr(package, name), options)
        for name, options in _CONVOLUTIONS.items()
        if hasattr(package, name)
    }


class _Passing(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], options: dict[str, Any]):
        super().__init__()
        outward = 4 if kind.__name__ == "EGConv" else 3
        middle = 4 * options.get("heads", 1) if kind.__name__ != "FeaStConv" else 4
        self.first, self.second = kind(WIDTH, 4, **options), kind(middle, outward, **options)
        self.register_buffer("edges", _EDGES.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x, self.edges).relu(), self.edges)


def _of_graphs(kind: Callable[..., nn.Module], options: dict[str, Any]) -> Built:
    return _Passing(kind, options).eval(), (_drawn(TIME, WIDTH),)


# -- adapters ---------------------------------------------------------------------------------
_ADAPTERS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"r": 2}, "LoHaConfig": {"r": 2}, "LoKrConfig": {"r": 2},
    "AdaLoraConfig": {"init_r": 2, "target_r": 1, "total_step": 10},
    "OFTConfig": {"oft_block_size": 2}, "BOFTConfig": {"boft_block_size": 2},
    "IA3Config": {"feedforward_modules": []}, "VeraConfig": {"r": 2},
    "FourierFTConfig": {"n_frequency": 5}, "HRAConfig": {"r": 2}, "LNTuningConfig": {},
    "XLoraConfig": {}, "BoneConfig": {"r": 2}, "MissConfig": {"r": 2}, "RandLoraConfig": {"r": 2},
    "C3AConfig": {"block_size": 2}, "ShiraConfig": {"r": 1},
}  # fmt: skip


def adapters() -> Table:
    """Adapters of peft, where it is installed, on the last two of three linear layers."""
    try:
        import peft as package
    except ImportError:
        return {}
    names = [name for name in _ADAPTERS if hasattr(package, name)]
    found = {f"peft.{name}": partial(_of_adapters, package, name, {}) for name in names}
    dora = partial(_of_adapters, package, "LoraConfig", {"use_dora": True})
    return {**found, "peft.LoraConfig(use_dora)": dora}


def _of_adapters(package: Any, name: str, more: dict[str, Any]) -> Built:
    layers = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)
    inner = nn.Sequential(*layers)
    config = getattr(package, name)(target_modules=["2", "4"], **_ADAPTERS[name], **more)
    return package.get_peft_model(inner, config).eval(), (_drawn(BATCH, 6),)


# -- plain torch ------------------------------------------------------------------------------
class Apply(nn.Module):
    """Modules and a function of them."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module):
        super().__init__()
        self.function, self.parts = function, nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.parts, x)


def _stack(*parts: nn.Module) -> Callable[[], Built]:
    return lambda: (nn.Sequential(*parts).eval(), (_drawn(BATCH, TIME, WIDTH),))


def _images(*parts: nn.Module) -> Callable[[], Built]:
    return lambda: (nn.Sequential(*parts).eval(), (_drawn(BATCH, 3, 8, 8),))


def _written(function: Callable[..., Tensor], **parts: nn.Module) -> Callable[[], Built]:
    return lambda: (Apply(function, **parts).eval(), (_drawn(BATCH, TIME, WIDTH),))


_ACTIVATIONS = (
    "ReLU GELU SiLU Tanh Sigmoid ELU SELU CELU LeakyReLU PReLU Softplus Mish Hardswish Hardtanh "
    "Hardsigmoid ReLU6 Softsign Tanhshrink LogSigmoid Softshrink Hardshrink"
).split()
_NORMS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(6), "RMSNorm": lambda: nn.RMSNorm(6),
    "GroupNorm": lambda: nn.GroupNorm(1, TIME), "InstanceNorm": lambda: nn.InstanceNorm1d(TIME),
    "BatchNorm": lambda: nn.BatchNorm1d(TIME),
}  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any):
        super().__init__()
        self.inner = kind(WIDTH, 4, batch_first=True, **options)
        ways = 2 if options.get("bidirectional") else 1
        self.last = nn.Linear(ways * (options.get("proj_size") or 4), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x)[0])


def _recurrent(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], Built]:
    return lambda: (_Recurrent(kind, **options).eval(), (_drawn(BATCH, TIME, WIDTH),))


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[], Built]:
    def function(p: Any, x: Tensor) -> Tensor:
        return p["down"](gate(p["gate"](x)) * p["up"](x))

    return _written(function, gate=nn.Linear(5, 6), up=nn.Linear(5, 6), down=nn.Linear(6, 4))


def plain() -> Table:
    """Families that people write in plain torch."""
    table: Table = {
        f"activation {name}": _stack(nn.Linear(5, 6), getattr(nn, name)(), nn.Linear(6, 4))
        for name in _ACTIVATIONS
    }
    table |= {
        f"norm {name}": _stack(nn.Linear(5, 6), make(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        for name, make in _NORMS.items()
    }
    for name, make in (("relu", functional.relu), ("silu", functional.silu),
                       ("sigmoid", torch.sigmoid), ("identity", lambda g: g)):  # fmt: skip
        table[f"gated by {name}"] = _gated(make)
    for name, kind in (("RNN", nn.RNN), ("LSTM", nn.LSTM), ("GRU", nn.GRU)):
        table[f"recurrent {name}"] = _recurrent(kind)
        table[f"recurrent {name} in both directions"] = _recurrent(kind, bidirectional=True)
    table["recurrent LSTM with a projection"] = _recurrent(nn.LSTM, proj_size=3)
    table["encoder layer"] = _encoder(norm_first=False)
    table["encoder layer, norms first"] = _encoder(norm_first=True)
    table["convolutions"] = _images(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip
    table["depthwise convolutions"] = _images(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.GELU(), nn.Conv2d(4, 2, 1)
    )
    table["transposed convolutions"] = _images(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3)
    )
    table["pixel shuffle"] = _images(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 3, 1))
    table["bilinear"] = _written(
        lambda p, x: p["last"](p["both"](x, x).tanh()),
        both=nn.Bilinear(5, 5, 4), last=nn.Linear(4, 3),
    )  # fmt: skip
    table["deep linear"] = _stack(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    table["squares"] = _written(
        lambda p, x: p["last"](p["first"](x).square()),
        first=nn.Linear(5, 3, bias=False), last=nn.Linear(3, 4),
    )  # fmt: skip
    table["residual"] = _written(
        lambda p, x: p["last"](p["first"](x) + p["outer"](p["inner"](p["first"](x)).relu())),
        first=nn.Linear(5, 6), inner=nn.Linear(6, 4), outer=nn.Linear(4, 6), last=nn.Linear(6, 3),
    )  # fmt: skip
    table["mixer"] = _written(
        lambda p, x: p["last"](p["time"](p["first"](x).mT).mT.relu()),
        first=nn.Linear(5, 6), time=nn.Linear(TIME, 4), last=nn.Linear(6, 3),
    )  # fmt: skip
    table["expert mixture, dense"] = _written(
        lambda p, x: (p["gate"](x).softmax(-1)[..., None, :]
                      * torch.stack([p[f"e{k}"](x).tanh() for k in range(3)], -1)).sum(-1),
        gate=nn.Linear(5, 3), **{f"e{k}": nn.Linear(5, 4) for k in range(3)},
    )  # fmt: skip
    return table


def _encoder(norm_first: bool) -> Callable[[], Built]:
    layer = nn.TransformerEncoderLayer(
        8, 2, 6, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    return _stack(nn.Linear(5, 8), layer, nn.Linear(8, 3))


TABLES: dict[str, Callable[[], Table]] = {
    "diffusers": diffusers, "graph": graph, "adapters": adapters, "plain": plain,
}  # fmt: skip
