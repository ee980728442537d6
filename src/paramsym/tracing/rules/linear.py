"""Matrix products of every spelling."""

from __future__ import annotations

from paramsym.recording.graph import Call
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.registry import rule


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


@rule("linear")
def linear(build: Builder, call: Call) -> Tensor:
    x, weight, bias = build.arguments(call, "input|self", "weight", "bias?")
    batch = list(range(x.ndim - 1))
    if weight.ndim == 1:
        return with_bias(build, build.contract(x, weight, [*batch, "i"], ["i"], batch), bias)
    out = build.contract(x, weight, [*batch, "i"], ["o", "i"], [*batch, "o"])
    return with_bias(build, out, bias)


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


@rule("cdist")
def cdist(build: Builder, call: Call) -> Tensor | None:
    """Distances of all rows of x to all rows of y."""
    x, y, p = build.arguments(call, "x1", "x2", "p", p=2.0)
    if p != 2:
        return None
    x = build.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    y = build.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    squares = build.unary(build.same([x, y], signs=(1, -1)), 2, "even", name="square")
    return build.unary(build.reduce(squares, [-1], False, "sum"), "1/2", name="sqrt")


@rule("einsum")
def einsum(build: Builder, call: Call) -> Tensor | None:
    equation = call.args[0].replace(" ", "") if isinstance(call.args[0], str) else None
    operands = call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    if equation is None or len(operands) > 2:
        return None
    tensors = [build.lift(v) for v in operands]
    left, _, right = equation.partition("->")
    subscripts = left.split(",")
    if "->" not in equation:
        letters = "".join(subscripts).replace(".", "")
        right = "..." * ("..." in left) + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    labels = []
    for subscript, tensor in zip(subscripts, tensors, strict=True):
        extra = tensor.ndim - len(subscript.replace("...", ""))
        labels.append(_expand(subscript, extra))
    widths = [
        tensor.ndim - len(subscript.replace("...", ""))
        for subscript, tensor in zip(subscripts, tensors, strict=True)
    ]
    width = max(widths, default=0)
    wanted = _expand(right, width if "..." in right else 0)
    if any(len(set(ls)) < len(ls) for ls in labels):
        return None  # a diagonal
    for k, tensor in enumerate(tensors):  # letters that only one operand has are summed first
        others = {c for j, ls in enumerate(labels) if j != k for c in ls} | set(wanted)
        dims = [d for d, c in enumerate(labels[k]) if c not in others]
        if dims:
            tensors[k] = build.reduce(tensor, dims, False, "sum")
            labels[k] = [c for c in labels[k] if c in others]
    if len(tensors) == 1:
        return build.permute(tensors[0], [labels[0].index(c) for c in wanted])
    return build.contract(tensors[0], tensors[1], labels[0], labels[1], wanted)


def _expand(subscript: str, extra: int) -> list:
    """Letters of a subscript; the ellipsis becomes right-aligned numbers."""
    head, dots, tail = subscript.partition("...")
    return [*head, *(range(-extra, 0) if dots else ()), *tail]
