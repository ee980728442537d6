"""Trained networks that lie in package files, for `alignment.py`; the packages are only read.

* `pybullet==3.2.7` (zlib licence): five actors 197-1024-512-36 of simulated walkers, trained
  independently, in checkpoints of TensorFlow.
* `anarcii==2.0.8` (BSD-3): encoder–decoder transformers that number proteins; those of one size are
  fine-tuned from one another.

A loader returns a `Found`, or a text that says why there is nothing.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry

State = dict[str, Tensor]


@dataclass(frozen=True)
class Found:
    """Networks of one architecture.

    Attributes:
        model: the architecture, in use and not in training.
        inputs: what it is evaluated at. No data come with the packages: numbers drawn at random.
        traced: inputs of full length, which read every row of every table.
        params: by name.
    """

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    traced: tuple[Tensor, ...]
    params: dict[str, State]

    def symmetry(self) -> ParameterSymmetry:
        return find_symmetry(self.model, self.traced)


def wheel(package: str, version: str, folder: Path) -> Path | str:
    """The package's file in a folder, downloaded if it is not there; else why it cannot be had."""
    pattern = f"{package}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d"]
        try:
            done = subprocess.run(
                [*command, str(folder), f"{package}=={version}"],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{package}=={version}: the download took more than 300 s"
        if done.returncode:
            return f"{package}=={version}: {done.stderr.strip().splitlines()[-1]}"
    found = [*folder.glob(pattern)]
    return found[0] if found else f"{package}=={version}: only a source package was to be had"


# -- checkpoints of TensorFlow -----------------------------------------------------------------
# NAME.index is a sorted table of (tensor, where it lies in NAME.data-00000-of-00001): blocks of
# entries whose keys share prefixes, then an index block and a footer of 48 bytes. Each value is a
# protocol buffer: 1 dtype, 2 shape, 4 offset, 5 size, 6 checksum.


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def _entries(block: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block; each key repeats so many bytes of the one before."""
    (restarts,) = struct.unpack("<I", block[-4:])
    end, at, key, found = len(block) - 4 - 4 * restarts, 0, b"", []
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + fresh]
        found.append((key, block[at + fresh : at + fresh + size]))
        at += fresh + size
    return found


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Field numbers and values of a protocol buffer."""
    at, found = 0, []
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
        elif tag & 7 == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        else:  # 32 bits
            value, at = message[at : at + 4], at + 4
        found.append((tag >> 3, value))
    return found


def read_bundle(index: bytes, data: bytes) -> dict[str, np.ndarray]:
    """The float32 tensors of a checkpoint by name."""

    def block(handle: bytes) -> bytes:
        offset, at = _varint(handle, 0)
        size, _ = _varint(handle, at)
        return index[offset : offset + size]

    footer = index[-48:]
    _, at = _varint(footer, 0)  # past the handle of the block that describes the others
    _, at = _varint(footer, at)
    tensors = {}
    for _, handle in _entries(block(footer[at:])):
        for key, value in _entries(block(handle)):
            fields = _fields(value)
            numbers = {tag: found for tag, found in fields if isinstance(found, int)}
            if not key or numbers.get(1) != 1:
                continue  # the header, or integers
            shapes = [found for tag, found in fields if tag == 2 and isinstance(found, bytes)]
            sides = [dict(_fields(d)) for s in shapes for tag, d in _fields(s) if tag == 2]  # pyright: ignore[reportArgumentType]
            start = numbers.get(4, 0)
            flat = np.frombuffer(data[start : start + numbers.get(5, 0)], "<f4")
            tensors[key.decode()] = flat.reshape([int(side.get(1, 0)) for side in sides])
    return tensors


def actors(folder: Path, inputs: int = 512) -> Found | str:
    """Five policies 197-1024-512-36 that learned five movements, each from initial values of its
    own. Their inputs are normalised in training, so that standard normal numbers are of their size.
    """
    path = wheel("pybullet", "3.2.7", folder)
    if isinstance(path, str):
        return path
    params = {}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(".ckpt.index")):
            stem = name.removesuffix(".index")
            read = read_bundle(archive.read(name), archive.read(f"{stem}.data-00000-of-00001"))
            params[stem.split("humanoid3d_")[-1].removesuffix(".ckpt")] = {
                f"{2 * k}.{ours}": torch.from_numpy(read[f"agent/main/actor/{at}{theirs}"].T.copy())
                for k, at in enumerate(("0/dense/", "1/dense/", "dense/"))
                for ours, theirs in (("weight", "kernel"), ("bias", "bias"))
            }
    layers = [nn.Linear(197, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 36)]
    drawn = torch.randn(inputs, 197, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(*layers).eval()
    return Found("actors 197-1024-512-36", model, (drawn,), (drawn[:2],), params)


# -- transformers that number proteins ---------------------------------------------------------


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, asks: Tensor, read: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.multihead_attn(asks, read, read, attn_mask=mask, need_weights=False)[0]


class _Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc_1, self.fc_2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_2(torch.relu(self.fc_1(x)))


class _Layer(nn.Module):
    """Attention to itself, to the encoder in a decoder, and a feed-forward layer; norms after."""

    def __init__(self, width: int, heads: int, decodes: bool) -> None:
        super().__init__()
        self.self_attn_layer_norm, self.ff_layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = _Attention(width, heads)
        self.positionwise_feedforward = _Feed(width)
        if decodes:
            self.enc_attn_layer_norm = nn.LayerNorm(width)
            self.encoder_attention = _Attention(width, heads)

    def forward(self, x: Tensor, encoded: Tensor | None, mask: Tensor | None) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, mask))
        if encoded is not None:
            x = self.enc_attn_layer_norm(x + self.encoder_attention(x, encoded))
        return self.ff_layer_norm(x + self.positionwise_feedforward(x))


