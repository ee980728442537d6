r"""Initial scales at which activations keep their mean square.

A term z^d with z = aᵀx + b, at inputs of mean square q, is drawn with a ~ N(0, s²α / in) and
b = ± s √(1 − α), so that z has variance s²(αq + 1 − α). Let M(q) be the mean square that the
layer and its rectified monomial make of inputs of mean square q. Two conditions fix it:

    M(1) = 1,    M(4) ≤ 4 with the largest share α = c/(dp), c ≤ 1.

The first is He's. The second is what powers need: without biases M(q) = q^{dp}, and whatever is a
little too large explodes from layer to layer. M is convex, so that M(4) ≤ 4 draws every size up to
four times the usual one back to 1. For d = p = 1 it is no condition, c = 1, there are no biases,
and a has He's variance 2 / in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from .terms import Kind

_POINTS = 2**18  # over all terms of an output
_LARGE = 4.0  # sizes up to this many times the usual one are drawn back


@lru_cache(maxsize=256)
def deviations(
    profile: tuple[Kind, ...], power: float | None, bias: bool
) -> tuple[tuple[float, float], ...]:
    """By term of one output: the standard deviation of aᵀx at mean square 1, and |b|.

    Expectations over normal aᵀx and signs of b are means over a Sobol' sequence.
    """
    normal, signs = _points(len(profile))
    exponent = power or 1.0

    def size(share: float, q: float) -> float:
        total = torch.zeros(len(normal), dtype=torch.float64)
        for t, (degree, sign) in enumerate(profile):
            inner, outer = _split(degree, exponent, share)
            total += sign * (math.sqrt(q) * inner * normal[:, t] + outer * signs[:, t]) ** degree
        kept = total.abs() if power is None else total.clamp(min=0)
        return float((kept ** (2 * exponent)).mean())

    share = _largest_share(size) if bias else math.inf
    usual = size(share, 1.0)
    if not usual > 0:  # negative terms alone: the rectifier lets nothing through
        usual = 1.0
    roots = [usual ** (-1 / (2 * exponent * degree)) for degree, _ in profile]
    pairs = [_split(degree, exponent, share) for degree, _ in profile]
    return tuple((i * root, o * root) for (i, o), root in zip(pairs, roots, strict=True))


def _largest_share(size: Callable[[float, float], float]) -> float:
    """The largest c ≤ 1 with M(4) ≤ 4, by bisection."""

    def explodes(share: float) -> bool:
        return size(share, _LARGE) > _LARGE * size(share, 1.0) * (1 + 1e-9)

    low, high = 0.0, 1.0
    if not explodes(high):
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if explodes(middle) else (middle, high)
    return low


def _split(degree: int, power: float, share: float) -> tuple[float, float]:
    """Deviation of aᵀx and size of b at which z^degree has second moment 1."""
    part = min(1.0, share / (degree * power))
    moment = sum(
        math.comb(2 * degree, 2 * j) * part**j * (1 - part) ** (degree - j) * _odd_factorial(j)
        for j in range(degree + 1)
    )
    root = moment ** (-0.5 / degree)
    return math.sqrt(part) * root, math.sqrt(1 - part) * root


def _odd_factorial(j: int) -> int:
    """(2j − 1)!! = E g^{2j} of a standard normal g."""
    return math.prod(range(1, 2 * j, 2))


def _points(terms: int) -> tuple[Tensor, Tensor]:
    points = max(_POINTS // max(terms, 16), 256)
    uniform = torch.quasirandom.SobolEngine(2 * terms).draw(points, dtype=torch.float64)
    uniform = (uniform + 0.5 / points).clamp(max=1 - 0.5 / points)
    return torch.special.ndtri(uniform[:, :terms]), (uniform[:, terms:] > 0.5) * 2.0 - 1.0
