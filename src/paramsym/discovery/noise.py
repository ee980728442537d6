"""How much of a constraint is rounding: differences along a line of parameters.

A constraint c(t) = ⟨∇F, Mθ⟩ at θ(t) = θ + t·δ is smooth in t, and what is computed is c(t) + ε with
errors ε that change from point to point. The sixth difference of a smooth function over seven
points is the sixth power of their distance, which vanishes, but that of ε has the variance
12!/(6!)² Var ε. No second precision and no twin of the model is needed for this, so that rounding
inside of a forward pass is seen as well as that of its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_ORDER = 6
# Relative: many roundings of float32, and so short that curvature does not count and kinks, as of
# a ReLU, are seldom crossed.
_STEP = 1e-6
_QUANTILE, _NORMAL = 0.9, 1.645  # of samples, and of |ε| in standard deviations of a normal one


def differences(values: Tensor) -> Tensor:
    """The standard deviation of ε for each column of (points, samples, columns).

    By a high quantile over the samples: errors have long tails, but a kink that one of them crosses
    must not count.
    """
    for _ in range(_ORDER):
        values = values.diff(dim=0)
    gain = math.sqrt(math.comb(2 * _ORDER, _ORDER))
    return values[0].abs().quantile(_QUANTILE, dim=0) / (_NORMAL * gain)


def noise(
    constraints: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """The computational noise of constraints, one number for each direction.

    Args:
        constraints: of weights, name → (samples, *shape), to (samples, directions).
        weights: where the lines start.
        generator: of their directions.

    Source: R. W. Hamming, "Introduction to applied numerical analysis" (1971), difference tables;
    Moré and Wild, "Estimating computational noise" (2011).
    """
    slopes = {
        n: torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
        for n, w in weights.items()
    }
    line = [
        constraints({n: w * (1 + k * _STEP * slopes[n]) for n, w in weights.items()})
        for k in range(_ORDER + 1)
    ]
    return differences(torch.stack(line))
