"""Convolutions, pooling and resampling: spatial axes are frozen, channels are contracted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.normalization import affine
from paramsym.lowering.rules.placement import follows
from paramsym.primitives import Mix
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call


def _tuple(item: Any, n: int) -> tuple:
    item = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    return item * n if len(item) == 1 else item


@dataclass(frozen=True)
class _Stride:
    """How windows lie along the spatial axes: one number for each."""

    step: tuple[int, ...]
    padding: tuple[int, ...]  # in front
    spread: tuple[int, ...]  # between the positions of a kernel
    transposed: bool

    def windows(self, outputs: Sequence[int], kernel: Sequence[int]) -> Callable[..., torch.Tensor]:
        """From (batch, channel, *inputs) to (batch, channel, *outputs, *kernel): what is seen."""

        def compute(x: torch.Tensor) -> torch.Tensor:
            for d, (n, k) in enumerate(zip(outputs, kernel, strict=True)):
                reads = self._reads(d, x.shape[2 + d], n, k)
                x = torch.tensordot(x.movedim(2 + d, -1), reads.to(x), dims=1)  # (…, n, k)
                x = x.movedim(-2, 2 + d)
            return x

        return compute

    def slides(
        self, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]
    ) -> list[int]:
        """The spatial axes along which an output sees more than the one place where it stands.

        Along the others a kernel has one position, and the axis is carried through as it is: it
        may hold coordinates (a convolution over the tokens of each head).
        """
        trivial = [
            (k, step, padding) == (1, 1, 0)
            for k, step, padding in zip(kernel, self.step, self.padding, strict=True)
        ]
        return [d for d, alone in enumerate(trivial) if not alone or inputs[d] != outputs[d]]

    def is_apart(
        self, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]
    ) -> bool:
        """Whether every input of a transposed convolution writes outputs of its own."""
        plain = self.step == tuple(kernel) and not any(self.padding) and {*self.spread} == {1}
        written = [n * k for n, k in zip(inputs, kernel, strict=True)]
        return self.transposed and plain and written == [*outputs]

    def _reads(self, d: int, inputs: int, outputs: int, kernel: int) -> torch.Tensor:
        """1 at (input, output, kernel) where the output reads this input under this weight."""
        i, o = torch.arange(inputs), torch.arange(outputs)
        few, many = (i[:, None, None], o[None, :, None])
        if not self.transposed:
            few, many = many, few
        at = torch.arange(kernel) * self.spread[d] - self.padding[d]
        return few * self.step[d] + at == many


def _convolve(
    build: Builder, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
    stride: _Stride, padded: bool,
) -> Tensor:  # fmt: skip
    transposed = stride.transposed
    spatial = weight.ndim - 2
    alone = (1,) * (weight.ndim - x.ndim)  # an input without a batch is a batch of one
    x, shape = build.reshape(x, (*alone, *x.shape)), (*alone, *call.outputs[0].shape)
    slid = stride.slides(x.shape[2:], shape[2:], weight.shape[2:])
    for d in slid:
        ix.freeze(weight.axes[2 + d], f"it is a position in a kernel at {build.where}")
        ix.freeze(x.axes[2 + d], f"it is a position under a kernel at {build.where}")
    apart = bool(slid) and stride.is_apart(x.shape[2:], shape[2:], weight.shape[2:])
    windows = x if apart else _windows(build, x, weight, shape, stride, padded, slid)
    if groups > 1:
        n, c, *rest = windows.shape
        windows = build.reshape(windows, (n, groups, c // groups, *rest))
        c, *rest = weight.shape
        weight = build.reshape(weight, (groups, c // groups, *rest))
    positions = [f"p{k}" for k in range(spatial)]
    kernel = [f"k{k}" for k in range(spatial)]
    group = ["g"] if groups > 1 else []
    channels = [*group, "i", "o"] if transposed else [*group, "o", "i"]
    under = [] if apart else kernel
    beside = itertools.chain(*zip(positions, kernel, strict=True)) if apart else positions
    out = build.contract(
        windows, weight, ["b", *group, "i", *positions, *under], [*channels, *kernel],
        ["b", *group, "o", *beside],
    )  # fmt: skip
    out = affine(build, build.reshape(out, shape), None, bias, [1])
    return build.reshape(out, call.outputs[0].shape)


def _windows(
    build: Builder, x: Tensor, weight: Tensor, shape: Sequence[int], stride: _Stride, padded: bool,
    slid: Sequence[int],
) -> Tensor:  # fmt: skip
    """A virtual tensor of windows: (batch, channel, output position, kernel position).

    Kernels that look at the same windows share them, so that their sum is one kernel.
    """
    kernel = weight.shape[2:]
    if not slid:
        return build.reshape(x, (*x.shape, *kernel))  # each position by itself
    seen = (x.owner.serial, *x.layout, tuple(shape[2:]), kernel, stride, padded)
    found = build.windows.get(seen)
    if found is None:
        found = build.windows[seen] = build.new(
            (x.shape[0], x.shape[1], *shape[2:], *kernel),
            [*x.axes[:2],
             *(ix.leaf(n, frozen="it is a position") if d in slid else x.axes[2 + d]
               for d, n in enumerate(shape[2:])),
             *weight.axes[2:]],
        )  # fmt: skip
        compute = stride.windows(shape[2:], kernel)
        how = "linear" if padded else "mean"
        build.emit(Mix, found, [x], dims=tuple(2 + d for d in slid), how=how, compute=compute)
    return found


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
      "conv_transpose2d_input")  # fmt: skip
def convolution(build: Builder, call: Call) -> Tensor:
    transposed = "transpose" in call.name
    order = ("output_padding?", "groups", "dilation") if transposed else ("dilation", "groups")
    x, weight, bias, step, padding, *rest = build.arguments(
        call, "input|self", "weight", "bias?", "stride", "padding", *order,
        stride=1, padding=0, groups=1, dilation=1,
    )  # fmt: skip
    groups, spread = rest[1:] if transposed else rest[::-1]
    padded = transposed or (padding not in ("valid",) and any(map(bool, _tuple(padding, 1))))
    stride = _stride(weight, step, padding, spread, transposed)
    return _convolve(build, call, x, weight, bias, groups, stride, padded)


def _stride(weight: Tensor, step: Any, padding: Any, spread: Any, transposed: bool) -> _Stride:
    """The windows of a convolution by its arguments."""
    kernel = weight.shape[2:]
    step, spread = (_tuple(item, len(kernel)) for item in (step, spread))
    if isinstance(padding, str):
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(spread, kernel, strict=True)
        ]
        padding = tuple(n // 2 for n in total)
    return _Stride(step, _tuple(padding, len(kernel)), spread, transposed)


@rule("convolution")
def aten_convolution(build: Builder, call: Call) -> Tensor:
    x, weight, bias = build.arguments(call, "input|self", "weight", "bias?")
    step, padding, spread, transposed, _, groups = call.args[3:9]
    stride = _stride(weight, step, padding, spread, transposed)
    return _convolve(build, call, x, weight, bias, groups, stride, transposed or any(padding))


_LINEAR = ("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
           "adaptive_avg_pool3d", "interpolate", "upsample", "upsample_nearest2d",
           "upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest1d",
           "upsample_linear1d")  # fmt: skip
_MAX = ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
        "adaptive_max_pool3d", "_max_pool2d", "_max_pool1d", "max_pool2d_with_indices",
        "boolean_dispatch", "fn", "lp_pool2d")  # fmt: skip


def _spatial_axes(call: Call, ndim: int) -> list[int] | None:
    """The last axes, as many as the name says; both batched and unbatched inputs are allowed."""
    count = next((n for n in (1, 2, 3) if f"{n}d" in call.name), None)
    if count is None:
        count = ndim - 2 if ndim > 3 or call.name in _LINEAR else None
    return None if count is None else list(range(ndim - count, ndim))


@rule(*_LINEAR, *_MAX)
def pool(build: Builder, call: Call) -> Any:
    x, _, _, padding, _, _, divisor = build.arguments(
        call, "input|self", "kernel_size?", "stride?", "padding", "ceil_mode?",
        "count_include_pad?", "divisor_override?", padding=0,
    )  # fmt: skip
    shape = call.outputs[0].shape
    spatial = _spatial_axes(call, x.ndim)
    if spatial is None or any(build.tensor(v).moves for v in call.operands[1:]):
        return None
    windows = "avg" in call.name and "adaptive" not in call.name
    mean = not (windows and (any(_tuple(padding, 1)) or divisor))
    facts = build.again(call, call.operands[0])
    if call.name in _LINEAR:
        return build.mix(x, spatial, shape, how="mean" if mean else "linear", **facts)
    return _largest(build, call, x, spatial)


def _largest(build: Builder, call: Call, x: Tensor, spatial: list[int]) -> Any:
    """The largest entries of windows, and perhaps where they are."""
    facts = build.again(call, call.operands[0])
    lifts = bool(facts) and "lp_pool" not in call.name and follows(build, x.shape, **facts)
    out = build.mix(x, spatial, call.outputs[0].shape, how="max", lifts=lifts, **facts)
    if len(call.outputs) > 1:
        if call.outputs[1].id not in build.alive:
            return [out, build.frozen(call.outputs[1].shape, "it is a position", moves=False)]
        reason = f"positions of maxima are used at {call.where}"
        return [out, *build.opaque_call(call, call.outputs[1:2], reason)]
    return out


@rule("grid_sample")
def grid_sample(build: Builder, call: Call) -> Tensor | None:
    """Images read at positions: these are held, and each image keeps its own."""
    x, grid = build.arguments(call, "input", "grid")
    build.unify(x.axes[0], grid.axes[0])  # heads may stand there
    if grid.moves:
        for node in grid.axes[1:]:
            ix.freeze(node, f"it says where an image is read at {call.where}")
        build.anchors.append(build.same([grid], linear=False, homogeneous=False))
    facts = build.again(call, call.operands[0])
    return build.mix(x, list(range(2, x.ndim)), call.outputs[0].shape, **facts)


@rule("affine_grid")
def affine_grid(build: Builder, call: Call) -> list[Tensor]:
    """Positions at which an image is read: what they are computed from is held."""
    return build.opaque_call(call, call.outputs, f"it says where an image is read at {call.where}")


@rule("unfold", "im2col")
def unfold(build: Builder, call: Call) -> Tensor | None:
    (x,) = build.arguments(call, "input|self")
    if x.ndim != 4 or call.name == "unfold" and len(call.outputs[0].shape) != 3:
        return None
    channels = x.shape[1]
    width = call.outputs[0].shape[1] // channels
    wide = build.new(
        (x.shape[0], channels, width, call.outputs[0].shape[2]),
        [x.axes[0], x.axes[1], ix.leaf(width, frozen="it is a position in a window"),
         ix.leaf(call.outputs[0].shape[2], frozen="it is a position")],
    )  # fmt: skip
    for node in x.axes[2:]:
        ix.freeze(node, "it is a position")
    again = build.again(call, call.operands[0])
    if again:
        flat = again["compute"]
        again["compute"] = lambda *tensors: flat(*tensors).reshape(wide.shape)
    build.emit(Mix, wide, [x], dims=(2, 3), **again)
    return build.reshape(wide, call.outputs[0].shape)
