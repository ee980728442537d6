"""Many inputs of a domain at once, in floats: where candidates for a witness come from.

What is found here counts only after `Domain.contains` and both networks have been asked exactly.
"""

from __future__ import annotations

import numpy as np

from paramsym.relu.domains import Ball, Box, Domain, Everywhere, Orthant
from paramsym.relu.rationals import nearest_float

BITS = 40  # of a coordinate: exact work on candidates stays cheap


def drawn(domain: Domain, generator: np.random.Generator, count: int) -> np.ndarray:
    """(count, d): random inputs, at many scales where the domain is unbounded."""
    d = domain.dimension
    if isinstance(domain, Box):
        lower, upper = sides(domain)
        return generator.uniform(lower, upper, (count, d))
    normal = generator.normal(size=(count, d))
    if isinstance(domain, Orthant):
        return np.abs(normal) * 10.0 ** generator.uniform(-2, 2, (count, d))
    if not isinstance(domain, Ball):
        return normal * 10.0 ** generator.uniform(-2, 3, (count, 1))
    norm = np.maximum(np.linalg.norm(normal, axis=1), 1e-300)[:, None]
    size = generator.uniform(size=(count, 1)) ** (1 / max(d, 1))
    return normal / norm * size * (nearest_float(domain.radius) * (1 - 1e-9))


def short(points: np.ndarray) -> np.ndarray:
    """The points with `BITS` bits per coordinate."""
    mantissa, exponent = np.frexp(points)
    return np.ldexp(np.round(np.ldexp(mantissa, BITS)), exponent - BITS)


def inside(domain: Domain, points: np.ndarray) -> np.ndarray:
    """(N,): which points lie in the domain, as far as floats can tell."""
    if isinstance(domain, Box):
        lower, upper = sides(domain)
        return np.all((lower <= points) & (points <= upper), axis=1)
    if isinstance(domain, Ball):
        return np.linalg.norm(points, axis=1) <= nearest_float(domain.radius) * (1 - 1e-12)
    return np.all(points >= (0 if isinstance(domain, Orthant) else -np.inf), axis=1)


def moved_into(domain: Domain, points: np.ndarray) -> np.ndarray:
    """The points, each halved towards the centre until it lies in the domain."""
    if isinstance(domain, Everywhere):
        return points
    centre = np.array([nearest_float(v) for v in domain.centre()])
    points = points.copy()
    for _ in range(12):
        out = ~inside(domain, short(points))
        if not out.any():
            break
        points[out] = centre + (points[out] - centre) / 2
    return points


def sides(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of a box in floats, (d,) each."""
    lower, upper = ([nearest_float(v) for v in side] for side in (box.lower, box.upper))
    return np.array(lower), np.array(upper)
