"""Are two ReLU networks the same function? A ladder of methods and its answers.

    one hidden layer      canonical form: complete for all parameters, polynomial
    any depth             a few exact evaluations, the absolute-value normal form, the same given
                          proved signs of later units, candidate lines, exact enumeration of joint
                          cells, mixed-integer search on a box

Networks stored in less than float64 have a fourth answer in float mode, EQUAL_TO_PRECISION.

EQUAL is returned only after the independent checker has accepted the certificate; DIFFERENT only
with an input at which both networks were evaluated exactly. From two hidden layers on the question
is coNP-hard (already "is this ReLU network with one hidden layer never positive?"), so UNDECIDED
cannot be avoided; it says what was tried and what more would cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from paramsym.relu.cell_steps import CELLS_PER_SECOND
from paramsym.relu.clock import OutOfTime, limited
from paramsym.relu.domains import as_domain
from paramsym.relu.errors import ReLUError
from paramsym.relu.exact_steps import ENDED, decide_exactly
from paramsym.relu.float_ladder import decide_in_floats
from paramsym.relu.float_steps import ladder
from paramsym.relu.precision import computed
from paramsym.relu.rationals import rational
from paramsym.relu.reading import as_network
from paramsym.relu.run import Budget, Run
from paramsym.relu.verdict import Kind, Verdict

# Of networks with batch norm, say, whose factors are irrational as real numbers.
COMPUTED_ONCE = (
    "; what a network computes from its weights alone is taken as computed, once, in float64"
)


def decide(
    a: Any,
    b: Any,
    mode: str | None = None,
    domain: Any = None,
    budget: Budget | float | None = None,
    tolerance: float | None = None,
    progress: Callable[[str], None] | None = None,
    seed: int = 5,
) -> Verdict:
    """Decide whether two ReLU networks compute the same function on a domain.

    Args:
        a, b: networks in any form that `as_network` reads, with the same numbers of inputs and
            outputs; widths and depths may differ.
        mode: "exact" compares the real functions that the numbers define, floats being the dyadic
            rationals they are. "float" asks whether the networks agree up to rounding of the
            weights, with rigorous bounds: EQUAL up to float64 rounding; EQUAL_TO_PRECISION if some
            weights are stored in float32, bfloat16 or float16 and the proved bound on |f - g| is
            within what rounding to that storage can do. By default "exact", or "float" where a
            tolerance is given.
        domain: all inputs by default; (lower, upper) or `Box`, `Ball`, `Orthant`.
        budget: a `Budget` or a number of seconds (30 by default).
        tolerance: float mode only: what |f - g| may be, in place of rounding. EQUAL (for coarser
            storage than float64: EQUAL_TO_PRECISION) if |f - g| <= tolerance is proved for |x| up
            to `bounds.radius`, DIFFERENT if an input exceeds it.
        progress: called with one line per step; the cost is estimated there beforehand.
        seed: for the candidates; verdicts do not depend on it, only time does.

    Returns a `Verdict`, at most a second and a fifth of the budget after the budget has ended.
    Raises `ReLUError` if a network, the domain, the shapes, the budget or the tolerance cannot be
    read.

    Source: sections 1, 3.4, 3.5 and 4 of the specification; bottleneck networks after
    Gegenfurtner, Grillo and Montúfar, "The symmetries of three-layer ReLU networks".
    """
    f, g = as_network(a, "relu.decide(a)"), as_network(b, "relu.decide(b)")
    for what, left, right in (
        ("inputs", f.input_dim, g.input_dim), ("outputs", f.output_dim, g.output_dim)
    ):  # fmt: skip
        if left != right:
            raise ReLUError(
                f"networks with {left} and {right} {what}",
                f"the same number of {what}",
                "relu.decide(a, b)",
                "Two functions can be equal only between the same spaces.",
            )
    mode = _mode(mode, tolerance)
    cost = _budget(budget)
    run = Run(f, g, as_domain(domain, f.input_dim), mode, cost, tolerance, progress, seed)
    try:
        # What overflows is infinite, and proves nothing.
        with limited(cost.seconds), np.errstate(over="ignore", invalid="ignore"):
            made = decide_exactly(run) if mode == "exact" else _how_far(run, decide_in_floats(run))
    except OutOfTime:
        made = run.undecided(ENDED)
    return made.having(reason=made.reason + COMPUTED_ONCE) if computed(f, g) else made


def _how_far(run: Run, verdict: Verdict) -> Verdict:
    """On a bounded domain a difference comes with a proved bound on how large it can be."""
    if verdict.kind is not Kind.DIFFERENT or run.proof or not math.isfinite(run.domain.norm()):
        return verdict
    run.attempt("how far apart", lambda: ladder(run), 0.5)
    if run.proof is None or verdict.witness is None:
        return verdict
    return run.different([rational(v) for v in verdict.witness], verdict.method)


def _mode(mode: str | None, tolerance: float | None) -> str:
    if mode is None:
        mode = "exact" if tolerance is None else "float"
    if mode not in ("exact", "float"):
        raise ReLUError(
            f"mode {mode!r}", "'exact' or 'float'", "relu.decide(mode=...)", "Pick one of the two."
        )
    if tolerance is None:
        return mode
    if not _number(tolerance) or not 0 <= tolerance < math.inf:
        raise ReLUError(
            f"the tolerance {tolerance!r}",
            "a finite number >= 0",
            "relu.decide(tolerance=...)",
            "Say how far apart the outputs may be, for example 1e-6.",
        )
    if mode == "exact":
        raise ReLUError(
            f"a tolerance of {tolerance} in exact mode",
            "no tolerance",
            "relu.decide(mode='exact', tolerance=...)",
            "Exact mode compares real functions; use mode='float' with a tolerance.",
        )
    return mode


def _budget(budget: Budget | float | None) -> Budget:
    if budget is None:
        return Budget()
    seconds = budget.seconds if isinstance(budget, Budget) else budget
    if not _number(seconds) or not seconds >= 0:
        raise ReLUError(
            f"the budget {seconds!r}",
            "a number of seconds >= 0",
            "relu.decide(budget=...)",
            "Pass seconds, or relu.Budget(seconds, cells).",
        )
    if isinstance(budget, Budget):
        return budget
    return Budget(seconds, int(min(max(seconds * 4 * CELLS_PER_SECOND, 1), 10**9)))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
