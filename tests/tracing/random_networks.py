# ruff: noqa: E501
"""A grammar of random networks: what a generator finds, no hand-picked zoo covers.

A network is a list of steps `(name, a, b)`; the numbers choose widths and variants. A step that
does not fit the shape at hand is skipped, so that every list is a network. Shapes are vectors
(batch, width), sequences (batch, time, width) and images (batch, channel, height, width).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = tuple[str, int, int]
Function = Callable[[Tensor, list[Tensor]], Tensor]
Rule = Callable[["RandomNetwork", Tensor, int, int], "Function | None"]

STEPS: dict[str, Rule] = {}
KINDS: dict[str, str] = {}  # step → the kinds of shapes that it accepts: v, s, i
_DIMS = {2: "v", 3: "s", 4: "i"}


def step(kinds: str) -> Callable[[Rule], Rule]:
    """Register a step for some kinds of shapes."""

    def register(rule: Rule) -> Rule:
        name = rule.__name__.rstrip("_")
        assert name not in STEPS, name
        STEPS[name], KINDS[name] = rule, kinds
        return rule

    return register


class RandomNetwork(nn.Module):
    """Runs its steps one after another; every step may look at what came before."""

    def __init__(self, kind: str, steps: Sequence[Step], head: int = 0, seed: int = 0):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.parts = nn.ModuleList()
        self.functions: list[Function] = []
        self.taken: list[Step] = []
        self.head, self.extra = head, []
        before = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.inputs = {"v": torch.randn(4, 5), "s": torch.randn(3, 5, 4),
                       "i": torch.randn(2, 2, 8, 8)}[kind].double()  # fmt: skip
        self.eval()
        memory: list[Tensor] = []
        x = self.inputs
        for name, a, b in steps:
            if _DIMS.get(x.ndim, "") not in KINDS[name]:
                continue
            function = STEPS[name](self, x, a, b)
            if function is None:
                continue
            self.double().eval()
            try:
                with torch.no_grad():
                    y = function(x.clone(), [m.clone() for m in memory])
            except RuntimeError:  # the step does not fit the shape at hand
                continue
            if y.numel() > 4000 or y.ndim not in _DIMS or not y.numel():
                continue
            self.functions.append(function)
            self.taken.append((name, a, b))
            memory.append(x)
            x = y
        if head < 6:
            width = x.shape[1] if x.ndim == 4 else x.shape[-1]
            self.last: nn.Module | None = nn.Linear(width, 3, bias=head % 2 == 0)
        else:
            self.last = None
        self.double().eval()
        self._randomise()
        torch.random.set_rng_state(before)

    # -- building ----------------------------------------------------------------------------
    def add(self, module: nn.Module) -> nn.Module:
        self.parts.append(module)
        return module

    def par(self, *shape: int, scale: float = 0.6, shift: float = 0.0) -> nn.Parameter:
        made = torch.randn(shape, generator=self.generator).double() * scale + shift
        parameter = nn.Parameter(made)
        self.register_parameter(f"p{len(list(self.parameters()))}", parameter)
        return parameter

    def buf(self, *shape: int, persistent: bool) -> Callable[[], Tensor]:
        name = f"b{len(list(self.buffers()))}"
        value = torch.randn(shape, generator=self.generator).double()
        self.register_buffer(name, value, persistent=persistent)
        return lambda: getattr(self, name)

    def name_of(self, parameter: nn.Parameter) -> str:
        return next(n for n, p in self._parameters.items() if p is parameter)

    def get(self, parameter: nn.Parameter) -> Callable[[], Tensor]:
        """Read a parameter through its name, so that substituted ones are seen."""
        name = self.name_of(parameter)
        return lambda: self._parameters[name]

    def ref(self, *shape: int, scale: float = 0.6, shift: float = 0.0) -> Callable[[], Tensor]:
        return self.get(self.par(*shape, scale=scale, shift=shift))

    def _randomise(self) -> None:
        with torch.no_grad():
            for p in self.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=self.generator).to(p))
            for name, b in self.named_buffers():
                if name.endswith("running_mean"):
                    b.copy_(0.2 * torch.randn(b.shape, generator=self.generator).to(b))
                elif name.endswith("running_var"):
                    b.copy_(0.5 + torch.rand(b.shape, generator=self.generator).to(b))

    # -- running -----------------------------------------------------------------------------
    def forward(self, x: Tensor) -> Any:
        memory: list[Tensor] = []
        for function in self.functions:
            before = x
            x = function(x, memory)
            memory.append(before)
        if self.last is None:
            return x
        out = self.last(x.movedim(1, -1) if x.ndim == 4 else x)
        if self.head == 2:
            return torch.softmax(out, -1)
        if self.head == 3:
            return out, x.mean(-1)
        if self.head == 4:
            return {
                "logits": out.mean(dim=tuple(range(out.ndim - 1))),
                "other": out.log_softmax(-1),
            }
        if self.head == 5 and len(memory) > 1:
            return out, memory[len(memory) // 2]
        return out


# -- pointwise -----------------------------------------------------------------------------------

POINTWISE: list[Callable[[Tensor], Tensor]] = [
    F.relu, lambda x: F.leaky_relu(x, 0.2), F.relu6, F.hardtanh, torch.abs, torch.tanh, F.gelu,
    lambda x: F.relu(x).square(), lambda x: x, torch.sin, lambda x: x * x.abs(),
    lambda x: x.clamp(min=0), lambda x: x.clamp(max=0), lambda x: F.relu(x.clone(), inplace=True),
    lambda x: x.clone().relu_(), lambda x: F.leaky_relu(x * 1, 0.1, inplace=True), F.hardswish,
    lambda x: x / (1 + x.abs()), lambda x: x**3, lambda x: torch.where(x > 0, x, 0.1 * x),
    lambda x: torch.maximum(x, 0.5 * x), lambda x: x.abs().sqrt(), F.softshrink,
    lambda x: torch.minimum(x, 2 * x), torch.square, F.silu, lambda x: x + 1, lambda x: 2 * x - x,
    lambda x: F.threshold(x, 0.0, 0.0), lambda x: F.threshold(x, 0.3, 0.0), torch.cos,
    lambda x: torch.clamp(x, -0.5, 0.5), lambda x: torch.clamp(x, -0.5, 1.5),
    lambda x: x * torch.sigmoid(x), lambda x: x * torch.tanh(x), lambda x: x.mul(3).div(2).neg(),
    lambda x: F.relu(x) - F.relu(-x), lambda x: torch.stack([x, -x]).amax(0),
    lambda x: torch.stack([x, 0.3 * x]).sum(0), lambda x: torch.max(x, torch.zeros_like(x)),
    lambda x: torch.where(x > 0, x, torch.tensor(1.0, dtype=x.dtype)),
    lambda x: torch.where(x > 0.5, x, torch.zeros_like(x)), lambda x: x.masked_fill(x < 0, 0.0),
    lambda x: x.masked_fill(x < 0, -1e4), lambda x: x * (x > 0), lambda x: x.sign() * x.abs() ** 1.5,
    lambda x: x.add(1).sub(1), lambda x: 1 - x, lambda x: (x * 2).add_(x), lambda x: -x,
    lambda x: x.clone().mul_(2).add_(0.5), lambda x: torch.lerp(x, x.square(), 0.3),
    lambda x: F.dropout(x, 0.5, training=False), lambda x: torch.hypot(x, x + 1),
    lambda x: F.softplus(x), lambda x: F.elu(x), lambda x: x.pow(2).pow(0.5), F.softsign,
    lambda x: x.to(torch.float64).contiguous(),
    lambda x: F.hardtanh(x * 1, 0.0, 6.0, inplace=True), lambda x: torch.relu(x).pow(3),
    lambda x: torch.addcmul(x, x, x, value=0.5), lambda x: x.exp().log(), F.tanhshrink,
    lambda x: torch.nan_to_num(x), lambda x: F.rrelu(x, training=False),
    lambda x: torch.where(torch.ones_like(x, dtype=torch.bool), x, 2.0),
    lambda x: (x.clone().fill_(0) + x), lambda x: torch.fmax(x, torch.zeros((), dtype=x.dtype)),
    lambda x: torch.copysign(x, x), lambda x: x.clone().clamp_(min=0), lambda x: x @ torch.eye(
        x.shape[-1], dtype=x.dtype), lambda x: x.sigmoid() * 2 - 1, lambda x: x.heaviside(x),
]  # fmt: skip


@step("vsi")
def pointwise(net, x, a, b):
    f = POINTWISE[(8 * a + b) % len(POINTWISE)]
    return lambda x, m: f(x)


@step("vsi")
def rectify(net, x, a, b):
    return lambda x, m: F.relu(x)


@step("vsi")
def prelu(net, x, a, b):
    width = x.shape[1] if x.ndim > 1 else 1
    layer = net.add(nn.PReLU(width if a % 2 else 1))
    return lambda x, m: layer(x)


@step("vsi")
def activation_module(net, x, a, b):
    kinds = [nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh(-2, 2), nn.ELU(inplace=True), nn.SELU(),
             nn.GLU(1) if x.shape[1] % 2 == 0 else nn.Tanh(), nn.Softmax(1), nn.Mish(),
             nn.LeakyReLU(0.3, inplace=True), nn.Hardshrink(), nn.Threshold(0, 0, inplace=True),
             nn.Softmin(-1), nn.LogSoftmax(-1), nn.CELU(), nn.Hardsigmoid(), nn.Dropout(0.5)]  # fmt: skip
    layer = net.add(kinds[(8 * a + b) % len(kinds)])
    return lambda x, m: layer(x)


@step("vsi")
def skip(net, x, a, b):
    """Add an earlier activation of the same shape."""

    def function(x, m):
        fits = [y for y in m if y.shape == x.shape]
        if not fits:
            return x
        y = fits[a % len(fits)]
        if b == 0:
            return torch.maximum(x, y)
        if b == 1:
            return x * y
        if b == 2:
            return x - 2 * y
        if b == 3:
            return torch.where(x > y, x, y)
        if b == 4:
            return (x + y) / 2
        if b == 5:
            z = x.clone()
            z += y
            return z
        return x + y

    return function


@step("vsi")
def join(net, x, a, b):
    """Concatenate an earlier activation."""
    dim = 1 if x.ndim == 4 else -1

    def function(x, m):
        fits = [y for y in m if y.ndim == x.ndim and all(
            y.shape[k] == x.shape[k] for k in range(x.ndim) if k != dim % x.ndim)]  # fmt: skip
        if not fits:
            return x
        y = fits[a % len(fits)]
        return torch.cat([x, y, x] if b == 0 else [y, x] if b % 2 else [x, y], dim)

    return function


@step("vsi")
def scaled(net, x, a, b):
    """A factor per channel: learned, constant or a buffer, in several spellings."""
    dim = 1 if x.ndim == 4 else x.ndim - 1
    n = x.shape[dim]
    shape = [n if k == dim else 1 for k in range(x.ndim)]
    if a % 8 == 7:
        constant = torch.randn(n, generator=net.generator).double()
        return lambda x, m: x * constant.view(shape)
    if a % 8 == 6:
        gain = net.buf(n, persistent=bool(b % 2))
        return lambda x, m: x * gain().view(shape)
    gain = net.ref(*(shape if b % 2 else [n]), scale=0.2, shift=1.0)
    view = (lambda: gain()) if b % 2 else (lambda: gain().view(shape))
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: x * view(), lambda x: x * (1 + view()), lambda x: x * view().exp(),
        lambda x: x / view(), lambda x: x * view().abs(), lambda x: x + view(),
    ]  # fmt: skip
    form = forms[a % 6]
    return lambda x, m: form(x)


@step("vsi")
def scalar(net, x, a, b):
    s = net.ref(*([] if b % 2 else [1]), shift=1.0)
    forms = [lambda x: x * s(), lambda x: x * s().exp(), lambda x: x + s(), lambda x: x / s(),
             lambda x: x * s() + s()]  # fmt: skip
    form = forms[a % 5]
    return lambda x, m: form(x)


# -- features along the last axis ---------------------------------------------------------------


@step("vs")
def linear(net, x, a, b):
    layer = net.add(nn.Linear(x.shape[-1], 2 + a, bias=b % 3 != 0))
    return lambda x, m: layer(x)


@step("vs")
def dense(net, x, a, b):
    layer = net.add(nn.Linear(x.shape[-1], 2 + a))
    return lambda x, m: F.relu(layer(x))


@step("vs")
def spelled_linear(net, x, a, b):
    """A matrix product in other words, or with a derived weight."""
    n, k = x.shape[-1], 2 + a % 4
    w = net.ref(n, k)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: x @ w(),
        lambda x: torch.einsum("...i,io->...o", x, w()),
        lambda x: torch.matmul(x, w()),
        lambda x: F.linear(x, w().T),
        lambda x: F.linear(x, w().T / w().T.norm(dim=1, keepdim=True)),
        lambda x: F.linear(x, (w() / w().norm()).T),
        lambda x: F.linear(x, w().abs().T),
        lambda x: F.linear(x, w().softmax(0).T),
        lambda x: F.linear(x, w().T - w().T.mean(1, keepdim=True)),
        lambda x: F.linear(F.normalize(x, dim=-1), F.normalize(w(), dim=0).T),
        lambda x: F.linear(x, torch.tril(w()).T),
        lambda x: F.linear(x, torch.cat([w().T, -w().T])),
        lambda x: (x.unsqueeze(-1) * w()).sum(-2),
        lambda x: F.linear(x, w().exp().T),
        lambda x: F.linear(F.linear(x, w().T), w()),
        lambda x: torch.tanh(x @ w()) @ w().T,
        lambda x: F.linear(x, w().T, bias=w().sum(0)),
        lambda x: -torch.cdist(x.reshape(-1, n), w().T).reshape(*x.shape[:-1], k),
        lambda x: F.linear(x, w().flip(0).T),
        lambda x: F.linear(x, w()[torch.arange(n).flip(0)].T),
    ]
    form = forms[(8 * b + a) % len(forms)]
    return lambda x, m: form(x)


@step("vs")
def twice(net, x, a, b):
    """One layer applied repeatedly."""
    n = x.shape[-1]
    layer = net.add(nn.Linear(n, n, bias=b % 2 == 0))
    f = POINTWISE[a % len(POINTWISE)]
    return lambda x, m: layer(f(layer(x)))


@step("vs")
def residual_block(net, x, a, b):
    n = x.shape[-1]
    up, down = net.add(nn.Linear(n, 3 + a)), net.add(nn.Linear(3 + a, n, bias=b % 2 == 0))
    norm = net.add([nn.Identity(), nn.LayerNorm(n), nn.RMSNorm(n), nn.LayerNorm(
        n, elementwise_affine=False)][b % 4])  # fmt: skip
    return lambda x, m: x + down(F.gelu(up(norm(x))))


@step("vs")
def norm(net, x, a, b):
    n = x.shape[-1]
    eps = 1e-12 if b % 3 == 0 else 1e-5
    if a == 0:
        layer = net.add(nn.LayerNorm(n, eps=eps))
    elif a == 1:
        layer = net.add(nn.LayerNorm(n, elementwise_affine=False, eps=eps))
    elif a == 2:
        layer = net.add(nn.RMSNorm(n, eps=eps))
    elif a == 3:
        layer = net.add(nn.LayerNorm(n, bias=False, eps=eps))
    elif a == 4:
        w = net.ref(n, scale=0.2, shift=1)
        return lambda x, m: w() * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
    elif a == 5:
        return lambda x, m: F.normalize(x, dim=-1, eps=1e-12 if b % 3 else 0.5)
    elif a == 6:
        w, c = net.ref(n, shift=1), net.ref(n)
        return lambda x, m: w() * ((x - x.mean(-1, keepdim=True)) / torch.sqrt(
            x.var(-1, keepdim=True, unbiased=b % 2 == 0) + eps)) + c()  # fmt: skip
    else:
        return lambda x, m: x - x.mean(-1, keepdim=True)
    return lambda x, m: layer(x)


@step("vs")
def normed_reader(net, x, a, b):
    n = x.shape[-1]
    layers = [net.add(nn.Linear(n, n)), net.add(nn.LayerNorm(n)), net.add(nn.Linear(n, 2 + a))]
    return lambda x, m: layers[2](layers[1](layers[0](x)))


@step("vs")
def gate(net, x, a, b):
    n = x.shape[-1]
    layer = net.add(nn.Linear(n, 2 * (2 + a), bias=b % 2 == 0))
    forms = [lambda u, v: F.silu(u) * v, lambda u, v: u * v, lambda u, v: torch.sigmoid(u) * v,
             lambda u, v: F.relu(u) * v, lambda u, v: u / (1 + v.abs()), lambda u, v: u * v.exp(),
             lambda u, v: torch.atan2(u, v), lambda u, v: F.relu(u) + v]  # fmt: skip
    form = forms[b % 8]

    def function(x, m):
        if a % 3 == 0:
            u, v = layer(x).chunk(2, -1)
        elif a % 3 == 1:
            y = layer(x)
            u, v = y[..., ::2], y[..., 1::2]
        else:
            y = layer(x)
            u, v = y.unflatten(-1, (2, -1)).unbind(-2)
        return form(u, v)

    return function


@step("vs")
def rearranged(net, x, a, b):
    """Reorderings and fixed maps of features."""
    n = x.shape[-1]
    index = torch.randperm(n, generator=net.generator)
    some = torch.randint(0, n, (3,), generator=net.generator)
    half = max(1, n // 2)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.roll(1, -1), lambda x: x.flip(-1), lambda x: x.cumsum(-1),
        lambda x: x[..., index], lambda x: x[..., some], lambda x: x.index_select(-1, index),
        lambda x: torch.cat([x[..., half:], x[..., :half]], -1), lambda x: x[..., :half],
        lambda x: x[..., ::2], lambda x: x[..., 1:], lambda x: F.pad(x, (1, 2)),
        lambda x: F.pad(x, (1, 0), value=1.0), lambda x: torch.cat([x, x], -1),
        lambda x: x.repeat_interleave(2, -1), lambda x: x.repeat(*[1] * (x.ndim - 1), 2),
        lambda x: torch.cat([x, x.mean(-1, keepdim=True)], -1), lambda x: x.sort(-1).values,
        lambda x: x * torch.arange(1, n + 1), lambda x: x + x.sum(-1, keepdim=True),
        lambda x: x - x.amax(-1, keepdim=True), lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: x * x.mean(-1, keepdim=True), lambda x: torch.diff(x, dim=-1) if n > 2 else x,
        lambda x: x.softmax(-1), lambda x: torch.cat([x.tanh(), x], -1),
        lambda x: torch.stack([x, x.relu()], -1).flatten(-2),
        lambda x: x * (x == x.amax(-1, keepdim=True)), lambda x: x.unfold(-1, 2, 1).flatten(-2)
        if n > 2 else x, lambda x: torch.cat([x.relu(), (-x).relu()], -1),
        lambda x: x.gather(-1, index.expand(x.shape)), lambda x: x.cummax(-1).values,
        lambda x: (x[..., None] @ x[..., None, :]).flatten(-2) if n < 5 else x,
        lambda x: x.logsumexp(-1, keepdim=True) + x, lambda x: x.topk(min(2, n), -1).values,
        lambda x: x.median(-1, keepdim=True).values + x, lambda x: x.std(-1, keepdim=True) * x,
        lambda x: x.prod(-1, keepdim=True) + x, lambda x: x.tile(2),
        lambda x: x.narrow(-1, 0, half) + x.narrow(-1, n - half, half),
        lambda x: torch.cat(x.tensor_split(2, -1)[::-1], -1) if n > 1 else x,
        lambda x: torch.cat(x.split(half, -1)[::-1], -1), lambda x: x.norm(p=1, dim=-1,
            keepdim=True) * x, lambda x: x.norm(p=0, dim=-1, keepdim=True) * x,
        lambda x: x.var(-1, keepdim=True) + x, lambda x: x.argmax(-1, keepdim=True) * x,
    ]  # fmt: skip
    form = forms[(8 * a + b) % len(forms)]
    return lambda x, m: form(x)


@step("vs")
def factored(net, x, a, b):
    """Read the features as a product, act on one factor, read them flat again."""
    heads, width = 2 + a % 2, 2 + b % 3
    layer = net.add(nn.Linear(x.shape[-1], heads * width))
    w, v = net.ref(width, width), net.ref(heads, heads)
    each, gain = net.ref(heads, width, width), net.ref(heads)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda y: y @ w(), lambda y: v() @ y, lambda y: y.transpose(-1, -2).contiguous(),
        lambda y: torch.einsum("...hi,hio->...ho", y, each()), lambda y: y * gain()[:, None],
        lambda y: y.softmax(-1), lambda y: y.softmax(-2), lambda y: F.normalize(y, dim=-1),
        lambda y: y.amax(-1), lambda y: y.mean(-2), lambda y: y.relu() @ w(), lambda y: y.flip(-1),
        lambda y: F.layer_norm(y, (width,)), lambda y: F.layer_norm(y, (heads, width)),
        lambda y: y[..., 0, :], lambda y: y.sum(-1, keepdim=True) * y,
        lambda y: torch.cat([y, y[..., :1, :]], -2), lambda y: y @ y.transpose(-1, -2),
        lambda y: torch.stack([y[..., k, :] * (k + 1) for k in range(heads)], -2),
        lambda y: torch.cat([y[..., k, :] for k in reversed(range(heads))], -1),
    ]  # fmt: skip
    form = forms[(8 * (a // 2) + b) % len(forms)]

    def function(x, m):
        y = form(layer(x).view(*x.shape[:-1], heads, width))
        return y.reshape(*x.shape[:-1], -1)

    return function


@step("vs")
def in_place(net, x, a, b):
    n = x.shape[-1]
    layer = net.add(nn.Linear(n, n + 2))
    small = net.add(nn.Linear(n, 2))

    def function(x, m):
        y = layer(x)
        if a == 0:
            y[..., :2] += small(x)
        elif a == 1:
            y[..., :2] = small(x)
        elif a == 2:
            y[..., :2].mul_(2)
        elif a == 3:
            y[..., 1:].relu_()
        elif a == 4:
            z = torch.zeros_like(y)
            z[..., 2:] = F.relu(y[..., 2:])
            z[..., :2] = small(x)
            return z
        elif a == 5:
            z = torch.empty_like(y)
            z.copy_(y)
            z.add_(y)
            return z
        elif a == 6:
            y[..., 0] = 0.0
        else:
            z = y.new_zeros(y.shape)
            z[..., 1:] += y[..., 1:]
            z.relu_()
            return z
        return y.tanh() if b % 2 else y

    return function


@step("vs")
def branches(net, x, a, b):
    n, k = x.shape[-1], 2 + a % 4
    one, two = net.add(nn.Linear(n, k)), net.add(nn.Linear(n, k))
    mask = torch.rand(k, generator=net.generator) > 0.5
    forms = [lambda u, v: torch.maximum(u, v), lambda u, v: torch.minimum(u, v.relu()),
             lambda u, v: torch.where(mask, u, v), lambda u, v: torch.stack([u, v]).amax(0),
             lambda u, v: torch.cat([u, v], -1), lambda u, v: u.relu() + v.relu(),
             lambda u, v: F.cosine_similarity(u, v, dim=-1)[..., None] * u,
             lambda u, v: torch.stack([u, v], -1).flatten(-2), lambda u, v: u.relu() - v,
             lambda u, v: torch.where(u > 0, u, v), lambda u, v: u * (u > v),
             lambda u, v: torch.stack([u, v], 1).mean(1), lambda u, v: u.lerp(v, 0.3),
             lambda u, v: torch.addcmul(u, u, v), lambda u, v: (u * v).sum(-1, keepdim=True) + u,
             lambda u, v: torch.cdist(u[..., None, :], v[..., None, :])[..., 0]]  # fmt: skip
    form = forms[(a // 4 * 8 + b) % len(forms)]
    return lambda x, m: form(one(x), two(x))


@step("vs")
def bilinear(net, x, a, b):
    n = x.shape[-1]
    layer = net.add(nn.Bilinear(n, n, 2 + a % 3, bias=b % 2 == 0))
    return lambda x, m: layer(x, F.relu(x) if b > 3 else x)


@step("vs")
def maxout(net, x, a, b):
    pieces, n = 2 + b % 2, 2 + a % 3
    layer = net.add(nn.Linear(x.shape[-1], n * pieces))
    dims = (n, pieces) if b < 4 else (pieces, n)

    def function(x, m):
        y = layer(x).unflatten(-1, dims)
        return y.amax(-1 if b < 4 else -2) if a % 2 else y.max(-1 if b < 4 else -2).values

    return function


@step("vs")
def table(net, x, a, b):
    """Embeddings of positions or of fixed tokens."""
    n = x.shape[-1]
    rows = x.shape[1] if x.ndim == 3 else x.shape[0]
    index = torch.randint(0, 6, (rows,), generator=net.generator)
    layer = net.add(nn.Embedding(6, n, max_norm=1.0 if a == 5 else None, padding_idx=0 if a == 6
                                 else None))  # fmt: skip
    w = net.ref(6, n)
    positions = net.ref(rows, n)
    offsets = torch.arange(0, rows)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: x + layer(index), lambda x: x + F.one_hot(index, 6).double() @ w(),
        lambda x: x + positions(), lambda x: x + w()[index], lambda x: x * layer(index),
        lambda x: x + layer(index), lambda x: x + layer(index),
        lambda x: x + F.embedding_bag(index, w(), offsets, mode=["sum", "mean", "max"][b % 3]),
    ]  # fmt: skip
    form = forms[a]
    return lambda x, m: form(x)


@step("v")
def batch_norm(net, x, a, b):
    layer = net.add(nn.BatchNorm1d(x.shape[1], affine=a % 3 != 0, track_running_stats=a != 1))
    return lambda x, m: layer(x)


@step("v")
def by_hand_normed(net, x, a, b):
    n = x.shape[1]
    mean, var = net.buf(n, persistent=True), net.buf(n, persistent=True)
    w, c = net.ref(n), net.ref(n)
    if a == 0:
        return lambda x, m: F.batch_norm(x, mean(), var().abs(), w(), c())
    if a == 1:
        return lambda x, m: F.batch_norm(x, mean(), var().abs() + 0.1, w(), c(), False, 0.1, 1e-3)
    if a == 2:
        return lambda x, m: (x - mean()) / (var().abs() + 1e-5).sqrt() * w() + c()
    return lambda x, m: (x - mean()) / var() * w()


@step("v")
def to_sequence(net, x, a, b):
    layer = net.add(nn.Linear(x.shape[1], 12))
    if a % 3 == 0:
        return lambda x, m: layer(x).view(-1, 3, 4)
    if a % 3 == 1:
        return lambda x, m: torch.stack([layer(x), layer(x).relu(), -layer(x)], 1)
    other = net.add(nn.Linear(x.shape[1], 12))
    return lambda x, m: torch.stack([layer(x), other(x)], 1)


@step("v")
def to_image(net, x, a, b):
    layer = net.add(nn.Linear(x.shape[1], 2 * 4 * 4))
    return lambda x, m: layer(x).view(-1, 2, 4, 4)


# -- sequences ----------------------------------------------------------------------------------


@step("s")
def pooled(net, x, a, b):
    w = net.ref(x.shape[-1])
    forms = [lambda x: x.mean(1), lambda x: x[:, -1], lambda x: x.amax(1), lambda x: x.flatten(1),
             lambda x: torch.einsum("bt,btd->bd", (x @ w()).softmax(1), x), lambda x: x.sum(1),
             lambda x: x[:, 0] + x[:, 1], lambda x: torch.cat([x[:, 0], x[:, -1]], 1),
             lambda x: x.transpose(1, 2).flatten(1), lambda x: x.mean(2), lambda x: x.max(1).values,
             lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1).squeeze(-1),
             lambda x: F.max_pool1d(x.transpose(1, 2), 2).flatten(1)]  # fmt: skip
    form = forms[(8 * (a % 2) + b) % len(forms)]
    return lambda x, m: form(x)


@step("s")
def attention(net, x, a, b):
    """Attention by hand: grouped heads, rotations, biases, masks, with or without softmax."""
    d, heads, e = x.shape[-1], 2 + 2 * (b % 2), 4 if a == 3 else 2
    groups = heads // (1 + a % 2)
    q = net.add(nn.Linear(d, heads * e, bias=b % 3 == 0))
    k = net.add(nn.Linear(d, groups * e, bias=b % 2 == 0))
    v = net.add(nn.Linear(d, groups * e, bias=b % 4 == 0))
    o = net.add(nn.Linear(heads * e, d, bias=b % 5 == 0))
    time = x.shape[1]
    angle = torch.outer(torch.arange(time).double(), torch.tensor([1.0, 0.3][: e // 2]).double())
    half = torch.cat([angle, angle], -1)
    alibi = -(torch.arange(time)[:, None] - torch.arange(time)).abs().double()
    slopes = torch.tensor([2.0 ** -(h + 1) for h in range(heads)]).double()
    causal = torch.ones(time, time).tril().bool()
    bias = net.ref(heads, time, time) if a == 6 else None
    qn = net.add(nn.RMSNorm(e)) if b == 7 else None

    def rotate(y):  # (batch, heads, time, e)
        if a == 2:
            turned = torch.cat([-y[..., e // 2 :], y[..., : e // 2]], -1)
            return y * half.cos() + turned * half.sin()
        if a == 3:
            u, w = y[..., ::2], y[..., 1::2]
            c, s = angle.cos(), angle.sin()
            return torch.stack([u * c - w * s, u * s + w * c], -1).flatten(-2)
        if a == 4:
            z = torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2).contiguous())
            return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
        return y

    def function(x, m):
        n, t = x.shape[:2]
        split = lambda y, h: y.view(n, t, h, e).transpose(1, 2)  # noqa: E731
        qs, ks, vs = split(q(x), heads), split(k(x), groups), split(v(x), groups)
        if qn is not None:
            qs, ks = qn(qs), qn(ks)
        qs, ks = rotate(qs), rotate(ks)
        if a == 5:
            ks, vs = (y.repeat_interleave(heads // groups, 1) for y in (ks, vs))
            mixed = F.scaled_dot_product_attention(qs, ks, vs, is_causal=b % 2 == 0)
        else:
            if groups < heads:
                ks, vs = (y[:, :, None].expand(n, groups, heads // groups, t, e).reshape(
                    n, heads, t, e) for y in (ks, vs))  # fmt: skip
            scores = qs @ ks.transpose(-1, -2) / math.sqrt(e)
            if a == 1:
                scores = scores + slopes[:, None, None] * alibi
            if bias is not None:
                scores = scores + bias()
            if b >= 4 and a != 7:
                scores = scores.masked_fill(~causal, float("-inf") if b % 2 else -1e9)
            weights = scores if a == 7 else scores.softmax(-1)
            mixed = weights @ vs
        return x + o(mixed.transpose(1, 2).reshape(n, t, heads * e))

    return function


@step("s")
def fused_attention(net, x, a, b):
    """One projection for queries, keys and values, taken apart in several ways."""
    d, heads, e = x.shape[-1], 2, 2
    qkv = net.add(nn.Linear(d, 3 * heads * e, bias=b % 2 == 0))
    o = net.add(nn.Linear(heads * e, d))

    def function(x, m):
        n, t = x.shape[:2]
        y = qkv(x)
        if a % 4 == 0:
            parts = y.view(n, t, 3, heads, e).permute(2, 0, 3, 1, 4).unbind(0)
        elif a % 4 == 1:
            parts = [z.view(n, t, heads, e).transpose(1, 2) for z in y.chunk(3, -1)]
        elif a % 4 == 2:
            parts = [z.transpose(1, 2) for z in y.view(n, t, heads, 3, e).unbind(3)]
        else:
            parts = y.view(n, t, heads, 3 * e).transpose(1, 2).chunk(3, -1)
        if b % 4 == 3:
            weights = (parts[0] @ parts[1].transpose(-1, -2)).relu()
            mixed = weights @ parts[2]
        else:
            mixed = F.scaled_dot_product_attention(*parts)
        return o(mixed.transpose(1, 2).flatten(2)) + (x if a > 3 else 0)

    return function


@step("s")
def linear_attention(net, x, a, b):
    d, e = x.shape[-1], 2 + a % 3
    q, k, v = (net.add(nn.Linear(d, e, bias=b % 2 == 0)) for _ in range(3))
    f = [lambda y: y, F.relu, lambda y: F.elu(y) + 1, lambda y: y.softmax(-1)][b % 4]

    def function(x, m):
        kv = torch.einsum("bte,btf->bef", f(k(x)), v(x))
        if a > 3:
            kv = kv / x.shape[1]
        return torch.einsum("bte,bef->btf", f(q(x)), kv)

    return function


@step("s")
def multihead(net, x, a, b):
    d = x.shape[-1]
    if d % 2:
        return None
    layer = net.add(nn.MultiheadAttention(d, 2, bias=a % 2 == 0, batch_first=b % 2 == 0,
                                          add_bias_kv=a == 7))  # fmt: skip
    mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool() if b >= 4 else None
    padding = torch.zeros(x.shape[0], x.shape[1]).bool() if a == 6 and b % 2 == 0 else None
    if mask is not None and not b % 2 == 0:
        mask = None
    return lambda x, m: layer(x, x, F.relu(x) if a > 3 else x, attn_mask=mask,
                              key_padding_mask=padding, need_weights=a == 5)[0]  # fmt: skip


@step("s")
def transformer(net, x, a, b):
    d = x.shape[-1]
    if d % 2 or d > 8:
        return None
    if b % 3 == 0:
        layer = net.add(
            nn.TransformerDecoderLayer(d, 2, 5, batch_first=True, norm_first=a % 2 == 0)
        )
        return lambda x, m: layer(x, x.relu() if a > 3 else x)
    layer = net.add(nn.TransformerEncoderLayer(d, 2, 5, batch_first=True, norm_first=a % 2 == 0,
        activation="relu" if a % 3 else "gelu", bias=b % 2 == 0))  # fmt: skip
    return lambda x, m: layer(x)


@step("s")
def recurrent(net, x, a, b):
    d, h = x.shape[-1], 2 + b % 3
    cell = [nn.LSTM, nn.GRU, nn.RNN][a % 3]
    more = {"nonlinearity": "relu"} if a == 2 else {"proj_size": 1} if a == 3 and b > 5 else {}
    layer = net.add(cell(d, h, num_layers=1 + b % 2, bidirectional=b % 4 >= 2, batch_first=b < 5,
                         bias=a < 6, **more))  # fmt: skip
    start = net.ref((1 + b % 2) * (1 + (b % 4 >= 2)), x.shape[0] if b < 5 else x.shape[1], h)

    def function(x, m):
        if a == 4 or a == 5:  # final states
            out, state = layer(x)
            state = state[0] if isinstance(state, tuple) else state
            if a == 4 and b % 4 >= 2:
                state = torch.cat([state[-2], state[-1]], -1)
            elif a == 4:
                state = state[-1]
            else:
                return out + state[-1].mean() if b % 2 else out
            return state
        if a == 7:  # GRU with a learned initial state
            return layer(x, start())[0]
        return layer(x)[0]

    return function


@step("s")
def hand_recurrent(net, x, a, b):
    d, h = x.shape[-1], 2 + a % 3
    w, u = net.add(nn.Linear(d, h)), net.add(nn.Linear(h, h))
    g = net.add(nn.Linear(d + h, h))
    cell = net.add([nn.GRUCell(d, h), nn.LSTMCell(d, h), nn.RNNCell(d, h)][a % 3])
    f = [torch.tanh, F.relu, lambda y: y][b % 3]

    def function(x, m):
        state = x.new_zeros(x.shape[0], h)
        memory = x.new_zeros(x.shape[0], h)
        states = []
        for t in range(x.shape[1]):
            if b < 4:
                new = f(w(x[:, t]) + u(state))
                z = torch.sigmoid(g(torch.cat([x[:, t], state], -1)))
                state = z * state + (1 - z) * new if a > 3 else new
            elif a % 3 == 1:
                state, memory = cell(x[:, t], (state, memory))
            else:
                state = cell(x[:, t], state)
            states.append(state)
        return torch.stack(states, 1)

    return function


@step("s")
def mixer(net, x, a, b):
    t = x.shape[1]
    one, two = net.add(nn.Linear(t, 2 + a % 4)), net.add(nn.Linear(2 + a % 4, t if b % 2 else 3))
    return lambda x, m: two(F.relu(one(x.transpose(1, 2)))).transpose(1, 2)


@step("s")
def along_time(net, x, a, b):
    d, t = x.shape[-1], x.shape[1]
    conv = net.add(nn.Conv1d(d, 2 + b % 3, 2 + a % 2, padding=b % 2, bias=b % 3 > 0))
    token = net.ref(1, 1, d)
    gain = net.ref(t)
    queries = net.ref(3, d)
    other = net.add(nn.Linear(d, d))
    steps = torch.randperm(t, generator=net.generator)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: conv(x.transpose(1, 2)).transpose(1, 2) if t > 3 else x,
        lambda x: torch.cat([token().expand(x.shape[0], -1, -1), x], 1),
        lambda x: x.cumsum(1), lambda x: x.flip(1), lambda x: x[:, steps],
        lambda x: x * gain()[:, None], lambda x: x + x.mean(1, keepdim=True),
        lambda x: torch.cat([x[:, :1], other(x[:, 1:])], 1), lambda x: x[:, 1:] - x[:, :-1],
        lambda x: torch.cat([other(x), x], 1), lambda x: (queries() @ x.transpose(1, 2)).softmax(
            -1) @ x, lambda x: x.softmax(1), lambda x: x.transpose(1, 2),
        lambda x: torch.stack([other(x).mean(1), x.relu().mean(1)], 1), lambda x: x.sort(1).values,
        lambda x: x.reshape(x.shape[0], t * d, 1), lambda x: F.pad(x, (0, 0, 1, 0)),
        lambda x: queries().expand(x.shape[0], -1, -1) * x.mean(1, keepdim=True),
        lambda x: torch.cat([x, queries().expand(x.shape[0], -1, -1)], 1),
        lambda x: torch.bmm(x, x.transpose(1, 2)), lambda x: x - x.mean(1, keepdim=True),
        lambda x: F.instance_norm(x), lambda x: F.layer_norm(x, (t, d)),
        lambda x: F.group_norm(x, 1), lambda x: x[:, ::2].contiguous(),
    ]  # fmt: skip
    form = forms[(8 * a + b) % len(forms)]
    return lambda x, m: form(x)


@step("s")
def channels_first(net, x, a, b):
    """Norms and activations of one-dimensional signals (batch, channel, time)."""
    c = x.shape[2]
    layer = net.add([nn.BatchNorm1d(c), nn.InstanceNorm1d(c, affine=True), nn.GroupNorm(1, c),
                     nn.PReLU(c)][a % 4])  # fmt: skip
    return lambda x, m: layer(x.transpose(1, 2)).transpose(1, 2)


# -- images -------------------------------------------------------------------------------------


@step("i")
def conv(net, x, a, b):
    c, size = x.shape[1], x.shape[2]
    if size < 3:
        return None
    modes = ["zeros", "reflect", "circular", "replicate"]
    layer = net.add(nn.Conv2d(c, 2 + a % 4, 3 if a < 5 else 1, padding=b % 2, bias=b % 3 > 0,
        stride=2 if b == 7 else 1, dilation=1, padding_mode=modes[b % 4 if b > 3 else 0]))  # fmt: skip
    return lambda x, m: layer(x)


@step("i")
def conv_block(net, x, a, b):
    c, k = x.shape[1], 2 + a % 4
    layer, norm = net.add(nn.Conv2d(c, k, 3, padding=1, bias=False)), net.add(nn.BatchNorm2d(k))
    act = net.add(nn.ReLU(inplace=True))
    return lambda x, m: act(norm(layer(x)))


@step("i")
def grouped(net, x, a, b):
    c = x.shape[1]
    groups = c if a % 2 == 0 else 2 if c % 2 == 0 else 1
    many = groups * (1 + b % 2)
    if x.shape[2] < 3:
        return None
    if b >= 6:
        layer = net.add(nn.ConvTranspose2d(c, many, 2, groups=groups))
    else:
        layer = net.add(nn.Conv2d(c, many, 3, padding=1, groups=groups, bias=b % 3 > 0))
    return lambda x, m: layer(x)


@step("i")
def transposed(net, x, a, b):
    layer = net.add(nn.ConvTranspose2d(x.shape[1], 2 + a % 3, 2, stride=1 + b % 2, bias=b % 3 > 0))
    return lambda x, m: layer(x)


@step("i")
def image_norm(net, x, a, b):
    c = x.shape[1]
    eps = 1e-12 if b == 0 else 1e-5
    divisor = 2 if c % 2 == 0 else 1
    layers = [nn.BatchNorm2d(c, eps=eps), nn.BatchNorm2d(c, affine=False), nn.GroupNorm(
        divisor, c), nn.GroupNorm(divisor, c, affine=False), nn.GroupNorm(1, c), nn.InstanceNorm2d(
        c, affine=b % 2 == 0), nn.BatchNorm2d(c, track_running_stats=False), nn.InstanceNorm2d(
        c, affine=True, track_running_stats=True)]  # fmt: skip
    if b == 7:
        layer = net.add(nn.LayerNorm(list(x.shape[1:])))
    else:
        layer = net.add(layers[a])
    return lambda x, m: layer(x)


@step("i")
def spatial(net, x, a, b):
    c, h, w = x.shape[1:]
    if h < 4 or h % 2:
        return None
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(
            x, 2), lambda x: F.adaptive_max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.interpolate(x, size=3, mode="nearest"), lambda x: F.interpolate(x, size=5,
            mode="bilinear"), lambda x: F.pad(x, (1, 1, 0, 0)), lambda x: F.pad(x, (1, 1, 1, 1),
            mode="reflect"), lambda x: x.flip(-1), lambda x: x.roll(1, -1), lambda x: x[:, :, 1:],
        lambda x: x.transpose(2, 3), lambda x: F.pixel_unshuffle(x, 2), lambda x: F.pixel_shuffle(
            x, 2) if c % 4 == 0 else x, lambda x: x[:, :, ::2, ::2], lambda x: torch.cat([
                x[:, :, ::2], x[:, :, 1::2]], 1), lambda x: F.local_response_norm(x, 2),
        lambda x: F.avg_pool2d(x, 2, divisor_override=1), lambda x: F.lp_pool2d(x, 2.0, 2),
        lambda x: F.max_pool2d(x, 3, 1, 1), lambda x: x.unflatten(2, (2, -1)).flatten(1, 2),
        lambda x: F.unfold(x, 2).view(x.shape[0], 4 * c, h - 1, w - 1),
        lambda x: F.max_pool2d(x, 2, return_indices=True)[0], lambda x: F.avg_pool2d(x, 3, 2, 1,
            count_include_pad=False), lambda x: F.channel_shuffle(x, 2) if c % 2 == 0 else x,
        lambda x: F.pad(x, (1, 0), value=0.7), lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
        lambda x: torch.cat([x, x.flip(-1)], 1), lambda x: F.dropout2d(x, 0.5, False),
        lambda x: F.max_pool2d(x.flatten(0, 1), 2).unflatten(0, (-1, c)),
        lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 3, 3, 2).double(), align_corners=False),
    ]  # fmt: skip
    form = forms[(8 * (a % 4) + b) % len(forms)]
    return lambda x, m: form(x)


@step("i")
def excite(net, x, a, b):
    c = x.shape[1]
    down, up = net.add(nn.Linear(c, 2)), net.add(nn.Linear(2, c))
    one = net.add(nn.Conv2d(c, c, 1))

    def function(x, m):
        if a % 2:
            return x * torch.sigmoid(one(x.mean((2, 3), keepdim=True)))
        scale = torch.sigmoid(up(F.relu(down(x.mean((2, 3))))))
        return x * scale[:, :, None, None]

    return function


@step("i")
def convnext(net, x, a, b):
    c = x.shape[1]
    deep = net.add(nn.Conv2d(c, c, 3, padding=1, groups=c))
    norm, up, down = (net.add(nn.LayerNorm(c, eps=1e-6)), net.add(nn.Linear(c, 5)),
                      net.add(nn.Linear(5, c)))  # fmt: skip
    gain = net.ref(c)

    def function(x, m):
        y = norm(deep(x).permute(0, 2, 3, 1))
        y = (gain() * down(F.gelu(up(y)))).permute(0, 3, 1, 2)
        return x + y

    return function


@step("i")
def unet(net, x, a, b):
    c = x.shape[1]
    if x.shape[2] % 2 or x.shape[2] < 4:
        return None
    down = net.add(nn.Conv2d(c, 3, 3, padding=1))
    up = net.add(nn.ConvTranspose2d(3, 3, 2, stride=2))
    last = net.add(nn.Conv2d(c + 3 if b % 2 else 6, 2 + a % 3, 1))

    def function(x, m):
        y = F.relu(down(x))
        z = F.relu(up(F.max_pool2d(y, 2)))
        return last(torch.cat([x if b % 2 else y, z], 1))

    return function


@step("i")
def residual_conv(net, x, a, b):
    c = x.shape[1]
    one, two = net.add(nn.Conv2d(c, 3, 3, padding=1)), net.add(nn.Conv2d(3, c, 3, padding=1))
    norm = net.add(nn.BatchNorm2d(c) if a % 2 else nn.GroupNorm(1, c))

    def function(x, m):
        y = norm(two(F.relu(one(x))))
        if b % 2:
            y += x
            return F.relu(y, inplace=True)
        return F.relu(y + x)

    return function


@step("i")
def flattened(net, x, a, b):
    forms = [lambda x: x.flatten(1), lambda x: x.mean((2, 3)), lambda x: x.amax((2, 3)),
             lambda x: x.flatten(2).transpose(1, 2), lambda x: x.permute(0, 2, 3, 1).flatten(1),
             lambda x: x.flatten(2), lambda x: x.mean(2).transpose(1, 2),
             lambda x: F.adaptive_avg_pool2d(x, 2).view(x.shape[0], -1),
             lambda x: x.permute(0, 2, 3, 1).flatten(1, 2), lambda x: x.flatten(1, 2),
             lambda x: x.flatten(2).std(-1)]  # fmt: skip
    form = forms[(8 * (a % 2) + b) % len(forms)]
    return lambda x, m: form(x)


@step("i")
def spelled_conv(net, x, a, b):
    c = x.shape[1]
    w = net.ref(2 + a % 3, c, 2, 2)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.conv2d(x, w()),
        lambda x: torch.einsum("bchw,oc->bohw", x, w()[:, :, 0, 0]),
        lambda x: F.conv2d(x, w() / w().flatten(1).norm(dim=1)[:, None, None, None]),
        lambda x: F.conv2d(x, w() - w().mean((1, 2, 3), keepdim=True)),
        lambda x: F.conv2d(x, w().flip(-1)),
        lambda x: F.conv_transpose2d(F.conv2d(x, w()), w()),
        lambda x: F.conv2d(x, w(), padding="same"),
        lambda x: F.conv2d(F.conv2d(x, w()).relu(), w().transpose(0, 1)),
    ]
    form = forms[b]
    return lambda x, m: form(x)
