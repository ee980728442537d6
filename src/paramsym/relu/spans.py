"""The checker's own ranges of affine forms on a domain, in extended precision, rounded outward.

The finder has `float_atoms.Reach`; this is written apart, as centre and half-width, so that one
slip cannot make a bound look small to both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paramsym.relu.domains import Box, Domain, Orthant
from paramsym.relu.rationals import nearest_float

Long = np.longdouble
_FLOAT = 2.0**-53


@dataclass(frozen=True)
class Span:
    """|x| <= radius; where the domain is a box, |x - middle| <= half entry by entry as well."""

    radius: float
    middle: np.ndarray | None = None
    half: np.ndarray | None = None

    @staticmethod
    def of(domain: Domain) -> Span | None:
        """None for the orthant, where floats bound nothing."""
        if isinstance(domain, Orthant):
            return None
        if not isinstance(domain, Box):
            return Span(domain.norm())
        middle = np.array([nearest_float((u + v) / 2) for u, v in _sides(domain)])
        half = np.array([nearest_float((v - u) / 2) for u, v in _sides(domain)])
        return Span(domain.norm(), middle, half)

    def range(self, normals: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (lower, upper) of normals·x + offsets, (n,) each."""
        normals, offsets = normals.astype(Long), offsets.astype(Long)
        size = np.abs(normals)
        if self.middle is None or self.half is None:
            centre, norm = offsets, np.sqrt((normals**2).sum(axis=1))
            # 0·inf is no number: a form without a normal is constant on all of R^d.
            width = np.where(norm > 0, norm * (1 + 1e-15) * self.radius if self.radius else 0, 0)
            if math.isinf(self.radius):
                width = np.where(norm > 0, np.inf, 0.0)
        else:
            centre = normals @ self.middle.astype(Long) + offsets
            width = size @ self.half.astype(Long)
            # The middle and the half-width are themselves rounded, by 2^-53 of their sizes.
            width = width + 2 * _FLOAT * (size @ (np.abs(self.middle) + self.half))
        width = width + 4 * _FLOAT * np.abs(offsets)
        return (centre - width).astype(float), (centre + width).astype(float)


def _sides(domain: Box):
    return zip(domain.lower, domain.upper, strict=True)
