"""Sums with a product as two calls: `addcmul(x, a, b)` is x + a·b, and `addcdiv` x + a/b."""

from __future__ import annotations

import torch

from paramsym.lowering.made import broadcast
from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.recording.graph import Call


def sum_with_product(context: Context, call: Call) -> list[Call] | None:
    """A product or quotient of two tensors, a number times it, added to a third."""
    out = call.outputs[0]
    terms = [argument(call, k, n) for k, n in enumerate(("input", "tensor1", "tensor2"))]
    factor = call.kwargs.get("value", 1)
    if len(call.args) > 3 or not is_real(*terms, out) or not isinstance(factor, (int, float)):
        return None
    x, a, b = terms
    operator = torch.mul if call.name == "addcmul" else torch.div
    product = context.value(broadcast([a.shape, b.shape]), out)
    made = [context.call(operator, (a, b), product)]
    return [*made, context.call(torch.add, (x, product), out, alpha=factor)]
