"""Reductions over axes, softmax and norms of vectors."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import axes
from paramsym.lowering.registry import rule
from paramsym.primitives.reductions import MET
from paramsym.recording.graph import Call


@rule("sum", "mean", "nansum")
def total(build: Builder, call: Call) -> Tensor:
    x, dim, keepdim = build.arguments(call, "input|self", "dim|axis?", "keepdim", keepdim=False)
    return build.reduce(
        x, axes(dim, x.ndim), bool(keepdim), "sum" if "sum" in call.name else "mean"
    )


@rule("amax", "amin", "max", "min")
def extremum(build: Builder, call: Call) -> Any:
    x, dim, keepdim = build.arguments(call, "input|self", "dim|other?", "keepdim", keepdim=False)
    if isinstance(dim, Tensor):
        return build.same([x, dim], linear=False, **build.again(call, *call.operands))
    facts = build.again(call, call.operands[0])
    out = build.reduce(x, axes(dim, x.ndim), bool(keepdim), "max", **facts)
    if len(call.outputs) < 2:
        return out
    if call.outputs[1].id not in build.alive:
        return [out, build.frozen(out.shape, "it is a position", moves=False)]
    reason = f"{call.name} returns positions at {call.where}"
    return [out, *build.opaque_call(call, call.outputs[1:2], reason)]


@rule("prod", "logsumexp", "median", "any", "all", "count_nonzero")
def symmetric(build: Builder, call: Call) -> Tensor | None:
    x, dim, keepdim = build.arguments(call, "input|self", "dim?", "keepdim", keepdim=False)
    if len(call.outputs) > 1:
        return None
    facts = build.again(call, call.operands[0])
    return build.reduce(x, axes(dim, x.ndim), bool(keepdim), "other", **facts)


@rule("softmax", "log_softmax", "softmin")
def softmax(build: Builder, call: Call) -> Tensor:
    x, dim = build.arguments(call, "input|self", "dim")
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
    if call.name == "softmin":
        x = build.unary(x, linear=True, factor=-1.0)
    return build.softmax(x, dim, log=call.name == "log_softmax")


@rule("norm", "vector_norm", "linalg_vector_norm", "linalg_norm")
def norm(build: Builder, call: Call) -> Tensor | None:
    x, order, dim, keepdim = build.arguments(
        call, "input|self", "p|ord", "dim?", "keepdim", p=2, keepdim=False
    )
    dims, keepdim = axes(dim, x.ndim), bool(keepdim)
    if call.name == "linalg_norm" and len(dims) == 2 and order not in (None, "fro"):
        return None  # a norm of matrices
    if order in (None, 2, 2.0, "fro"):
        return length(build, x, dims, keepdim)
    if not isinstance(order, (int, float)) or order == 0:
        return None
    return _power_norm(build, build.unary(x, 1, "even", name="abs"), order, dims, keepdim)


def length(build: Builder, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """(Σ x²)^½ over some axes."""
    squares = build.unary(x, 2, "even", name="square")
    return build.unary(build.reduce(squares, dims, keepdim, "sum"), "1/2", name="sqrt")


def _power_norm(build: Builder, x: Tensor, order: float, dims: list[int], keepdim: bool) -> Tensor:
    """(Σ xᵖ)^(1/p) of what is not negative; the largest or the least entry for p = ±∞."""
    if math.isinf(order):
        extreme = torch.amax if order > 0 else torch.amin
        return build.reduce(x, dims, keepdim, "max", compute=lambda t: extreme(t, dims, keepdim))
    if order == 1:
        return build.reduce(x, dims, keepdim, "sum")
    degree = Fraction(order).limit_denominator(1 << 16)
    powers = build.unary(x, degree, name="pow", compute=lambda t: t**order)
    total = build.reduce(powers, dims, keepdim, "sum")
    return build.unary(total, 1 / degree, name="pow", compute=lambda t: t ** (1 / order))


@rule("normalize")
def normalize(build: Builder, call: Call) -> Tensor | None:
    """x / max(|x|ₚ, ε): scales drop out as long as |x| > ε, which the tiny default grants."""
    x, p, dim, epsilon = build.arguments(
        call, "input|self", "p", "dim", "eps", p=2.0, dim=1, eps=1e-12
    )
    dims = axes(dim, x.ndim)
    if p == 2:
        return build.normalize(x, dims, False, 0.0, mean=False, floor=epsilon)
    if not isinstance(p, (int, float)) or p <= 0:
        return None
    size = _power_norm(build, build.unary(x, 1, "even", name="abs"), p, dims, True)
    degree = 1 if epsilon <= MET else None
    floored = build.unary(size, degree, name="clamp", compute=lambda t: t.clamp_min(epsilon))
    return build.multiply(x, floored, divide=True)


@rule("cosine_similarity")
def cosine_similarity(build: Builder, call: Call) -> Tensor:
    x, y, dim, epsilon = build.arguments(call, "x1", "x2", "dim", "eps", dim=1, eps=1e-8)
    ndim = max(x.ndim, y.ndim)
    x, y = (build.reshape(t, (*(1,) * (ndim - t.ndim), *t.shape)) for t in (x, y))
    unit = [build.normalize(t, [dim], False, 0.0, mean=False, floor=epsilon) for t in (x, y)]
    for k, t in enumerate(unit):  # one number that stands for many is as long as all of them
        if t.shape[dim] == 1:
            length = max(x.shape[dim], y.shape[dim])
            unit[k] = build.unary(t, linear=True, factor=length**-0.5)
    return _inner(build, unit[0], unit[1], dim)


@rule("pairwise_distance")
def pairwise_distance(build: Builder, call: Call) -> Tensor | None:
    """‖x − y + ε‖ along the last axis."""
    x, y, p, epsilon, keepdim = build.arguments(
        call, "x1", "x2", "p?", "eps?", "keepdim?", p=2.0, eps=1e-6, keepdim=False
    )
    if p != 2:
        return None
    apart = build.same([x, y], signs=(1, -1))
    if epsilon:
        apart = build.unary(apart, name="shift", shift=float(epsilon))
    squares = build.unary(apart, 2, "even", name="square")
    return build.unary(build.reduce(squares, [-1], keepdim, "sum"), "1/2", name="sqrt")


@rule("vecdot", "linalg_vecdot")
def vecdot(build: Builder, call: Call) -> Tensor | None:
    x, y, dim = build.arguments(call, "x|input|self", "y|other", "dim", dim=-1)
    if x.ndim != y.ndim or call.outputs[0].dtype.is_complex:
        return None  # one factor is conjugated
    return _inner(build, x, y, dim)


def _inner(build: Builder, x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Σ x·y along one axis, in which the basis may change where both vary."""
    dim %= x.ndim
    if x.shape[dim] != y.shape[dim]:
        return build.reduce(build.multiply(x, y), [dim], False, "sum")
    labels = list(range(x.ndim))
    rest = [k for k in labels if k != dim]
    shape = [max(x.shape[k], y.shape[k]) for k in rest]
    return build.contract(x, y, labels, labels, rest, shape)


