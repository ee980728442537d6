"""Matrix products of every spelling."""

from __future__ import annotations

import itertools
from typing import Any

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.contractions import spelled
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.reduction import length
from paramsym.recording.graph import Call


def matmul_tensors(build: Builder, x: Tensor, y: Tensor) -> Tensor:
    """The product of `torch.matmul`: contract the last axis of x, broadcast the leading ones."""
    if y.ndim == 1:
        batch = list(range(x.ndim - 1))
        return build.contract(x, y, [*batch, "k"], ["k"], batch)
    if x.ndim == 1:
        batch = list(range(y.ndim - 2))
        return build.contract(x, y, ["k"], [*batch, "k", "j"], [*batch, "j"])
    ndim = max(x.ndim, y.ndim) - 2
    xs = list(range(ndim - x.ndim + 2, ndim))
    ys = list(range(ndim - y.ndim + 2, ndim))
    return build.contract(x, y, [*xs, "i", "k"], [*ys, "k", "j"], [*range(ndim), "i", "j"])


def with_bias(build: Builder, out: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias along the last axis, if there is one."""
    return out if bias is None else build.same([out, bias], out.shape)


def project(build: Builder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b along the last axis; a weight of one axis leaves none."""
    batch, rows = list(range(x.ndim - 1)), ["o"] * (weight.ndim - 1)
    out = build.contract(x, weight, [*batch, "i"], [*rows, "i"], [*batch, *rows])
    return with_bias(build, out, bias)


@rule("linear")
def linear(build: Builder, call: Call) -> Tensor:
    return project(build, *build.arguments(call, "input|self", "weight", "bias?"))


@rule("bilinear")
def bilinear(build: Builder, call: Call) -> Tensor:
    x, y, weight, bias = build.arguments(call, "input1", "input2", "weight", "bias?")
    batch = list(range(x.ndim - 1))
    left = build.contract(x, weight, [*batch, "i"], ["o", "i", "j"], [*batch, "o", "j"])
    out = build.contract(left, y, [*batch, "o", "j"], [*batch, "j"], [*batch, "o"])
    return with_bias(build, out, bias)


@rule("matmul", "bmm", "mm", "mv", "dot", "rmatmul", "vdot", "inner")
def matmul(build: Builder, call: Call) -> Tensor:
    x, y = build.arguments(call, "input|self", "other|mat2|vec|tensor")
    if call.name == "rmatmul":
        x, y = y, x
    if call.name == "inner":  # over the last axis of both
        if not x.ndim or not y.ndim:
            return build.multiply(x, y)
        xs, ys = [("x", k) for k in range(x.ndim - 1)], [("y", k) for k in range(y.ndim - 1)]
        return build.contract(x, y, [*xs, "k"], [*ys, "k"], [*xs, *ys])
    return matmul_tensors(build, x, y)


@rule("addmm", "baddbmm", "addmv", "addbmm")
def addmm(build: Builder, call: Call) -> Tensor | None:
    bias, x, y = build.arguments(call, "input|self", "mat1|batch1|mat", "mat2|batch2|vec")
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    if call.name == "addbmm":
        return None
    out = matmul_tensors(build, x, y)
    return out if beta == 0 else build.same([out, bias], out.shape, signs=(alpha, beta))


@rule("outer", "ger")
def outer(build: Builder, call: Call) -> Tensor:
    x, y = build.arguments(call, "input|self", "vec2")
    return build.contract(x, y, ["i"], ["j"], ["i", "j"])


@rule("kron")
def kron(build: Builder, call: Call) -> Tensor | None:
    x, y = build.arguments(call, "input|self", "other")
    if x.ndim != y.ndim:
        return None
    xs, ys = [("x", k) for k in range(x.ndim)], [("y", k) for k in range(x.ndim)]
    pairs = [label for pair in zip(xs, ys, strict=True) for label in pair]
    return build.reshape(build.contract(x, y, xs, ys, pairs), call.outputs[0].shape)


@rule("tensordot")
def tensordot(build: Builder, call: Call) -> Tensor:
    """A product summed over axes that two lists, or a number of last and first ones, pair."""
    x, y, dims, theirs = build.arguments(
        call, "a|input|self", "b|other", "dims|dims_self", "dims_other?", dims=2
    )
    if isinstance(dims, int):
        dims, theirs = range(x.ndim - dims, x.ndim), range(dims)
    elif theirs is None:
        dims, theirs = dims
    pairs = [(a % x.ndim, b % y.ndim) for a, b in zip(dims, theirs, strict=True)]
    xs: list[Any] = [("x", k) for k in range(x.ndim)]
    ys: list[Any] = [("y", k) for k in range(y.ndim)]
    wanted = [ls[k] for n, ls in enumerate((xs, ys)) for k in range(len(ls))
              if k not in {pair[n] for pair in pairs}]  # fmt: skip
    for a, b in pairs:
        ys[b] = xs[a]
    return build.contract(x, y, xs, ys, wanted)


@rule("cdist")
def cdist(build: Builder, call: Call) -> Tensor | None:
    """Distances of all rows of x to all rows of y."""
    x, y, p = build.arguments(call, "x1", "x2", "p", p=2.0)
    if p != 2:
        return None
    x = build.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    y = build.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return length(build, build.same([x, y], signs=(1, -1)), [-1], False)


@rule("einsum")
def einsum(build: Builder, call: Call) -> Tensor | None:
    found = spelled(call)
    if found is None or len(found[0]) > 2:
        return None
    labels, operands, wanted = found
    every = [*wanted, *itertools.chain(*labels)]
    terms: list[tuple[Tensor, list[str]]] = []
    for ls, value in zip(labels, operands, strict=True):
        tensor, alone = build.tensor(value), [d for d, c in enumerate(ls) if every.count(c) == 1]
        if alone:  # what no other operand has is summed first
            tensor = build.reduce(tensor, alone, False, "sum")
        terms.append((tensor, [c for c in ls if every.count(c) > 1]))
    if len(terms) == 1:
        ((x, xs),) = terms
        return build.permute(x, [xs.index(c) for c in wanted])
    (x, xs), (y, ys) = terms
    return build.contract(x, y, xs, ys, wanted)
