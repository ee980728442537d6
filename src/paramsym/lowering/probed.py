"""An operator without a rule, lowered as an entrywise function if that is what it is on numbers."""

from __future__ import annotations

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.probing import NotProbed, Probed, probe
from paramsym.primitives.numbers import Rerun, can_run
from paramsym.recording.graph import Call, Value
from paramsym.recording.replay import RANDOM

# what takes as many steps as a number far below zero is large, and cannot be interrupted
_ENDLESS = {"polygamma", "special_polygamma", "special_zeta"}


def by_probing(build: Builder, call: Call) -> Tensor | None:
    """The entrywise function that a call is on numbers; None if it is none, or is not asked."""
    operand = _operand(build, call)
    if operand is None:
        return None
    facts = build.again(call, operand)
    given = [build.data.of(tensor) for tensor in facts.get("given", ())]
    if not facts or any(x is None for x in given):
        return None
    x = build.tensor(operand)
    try:
        found = _asked(build, call, x, facts["compute"], [g for g in given if g is not None])
    except NotProbed as error:
        build.unprobed[call.name] = str(error)
        return None
    if found is None:
        return None
    name = f"{call.name} (probed: {found})"
    build.probed.setdefault(call.name, f"{found}, at {call.where or 'an unknown place'}")
    return build.unary(x, found.degree, found.sign, name=name, **facts)


def _operand(build: Builder, call: Call) -> Value | None:
    """The only tensor that moves, if the result has its shape and dtype."""
    if call.name in {*RANDOM, *_ENDLESS} or not can_run(call) or len(call.outputs) != 1:
        return None
    moving = {v.id: v for v in call.operands if build.tensor(v).moves}
    out = call.outputs[0]
    for value in moving.values():
        same = (value.shape, value.dtype) == (out.shape, out.dtype)
        if len(moving) == 1 and same and value.dtype.is_floating_point:
            return value if call.result is out and out.storage == out.id else None
    return None


def _asked(
    build: Builder, call: Call, x: Tensor, compute: Rerun, given: list[torch.Tensor]
) -> Probed | None:
    plain = [item for item in (*call.args, *call.kwargs.values()) if not isinstance(item, Value)]
    return probe(lambda numbers: compute(numbers, *given), x.shape, [*plain, *given])
