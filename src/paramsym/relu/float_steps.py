"""Proved bounds on |f - g| as a step of a decision, and which verdict a bound is.

EQUAL               the bound is within float64 rounding of the weights, or, for networks in
                    float64 or exact numbers, within a tolerance that the caller gave
EQUAL_TO_PRECISION  some weights are stored in less than float64, and the bound is within what
                    rounding them to their storage can do (`precision.allowed`), or within the
                    tolerance
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paramsym.relu.bounded import BoundedForms, bounded_forms
from paramsym.relu.clock import left
from paramsym.relu.float_atoms import Reach
from paramsym.relu.precision import (
    allowed,
    allowed_in_float64,
    coarse,
    storage_name,
    unit_roundoff,
)
from paramsym.relu.run import Run
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict
from paramsym.relu.verification import replay

LADDER = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)  # match radii
WIDE = (1e-2, 1e-1)  # for networks that differ by more than rounding: how far apart are they?
ABOVE = 1 + 1e-6  # published bounds are above proved ones: sums differ in order between machines


def publishable(proved: Sequence[tuple[float, float]] | np.ndarray, radius: float) -> Bounds:
    """Bounds above what was proved for each output, as (offset, slope)."""
    table = np.asarray(proved, dtype=float)
    offset, slope = (float(v) for v in table.max(axis=0) * ABOVE)
    upper = float((table[:, 0] + table[:, 1] * radius).max()) * ABOVE
    return Bounds(0.0, upper, radius, offset, slope)


def kind_of_bound(run: Run, upper: float) -> tuple[Kind | None, float | None]:
    """The verdict that a proved bound is, and the budget of a verdict up to precision."""
    rough = coarse(run.a, run.b)
    if run.tolerance is not None:
        kind = Kind.EQUAL_TO_PRECISION if rough else Kind.EQUAL
        return (kind, run.tolerance if rough else None) if upper <= run.tolerance else (None, None)
    if upper <= allowed_in_float64(run.a, run.b, run.radius):
        return Kind.EQUAL, None
    room = allowed(run.a, run.b, run.radius)
    return (Kind.EQUAL_TO_PRECISION, room) if rough and upper <= room else (None, None)


def rounding(run: Run) -> Verdict | None:
    """EQUAL if every residual is within float64 rounding and the proved bound is, too."""
    if Reach.of(run.domain) is None or run.tolerance is not None:
        return None
    forms = bounded_forms(run.a, run.b, run.domain)
    within = "all within rounding" if forms.explained else "not all within rounding"
    run.say(
        f"float normal forms: |f - g| <= {forms.upper(run.radius):.3g} for "
        f"|x| <= {run.radius:.3g}, {within}"
    )
    if not forms.explained:
        return None
    # Large magnitudes that cancel leave room for a real difference below the proved bound: an
    # input beyond the rounding of its own evaluation speaks against "equal up to rounding".
    found = run.search.try_points(count=256, exact=4, only_loud=True)
    if found is not None:
        run.say("an input differs beyond rounding: the bound is not enough")
        return None
    return _proved(run, forms)


def ladder(run: Run) -> Verdict | None:
    """The best proved bound over match radii, and the verdict that it is."""
    if Reach.of(run.domain) is None:
        return None
    radii = LADDER
    if coarse(run.a, run.b):
        unit = max(unit_roundoff(run.a), unit_roundoff(run.b))
        radii = (4 * unit, 32 * unit, *WIDE)
        if run.tolerance is not None:
            radii = (*LADDER, *radii)
    best = None
    for radius in sorted(radii):
        if left() <= 0:
            break
        forms = bounded_forms(run.a, run.b, run.domain, radius)
        if best is None or forms.upper(run.radius) < best.upper(run.radius):
            best = forms
            verdict = _proved(run, forms)
            if verdict is not None:
                return verdict
    run.say(f"best bound over match radii: |f - g| <= {run.upper:.3g} {run.region()}")
    return None


def _proved(run: Run, forms: BoundedForms) -> Verdict | None:
    """Let the checker find its own bound, keep it if it is the best, and judge it."""
    certificate = Certificate(
        "bound", str(run.domain), {"atoms": forms.atoms.rows, "logs": forms.logs}
    )
    proved = replay(certificate, run.a, run.b, run.domain)
    if proved is None:
        run.say("the checker found no finite bound: not used")
        return None
    bounds = publishable(proved, run.radius)
    if bounds.upper < run.upper:
        run.upper, run.proof = bounds.upper, (certificate, bounds)
    kind, precision = kind_of_bound(run, bounds.upper)
    if kind is None or (kind is Kind.EQUAL and run.tolerance is None and not forms.explained):
        return None
    if kind is Kind.EQUAL_TO_PRECISION and not _nothing_louder(run):
        return None
    how = "equal up to rounding"
    if kind is Kind.EQUAL_TO_PRECISION:
        how = f"equal up to the storage in {storage_name(run.a, run.b)}"
        if run.tolerance is not None:
            how = f"equal up to the tolerance {run.tolerance:.3g}"
    room = "" if precision is None else f"; the budget is {precision:.2g}"
    reason = (
        f"{how}: |f - g| <= {bounds.offset:.2g} + {bounds.slope:.2g}·|x| on {run.domain}, "
        f"{bounds.upper:.2g} for |x| <= {run.radius:.3g}{room}"
    )
    return run.equal(certificate, reason, bounds._replace(precision=precision), kind, proved)


def _nothing_louder(run: Run) -> bool:
    """Whether no input was found that differs by more than rounding can do at that input."""
    run.search.widen()
    if run.tolerance is None and run.search.try_points(exact=8) is not None:
        run.say("an input differs beyond what rounding to the storage can do there")
        return False
    return True
