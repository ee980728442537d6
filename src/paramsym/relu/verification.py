"""Re-check a verdict without the code that produced it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from paramsym.relu.bounded_check import checked_bound
from paramsym.relu.cell_check import check_cells, checked_cells
from paramsym.relu.domains import Domain
from paramsym.relu.exact_check import agree_at_random, check_absolute, check_canonical
from paramsym.relu.network import Network
from paramsym.relu.rationals import fractions, rational
from paramsym.relu.reading import as_network
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict


def verify(verdict: Verdict, a: Any, b: Any) -> bool:
    """Whether a verdict is proved by what it carries.

    EQUAL: the certificate is replayed by a checker that shares no code with the search, and both
    networks are evaluated at random inputs. DIFFERENT: both networks are evaluated exactly at the
    witness, which must lie in the domain. UNDECIDED claims nothing and is always True.

    Args:
        verdict: what `decide` returned.
        a, b: the networks, in the same order.
    """
    f, g = as_network(a, "a"), as_network(b, "b")
    if verdict.kind is Kind.UNDECIDED:
        return True
    if (f.input_dim, f.output_dim) != (g.input_dim, g.output_dim):
        return False
    domain: Domain = verdict.domain
    if domain.dimension != f.input_dim:
        return False
    if verdict.kind is Kind.DIFFERENT:
        if verdict.witness is None or len(verdict.witness) != f.input_dim:
            return False
        x = [rational(v) for v in verdict.witness]
        values = (fractions(f.evaluate(x)), fractions(g.evaluate(x)))
        same_values = verdict.values is None or values == verdict.values
        return domain.contains(x) and values[0] != values[1] and same_values
    if verdict.certificate is None:
        return False
    return check(verdict.certificate, f, g, domain, verdict.bounds)


def check(
    certificate: Certificate, a: Network, b: Network, domain: Domain, bounds: Bounds | None = None
) -> bool:
    """Replay one certificate."""
    if certificate.kind == "bound":
        bound = checked_bound(a, b, domain, certificate.data)
        if bound is None or not bound_holds_at_random(a, b, domain, bound):
            return False
        if bounds is None or bounds.offset is None or bounds.slope is None:
            return True
        claimed = np.array([bounds.offset, bounds.slope]) * (1 + 1e-6)
        return bool((bound <= claimed).all())
    if certificate.kind == "cell bounds":
        proved = checked_cells(a, b, domain, certificate.data)
        if proved is None or not bound_holds_at_random(
            a, b, domain, np.array([proved] * a.output_dim)
        ):
            return False
        return bounds is None or (
            (bounds.offset is None or proved[0] <= bounds.offset)
            and (bounds.slope is None or proved[1] <= bounds.slope)
        )
    checkers = {
        "canonical": check_canonical,
        "absolute-value": check_absolute,
        "cells": check_cells,
    }
    checker = checkers.get(certificate.kind)
    if checker is None or not checker(a, b, domain, certificate.data):
        return False
    return agree_at_random(a, b, domain)


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
            if abs(u - v) > rational(float((bound[o, 0] + bound[o, 1] * norm) * (1 + 1e-9))):
                return False
    return True
