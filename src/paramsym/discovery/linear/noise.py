"""How much of a computed number is rounding: differences along a line.

A number c(t) at θ(t) = θ + t·δ is smooth in t, and what is computed is c(t) + ε with errors ε that
change from point to point. The sixth differences of a smooth function are the sixth power of the
distance of its points, which vanishes, but those of ε have the variance 12!/(6!)² Var ε. No second
precision and no twin of the model is needed for this, so that rounding inside of a forward pass is
seen as well as that of its parameters. A function that is fast in t has differences too, but a
quarter of the step makes them 4000 times smaller and leaves rounding what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

_ORDER = 6
# Relative: many roundings of float32, and so short that curvature does not count and kinks, as of
# a ReLU, are seldom crossed.
_STEP, _SHORTER = 1e-6, 0.25
_POINTS = 10  # on a line: four differences, so that none is small by chance
_ENTRIES = 1 << 22  # of all points that are called at once
_QUIET = 1e-13  # what is less needs no second look

Key = TypeVar("Key")


def scaled_differences(values: Tensor) -> Tensor:
    """Sixth differences along axis 0, of the standard deviation of ε if all of them are ε."""
    for _ in range(_ORDER):
        values = values.diff(dim=0)
    return values / math.sqrt(math.comb(2 * _ORDER, _ORDER))


def differences(values: Tensor) -> Tensor:
    """The standard deviation of ε along axis 0, from all sixth differences."""
    return scaled_differences(values).square().mean(dim=0).sqrt()


def noise_differences(
    function: Callable[[Mapping[Key, Tensor]], Tensor],
    where: Mapping[Key, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Sixth differences along lines, (differences, samples, columns): linear in the columns.

    Args:
        function: of tensors, each (samples, *shape), to (samples, columns); called with several
            points of each line at once, as further samples.
        where: the lines start; floating tensors, which are moved relative to their entries.
        generator: of their directions.
    """
    slopes = {
        n: torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.device)
        for n, w in where.items()
    }

    entries = sum(w.numel() for w in where.values())
    count = next((len(w) for w in where.values()), 0)
    at_once = max(1, min(_POINTS, _ENTRIES // max(1, entries)))

    def along(step: float) -> Tensor:
        parts = (torch.arange(_POINTS, dtype=torch.float64) * step).split(at_once)
        line = [function({n: points(where[n], slopes[n], at) for n in where}) for at in parts]
        values = torch.cat(line)
        return scaled_differences(values.reshape(_POINTS, count, *values.shape[1:]))

    def points(tensor: Tensor, slope: Tensor, at: Tensor) -> Tensor:
        """Of a line, one after another along the axis of samples."""
        factors = at.to(tensor.device).reshape(-1, *[1] * tensor.ndim)
        return (tensor * (1 + factors * slope)).to(tensor.dtype).flatten(0, 1)

    found = along(_STEP)
    if found.numel() and not float(found.abs().max()) <= _QUIET:
        shorter = along(_STEP * _SHORTER)
        sizes = [d.square().sum(dim=(0, 2)).nan_to_num(nan=math.inf) for d in (found, shorter)]
        found = torch.where((sizes[1] < sizes[0])[None, :, None], shorter, found)
    return found


def noise(
    function: Callable[[Mapping[Key, Tensor]], Tensor],
    where: Mapping[Key, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """The computational noise of the columns of a function, (samples, columns).

    Source: R. W. Hamming, "Introduction to applied numerical analysis" (1971), difference tables;
    Moré and Wild, "Estimating computational noise" (2011).
    """
    return noise_differences(function, where, generator).square().mean(dim=0).sqrt()
