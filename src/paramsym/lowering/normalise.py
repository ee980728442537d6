"""Normalising: what people write in many ways becomes one of few forms before it is lowered.

A *recogniser* looks at one recorded call and either says nothing or gives calls that compute the
same numbers: a contraction for `(a * b).sum(-1)`, a ReLU for `torch.where(h > 0, h, 0)`. The last
of them has the outputs of the call that it stands for, with their ids and layouts, so that views
and later calls see no difference; what nobody reads any more is dropped by liveness. The recorded
graph stays as it is: other readers get their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paramsym.lowering.recognisers.centrings import centring
from paramsym.lowering.recognisers.context import Context
from paramsym.lowering.recognisers.contractions import chain, contraction
from paramsym.lowering.recognisers.distances import distances
from paramsym.lowering.recognisers.factors import common_factors
from paramsym.lowering.recognisers.gathered import gathered
from paramsym.lowering.recognisers.identities import product_with_identity
from paramsym.lowering.recognisers.modulations import modulation
from paramsym.lowering.recognisers.products import sum_with_product
from paramsym.lowering.recognisers.rectifiers import rectifier
from paramsym.lowering.recognisers.routing import routing
from paramsym.lowering.recognisers.skips import linear_skip
from paramsym.lowering.recognisers.softmaxes import (
    softmax_in_a_loss,
    softmax_of_logarithm,
    softmax_of_quotient,
)
from paramsym.lowering.recognisers.squares import squares
from paramsym.lowering.repeats import rewritten, without_repeats
from paramsym.recording.graph import Call, Graph

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
            *("mul", "rsub"),
        ),
        (rectifier,),
    ),
    **dict.fromkeys(("addcmul", "addcdiv"), (rectifier, sum_with_product)),
    "div": (softmax_of_quotient, rectifier),
    "exp": (softmax_of_logarithm,),
    "cross_entropy": (softmax_in_a_loss,),
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
    graph = without_repeats(graph)
    context = Context(graph)
    for call in graph.calls:
        for recognise in RECOGNISERS.get(call.name, ()):
            made = recognise(context, call)
            if made is not None:
                context.rewrite(call, made)
                break
    return rewritten(graph, context.rewritten, context.values) if context.rewritten else graph
