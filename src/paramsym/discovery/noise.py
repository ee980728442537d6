"""How much of a constraint is rounding: differences along a line of parameters.

A constraint c(t) = ⟨∇F, Mθ⟩ at θ(t) = θ + t·δ is smooth in t, and what is computed is c(t) + ε with
errors ε that change from point to point. The sixth differences of a smooth function are the sixth
power of the distance of its points, which vanishes, but those of ε have the variance
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
_POINTS = 10  # on a line: four differences, so that none is small by chance


def differences(values: Tensor) -> Tensor:
    """The standard deviation of ε along axis 0, from all sixth differences."""
    for _ in range(_ORDER):
        values = values.diff(dim=0)
    return values.square().mean(dim=0).sqrt() / math.sqrt(math.comb(2 * _ORDER, _ORDER))


def noise(
    constraints: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """The computational noise of constraints, (samples, directions).

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
        for k in range(_POINTS)
    ]
    return differences(torch.stack(line))
