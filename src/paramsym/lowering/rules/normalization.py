"""Normalisation layers: a parameter-free core, then gain and bias as ordinary products and sums."""

from __future__ import annotations

import math

import torch
from torch._ops import OpOverload

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.recording.graph import Call
from paramsym.recording.in_place import Written, aside


def affine(build: Builder, x: Tensor, gain: Tensor | None, bias: Tensor | None, dims: list[int]):
    """Gain and bias along some axes, where they are given."""
    labels = list(range(x.ndim))
    if gain is not None:
        x = build.contract(x, gain, labels, dims, labels, power=1)
    if bias is not None:
        shape = [n if k in dims else 1 for k, n in enumerate(x.shape)]
        x = build.same([x, build.reshape(bias, shape)], x.shape)
    return x


@rule("layer_norm")
def layer_norm(build: Builder, call: Call) -> Tensor:
    x, shape, gain, bias, epsilon = build.arguments(
        call, "input|self", "normalized_shape", "weight?", "bias?", "eps", eps=1e-5
    )
    dims = list(range(x.ndim - len(shape), x.ndim))
    return affine(build, build.normalize(x, dims, True, epsilon), gain, bias, dims)


@rule("rms_norm")
def rms_norm(build: Builder, call: Call) -> Tensor:
    x, shape, gain, epsilon = build.arguments(
        call, "input|self", "normalized_shape", "weight?", "eps?"
    )
    dims = list(range(x.ndim - len(shape), x.ndim))
    if epsilon is None:  # the ε of the dtype in which it runs
        core = build.normalize(x, dims, False, 1e-7, compute=lambda t: torch.rms_norm(t, shape))
    else:
        core = build.normalize(x, dims, False, epsilon)
    return affine(build, core, gain, None, dims)


@rule("batch_norm", "instance_norm")
def batch_norm(build: Builder, call: Call) -> Tensor:
    """With running statistics an affine map per channel; otherwise a normalisation."""
    x, mean, variance, gain, bias, training, _, epsilon = build.arguments(
        call, "input|self", "running_mean?", "running_var?", "weight?", "bias?",
        "training|use_input_stats", "momentum?", "eps", training=call.name == "instance_norm",
        eps=1e-5,
    )  # fmt: skip
    if call.target.__class__.__name__ == "OpOverload":
        # aten.batch_norm(input, weight, bias, running_mean, running_var, training, …)
        gain, bias, mean, variance = mean, variance, gain, bias
    labels = list(range(x.ndim))
    if training or mean is None:
        dims = [d for d in labels if d != 1 and not (call.name == "instance_norm" and d == 0)]
        core = build.normalize(x, dims, True, epsilon)
        return affine(build, core, gain, bias, [1])
    shape = [1, x.shape[1], *[1] * (x.ndim - 2)]
    centred = build.same([x, build.reshape(mean, shape)], x.shape, signs=(1, -1))
    # the shift by epsilon pins the scale of the running variance: the gain carries it instead
    spread = build.unary(build.unary(variance, None, name="shift", shift=epsilon), "-1/2",
                         name="rsqrt")  # fmt: skip
    core = build.contract(centred, spread, labels, [1], labels, power=1)
    return affine(build, core, gain, bias, [1])


@rule(aside("batch_norm"), aside("instance_norm"))
def running_statistics(build: Builder, call: Call) -> Tensor | None:
    """What a norm leaves in its running statistics: (1 − m)·old + m·those of its input.

    The mean moves as the features do, the variance as their squares. An instance norm takes the
    mean over the batch of the statistics of each sample.
    """
    if not isinstance(call.target, Written) or isinstance(call.target.function, OpOverload):
        return None
    x, mean, variance, _, _, _, momentum = build.arguments(
        call, "input|self", "running_mean?", "running_var?", "weight?", "bias?",
        "training|use_input_stats?", "momentum", momentum=0.1,
    )  # fmt: skip
    rest = [d for d in range(x.ndim) if d != 1]
    if call.target.at in (1, "running_mean"):
        old, new = mean, build.reduce(x, rest, False, "mean")
    else:
        inner = [d for d in rest if d or call.name == aside("batch_norm")]
        count = math.prod(x.shape[d] for d in rest)
        count -= count // math.prod(x.shape[d] for d in inner)  # unbiased
        centre = build.reduce(x, inner, True, "mean")
        squares = build.unary(
            build.same([x, centre], x.shape, signs=(1, -1)), 2, "even", name="square"
        )
        squares = build.unary(squares, linear=True, factor=1 / count if count else math.nan)
        old, new = variance, build.reduce(squares, rest, False, "sum")
    return build.same([old, new], old.shape, signs=(1 - momentum, momentum))


@rule("group_norm")
def group_norm(build: Builder, call: Call) -> Tensor:
    x, groups, gain, bias, epsilon = build.arguments(
        call, "input|self", "num_groups", "weight?", "bias?", "eps", eps=1e-5
    )
    channels = x.shape[1] // groups
    shape = (x.shape[0], groups, channels, *x.shape[2:])
    split = build.reshape(build.alias(x), shape)
    core = build.normalize(split, range(2, len(shape)), True, epsilon)
    return affine(build, build.reshape(core, x.shape), gain, bias, [1])


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(build: Builder, call: Call) -> Tensor | None:
    """g·v / |v|, with the norm over all axes but one."""
    v, g, dim = build.arguments(call, "v", "g", "dim", dim=0)
    if len(call.outputs) != 1:
        return None
    dims = [k for k in range(v.ndim) if dim == -1 or k != dim % v.ndim]
    return build.multiply(build.normalize(v, dims, False, 0.0, mean=False), g) if dims else None


@rule("local_response_norm")
def local_response_norm(build: Builder, call: Call) -> Tensor:
    (x,) = build.arguments(call, "input|self")
    facts = build.again(call, call.operands[0])
    return build.mix(x, [1], x.shape, how="other", name="local_response_norm", **facts)
