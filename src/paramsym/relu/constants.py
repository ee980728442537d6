"""Numbers that a network computes from its weights alone, and how far rounding may move them.

What operators make of constants (a mask times a weight, a scale times integers, a weight norm) is
computed once, in float64, and the function is the one with these numbers. Their slack:

    moving entries      the slack, moved likewise
    products            F(|a| + δa, |b| + δb) - F(|a|, |b|)
    sums                |J|·δ
    monotone functions  the larger of |F(a + δ) - F(a)| and |F(a - δ) - F(a)|
    all else            twice |J|·δ: the first order, and as much again for the rest

and four roundings to float64 wherever something is computed. Eight-bit integers that operators make
of eight-bit integers are on the grid of integers again: they stand for what is within 1/2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_aggregate

from paramsym.relu.entries import Entries, entries_of
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import COMPUTED, FORMATS, Format, format_of

MOVING = frozenset(
    "view _unsafe_view reshape flatten unflatten permute transpose t expand expand_as squeeze "
    "unsqueeze slice select index index_select narrow flip roll repeat repeat_interleave unfold "
    "pixel_shuffle pixel_unshuffle channel_shuffle cat concat concatenate stack hstack vstack "
    "split split_with_sizes chunk unbind tile diagonal movedim swapaxes rot90 triu tril "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d upsample_nearest1d "
    "upsample_nearest2d im2col getitem clone detach alias contiguous lift_fresh_copy "
    "lift_fresh view_as reshape_as ravel copy dropout".split()
)
CASTS = frozenset("to _to_copy type_as".split())
_BILINEAR = frozenset("mul mm matmul bmm addmm linear dot mv".split())
_LINEAR = frozenset("add sub rsub neg sum mean".split())
_ENTRYWISE = frozenset("div reciprocal rsqrt pow log".split())
_MONOTONE = frozenset(  # in all tensors together; the absolute value is as good
    "exp sqrt tanh sigmoid softplus relu abs clamp clamp_min clamp_max maximum minimum where "
    "round floor ceil trunc sign".split()
)
over_arguments: Any = map_aggregate  # its annotation knows what a graph's nodes hold, and no more
_LARGEST = 1 << 22  # entries of a Jacobian of constants


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor (float64, or of integers) that stands for any within `slack` of it."""

    value: torch.Tensor
    slack: torch.Tensor
    formats: frozenset[Format]

    @property
    def entries(self) -> Entries:
        """The same as numbers of a piecewise linear array."""
        held = entries_of(self.value, "a constant of the network")
        return Entries(held.values, self.slack.numpy(), self.formats)


def stored(tensor: torch.Tensor) -> Constant:
    """A weight, buffer or constant as it is stored."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        return _dequantised(tensor)
    held = format_of(tensor)
    value = tensor.double() if tensor.is_floating_point() else tensor
    slack = torch.from_numpy(held.rounding(tensor.double().abs().numpy()))
    return Constant(value, slack, frozenset({held} if held.unit or held.tiny else ()))


def _dequantised(tensor: torch.Tensor) -> Constant:
    """(integer - zero point)·scale, with half a step of slack."""
    codes = tensor.int_repr()
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale, zero = torch.tensor(tensor.q_scale()), torch.tensor(tensor.q_zero_point())
    else:
        shape = [1] * tensor.ndim
        shape[tensor.q_per_channel_axis()] = -1
        scale = tensor.q_per_channel_scales().reshape(shape)
        zero = tensor.q_per_channel_zero_points().reshape(shape)
    scale = scale.double().expand(codes.shape)
    name = "uint8" if codes.dtype == torch.uint8 else "int8"
    return Constant((codes.double() - zero) * scale, scale / 2, frozenset({FORMATS[name]}))


def name_of(target: Any) -> str:
    """An operator's name without namespace and overload: "add" for aten.add.Tensor."""
    text = str(target) if not hasattr(target, "__name__") or "." in str(target) else target.__name__
    parts = text.split(".")
    return parts[1] if len(parts) == 3 else getattr(target, "__name__", text)


