"""A modulation around its input: x + x·g is x·(g + 1).

In the second form the number is one of what computes g, whose scale and basis are then seen.
"""

from __future__ import annotations

import torch

from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.recording.graph import Call, Value


def modulation(context: Context, call: Call) -> list[Call] | None:
    """`x + x * g`, in either order of both, as `x * (g + 1)` if the product is read here alone."""
    out = call.outputs[0]
    terms = [argument(call, 0, "input", "self"), argument(call, 1, "other")]
    if call.kwargs.keys() - {"input", "other"} or len(call.args) > 2:
        return None
    if not is_real(*terms, out):
        return None
    for x, product in (terms, terms[::-1]):
        made = context.written_by("mul", product)
        if made is None or context.readers_of(product) != [call]:
            continue
        gain = _other_factor(context, made, x)
        if gain is None or context.is_output(product) or product.shape != out.shape:
            continue
        raised = context.value(gain.shape, gain)
        return [
            context.call(torch.add, (gain, 1.0), raised),
            context.call(torch.mul, (x, raised), out),
        ]
    return None


def _other_factor(context: Context, made: Call, x: Value) -> Value | None:
    """What x is multiplied by."""
    factors = list(made.args)
    if made.kwargs or len(factors) != 2 or not is_real(*factors, x):
        return None
    for factor, other in (factors, factors[::-1]):
        same = context.content(factor) == context.content(x)
        if same and context.content(other) != context.content(x):
            return other
    return None
