"""Quantised weights as files hold them, and the weights that they stand for: each layout twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from paramsym import ParameterSymmetry
from paramsym.algebra.monomial import Monomial
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import GroupElement
from paramsym.structure.space import Space

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble k of a number holds this one of its eight codes


@dataclass(frozen=True)
class Case:
    """A layout: how a weight (outputs, inputs) lies in files, and what it is.

    `blocks` are the entries along each axis that an order must move together, `config` what
    config.json says of it, `scale` the dtype of its scales.
    """

    make: Callable[[torch.Generator, int, int], Tensors]
    read: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    blocks: tuple[int, int]
    shared: tuple[int, int]
    config: Mapping[str, object]
    scale: torch.dtype = torch.float32


def matrix(outputs: int, inputs: int) -> ParameterSymmetry:
    """One matrix that orders and scales of either sign move along both of its axes."""
    spaces = {
        "u": Space("u", Monomial(outputs, signed=True)),
        "v": Space("v", Monomial(inputs, signed=True)),
    }
    return ParameterSymmetry(spaces, {"x.weight": (parse_axis("u"), parse_axis("v"))})


def write(folder: Path, tensors: Tensors, config: Mapping[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def read(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def scaled(draw: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (0.5 + torch.rand(shape, generator=draw)).to(dtype)


# -- 8 bits ------------------------------------------------------------------------------------


def codes(draw: torch.Generator, outputs: int, inputs: int) -> torch.Tensor:
    return (8 * torch.randn(outputs, inputs, generator=draw)).to(torch.float8_e4m3fn)


def in_blocks(
    b: int, c: int, ending: str = "weight_scale_inv", dtype: torch.dtype = torch.float32
) -> Case:
    def make(draw: torch.Generator, outputs: int, inputs: int) -> Tensors:
        shape = math.ceil(outputs / b), math.ceil(inputs / c)
        scales = scaled(draw, shape, torch.float32)
        if dtype == torch.float8_e8m0fnu:
            scales = 2.0 ** torch.randint(-3, 4, shape, generator=draw)
        return {"x.weight": codes(draw, outputs, inputs), f"x.{ending}": scales.to(dtype)}

    def weight(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x, s = found["x.weight"].double(), found[f"x.{ending}"].double()
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] *= s[i // b, j // c]
        return x

    return Case(make, weight, (b, c), (b, c), {"weight_block_size": [b, c]}, dtype)


def by_channel(dtype: torch.dtype = torch.bfloat16) -> Case:
    def make(draw: torch.Generator, outputs: int, inputs: int) -> Tensors:
        found = torch.randint(-127, 128, (outputs, inputs), generator=draw).to(torch.int8)
        zeros = torch.randint(-9, 9, (outputs, 1), generator=draw).to(torch.int8)
        scales = scaled(draw, (outputs, 1), dtype)
        return {"x.weight": found, "x.weight_scale": scales, "x.weight_zero_point": zeros}

    def weight(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = found["x.weight"].double() - found["x.weight_zero_point"].double()
        return x * found["x.weight_scale"].double()

    return Case(make, weight, (1, 1), (1, 1 << 20), {}, dtype)


def by_tensor(shape: tuple[int, ...] = (1,)) -> Case:
    def make(draw: torch.Generator, outputs: int, inputs: int) -> Tensors:
        scale = scaled(draw, shape, torch.float32)
        return {"x.weight": codes(draw, outputs, inputs), "x.weight_scale": scale}

    def weight(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return found["x.weight"].double() * found["x.weight_scale"].double().reshape(())

    return Case(make, weight, (1, 1), (1 << 20, 1 << 20), {})


# -- packed ------------------------------------------------------------------------------------


def pack(x: torch.Tensor, axis: int, bits: int, places: list[int]) -> torch.Tensor:
    """Codes in int32: the k-th lowest bits of a number are code `places[k]` of its pack."""
    x = x.movedim(axis, -1).long()
    x = x.reshape(*x.shape[:-1], -1, 32 // bits)[..., places]
    found = (x << (bits * torch.arange(32 // bits))).sum(-1)
    return torch.where(found >= 1 << 31, found - (1 << 32), found).int().movedim(-1, axis)


def unpack(x: torch.Tensor, axis: int, bits: int, places: list[int]) -> torch.Tensor:
    x = x.movedim(axis, -1).long()[..., None] >> (bits * torch.arange(32 // bits))
    found = torch.empty_like(x)
    found[..., places] = x & ((1 << bits) - 1)
    return found.flatten(-2).movedim(-1, axis)


def packed(group: int, bits: int = 4, kind: str = "gptq", by_index: bool = False) -> Case:
    count = 32 // bits
    places = AWQ_ORDER if kind == "awq" else list(range(count))
    axis = 1 if kind == "awq" else 0

    def make(draw: torch.Generator, outputs: int, inputs: int) -> Tensors:
        groups = inputs // group
        found = torch.randint(1 << bits, (inputs, outputs), generator=draw)
        zeros = torch.randint(1 << bits, (groups, outputs), generator=draw)
        made = {
            "x.qweight": pack(found, axis, bits, places), "x.qzeros": pack(zeros, 1, bits, places),
            "x.scales": scaled(draw, (groups, outputs), torch.float16),
        }  # fmt: skip
        if kind == "gptq":
            index = torch.arange(inputs) // group
            index = index[torch.randperm(inputs, generator=draw)] if by_index else index
            made["x.g_idx"] = index.int()
        return made

    def weight(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = unpack(found["x.qweight"], axis, bits, places)
        zeros = unpack(found["x.qzeros"], 1, bits, places)
        index = found.get("x.g_idx", torch.arange(x.shape[0]) // group).long()
        return ((x - zeros[index]) * found["x.scales"].double()[index]).T.contiguous()

    along = count if by_index else group
    shared = 1, 1 << 20 if by_index else group
    return Case(make, weight, (count, along), shared, {"group_size": group}, torch.float16)


CASES = {
    "blocks": in_blocks(4, 3),
    "blocks, compressed-tensors": in_blocks(2, 4, "weight_scale", torch.bfloat16),
    "blocks, powers of two": in_blocks(2, 4, dtype=torch.float8_e8m0fnu),
    "channels": by_channel(),
    "channels, float16": by_channel(torch.float16),
    "tensor": by_tensor(),
    "tensor, a scalar": by_tensor(()),
    "GPTQ": packed(16),
    "GPTQ, 8 bits": packed(8, 8),
    "GPTQ by index": packed(16, by_index=True),
    "AWQ": packed(8, kind="awq"),
}


# -- elements ----------------------------------------------------------------------------------


def order_of_blocks(draw: torch.Generator, size: int, block: int, inside: bool) -> torch.Tensor:
    """A random order of whole blocks; a last one that is not full stays. Inside, too, if free."""
    whole = size // block
    order = torch.arange(size)
    moved = torch.randperm(whole, generator=draw)
    order[: whole * block] = order[: whole * block].reshape(whole, block)[moved].reshape(-1)
    if inside:
        for low in range(0, size, block):
            high = min(low + block, size)
            order[low:high] = order[low:high][torch.randperm(high - low, generator=draw)]
    return order


def scale_of_blocks(draw: torch.Generator, size: int, block: int, two: bool) -> torch.Tensor:
    """Random positive scales that are constant on blocks; powers of two where they have to be."""
    power = 2 * torch.rand(math.ceil(size / block), generator=draw, dtype=torch.float64) - 1
    power = (2 * power).round() if two else power
    return (2.0**power).repeat_interleave(block)[:size]


def of(
    symmetry: ParameterSymmetry, orders: tuple[torch.Tensor, ...] | None = None,
    scales: tuple[torch.Tensor, ...] | None = None,
) -> GroupElement:  # fmt: skip
    """Along each axis of the matrix this order, and then this scale."""
    sizes = [symmetry.spaces[name].size for name in "uv"]
    orders = orders or (torch.arange(sizes[0]), torch.arange(sizes[1]))
    scales = scales or tuple(torch.ones(n, dtype=torch.float64) for n in sizes)
    return symmetry.element({n: (o, s) for n, o, s in zip("uv", orders, scales, strict=True)})
