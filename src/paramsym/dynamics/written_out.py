"""Operators replaced while a model is differentiated: norms written out, pieces by a pattern.

Forward mode nested in itself is wrong through the kernels of layer norm, of instance norm and of
batch norm in training mode (8 to 78 % from the third derivative on, PyTorch 2.13), and fused
attention has none. So norms become sums and quotients, and attention its formula.

What is linear on pieces acts by a pattern: which piece each entry is on. Patterns can be taken from
other parameters and inputs. An analytic law is orthogonal to the fields of a pattern wherever that
pattern occurs, and so everywhere; near one θ many units are on one side for all inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import canonical_name

# Entrywise and linear on pieces, by canonical name.
_PIECES = {
    "relu", "leaky_relu", "abs", "relu6", "hardtanh", "hardsigmoid", "threshold", "rrelu",
    "clamp", "clamp_min", "clamp_max", "hardshrink", "softshrink",
}  # fmt: skip


class Patterns(TorchFunctionMode):
    """Writes down which piece each entry is on, in the order of the calls, or puts that in again.

    Attributes:
        pieces: of each call that is linear on pieces, the slopes and offsets.
        calls: how many were put in; None while they are written down.
    """

    def __init__(self, pieces: list[tuple[Tensor, Tensor]] | None = None):
        super().__init__()
        self.pieces = [] if pieces is None else pieces
        self.calls = None if pieces is None else 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if canonical_name(func) not in _PIECES or not args[0].is_floating_point():
            return func(*args, **kwargs)
        if self.calls is None:
            with torch.enable_grad():
                leaf = args[0].detach().clone().requires_grad_()
                value = func(leaf * 1, *args[1:], **kwargs)  # it may write to what it is given
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            offset = value.detach() - slope * leaf.detach()
            self.pieces.append((slope, offset))
            return func(*args, **kwargs)
        slope, offset = self.pieces[self.calls]
        self.calls += 1
        positional = any(each is True for each in args[1:])  # F.relu(x, True)
        if positional or kwargs.get("inplace") or func.__name__.endswith("_"):
            return args[0].mul_(slope).add_(offset)
        return args[0] * slope + offset


@contextmanager
def differentiable() -> Iterator[None]:
    """Run a block in which norms are sums and quotients, and attention a softmax."""
    with sdpa_kernel(SDPBackend.MATH), _WrittenOut():
        yield


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        plain = _PLAIN.get(canonical_name(func)) or func
        return plain(*args, **(kwargs or {}))


def _standardised(x: Tensor, axes: list[int], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True) + eps).sqrt()


def _layer_norm(x: Tensor, shape: Sequence[int], weight=None, bias=None, eps=1e-5, *_: Any):
    found = _standardised(x, list(range(-len(shape), 0)), eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _group_norm(x: Tensor, groups: int, weight=None, bias=None, eps=1e-5, *_: Any):
    parted = x.reshape(x.shape[0], groups, -1)
    return _by_channel(_standardised(parted, [-1], eps).reshape(x.shape), weight, bias)


def _instance_norm(
    x: Tensor, running_mean=None, running_var=None, weight=None, bias=None,
    use_input_stats=True, momentum=0.1, eps=1e-5, *_: Any,
):  # fmt: skip
    if use_input_stats:
        return _by_channel(_standardised(x, list(range(2, x.ndim)), eps), weight, bias)
    return _batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)


def _batch_norm(
    x: Tensor, running_mean=None, running_var=None, weight=None, bias=None,
    training=False, momentum=0.1, eps=1e-5, *_: Any,
):  # fmt: skip
    if training or running_mean is None or running_var is None:
        found = _standardised(x, [0, *range(2, x.ndim)], eps)
    else:
        scale = 1 / (running_var + eps).sqrt()
        found = _by_channel(x, scale, -running_mean * scale)
    return _by_channel(found, weight, bias)


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _layer_norm, "group_norm": _group_norm, "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
}  # fmt: skip