class _Half(nn.Module):
    """The encoder, or the decoder with its output layer."""

    def __init__(
        self, tokens: int, width: int, layers: int, heads: int, places: int, decodes: bool
    ) -> None:
        super().__init__()
        self.tok_embedding = nn.Embedding(tokens, width)
        self.pos_embedding = nn.Embedding(places, width)
        self.layers = nn.ModuleList(_Layer(width, heads, decodes) for _ in range(layers))
        if decodes:
            self.fc_out = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor, encoded: Tensor | None = None) -> Tensor:
        width, length = self.tok_embedding.weight.shape[1], tokens.shape[1]
        x = self.tok_embedding(tokens) * width**0.5 + self.pos_embedding.weight[:length]
        mask = None
        if encoded is not None:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, encoded, mask)
        return x if encoded is None else self.fc_out(x)


class Numbering(nn.Module):
    """From the residues of a protein to the numbers of their places, both as tokens."""

    def __init__(self, residues: int, numbers: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.encoder = _Half(residues, width, layers, heads, 210, False)
        self.decoder = _Half(numbers, width, layers, heads, 210, True)

    def forward(self, protein: Tensor, numbers: Tensor) -> Tensor:
        return self.decoder(numbers, self.encoder(protein))


SHARED = 133  # four marks, the places 1 to 128 and X; behind them each model has chains of its own


def siblings(folder: Path, layers: int = 2, inputs: int = 64) -> Found | str:
    """Fine-tuned siblings of one size, at the output tokens that all of them have."""
    path = wheel("anarcii", "2.0.8", folder)
    if isinstance(path, str):
        return path
    params = {}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(f"_4_{layers}_128_512.pt")):
            file = io.BytesIO(archive.read(name))
            state = torch.load(file, weights_only=True, map_location="cpu")
            params[Path(name).parent.name] = {
                n: p[:SHARED].clone() if n.startswith(("decoder.tok", "decoder.fc_out")) else p
                for n, p in state.items()
            }
    generator = torch.Generator().manual_seed(0)
    drawn = (
        torch.randint(4, 25, (inputs, 40), generator=generator),
        torch.randint(4, SHARED, (inputs, 40), generator=generator),
    )
    full = torch.zeros(2, 210, dtype=torch.long), torch.zeros(2, 210, dtype=torch.long)
    model = Numbering(25, SHARED, 128, layers, 4).eval()
    return Found(f"numbering, {layers} layers", model, drawn, full, params)
