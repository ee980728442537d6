"""Entrywise calls of one tensor read as one homogeneous function: f(s·h) = sᵈ·f(h) for s > 0.

    0.5 * (h + h.abs())    h.square() * (h > 0)    torch.lerp(zeros, h, mask)    h.sign() * h

A function of one number with a degree is three numbers: f(h) is hᵈ·f(1) above zero, |h|ᵈ·f(−1)
below it, and f(0). The degree comes from the structure alone, call by call: terms of a sum and
operands of a comparison have one degree, those of a product add up, a constant has degree zero,
and zero has every degree. So no threshold can hide behind it. The three numbers come from running
the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.lowering.recognisers.context import CASTS, COPIES, Context, argument
from paramsym.recording.graph import Call, Value

Degree = Fraction | None  # None of zero, which has every degree


class NoDegree(Exception):
    """A call that is not homogeneous, or that reads more than one tensor."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A tensor as a homogeneous function of `source`; a constant has none.

    `numbers` are its values at 1, −1 and 0. `own` tells that rules of single calls do not say as
    much: the function is made of a comparison or of terms that are bent.
    """

    source: Value | None
    degree: Degree
    numbers: torch.Tensor
    own: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether it is a multiple of the source, or zero, as far as its numbers tell."""
        above, below, _ = self.numbers.tolist()
        return self.degree in (1, None) and above == -below


Reader = Callable[[Any], Reading]


def reading(context: Context, value: Value) -> Reading:
    """A tensor as a homogeneous function of the earliest one of which its calls make it."""
    known = context.readings.get(value.id)
    if known is None:
        known = context.readings[value.id] = _read(context, value)
    return known


def _read(context: Context, value: Value) -> Reading:
    call = context.writer(value) if value.storage == value.id else None
    if call is not None:
        try:
            return _of_call(context, call, value)
        except NoDegree:
            pass
    return Reading(value, Fraction(1), torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64))


def _of_call(context: Context, call: Call, out: Value) -> Reading:
    rule = _RULES.get(call.name)
    if rule is None:
        raise NoDegree
    sources: dict[Any, Value] = {}
    found: dict[int, Reading] = {}

    def read(item: Any) -> Reading:
        number = context.number(item)
        if number is not None:
            return _constant(number)
        if not isinstance(item, Value) or item.shape != out.shape:
            raise NoDegree
        made = found[item.id] = reading(context, item)
        if made.source is not None:
            sources[context.content(made.source)] = made.source
        return made

    degree = rule(call, read)
    if len(sources) != 1:
        raise NoDegree
    (source,) = sources.values()
    numbers = _run(call, read)
    told = call.name in _PLAIN or call.name in _SUMS and all(r.is_linear for r in found.values())
    return Reading(source, degree, numbers, not told or any(r.own for r in found.values()))


def _constant(number: float) -> Reading:
    numbers = torch.full((3,), number, dtype=torch.float64)
    return Reading(None, Fraction(0) if number else None, numbers)


def _run(call: Call, read: Reader) -> torch.Tensor:
    """What a call makes of the numbers of its operands, in float64 whatever the traced dtype."""
    if call.name in CASTS | COPIES:
        return read(call.operands[0]).numbers
    args, kwargs = pytree.tree_map(
        lambda leaf: _numbers(read(leaf), leaf) if isinstance(leaf, Value) else leaf,
        (call.args, call.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, Value),
    )
    try:
        with torch.no_grad():
            made = call.target(*args, **kwargs)
    except Exception as error:  # a function that takes other shapes or dtypes than the traced ones
        raise NoDegree from error
    if not isinstance(made, torch.Tensor) or made.shape != (3,):
        raise NoDegree
    return made.to(torch.float64)


def _numbers(found: Reading, value: Value) -> torch.Tensor:
    floating = value.dtype.is_floating_point
    return found.numbers.clone() if floating else found.numbers.to(value.dtype)


# -- degrees ---------------------------------------------------------------------------------------


