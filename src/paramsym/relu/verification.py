"""Re-check a verdict without the code that produced it.

A verdict claims a kind, bounds, and where it has them a witness and its values. Each of these is
checked against what the certificate and the inputs prove; nothing else that a verdict says (reason,
method, steps) is a claim. What the checkers share with the finder is listed in
docs/findings-relu.md and held to by a test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from paramsym.relu.absolute_check import check_absolute, check_absolute_with_signs
from paramsym.relu.arithmetic import fmpq
from paramsym.relu.bounded_check import checked_bound
from paramsym.relu.cell_check import check_cells, checked_cells
from paramsym.relu.documents import document, parse
from paramsym.relu.domains import Domain
from paramsym.relu.errors import ReLUError
from paramsym.relu.exact_check import agree_at_random, check_canonical
from paramsym.relu.network import Network
from paramsym.relu.precision import (
    allowed,
    allowed_in_float64,
    coarse,
    threshold,
    unexplained,
)
from paramsym.relu.rationals import fractions, nearest_float, rational
from paramsym.relu.reading import as_network
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict

EXACT_KINDS = ("canonical", "absolute-value", "absolute-value with signs", "cells")


def verify(verdict: Verdict, a: Any, b: Any) -> bool:
    """Whether a verdict is proved by what it carries.

    EQUAL: the certificate is replayed by a checker that has its own arithmetic, and both networks
    are evaluated at random inputs. EQUAL_TO_PRECISION: so is the bound, and it is within what
    rounding the stored weights can do. DIFFERENT: both networks are evaluated exactly at the
    witness, which must lie in the domain. UNDECIDED claims no more than its bounds. The bounds are
    checked in every case: `upper` against the certificate, `lower` at the input that has it.

    Args:
        verdict: what `decide` returned or `read_verdict` read; anything malformed is not proved.
        a, b: the networks, in the same order.

    Raises `ReLUError` if a network cannot be read.
    """
    f, g = as_network(a, "a"), as_network(b, "b")
    if (f.input_dim, f.output_dim) != (g.input_dim, g.output_dim):
        return False
    try:
        return check(parse(document(verdict)), f, g)
    except ReLUError:
        return False
    except (AttributeError, LookupError, ArithmeticError, TypeError, ValueError, RecursionError):
        # A verdict that is none (made by hand, not by `decide`) or a certificate on which a
        # checker fails: whatever it claims is not proved.
        return False


def stated_radius(domain: Domain) -> float:
    """|x| up to which bounds are stated: that of the domain, or √d where it has none."""
    far = domain.norm()
    return far if math.isfinite(far) else math.sqrt(max(domain.dimension, 1))


def check(verdict: Verdict, a: Network, b: Network, proved: np.ndarray | None = None) -> bool:
    """The same for a well-formed verdict on two networks of the same shape.

    Args:
        proved: what `replay` of this very certificate gave, if it has just been asked.
    """
    if verdict.domain.dimension != a.input_dim or not _lower_holds(verdict, a, b):
        return False
    if verdict.certificate is None:
        proved = np.full((a.output_dim, 2), math.inf)
    elif proved is None:
        proved = replay(verdict.certificate, a, b, verdict.domain)
    if proved is None:
        return False
    if not _upper_holds(verdict.bounds, proved, verdict.domain):
        return False
    if verdict.kind is Kind.DIFFERENT:
        return _is_witness(verdict, a, b)
    return verdict.kind is Kind.UNDECIDED or _is_equal(verdict, a, b)


# ------------------------------------------------------------------ the claims


def _lower_holds(verdict: Verdict, a: Network, b: Network) -> bool:
    """Whether |f - g| >= bounds.lower at the furthest input, or at the witness."""
    bounds, domain = verdict.bounds, verdict.domain
    if bounds.lower > bounds.upper:
        return False
    if bounds.lower <= 0 and verdict.furthest is None:
        return True
    x = _point(verdict.witness if verdict.furthest is None else verdict.furthest, domain)
    if x is None:
        return False
    if bounds.radius is not None and math.isinf(domain.norm()):
        limit = rational(bounds.radius)
        if sum((v * v for v in x), fmpq(0)) > limit * limit * (1 + fmpq(1, 10**9)):
            return False
    gap = max(abs(u - v) for u, v in zip(a.evaluate(x), b.evaluate(x), strict=True))
    return gap >= rational(bounds.lower)


def _point(x: Sequence[Fraction] | None, domain: Domain) -> list[fmpq] | None:
    """The input as rationals, if it lies in the domain."""
    if x is None or len(x) != domain.dimension:
        return None
    point = [rational(v) for v in x]
    return point if domain.contains(point) else None


def _upper_holds(bounds: Bounds, proved: np.ndarray, domain: Domain) -> bool:
    """Whether upper, offset and slope are at least what is proved, output by output."""
    radius = domain.norm()
    if bounds.radius is not None and math.isinf(radius):
        radius = bounds.radius
    elif bounds.radius is not None and abs(bounds.radius - radius) > 1e-9 * radius:
        return False
    claimed = (bounds.offset, bounds.slope)
    for column, held in zip(proved.T, claimed, strict=True):
        if held is not None and not (column <= held).all():
            return False
    if math.isinf(bounds.upper):
        return True
    with np.errstate(invalid="ignore"):  # 0·inf: no slope on an unbounded domain
        far = proved[:, 0] + np.where(proved[:, 1] > 0, proved[:, 1] * radius, 0.0)
    return bool((far <= bounds.upper).all())


def _is_witness(verdict: Verdict, a: Network, b: Network) -> bool:
    x = _point(verdict.witness, verdict.domain)
    if x is None:
        return False
    f, g = a.evaluate(x), b.evaluate(x)
    if f == g or (verdict.values is not None and verdict.values != (fractions(f), fractions(g))):
        return False
    if verdict.mode == "exact":
        return verdict.tolerance is None
    gaps = [abs(u - v) for u, v in zip(f, g, strict=True)]
    if verdict.tolerance is not None:
        return nearest_float(max(gaps)) > verdict.tolerance
    return unexplained(gaps, threshold(a, b, x))


def _is_equal(verdict: Verdict, a: Network, b: Network) -> bool:
    """Whether the bound that was proved is what the kind of equality asks for."""
    bounds, held = verdict.bounds, verdict.certificate
    if held is None or verdict.witness is not None:
        return False
    if held.kind in EXACT_KINDS:
        return verdict.kind is Kind.EQUAL
    radius = stated_radius(verdict.domain)
    if verdict.mode != "float" or bounds.radius is None:
        return False
    if abs(bounds.radius - radius) > 1e-9 * radius:
        return False  # rounding allows the more the larger the inputs: far out all are equal
    rough = coarse(a, b)
    if verdict.kind is Kind.EQUAL_TO_PRECISION:
        room = verdict.tolerance
        if room is None:
            room = allowed(a, b, bounds.radius) * (1 + 1e-9)
        return rough and bounds.precision is not None and bounds.upper <= bounds.precision <= room
    if verdict.tolerance is not None:
        return not rough and bounds.upper <= verdict.tolerance
    return bounds.upper <= allowed_in_float64(a, b, bounds.radius) * (1 + 1e-9)


# ------------------------------------------------------------------ certificates


def replay(certificate: Certificate, a: Network, b: Network, domain: Domain) -> np.ndarray | None:
    """(m, 2): the bound offset + slope·|x| on |f - g| that a certificate proves, if it does."""
    data = certificate.data
    if certificate.kind == "bound":
        bound = checked_bound(a, b, domain, data)
    elif certificate.kind == "cell bounds":
        proved = checked_cells(a, b, domain, data)
        bound = None if proved is None else np.array([proved] * a.output_dim)
    else:
        checkers = {
            "canonical": check_canonical,
            "absolute-value": check_absolute,
            "absolute-value with signs": check_absolute_with_signs,
            "cells": check_cells,
        }
        holds = checkers[certificate.kind](a, b, domain, data) and agree_at_random(a, b, domain)
        return np.zeros((a.output_dim, 2)) if holds else None
    if bound is None or not bound_holds_at_random(a, b, domain, bound):
        return None
    return bound


def bound_holds_at_random(a: Network, b: Network, domain: Domain, bound: np.ndarray) -> bool:
    """Whether |f - g| obeys a bound at a few random inputs: a check that can fail."""
    rng = random.Random(20260519)
    points = [domain.draw(rng) for _ in range(3)]
    if sum(w.size for net in (a, b) for w, _ in net.floats) > 50_000:
        # In floats, with the rounding of the evaluation added: rationals would take seconds.
        at = np.array(points)
        depth = max(len(a), len(b))
        slack = (a.magnitude(at) + b.magnitude(at)) * 2.0**-53 * (max(a.widths) + 4) * depth
        gap = np.abs(a.batch(at) - b.batch(at))
        norm = np.linalg.norm(at, axis=1)[:, None]
        return bool((gap <= (bound[:, 0] + bound[:, 1] * norm) * (1 + 1e-9) + slack).all())
    for floats in points:
        x = [rational(v) for v in floats]
        norm = float(np.linalg.norm(floats)) * (1 + 1e-12)
        for o, (u, v) in enumerate(zip(a.evaluate(x), b.evaluate(x), strict=True)):
            limit = float((bound[o, 0] + bound[o, 1] * norm) * (1 + 1e-9))
            if math.isfinite(limit) and abs(u - v) > rational(limit):
                return False
    return True
