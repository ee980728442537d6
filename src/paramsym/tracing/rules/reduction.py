"""Reductions over axes, softmax and norms of vectors."""

from __future__ import annotations

from typing import Any

from paramsym.recording.graph import Call
from paramsym.tracing.builder import Builder, Tensor, rule


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(x.ndim))
    return list(dim) if isinstance(dim, (tuple, list)) else [dim]


@rule("sum", "mean", "nansum")
def total(build: Builder, call: Call) -> Tensor:
    x, dim, keepdim = build.arguments(call, "input|self", "dim|axis?", "keepdim", keepdim=False)
    return build.reduce(x, _dims(x, dim), bool(keepdim), "sum" if "sum" in call.name else "mean")


@rule("amax", "amin", "max", "min")
def extremum(build: Builder, call: Call) -> Any:
    x, dim, keepdim = build.arguments(call, "input|self", "dim|other?", "keepdim", keepdim=False)
    if isinstance(dim, Tensor):
        return build.same([x, dim], linear=False)
    out = build.reduce(x, _dims(x, dim), bool(keepdim), "max")
    if len(call.outputs) < 2:
        return out
    if call.outputs[1].id not in build.alive:
        return [out, build.frozen(out.shape, "it is a position", moves=False)]
    return [out, *build.opaque([x], [out.shape], f"{call.name} returns positions at {call.where}")]


@rule("prod", "logsumexp", "median", "any", "all", "count_nonzero")
def symmetric(build: Builder, call: Call) -> Tensor | None:
    x, dim, keepdim = build.arguments(call, "input|self", "dim?", "keepdim", keepdim=False)
    if len(call.outputs) > 1:
        return None
    return build.reduce(x, _dims(x, dim), bool(keepdim), "other")


@rule("softmax", "log_softmax", "softmin")
def softmax(build: Builder, call: Call) -> Tensor:
    x, dim = build.arguments(call, "input|self", "dim")
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
    return build.softmax(x, dim, log=call.name == "log_softmax")


@rule("norm", "vector_norm", "linalg_vector_norm", "linalg_norm")
def norm(build: Builder, call: Call) -> Tensor | None:
    x, order, dim = build.arguments(call, "input|self", "p|ord", "dim?", p=2)
    keepdim = call.kwargs.get("keepdim", call.args[3] if len(call.args) > 3 else False)
    dims = _dims(x, dim)
    if call.name == "linalg_norm" and len(dims) == 2 and order not in (None, "fro"):
        return None  # a norm of matrices
    if order in (None, 2, 2.0, "fro"):
        squares = build.unary(x, 2, "even", name="square")
        return build.unary(build.reduce(squares, dims, bool(keepdim), "sum"), "1/2", name="sqrt")
    if not isinstance(order, (int, float)) or order == 0:
        return None
    return build.reduce(build.unary(x, 1, "even", name="abs"), dims, bool(keepdim), "sum")


@rule("normalize")
def normalize(build: Builder, call: Call) -> Tensor | None:
    """x / max(|x|, ε): scales drop out as long as |x| > ε, which the tiny default grants."""
    x, p, dim, epsilon = build.arguments(
        call, "input|self", "p", "dim", "eps", p=2.0, dim=1, eps=1e-12
    )
    if p not in (2, 2.0):
        return None
    return build.normalize(x, _dims(x, dim), center=False, epsilon=_floor(epsilon))


def _floor(epsilon: float) -> float:
    """The least norm that is divided by; a tiny one is never met."""
    return epsilon if epsilon > 1e-6 else 0.0


@rule("cosine_similarity")
def cosine_similarity(build: Builder, call: Call) -> Tensor:
    x, y, dim, epsilon = build.arguments(call, "x1", "x2", "dim", "eps", dim=1, eps=1e-8)
    ndim = max(x.ndim, y.ndim)
    x, y = (build.reshape(t, (*(1,) * (ndim - t.ndim), *t.shape)) for t in (x, y))
    floor = _floor(epsilon)
    product = build.multiply(
        build.normalize(x, [dim], False, floor), build.normalize(y, [dim], False, floor)
    )
    return build.reduce(product, [dim], False, "sum")


@rule("var", "std", "var_mean", "std_mean")
def variance(build: Builder, call: Call) -> Any:
    x = build.lift(call.args[0])
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    dims = _dims(x, None if isinstance(dim, bool) else dim)
    keepdim = bool(call.kwargs.get("keepdim", False))
    if len(call.args) > 3 and isinstance(call.args[3], bool):
        keepdim = call.args[3]
    mean = build.reduce(x, dims, True, "mean")
    centred = build.same([x, mean], x.shape, signs=(1, -1))
    squares = build.unary(centred, 2, "even", name="square")
    out = build.reduce(squares, dims, keepdim, "mean")
    if call.name.startswith("std"):
        out = build.unary(out, "1/2", name="sqrt")
    if call.name.endswith("_mean"):
        return [out, mean if keepdim else build.reduce(x, dims, False, "mean")]
    return out
