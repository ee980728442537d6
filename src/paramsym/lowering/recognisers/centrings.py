"""A centring inside a longer sum: (v + a) − mean(a) is v + (a − mean(a)).

So the value and the advantages of a dueling head are written; in the second form a common shift of
the advantages is seen to disappear.
"""

from __future__ import annotations

import torch

from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.recording.graph import Call, Value


def centring(context: Context, call: Call) -> list[Call] | None:
    """`v + a - a.mean(…)` with the mean taken from the summand that it is a mean of."""
    whole, mean = argument(call, 0, "input", "self"), argument(call, 1, "other")
    out = call.outputs[0]
    if not isinstance(whole, Value) or not isinstance(mean, Value) or not _is_plain(call):
        return None
    added, averaged = _writer(context, whole, "add"), _writer(context, mean, "mean")
    if added is None or averaged is None or not is_real(whole, mean, out):
        return None
    source = argument(averaged, 0, "input", "self")
    terms = [argument(added, 0, "input", "self"), argument(added, 1, "other")]
    if not isinstance(source, Value) or not all(isinstance(term, Value) for term in terms):
        return None
    for term, other in (terms, terms[::-1]):
        same = context.content(term) == context.content(source)
        if same and term.shape == out.shape and context.content(other) != context.content(source):
            centred = context.value(term.shape, out)
            return [
                context.call(torch.sub, (term, mean), centred),
                context.call(torch.add, (other, centred), out),
            ]
    return None


def _writer(context: Context, value: Value, name: str) -> Call | None:
    """The plain call of a name that computes a value."""
    call = context.written_by(name, value)
    return call if call is not None and _is_plain(call) else None


def _is_plain(call: Call) -> bool:
    """Whether a sum or a difference has no factor, and a mean has the dtype of its input."""
    factor = call.kwargs.get("alpha", 1) == 1 and call.kwargs.get("dtype") is None
    return factor and "out" not in call.kwargs and (call.name == "mean" or len(call.args) < 3)