@rule("var", "std", "var_mean", "std_mean")
def variance(build: Builder, call: Call) -> Any:
    x = build.lift(call.args[0])
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    dims = axes(None if isinstance(dim, bool) else dim, x.ndim)
    keepdim = bool(call.kwargs.get("keepdim", False))
    if len(call.args) > 3 and isinstance(call.args[3], bool):
        keepdim = call.args[3]
    mean = build.reduce(x, dims, True, "mean")
    centred = build.same([x, mean], x.shape, signs=(1, -1))
    count = math.prod(x.shape[d] for d in dims) - _correction(call)
    squares = build.unary(centred, 2, "even", name="square")
    squares = build.unary(squares, linear=True, factor=1 / count if count > 0 else math.nan)
    out = build.reduce(squares, dims, keepdim, "sum")
    if call.name.startswith("std"):
        out = build.unary(out, "1/2", name="sqrt")
    if call.name.endswith("_mean"):
        return [out, mean if keepdim else build.reduce(x, dims, False, "mean")]
    return out


def _correction(call: Call) -> float:
    """What a variance subtracts from the number of entries."""
    unbiased = next((a for a in call.args[1:3] if isinstance(a, bool)), True)
    given = call.kwargs.get("correction", call.kwargs.get("unbiased", unbiased))
    return 1 if given is None else given
