"""What was found of an entrywise operator as its rule."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from paramsym.lowering import rule
from paramsym.lowering.builder import Builder
from paramsym.primitives.tensor import Tensor
from paramsym.recording.graph import Call

from .intertwiners import Intertwiners


def register_rule(found: Intertwiners, *targets: Any) -> dict[str, Any]:
    """Register an entrywise operator with the degree and the parity that were found.

    Only what needs nothing but the weights on either side is stated: f(sz) = s^d f(z), f(−z) =
    ±f(z), or that f is linear. Relations with a shift or an affine part are no words of a rule;
    `lift` moves parameters by them.

    A call with any further argument is declined, and stays unknown: f was searched as it was
    given. What a rule claims is tried by `find_symmetry` and by `assert_lowering`.

    Args:
        found: relations of the function that the operator computes.
        targets: the operators or their names, as for `rule`.

    Returns:
        What was stated: `degree` and `sign`, or `linear` and `factor`.

    Source: `rule`, and the relations of `found`.
    """
    facts = claims(found)

    @rule(*targets)
    def entrywise(build: Builder, call: Call) -> Tensor | None:
        if len(call.args) + len(call.kwargs) != 1 or len(call.operands) != 1:
            return None
        return build.unary(build.tensor(call.operands[0]), compute=found.function, **facts)

    return facts


def claims(found: Intertwiners) -> dict[str, Any]:
    """Degree and sign in the words of `Builder.unary`; the factor of a linear function."""
    if (factor := found.factor) is not None:
        return {"linear": True, "factor": factor}
    degree = found.degree
    if degree is None:
        return {"degree": None, "sign": found.parity}
    exact = Fraction(degree).limit_denominator(12)
    # an exponent that is no short fraction has no exact weight equation, so that none is stated
    return {"degree": exact if float(exact) == degree else None, "sign": found.parity}
