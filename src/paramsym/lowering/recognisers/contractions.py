"""Contractions: a product that is summed, and einsums of more than two operands.

    Σ_k a[…k…] b[…k…]  written as  (a * b).sum(k)

is the matrix product that `einsum` writes at once, in which the basis of k may change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from paramsym.lowering.recognisers.context import Context, argument, axes, is_real
from paramsym.recording.graph import Call, Value

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Step = tuple[Any, tuple[Any, ...], tuple[int, ...]]  # operator, further arguments, result's shape


def contraction(context: Context, call: Call) -> list[Call] | None:
    """`(a * b).sum(dims)`, or its mean, as an einsum of a and b.

    Both have to vary along everything that is summed: otherwise a sum of one of them comes first.
    """
    product = argument(call, 0, "input", "self")
    out = call.outputs[0]
    if not isinstance(product, Value) or not is_real(product, out):
        return None
    factors = _factors(context, product)
    dims = axes(argument(call, 1, "dim", "axis"), len(product.shape))
    if factors is None:
        return None
    calls: list[Call] = []
    terms = [_varying(context, factor, product.shape, calls) for factor in factors]
    summed = {_LETTERS[d] for d in dims if product.shape[d] > 1}
    if not summed or not all(summed <= set(labels) for labels, _ in terms):
        return None
    return calls + _in_a_row(context, _steps(call, terms, product.shape, dims), out)


def _steps(
    call: Call, terms: list[tuple[str, Value]], shape: tuple[int, ...], dims: list[int]
) -> list[Step]:
    """The einsum of the factors, the factor of a mean, and the axes of one entry that are kept."""
    present = terms[0][0] + terms[1][0]  # an axis of one entry may be on neither
    kept = [k for k in range(len(shape)) if k not in dims and _LETTERS[k] in present]
    equation = f"{terms[0][0]},{terms[1][0]}->{''.join(_LETTERS[k] for k in kept)}"
    summed = tuple(shape[k] for k in kept)
    steps: list[Step] = [(torch.einsum, (equation, *(factor for _, factor in terms)), summed)]
    if call.name == "mean":
        steps.append((torch.mul, (1 / math.prod(shape[d] for d in dims),), summed))
    if (final := call.outputs[0].shape) != summed:
        steps.append((torch.reshape, (final,), final))
    return steps


def _in_a_row(context: Context, steps: Sequence[Step], out: Value) -> list[Call]:
    """Calls each of which takes the result of the one before; the last one writes `out`."""
    calls: list[Call] = []
    last: Value | None = None
    for k, (target, args, shape) in enumerate(steps):
        made = out if k == len(steps) - 1 else context.value(shape, out)
        calls.append(context.call(target, args if last is None else (last, *args), made))
        last = made
    return calls


def _factors(context: Context, product: Value) -> list[Value] | None:
    """The two different tensors of one shape class whose entrywise product a tensor is."""
    made = context.writer(product) if product.storage == product.id else None
    if made is None or made.name != "mul" or made.kwargs or len(made.args) != 2:
        return None
    x, y = made.args
    if not is_real(x, y, product) or not {x.id, y.id} & context.moving:
        return None
    if context.content(x) == context.content(y):
        return None  # a square, which norms are made of
    return [x, y]


def _varying(
    context: Context, value: Value, shape: tuple[int, ...], calls: list[Call]
) -> tuple[str, Value]:
    """A factor without the axes along which it is repeated, and the labels of those that stay."""
    labels = _LETTERS[len(shape) - len(value.shape) : len(shape)]
    for k in reversed(range(len(value.shape))):
        n, stride = value.shape[k], value.strides[k]
        repeated = n > 1 and stride == 0
        if shape[k - len(value.shape)] == 1 or not (repeated or n == 1):
            continue
        made = context.value(
            (*value.shape[:k], *value.shape[k + 1 :]), value, view=value,
            strides=(*value.strides[:k], *value.strides[k + 1 :]), offset=value.offset,
        )  # fmt: skip
        calls.append(context.call(torch.select, (value, k, 0), made))
        value, labels = made, labels[:k] + labels[k + 1 :]
    return labels, value


# -- chains --------------------------------------------------------------------------------------


def chain(context: Context, call: Call) -> list[Call] | None:
    """An einsum of three operands or more as einsums of two, one after the other."""
    found = spelled(call)
    if found is None or len(found[0]) < 3 or not is_real(*found[1], call.outputs[0]):
        return None
    labels, operands, wanted = found
    terms = list(zip(labels, operands, strict=True))
    if len(terms) == 3 and context.content(operands[0]) == context.content(operands[1]):
        terms = [terms[0], terms[2], terms[1]]  # a quadratic form, which is read off W x at x
    return pairwise(context, terms, wanted, call.outputs[0])


def pairwise(
    context: Context, rest: list[tuple[str, Value]], wanted: str, out: Value
) -> list[Call]:
    """Contract the first operand with the next that shares a label, until one is left."""
    sizes: dict[str, int] = {}
    for labels, value in rest:
        for c, n in zip(labels, value.shape, strict=True):
            sizes[c] = max(n, sizes.get(c, 1))
    calls: list[Call] = []
    ls, value = rest.pop(0)
    while rest:
        later = next((k for k, (other, _) in enumerate(rest) if set(other) & set(ls)), 0)
        other, operand = rest.pop(later)
        if rest:
            needed = {c for more, _ in rest for c in more} | set(wanted)
            kept = "".join(c for c in dict.fromkeys(ls + other) if c in needed)
            made = context.value([sizes[c] for c in kept], out)
        else:
            kept, made = wanted, out
        calls.append(context.call(torch.einsum, (f"{ls},{other}->{kept}", value, operand), made))
        ls, value = kept, made
    return calls


def spelled(call: Call) -> tuple[list[str], Sequence[Value], str] | None:
    """The labels of each operand of an einsum, the operands, and the labels of its result.

    None where labels are no text, or not `explicit`.
    """
    equation, operands = call.args[0], call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    found = explicit(equation, operands) if isinstance(equation, str) else None
    return found and (found[0], operands, found[1])


def explicit(equation: str, operands: Sequence[Value]) -> tuple[list[str], str] | None:
    """The labels of each operand and of the output, with letters for the ellipsis.

    None for diagonals (a letter twice in one operand) and where letters run out.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    widths = [
        len(v.shape) - len(s.replace("...", "")) for s, v in zip(subscripts, operands, strict=True)
    ]
    unused = [c for c in _LETTERS if c not in equation]
    if max(widths) > len(unused):
        return None
    dots = "".join(unused[: max(widths)])
    labels = [
        s.replace("...", dots[len(dots) - width :])
        for s, width in zip(subscripts, widths, strict=True)
    ]
    letters = left.replace("...", "").replace(",", "")
    once = "".join(c for c in sorted(letters) if letters.count(c) == 1)
    wanted = right.replace("...", dots) if arrow else dots + once
    if any(len(set(ls)) < len(ls) for ls in labels):
        return None
    return labels, wanted