def _common(items: Iterable[Any], read: Reader) -> Degree:
    """The one degree of some operands."""
    degrees = {read(item).degree for item in items} - {None}
    if len(degrees) > 1:
        raise NoDegree
    return degrees.pop() if degrees else None


def _flat(items: Iterable[Any], read: Reader) -> None:
    """These are of degree zero: masks, and what scales do not change."""
    if any(read(item).degree not in (0, None) for item in items):
        raise NoDegree


def _terms(call: Call, read: Reader) -> Degree:
    return _common(_two(call), read)


def _two(call: Call) -> tuple[Any, Any]:
    """The two operands of a call that has no other argument but the factor of a sum."""
    if len(call.args) + len(call.kwargs.keys() - {"alpha"}) != 2:
        raise NoDegree
    return argument(call, 0, "input", "self"), argument(call, 1, "other", "values")


def _one(call: Call) -> Any:
    return argument(call, 0, "input", "self")


def _kept(call: Call, read: Reader) -> Degree:
    return read(_one(call)).degree


def _at_zero(*places: tuple[int, str]) -> Callable[[Call, Reader], Degree]:
    """The degree of the first operand, where the other arguments are zero or missing."""

    def rule(call: Call, read: Reader) -> Degree:
        bounds = [argument(call, at, name) for at, name in places]
        degrees = [read(item).degree for item in bounds if item is not None]
        if any(degree is not None for degree in degrees):
            raise NoDegree
        return _kept(call, read)

    return rule


def _compared(call: Call, read: Reader) -> Degree:
    _common(_two(call), read)
    return Fraction(0)


def _signed(call: Call, read: Reader) -> Degree:
    read(_one(call))
    return Fraction(0)


def _step(call: Call, read: Reader) -> Degree:
    x, value = _two(call)
    _flat([value], read)
    return read(x).degree and Fraction(0)


def _lerp(call: Call, read: Reader) -> Degree:
    _flat([argument(call, 2, "weight")], read)
    return _common([_one(call), argument(call, 1, "end")], read)


def _product(call: Call, read: Reader) -> Degree:
    return _total([(1, item) for item in _two(call)], read)


def _quotient(call: Call, read: Reader) -> Degree:
    x, y = _two(call)
    return _total([(1, x), (-1, y)], read)


def _total(items: Sequence[tuple[int, Any]], read: Reader) -> Degree:
    """The degree of a product of powers."""
    degrees = [(n, read(item).degree) for n, item in items]
    if any(n < 0 and degree is None for n, degree in degrees):
        raise NoDegree
    total = Fraction(0)
    for n, degree in degrees:
        if degree is None:
            return None
        total += n * degree
    return total


def _added(last: int) -> Callable[[Call, Reader], Degree]:
    """x + c·y·z, or x + c·y/z."""

    def rule(call: Call, read: Reader) -> Degree:
        y, z = argument(call, 1, "tensor1"), argument(call, 2, "tensor2")
        degrees = {read(_one(call)).degree, _total([(1, y), (last, z)], read)} - {None}
        if len(degrees) != 1:
            raise NoDegree
        return degrees.pop()

    return rule


def _raised(power: Fraction) -> Callable[[Call, Reader], Degree]:
    def rule(call: Call, read: Reader) -> Degree:
        degree = _kept(call, read)
        if degree is None:
            raise NoDegree
        return degree * power

    return rule


def _power(call: Call, read: Reader) -> Degree:
    x, exponent = _two(call)
    if not isinstance(exponent, (int, float)) or exponent not in _EXPONENTS:
        raise NoDegree
    return _raised(Fraction(exponent))(call, read)


def _chosen(call: Call, read: Reader) -> Degree:
    mask, *items = branches(call) or (None,)
    if not items:
        raise NoDegree
    _flat([mask], read)
    return _common(items, read)


