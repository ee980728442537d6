"""Rectifiers: the function that is c₊·h where h > 0 and c₋·h elsewhere, in its many spellings.

    torch.where(h > 0, h, 0)    h * (h > 0)    torch.maximum(h, 0.1 * h)    h.masked_fill(h < 0, 0)

All are c·leaky_relu(h, slope), and scale with h. Zero itself may stand on either side.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from paramsym.lowering.recognisers.context import Content, Context, argument, is_real
from paramsym.recording.graph import Call, Value

_ABOVE = {"gt": True, "ge": True, "greater_equal": True, "lt": False, "le": False, "less": False,
          "less_equal": False}  # fmt: skip

Pieces = tuple[Value, float, float]  # h, c₊, c₋


def rectifier(context: Context, call: Call) -> list[Call] | None:
    """A choice between multiples of h by the sign of h, as relu, leaky_relu, abs or clamp."""
    out = call.outputs[0]
    if len(call.outputs) != 1 or not is_real(out):
        return None
    learned = _learned(context, call)
    if learned is not None:
        return [context.call(F.prelu, learned, out)]
    found = _READINGS[call.name](context, call)
    if found is None:
        return None
    h, above, below = found
    if h.shape != out.shape or not is_real(h, out) or above == below or h.id not in context.moving:
        return None
    by = above or below
    made = out if by == 1 else context.value(out.shape, out)
    calls = [_unit(context, h, above, below, made)]
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


# -- readings ------------------------------------------------------------------------------------


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


def _branches(call: Call) -> tuple[Any, Any, Any] | None:
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


def _by_mask(context: Context, call: Call) -> Pieces | None:
    branches = _branches(call)
    sign = branches and _sign(context, branches[0])
    if not branches or not sign:
        return None
    pieces = _common(context, branches[1:], sign[0])
    return pieces and (pieces if sign[1] else (pieces[0], pieces[2], pieces[1]))


def _by_product(context: Context, call: Call) -> Pieces | None:
    """h times the indicator of its sign, which may have been cast to numbers."""
    if call.kwargs or len(call.args) != 2:
        return None
    for h, mask in (call.args, call.args[::-1]):
        sign = _sign(context, context.uncast(mask)) if isinstance(mask, Value) else None
        if sign is not None and (pieces := _common(context, (h, 0.0), sign[0])) is not None:
            return pieces if sign[1] else (pieces[0], 0.0, pieces[1])
    return None


def _by_size(context: Context, call: Call) -> Pieces | None:
    x, y = argument(call, 0, "input", "self"), argument(call, 1, "other")
    if not isinstance(x, Value) or not isinstance(y, Value):
        return None
    if len(call.args) + len(call.kwargs) > 2:
        return None
    pieces = _common(context, (x, y), None)
    if pieces is None:
        return None
    h, *slopes = pieces
    low, high = sorted(slopes)
    return (h, low, high) if "min" in call.name else (h, high, low)


def _common(context: Context, items: tuple[Any, ...], content: Content | None) -> Pieces | None:
    """h and the numbers by which it is multiplied in two tensors, of which one may be zero."""
    seen: Value | None = None
    slopes = []
    for item in items:
        if context.number(item) == 0:
            slopes.append(0.0)
            continue
        found = context.multiple(item)
        if found is None or (content is not None and context.content(found[0]) != content):
            return None
        seen, content = found[0], context.content(found[0])
        slopes.append(found[1])
    return None if seen is None else (seen, slopes[0], slopes[1])


_READINGS = {
    "where": _by_mask, "masked_fill": _by_mask, "mul": _by_product,
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "max", "min"), _by_size),
}  # fmt: skip


def _learned(context: Context, call: Call) -> tuple[Value, Value] | None:
    """(h, a) for h where h > 0 and a·h elsewhere: a learned slope a, one or one per channel."""
    branches = _branches(call) if call.name == "where" else None
    sign = branches and _sign(context, branches[0])
    if not branches or not sign:
        return None
    h, scaled = branches[1:] if sign[1] else branches[:0:-1]
    plain = is_real(h, call.outputs[0]) and h.shape == call.outputs[0].shape
    if not plain or context.content(h) != sign[0]:
        return None
    x, y = _product(context, scaled)
    for one, slope in ((x, y), (y, x)):
        if _is_slope(context, h, one, slope, sign[0]):
            return h, slope
    return None


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
    return slope.id in context.moving and slope.shape in ((1,), channels)
