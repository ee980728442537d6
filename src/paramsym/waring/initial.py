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

_POINTS = 2**14  # times terms
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

    degrees = torch.tensor([degree for degree, _ in profile])
    marks = torch.tensor([sign for _, sign in profile])

    def size(share: float, q: float) -> float:
        split = {degree: _split(degree, exponent, share) for degree in {*degrees.tolist()}}
        scales = torch.tensor([split[degree] for degree, _ in profile], dtype=torch.float64)
        forms = math.sqrt(q) * scales[:, 0] * normal + scales[:, 1] * signs
        total = (marks * forms**degrees).sum(1)
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
    """The largest c ≤ 1 with M(4) ≤ 4 up to one per cent, by bisection; never none at all."""

    def explodes(share: float) -> bool:
        large = size(share, _LARGE)
        return not math.isfinite(large) or large > 1.01 * _LARGE * size(share, 1.0)

    low, high = 0.0, 1.0
    if not explodes(high):
        return high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if explodes(middle) else (middle, high)
    return low or high


def _split(degree: int, power: float, share: float) -> tuple[float, float]:
    """Deviation of aᵀx and size of b at which z^degree has second moment 1."""
    part = min(1.0, share / (degree * power))
    j, logs = _moment(degree)
    both = torch.tensor([part, 1 - part], dtype=torch.float64)
    logs = logs + torch.xlogy(j, both[0]) + torch.xlogy(degree - j, both[1])
    root = math.exp(-0.5 / degree * float(torch.logsumexp(logs, 0)))
    return math.sqrt(part) * root, math.sqrt(1 - part) * root


@lru_cache(maxsize=64)
def _moment(degree: int) -> tuple[Tensor, Tensor]:
    """j and log C(2d, 2j)(2j − 1)!!: E z^{2d} sums them times α^j (1 − α)^{d−j}."""
    j = torch.arange(degree + 1, dtype=torch.float64)
    logs = math.lgamma(2 * degree + 1) - torch.lgamma(2 * (degree - j) + 1)
    return j, logs - torch.lgamma(j + 1) - j * math.log(2)  # (2j − 1)!! = (2j)! / (2^j j!)


def _points(terms: int) -> tuple[Tensor, Tensor]:
    """Normal numbers and signs, (points, terms) each; independent ones beyond what Sobol' has."""
    points = max(_POINTS // max(terms, 8), 256)
    if 2 * terms <= torch.quasirandom.SobolEngine.MAXDIM:
        uniform = torch.quasirandom.SobolEngine(2 * terms).draw(points, dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(0)
        uniform = torch.rand(points, 2 * terms, dtype=torch.float64, generator=generator)
    uniform = (uniform + 0.5 / points).clamp(max=1 - 0.5 / points)
    return torch.special.ndtri(uniform[:, :terms]), (uniform[:, terms:] > 0.5) * 2.0 - 1.0
