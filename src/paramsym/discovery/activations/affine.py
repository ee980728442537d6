"""Functions kz + m, of which every affine map is a relation, and how far others are from one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from .certificate import Certificate
from .grid import stratified
from .relation import Family, Relation


@dataclass(frozen=True)
class Line:
    """kz + m nearest to a function, and the largest distance relative to the values."""

    slope: float
    constant: float
    distance: float


def nearest_line(certificate: Certificate) -> Line:
    """The best affine function in the mean of squares, each point counted by its values."""
    f = certificate.f
    fine = stratified(certificate.generator)
    fine = fine[(fine > f.low) & (fine < f.high)]
    z = torch.cat([f.sample(400, certificate.generator), fine])
    value = f(z)
    kept = value.isfinite()
    z, value = z[kept], value[kept]
    weight = 1 / (value.abs() + f.typical * (1 + z.abs()) + 1e-300)
    rows = torch.stack([z, torch.ones_like(z)], 1) * weight[:, None]
    found = torch.linalg.lstsq(rows, (value * weight)[:, None]).solution[:, 0].tolist()
    none = certificate.tolerance * (f.typical + 1e-300)
    closeness = max(1e-12, 4 * f.epsilon) if f.epsilon < 1e-12 else certificate.tolerance
    k, m = (0.0 if abs(x) <= none else certificate.short(x, closeness) for x in found)
    return Line(k, m, float(((value - k * z - m).abs() * weight).max()))


def affine_families(certificate: Certificate, line: Line) -> list[Family]:
    """Shifts and scalings of kz + m that keep the domain: a = α, and a shift adds a constant."""
    f, k, m = certificate.f, line.slope, line.constant
    ends = [end for end in (f.low, f.high) if math.isfinite(end)]
    found = [Family(0.0, 1.0, 0.0, 0.0, k)] if not ends else []
    if len(ends) < 2:
        p = ends[0] if ends else 0.0
        found.append(Family(1.0, -p, 1.0, 0.0, -m - k * p) if k else Family(1.0, -p, 0.0))
    return [
        replace(family, residual=max(certificate.residual(family.at(t)) for t in (0.5, -1.1)))
        for family in found
    ]


def affine_reflections(certificate: Certificate, line: Line) -> list[Relation]:
    """f(2p − z) = −f(z) + 2 f(p), and f(z) for a constant; p is the middle of the domain, or 0."""
    f, k, m = certificate.f, line.slope, line.constant
    if math.isfinite(f.low) != math.isfinite(f.high):
        return []
    p = 0.0 if f.is_line else (f.low + f.high) / 2
    relation = (
        Relation(-1.0, 2 * p, -1.0, 0.0, 2 * (k * p + m)) if k else Relation(-1.0, 2 * p, 1.0)
    )
    return [relation.measured(certificate.residual(relation))]
