"""Which entries are the largest along an axis, as the normalising stage writes it."""

from __future__ import annotations

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.primitives import Chosen
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call


@rule("chosen")
def chosen(build: Builder, call: Call) -> Tensor:
    """A mask that follows the order of its units, unless scores may be equal for many inputs."""
    scores, count, dim, ties = build.arguments(call, "input", "k", "dim", "ties")
    dim %= scores.ndim
    if ties:
        ix.freeze(scores.axes[dim], f"equal scores are told apart by their places at {build.where}")
    out = build.new(scores.shape, scores.axes, total=(dim, count))
    return build.emit(Chosen, out, [scores], dim=dim, **build.again(call, call.operands[0]))