def fold(target: Any, args: Any, kwargs: Any) -> Any:
    """What an operator makes of constants alone; sequences of tensors come as lists."""
    name = name_of(target)
    inputs: list[Constant] = []

    def collect(value: Any) -> Any:
        if isinstance(value, Constant):
            inputs.append(value)
        return value

    over_arguments((args, kwargs), collect)

    def run(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        given, named = over_arguments(
            (args, kwargs), lambda v: next(rest) if isinstance(v, Constant) else v
        )
        return target(*given, **named)

    with torch.no_grad():
        made = run(*(c.value for c in inputs))
        if isinstance(made, (list, tuple)):
            return [_made(name, lambda *t, k=k: run(*t)[k], inputs) for k in range(len(made))]
        return _made(name, run, inputs) if isinstance(made, torch.Tensor) else made


def _made(name: str, run: Callable[..., torch.Tensor], inputs: list[Constant]) -> Constant:
    value = run(*(c.value for c in inputs))
    formats = frozenset().union(*(c.formats for c in inputs))
    if name in MOVING:
        # Places that no input fills (a triangle, padding) hold exact zeros.
        slack = run(*(c.slack if c.slack.shape == c.value.shape and _moves(c) else c.value
                      for c in inputs))  # fmt: skip
        return Constant(value, slack.double().contiguous(), formats)
    if value.is_floating_point():
        wide = value.double()
        if name in CASTS:
            slack = inputs[0].slack + (wide - inputs[0].value.double()).abs()
            return Constant(wide, slack, formats)
        slack = _slack(name, run, inputs) + 4 * COMPUTED.unit * wide.abs()
        return Constant(wide, slack, formats | ({COMPUTED} if inputs else set()))
    grid = value.dtype != torch.bool and any(f.tiny == 0.5 for f in formats)
    return Constant(value, torch.full(value.shape, 0.5 if grid else 0.0).double(), formats)


def _moves(constant: Constant) -> bool:
    """Whether a constant is moved itself, rather than being the index of what moves."""
    return constant.value.is_floating_point() or bool(constant.slack.any())


def _slack(name: str, run: Callable[..., torch.Tensor], inputs: list[Constant]) -> torch.Tensor:
    """How far the result may move with its inputs."""
    if name in _BILINEAR:
        sizes = [c.value.double().abs() for c in inputs]
        grown = [size + c.slack for size, c in zip(sizes, inputs, strict=True)]
        return (run(*grown) - run(*sizes)).abs()
    tensors = [c.value.double() if c.slack.any() else c.value for c in inputs]
    here = run(*tensors).double()
    if name in _MONOTONE:
        ends = [
            run(*(t + sign * c.slack if c.slack.any() else t
                  for t, c in zip(tensors, inputs, strict=True))).double()
            for sign in (1, -1)
        ]  # fmt: skip
        return torch.stack([(end - here).abs() for end in ends]).amax(0).nan_to_num(math.inf)
    total = torch.zeros_like(here)
    for k, constant in enumerate(inputs):
        if constant.slack.any():
            total = total + _moved(name, run, tensors, k, constant.slack)
    return total


def _moved(
    name: str, run: Callable[..., torch.Tensor], tensors: list[torch.Tensor], k: int,
    slack: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """How far the result may move with one of its inputs."""

    def along(moving: torch.Tensor) -> torch.Tensor:
        return run(*tensors[:k], moving, *tensors[k + 1 :])

    if name in _LINEAR or name in _ENTRYWISE:
        moved = torch.func.jvp(along, (tensors[k],), (slack,))[1].abs()
        return moved if name in _LINEAR else 2 * moved
    shape = along(tensors[k]).shape
    if shape.numel() * tensors[k].numel() > _LARGEST:
        raise ReLUError(
            f"the operator {name} on constants of {tensors[k].numel():,} numbers",
            "weights, or small tables that weights are computed from", "a constant",
            "Store the computed tensor as the weight.",
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of how fast it is
        jacobian = torch.func.jacrev(along)(tensors[k])
    assert isinstance(jacobian, torch.Tensor)
    rows = jacobian.reshape(shape.numel(), -1).abs()
    return 2 * (rows @ slack.reshape(-1)).reshape(shape)
