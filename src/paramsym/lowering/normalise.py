"""Normalising: what people write in many ways becomes one of few forms before it is lowered.

A *recogniser* looks at one recorded call and either says nothing or gives calls that compute the
same numbers: a contraction for `(a * b).sum(-1)`, a ReLU for `torch.where(h > 0, h, 0)`. The last
of them has the outputs of the call that it stands for, with their ids and layouts, so that views
and later calls see no difference; what nobody reads any more is dropped by liveness. The recorded
graph stays as it is: other readers get their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paramsym.lowering.recognisers.centrings import centring
from paramsym.lowering.recognisers.context import Context
from paramsym.lowering.recognisers.contractions import chain, contraction
from paramsym.lowering.recognisers.distances import distances
from paramsym.lowering.recognisers.factors import common_factors
from paramsym.lowering.recognisers.gathered import gathered
from paramsym.lowering.recognisers.identities import product_with_identity
from paramsym.lowering.recognisers.modulations import modulation
from paramsym.lowering.recognisers.rectifiers import rectifier
from paramsym.lowering.recognisers.routing import routing
from paramsym.lowering.recognisers.skips import linear_skip
from paramsym.lowering.recognisers.squares import squares
from paramsym.recording.graph import Call, Graph, Value

Recogniser = Callable[[Context, Call], list[Call] | None]

RECOGNISERS: Mapping[str, tuple[Recogniser, ...]] = {
    **dict.fromkeys(
        ("scatter", "scatter_add", "one_hot", "lt", "ge", "amax", "eq", "any"), (routing,)
    ),
    "sum": (routing, gathered, contraction, squares),
    "mean": (contraction,),
    "einsum": (routing, gathered, chain),
    **dict.fromkeys(
        (
            *("where", "masked_fill", "setitem", "index_put", "copysign", "heaviside", "lerp"),
            *("maximum", "minimum", "fmax", "fmin", "max", "min", "hypot", "atan2", "sqrt"),
            *("mul", "div", "rsub", "addcmul", "addcdiv"),
        ),
        (rectifier,),
    ),
    "add": (distances, linear_skip, modulation, common_factors, rectifier),
    "sub": (distances, centring, common_factors, rectifier),
    **dict.fromkeys(("linear", "matmul", "mm"), (product_with_identity,)),
}


def normalise(graph: Graph) -> Graph:
    """An equivalent graph with fewer forms; the graph itself where nothing is recognised.

    Args:
        graph: a recorded forward pass, which is not changed.

    Returns:
        A graph that computes the same outputs. Values keep their ids; new ones come after them.
    """
    context = Context(graph)
    for call in graph.calls:
        for recognise in RECOGNISERS.get(call.name, ()):
            made = recognise(context, call)
            if made is not None:
                context.rewrite(call, made)
                break
    return _copied(context) if context.rewritten else graph


def _copied(context: Context) -> Graph:
    """The graph with its rewritten calls, on values and calls of its own."""
    graph = context.graph
    values = [replace(value) for value in (*graph.values, *context.values)]

    def own(item: Any) -> Any:
        if isinstance(item, Value):
            return values[item.id]
        if isinstance(item, (tuple, list)):
            made = [own(part) for part in item]
            same = all(a is b for a, b in zip(item, made, strict=True))
            return item if same else tuple(made) if isinstance(item, tuple) else made
        if isinstance(item, dict):
            return {key: own(part) for key, part in item.items()}
        return item

    calls: list[Call] = []
    latest: dict[int, Call] = {}  # by the call that was recorded, or made by a recogniser
    for recorded in graph.calls:
        for call in context.rewritten.get(id(recorded), [recorded]):
            made = Call(
                len(calls), call.name, call.target, own(call.args), own(call.kwargs),
                own(call.outputs), own(call.result), recorded.where,
            )  # fmt: skip
            calls.append(made)
            latest[id(call)] = latest[id(recorded)] = made
    for value in values:
        if value.call is not None:
            value.call = latest.get(id(value.call), value.call)
    return Graph(
        values, calls,
        {name: values[v.id] for name, v in graph.parameters.items()},
        {name: values[v.id] for name, v in graph.buffers.items()},
        [values[v.id] for v in graph.outputs], dict(graph.held), dict(graph.virtual),
        {name: values[v.id] for name, v in graph.written.items()}, dict(graph.decided),
    )  # fmt: skip
