r"""Lie algebras of relations: the null space of [z f', f', f, z, 1].

A one-parameter group of maps of the line is a shift or scales about a point p. It carries the span
of f, z and 1 to itself if and only if its vector field does,

    (κz + τ) f'(z) = degree · f(z) + μz + ν.

Derivatives are differences of values, so that no backward pass is believed; where two step sizes
disagree (at kinks and jumps) the point is left out. The condition holds on pieces, so that a
function with f' = 0 almost everywhere, such as floor, meets it and has no such symmetry: what is
found is a candidate, and each is tried by finite elements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .certificate import Certificate
from .numbers import short
from .relation import Family, Relation

_WEIGHTS = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}  # central differences of order six
_TIMES = (0.5, -0.83, 0.2113)


def singular_values_and_centres(certificate: Certificate) -> tuple[list[float], list[float]]:
    """Singular values of the conditions, and the centres of scalings that they suggest."""
    f = certificate.f
    z = f.sample(1600, certificate.generator)
    z = z[(z.abs() < 50) & (z.abs() > 1e-3)]
    step = (f.epsilon ** (1 / 7) * z.abs().clamp(0.05, 1.0)).clamp_max(0.1)
    slope, half, value = _difference(f, z, step), _difference(f, z, step / 2), f(z)
    size = half.abs() + FLOOR_OF_SLOPES * (value.abs() + f.typical)
    kept = ((slope - half).abs() <= 1e3 * f.epsilon ** (6 / 7) * size) & value.isfinite()
    if int(kept.sum()) < 50:
        return [math.nan] * 5, []
    z, slope, value = z[kept], half[kept], value[kept]
    rows = torch.stack([z * slope, slope, value, z, torch.ones_like(z)], 1)
    rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(1e-300)  # squares may overflow
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    lengths = rows.norm(dim=0).clamp_min(1e-12)
    _, values, directions = torch.linalg.svd(rows / lengths, full_matrices=False)
    fields = (directions / lengths)[-3:, :2]  # of the vector fields of the three best
    centres = [-float(t / k) for k, t in fields if abs(k) > 1e-9 * (abs(t) + 1e-300)]
    return (values / values[0]).tolist(), [p for p in centres if abs(p) < 100]


FLOOR_OF_SLOPES = 1e-2


def families(certificate: Certificate, jumps: list[float]) -> tuple[list[Family], list[float]]:
    """All one-parameter groups: shifts, and scalings about each centre that is suggested.

    Centres come from the null space, from jumps (which a group that is connected to the identity
    cannot move) and from the ends of the domain.
    """
    f = certificate.f
    values, suggested = singular_values_and_centres(certificate)
    found: list[Family] = []
    if f.is_line:
        found += _tried(certificate, 0.0, 1.0)
        centres = [0.0, *suggested, *jumps[:8]]
    else:
        ends = [end for end in (f.low, f.high) if math.isfinite(end)]
        centres = ends if len(ends) == 1 else []
    for p in centres:
        scaling = _tried(certificate, 1.0, -short(p, 1e-5)) or _tried(certificate, 1.0, -p)
        if scaling:
            # with a shift about any centre: one is enough
            return found + scaling, values
    return found, values


def _tried(certificate: Certificate, kappa: float, tau: float) -> list[Family]:
    """The family along a vector field, if its finite elements keep the span of f, z and 1."""
    quick = certificate.with_points(200)
    t = _TIMES[0]
    alpha = math.exp(kappa * t)
    beta = tau * t if not kappa else tau / kappa * (alpha - 1)
    first = quick.fitted(alpha, beta)
    if not quick.accepts(first) or first.a <= 0:
        return []
    closeness = max(1e-7, 4 * certificate.tolerance)
    plain = _generated(kappa, tau, first, t, closeness)
    affine = (certificate.short(x, closeness) for x in (plain.mu, plain.nu))
    neat = Family(kappa, tau, plain.degree, *affine)
    for family in (neat, plain):
        worst = max(certificate.residual(family.at(t)) for t in _TIMES)
        if worst <= certificate.tolerance:
            return [Family(kappa, tau, family.degree, family.mu, family.nu, worst)]
    return []


def _generated(kappa: float, tau: float, relation: Relation, t: float, closeness: float) -> Family:
    """The family whose element at t is this relation: degree = log a / t, then μ and ν, linear."""
    degree = short(math.log(relation.a) / t, closeness)

    def top(mu: float, nu: float) -> Tensor:
        return torch.linalg.matrix_exp(t * Family(kappa, tau, degree, mu, nu).generator)[0, 1:]

    columns = torch.stack([top(1.0, 0.0), top(0.0, 1.0)], 1)
    wanted = torch.tensor([relation.b, relation.c], dtype=torch.float64)
    mu, nu = torch.linalg.solve(columns, wanted).tolist()
    return Family(kappa, tau, degree, mu, nu)


def _difference(f, z: Tensor, step: Tensor) -> Tensor:
    """f' by central differences of order six."""
    total = torch.zeros_like(z)
    for k, weight in _WEIGHTS.items():
        total = total + weight * (f(z + k * step) - f(z - k * step))
    return total / step
