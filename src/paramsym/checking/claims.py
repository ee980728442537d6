"""What a primitive claims of its function, tried on random local numbers.

A primitive that runs the traced call computes the right numbers, whatever it says about them: that
f(s·x) = s^d f(x), that it is odd, a mean, blind to a common shift, the same for units in another
order. Each claim is an equation between two evaluations, and has to hold at positive and negative
random numbers of the primitive's own shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from paramsym.primitives import (
    NEGLIGIBLE,
    Choice,
    Contract,
    Lookup,
    Map,
    Mask,
    Mix,
    Normalize,
    NotComputed,
    Primitive,
    Reduce,
    Rotate,
    Softmax,
    Sum,
)
from paramsym.primitives import index as ix

Claim = tuple[str, torch.Tensor, torch.Tensor]
Function = Callable[..., torch.Tensor]

_S = 1.7
_TOLERANCE = 1e-8


def check_claims(primitive: Primitive, *numbers: torch.Tensor) -> str | None:
    """The first claim of a primitive that fails on random numbers, in words; None if all hold.

    Args:
        primitive: its inputs' shapes are those of the numbers that are drawn.
        numbers: of its inputs, of which integers and booleans are kept, and then of what is given
            beside them. Drawn for the inputs where left out.

    Returns:
        None also where the primitive computes no numbers.
    """
    draw = torch.Generator().manual_seed(5)
    count = len(primitive.inputs)
    drawn = [torch.randn(t.shape, generator=draw, dtype=torch.float64) for t in primitive.inputs]
    numbers = numbers or tuple(drawn)
    rest = numbers[count:]
    inputs = [_like(x, draw) for x in numbers[:count]]

    def function(*xs: torch.Tensor) -> torch.Tensor:
        return primitive.run(*xs, *rest)

    try:
        for claim, left, right in _claims(primitive, function, inputs, draw):
            if not _agree(left, right):
                return f"claims {claim}, which fails on random numbers"
    except NotComputed:
        return None
    return None


def _claims(
    op: Primitive, function: Function, xs: list[torch.Tensor], draw: torch.Generator
) -> Iterator[Claim]:
    for kind, check in _CHECKS:
        if isinstance(op, kind) and all(x.is_floating_point() or x.is_complex() for x in xs[:1]):
            yield from check(op, function, xs, draw)
            break
    yield from _apart(op, function, xs, draw)
    if op.compute is not None or not type(op).__module__.startswith("paramsym."):
        if not op.given:  # which goes with the order of its own
            yield from _orders(op, function, xs)


def _like(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Random numbers in place of real ones; integers and booleans are kept."""
    if not (x.is_floating_point() or x.is_complex()):
        return x
    return torch.randn(x.shape, generator=draw, dtype=x.dtype)


def _agree(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape or not torch.equal(left.isfinite(), right.isfinite()):
        return False
    finite = left.isfinite()
    kind = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float64)
    left, right = left[finite].to(kind), right[finite].to(kind)
    if not left.numel():
        return True
    size = float(torch.maximum(left.abs().max(), right.abs().max()))
    return float((left - right).abs().max()) <= _TOLERANCE * max(size, 1e-100)


# -- one function for each kind of primitive -----------------------------------------------------


def _map(op: Map, f: Function, xs: list[torch.Tensor], draw: torch.Generator) -> Iterator[Claim]:
    (x,) = xs
    if op.degree is not None:
        claim = f"f({_S} x) = {_S}^{op.degree} f(x)"
        yield claim, f(_S * x), f(x) * _S ** float(op.degree)
    if op.sign != "pin":
        parity = -1 if op.sign == "odd" else 1
        yield f"to be {op.sign}", f(-x), parity * f(x)
    if op.shift is not None:
        yield f"f(x) = x + {op.shift:g}", f(x), x + op.shift


