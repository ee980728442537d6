"""Rounding of weights and activations, as torchao 0.18 does it, to the last bit.

Integers of b bits: step max|w| / (2ᵇ⁻¹ − ½), codes −2ᵇ⁻¹ … 2ᵇ⁻¹ − 1, so that the largest positive
weight may be cut by half a step. (`Grid` of the library has the step max|w| / (2ᵇ⁻¹ − 1) and cuts
nothing.) mxfp4: E2M1 numbers ± {0, ½, 1, 1½, 2, 3, 4, 6}, times a power of two for 32 of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GROUP = 32  # weights that share a step, where it is not the whole channel or tensor


@dataclass(frozen=True)
class Rounding:
    """Integers of `bits`, or mxfp4 where there are none; one step for each of `groups`."""

    bits: int | None
    groups: str | int

    def __call__(self, weight: Tensor) -> Tensor:
        rows = self._rows(weight.float())
        return _restored(_mxfp4(rows) if self.bits is None else _integers(rows, self.bits), weight)

    def by_torchao(self, weight: Tensor) -> Tensor:
        """The same by torchao's own functions."""
        rows = self._rows(weight.float()).contiguous()
        if self.bits is None:
            from torchao.prototype.mx_formats.mx_tensor import MXTensor

            made = MXTensor.to_mx(rows, torch.float4_e2m1fn_x2, GROUP)
            return _restored(made.dequantize(torch.float32), weight)
        from torchao.quantization.quant_primitives import (
            MappingType,
            choose_qparams_affine,
            dequantize_affine,
            quantize_affine,
        )

        block, codes = (1, rows.shape[1]), (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)
        found = choose_qparams_affine(rows, MappingType.SYMMETRIC, block, torch.int8, *codes)
        integers = quantize_affine(rows, block, *found, torch.int8, *codes)
        made = dequantize_affine(integers, block, *found, torch.int8, *codes)
        return _restored(made, weight)

    def _rows(self, weight: Tensor) -> Tensor:
        """One group in each row, filled up with zeros, which no step depends on."""
        if self.groups == "tensor":
            return weight.reshape(1, -1)
        flat = weight.flatten(1)
        if self.groups == "channel":
            return flat
        return functional.pad(flat, (0, -flat.shape[1] % GROUP)).reshape(-1, GROUP)


def _restored(rows: Tensor, weight: Tensor) -> Tensor:
    """Groups in rows, in the shape of the weight that they are of."""
    if rows.numel() == weight.numel():
        return rows.reshape(weight.shape)
    return rows.reshape(len(weight), -1)[:, : weight[0].numel()].reshape(weight.shape)


def _integers(rows: Tensor, bits: int) -> Tensor:
    half = 2 ** (bits - 1)
    step = rows.abs().amax(1, keepdim=True) / (half - 0.5)
    step = step.clamp(min=torch.finfo(torch.float32).eps)
    return (rows * (1 / step)).round().clamp(-half, half - 1) * step


def _mxfp4(rows: Tensor) -> Tensor:
    most = rows.abs().amax(1, keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(most)) - 2)  # so that the largest has exponent two
    scale = torch.where(most > 0, scale, torch.ones_like(scale))
    size = (rows / scale).abs().clamp(max=6)
    # Halfway goes to the even mantissa: every second of the levels.
    low = torch.bucketize(size, LEVELS, right=True).clamp(max=len(LEVELS) - 1) - 1
    middle = (LEVELS[low] + LEVELS[low + 1]) / 2
    up = (size > middle) | ((size == middle) & (low % 2 == 1))
    return LEVELS[low + up.long()] * rows.sign() * scale


ROUNDINGS = {
    "int8 tensor": Rounding(8, "tensor"),
    "int4 tensor": Rounding(4, "tensor"),
    "int8 channel": Rounding(8, "channel"),
    "int4 channel": Rounding(4, "channel"),
    "int3 channel": Rounding(3, "channel"),
    "int4 groups": Rounding(4, GROUP),
    "int3 groups": Rounding(3, GROUP),
    "mxfp4": Rounding(None, GROUP),
}


def with_torchao() -> bool:
    return importlib.util.find_spec("torchao") is not None


def rounded(params: dict[str, Tensor], layers: list[str], how: Rounding) -> dict[str, Tensor]:
    """The weights of some layers on their grid, by torchao where it is installed."""
    one: Callable[[Tensor], Tensor] = how.by_torchao if with_torchao() else how
    names = {f"{layer}.weight" for layer in layers}
    return {n: one(p) if n in names else p for n, p in params.items()}


class Activations:
    """Within it the inputs of some layers are rounded to b bits, with one step for each tensor."""

    def __init__(self, model: nn.Module, layers: list[str], bits: int) -> None:
        self.modules = [model.get_submodule(layer) for layer in layers]
        self.how = Rounding(bits, "tensor")

    def __enter__(self) -> None:
        self.handles = [m.register_forward_pre_hook(self._round) for m in self.modules]

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _round(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.how(inputs[0]), *inputs[1:])
