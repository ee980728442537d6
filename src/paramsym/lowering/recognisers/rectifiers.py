"""Homogeneous functions of one tensor, in their many spellings, become one call each.

    torch.where(h > 0, h, 0)    h * (h > 0)    torch.maximum(h, 0.1 * h)    (h + h.abs()) / 2

What has degree one is c·leaky_relu(h, slope), relu and abs among them; the others are powers with
a factor on either side of zero. How the degree is known is told in `degrees`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import Content, Context, argument, is_real
from paramsym.lowering.recognisers.degrees import Reading, branches, reading
from paramsym.lowering.registry import rule
from paramsym.recording.graph import Call, Value

_ABOVE = {"gt": True, "ge": True, "greater_equal": True, "lt": False, "le": False, "less": False,
          "less_equal": False}  # fmt: skip


def two_sided_power(
    x: torch.Tensor, degree: float, above: float, below: float, zero: float
) -> torch.Tensor:
    """above·xᵈ where x > 0, below·|x|ᵈ where x < 0, and a number at zero."""
    factor = torch.where(x > 0, above, below).to(x)
    return torch.where(x == 0, torch.full_like(x, zero), factor * x.abs() ** degree)


@rule(two_sided_power)
def _two_sided_power(build: Builder, call: Call) -> Tensor:
    x, degree, above, below, zero = build.arguments(call, "x", "degree", "above", "below", "zero")
    sign = "odd" if above == -below and not zero else "even" if above == below else "pin"
    name = "power" if degree else "step"
    facts = build.again(call, call.operands[0])
    return build.unary(x, Fraction(degree), sign, name=name, **facts)


def rectifier(context: Context, call: Call) -> list[Call] | None:
    """A homogeneous function of h, or h with a learned slope below zero, as few calls."""
    out = call.outputs[0]
    if len(call.outputs) != 1 or not is_real(out) or out.storage != out.id:
        return None
    learned = _learned(context, call)
    if learned is not None:
        return [context.call(F.prelu, learned, out)]
    found = reading(context, out)
    h = found.source
    if h is None or h is out or not found.own or found.degree is None:
        return None
    if h.shape != out.shape or not is_real(h, out) or h.id not in context.moving:
        return None
    return _spelled(context, found, h, out)


def _spelled(context: Context, found: Reading, h: Value, out: Value) -> list[Call] | None:
    """The calls of a function with given values at 1, −1 and 0; None where these are no numbers."""
    above, below, zero = found.numbers.tolist()
    degree = found.degree
    assert degree is not None
    constant = above == below and (above == zero or degree == 0)
    if constant or not bool(found.numbers.isfinite().all()) or degree < 0:
        return None
    if degree != 1:
        if degree and zero:
            return None
        power = int(degree) if degree.denominator == 1 else float(degree)
        return [context.call(two_sided_power, (h, power, above, below, zero), out)]
    slopes = above, -below
    by = slopes[0] or slopes[1]
    made = out if by == 1 else context.value(out.shape, out)
    if slopes[0] == slopes[1]:
        return [context.call(torch.mul, (h, by), out)]
    calls = [_unit(context, h, *slopes, made)]
    if by != 1:
        calls.append(context.call(torch.mul, (made, by), out))
    return calls


def _unit(context: Context, h: Value, above: float, below: float, out: Value) -> Call:
    """The rectifier whose slope is one above zero, or below it where the other is zero."""
    if not above:
        return context.call(torch.clamp, (h, None, 0), out)
    slope = below / above
    if slope == 0:
        return context.call(torch.relu, (h,), out, name="relu")
    if slope == -1:
        return context.call(torch.abs, (h,), out)
    return context.call(F.leaky_relu, (h, slope), out)


# -- a learned slope -------------------------------------------------------------------------------


def _learned(context: Context, call: Call) -> tuple[Value, Value] | None:
    """(h, a) for h where h > 0 and a·h elsewhere: a learned slope a, one or one per channel."""
    found = branches(call) if call.name == "where" else None
    sign = found and _sign(context, found[0])
    if not found or not sign:
        return None
    h, scaled = found[1:] if sign[1] else found[:0:-1]
    plain = is_real(h, call.outputs[0]) and h.shape == call.outputs[0].shape
    if not plain or context.content(h) != sign[0]:
        return None
    x, y = _product(context, scaled)
    for one, slope in ((x, y), (y, x)):
        if _is_slope(context, h, one, slope, sign[0]):
            return h, slope
    return None


def _sign(context: Context, mask: Any) -> tuple[Content, bool] | None:
    """(h, True) for h > 0 and (h, False) for h < 0, also with equality."""
    made = context.writer(mask) if isinstance(mask, Value) else None
    if made is None or made.name not in _ABOVE or len(made.args) + len(made.kwargs) != 2:
        return None
    x, y = argument(made, 0, "input", "self"), argument(made, 1, "other")
    above = _ABOVE[made.name]
    if context.number(x) is not None:
        x, y, above = y, x, not above
    if not isinstance(x, Value) or context.number(y) != 0 or x.shape != made.outputs[0].shape:
        return None
    return context.content(x), above


def _product(context: Context, value: Any) -> tuple[Any, Any]:
    """The two factors of a tensor, if it is a product."""
    made = context.writer(value) if isinstance(value, Value) else None
    plain = made is not None and made.name == "mul" and not made.kwargs and len(made.args) == 2
    return made.args if made is not None and plain else (None, None)  # type: ignore[return-value]


def _is_slope(context: Context, h: Value, x: Any, slope: Any, same: Any) -> bool:
    """Whether slope · x is h times a learned number, or one per channel."""
    if not is_real(x, slope, h) or context.content(x) != same:
        return False
    channels = (h.shape[-1],) if len(h.shape) == 2 else (1,)
    return slope.id in context.moving and slope.shape in ((), (1,), channels)