def _linear(op: Primitive, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    ys = [_like(x, draw) for x in xs]
    both = [x + y for x, y in zip(xs, ys, strict=True)]
    yield "f(x + y) = f(x) + f(y)", f(*both), f(*xs) + f(*ys)


def _sum(op: Sum, f: Function, xs: list[torch.Tensor], draw: torch.Generator) -> Iterator[Claim]:
    if op.compute is not None and all(x.is_floating_point() for x in xs):
        yield from _linear(op, f, xs, draw)


def _product(op: Contract, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    if op.compute is not None:
        x, y = xs
        yield from _linear(op, lambda z: f(z, y), [x], draw)


def _mask(op: Mask, f: Function, xs: list[torch.Tensor], draw: torch.Generator) -> Iterator[Claim]:
    if op.hides:
        hidden = torch.exp(torch.tensor(op.fill / 2))
        yield "that a softmax hides what it fills in", hidden, torch.zeros_like(hidden)


def _choice(op: Choice, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    if op.homogeneous:
        yield f"f({_S} x) = {_S} f(x)", f(*(_S * x for x in xs)), _S * f(*xs)


def _reduce(op: Reduce, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    (x,) = xs
    yield from _mix(op, f, xs, draw)
    if op.how == "norm2":
        for d in op.dims:
            yield "that reflections do not show", f(_reflected(x, d, draw)[0]), f(x)
    yield "to be symmetric", f(x.flip(op.dims)), f(x)


def _mix(
    op: Mix | Reduce, f: Function, xs: list[torch.Tensor], draw: torch.Generator
) -> Iterator[Claim]:
    (x,) = xs
    if op.is_linear:
        yield from _linear(op, f, xs, draw)
    if op.how == "mean":
        yield "to be a mean: f(1) = 1", f(torch.ones_like(x)), torch.ones_like(f(x))
    if op.how == "max":
        yield f"f({_S} x) = {_S} f(x)", f(_S * x), _S * f(x)
        if isinstance(op, Reduce) or op.lifts:
            yield f"f(x + {_S}) = f(x) + {_S}", f(x + _S), f(x) + _S


def _softmax(op: Softmax, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    (x,) = xs
    yield "that a common shift does not show", f(x + x.mean(op.dim, True) + 1), f(x)


def _normalize(op: Normalize, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    (x,) = xs
    if op.center:
        yield "that a common shift does not show", f(x + x.mean(op.dims, True) + 1), f(x)
    if op.epsilon <= NEGLIGIBLE and op.floor < 1e-6:
        yield f"f({_S} x) = f(x)", f(_S * x), f(x)
    for d in op.dims:
        mirrored, mirror = _reflected(x, d, draw, op.center)
        yield "to commute with reflections", f(mirrored), mirror(f(x))


def _reflected(
    x: torch.Tensor, dim: int, draw: torch.Generator, fixes_ones: bool = False
) -> tuple[torch.Tensor, Function]:
    """x in a mirror along one axis, and the mirror; it may keep the all-ones vector."""
    v = torch.randn(x.shape[dim], generator=draw, dtype=torch.float64)
    v = v - v.mean() if fixes_ones else v
    v = v / v.norm().clamp_min(1e-100)

    def mirror(y: torch.Tensor) -> torch.Tensor:
        y = y.movedim(dim, -1)
        w = v.to(y)
        return (y - 2 * (y @ w)[..., None] * w).movedim(-1, dim)

    return mirror(x), mirror


def _apart(op: Primitive, f: Function, xs: list[torch.Tensor], draw: torch.Generator):
    """An axis of the output that is one of the inputs' keeps units apart, unless it is combined."""
    ins, outs = op.labels()
    sizes = _sizes(op)
    found = f(*xs)
    for label in {label for labels in ins for label in labels}.intersection(outs):
        if label in op.combined or len(sizes[label]) != 1:  # pieces that are joined have several
            continue
        changed = [
            _others(x, _like(x, draw), labels, label) for x, labels in zip(xs, ins, strict=True)
        ]
        left, right = (_others(y, torch.zeros_like(y), outs, label) for y in (f(*changed), found))
        yield "that its units do not meet", left, right


def _others(x, y, labels: Sequence[object], label: object) -> torch.Tensor:
    """x, with the entries of y at the first unit that a label counts."""
    first = torch.zeros(x.shape, dtype=torch.bool)
    for dim, other in enumerate(labels):
        if other == label and x.shape[dim] > 1:
            first.narrow(dim, 0, 1).fill_(True)
    return torch.where(first, y, x)


def _orders(op: Primitive, f: Function, xs: Sequence[torch.Tensor]) -> Iterator[Claim]:
    """Axes with one label count the same units: in another order they come out in that order."""
    ins, outs = op.labels()
    sizes = _sizes(op)
    frozen: set[object] = set()
    for tensor, labels in [*zip(op.inputs, ins, strict=True), (op.out, outs)]:
        for node, n, label in zip(tensor.axes, tensor.shape, labels, strict=True):
            if n > 1 and (ix.resolve(node).kind != "leaf" or ix.resolve(node).frozen):
                frozen.add(label)
    read = {label for labels in ins for label in labels}
    for label in read - frozen:
        if len(sizes[label]) != 1:
            continue
        turned = [_rolled(x, labels, label) for x, labels in zip(xs, ins, strict=True)]
        yield "that its units have no order", f(*turned), _rolled(f(*xs), outs, label)


def _sizes(op: Primitive) -> dict[object, set[int]]:
    """The lengths above one of the axes that carry each label."""
    ins, outs = op.labels()
    found: dict[object, set[int]] = {}
    for tensor, labels in [*zip(op.inputs, ins, strict=True), (op.out, outs)]:
        for n, label in zip(tensor.shape, labels, strict=True):
            found.setdefault(label, set()).update({n} if n > 1 else ())
    return found


def _rolled(x: torch.Tensor, labels: Sequence[object], label: object) -> torch.Tensor:
    dims = [k for k, other in enumerate(labels) if other == label]
    return x.roll([1] * len(dims), dims) if dims else x


_CHECKS: tuple[tuple[type[Primitive], Callable[..., Iterator[Claim]]], ...] = (
    (Map, _map),
    (Sum, _sum),
    (Mask, _mask),
    (Contract, _product),
    (Choice, _choice),
    (Reduce, _reduce),
    (Mix, _mix),
    (Softmax, _softmax),
    (Normalize, _normalize),
    (Lookup, _linear),
    (Rotate, _linear),
)