def _written(call: Call, read: Reader) -> Degree:
    """h[mask] = a number."""
    if len(call.args) != 3 or call.kwargs:
        raise NoDegree
    x, mask, item = call.args
    mask = mask[0] if isinstance(mask, (tuple, list)) and len(mask) == 1 else mask
    if not isinstance(mask, Value) or mask.dtype != torch.bool:
        raise NoDegree
    _flat([mask], read)
    return _common([x, item], read)


def _cast(call: Call, read: Reader) -> Degree:
    """The same numbers in another dtype; of integers no more than masks is followed."""
    x, out = call.operands[0], call.outputs[0]
    found = read(x)
    zeros_and_ones = bool(((found.numbers == 0) | (found.numbers == 1)).all())
    if not out.dtype.is_floating_point and not (found.degree == 0 and zeros_and_ones):
        raise NoDegree
    return found.degree


def _of_sign(call: Call, read: Reader) -> Degree:
    x, y = _two(call)
    read(y)
    return read(x).degree


def _logical(call: Call, read: Reader) -> Degree:
    operands = call.operands
    if any(v.dtype != torch.bool for v in operands):
        raise NoDegree
    _flat(operands, read)
    return Fraction(0)


def branches(call: Call) -> tuple[Any, Any, Any] | None:
    """Mask, what is taken where it holds, and what elsewhere."""
    if len(call.args) + len(call.kwargs) != 3:
        return None
    if call.name == "masked_fill":
        x, mask = argument(call, 0, "input", "self"), argument(call, 1, "mask")
        return mask, argument(call, 2, "value"), x
    if call.target is torch.Tensor.where:
        mask, x = argument(call, 1, "condition"), argument(call, 0, "self", "input")
    else:
        mask, x = argument(call, 0, "condition"), argument(call, 1, "input", "self")
    return mask, x, argument(call, 2, "other")


_EXPONENTS = {-2, -1, -0.5, 0.5, 1, 1.5, 2, 3, 4, 5, 6}

_RULES: dict[str, Callable[[Call, Reader], Degree]] = {
    **dict.fromkeys(
        ("add", "sub", "rsub", "maximum", "minimum", "fmax", "fmin", "max", "min", "hypot",
         "fmod", "remainder"), _terms,
    ),
    **dict.fromkeys(("neg", "positive", "abs", "relu", "leaky_relu", *COPIES), _kept),
    "clamp": _at_zero((1, "min"), (2, "max")), "clamp_min": _at_zero((1, "min")),
    "clamp_max": _at_zero((1, "max")), "threshold": _at_zero((1, "threshold"), (2, "value")),
    **dict.fromkeys(
        ("gt", "ge", "lt", "le", "eq", "ne", "greater_equal", "less", "less_equal", "__gt__",
         "__ge__", "__lt__", "__le__", "__eq__", "__ne__", "atan2"), _compared,
    ),
    **dict.fromkeys(("sign", "sgn"), _signed),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and",
                     "bitwise_or", "bitwise_not"), _logical),
    "heaviside": _step, "lerp": _lerp, "mul": _product, "div": _quotient, "copysign": _of_sign,
    "addcmul": _added(1), "addcdiv": _added(-1), "pow": _power, "square": _raised(Fraction(2)),
    "sqrt": _raised(Fraction(1, 2)), "rsqrt": _raised(Fraction(-1, 2)),
    "reciprocal": _raised(Fraction(-1)), "where": _chosen, "masked_fill": _chosen,
    "setitem": _written, "index_put": _written,
    **dict.fromkeys((*CASTS, "bool", "int", "long", "byte"), _cast),
}  # fmt: skip

_SUMS = {"add", "sub", "rsub", "lerp"}
# what rules of single calls say as well
_PLAIN = {"mul", "div", "pow", "square", "sqrt", "rsqrt", "reciprocal", "neg", "positive", "abs",
          "relu", "leaky_relu", "clamp", "clamp_min", "clamp_max", "threshold", "sign", "sgn",
          *COPIES, *CASTS}  # fmt: skip
