"""Joint cells as a step of a decision: what they would cost, and the verdicts they give."""

from __future__ import annotations

import math

from paramsym.relu.cell_bounds import Loud, Tolerance
from paramsym.relu.cells import CellBudget, CellTree, Enumeration, frame
from paramsym.relu.clock import left
from paramsym.relu.domains import Everywhere
from paramsym.relu.float_steps import kind_of_bound, publishable
from paramsym.relu.run import Run
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict

CELLS_PER_SECOND = 700  # measured, one core; used for the estimate that is printed beforehand
SMALL = 400  # joint cells that are enumerated before any further search, whatever the budget


def prepare_cells(run: Run) -> tuple[Enumeration | None, float]:
    """The enumeration and the expected number of cells, within a fifth of the time left."""
    a, b = run.a, run.b
    rank = min(a.input_dim, a.widths[1] + b.widths[1])
    if not isinstance(run.domain, Everywhere):
        rank = a.input_dim
    if rank > 14:
        run.cost = f"Joint cells: at least 2^{rank}, out of reach"
        run.say(run.cost)
        return None, math.inf
    run.cost = f"Joint cells in {rank} dimensions: more than could be estimated in time"

    def estimate() -> tuple[Enumeration, float] | None:
        start = frame(a, b, run.domain)
        if start is None:
            run.cost = f"Joint cells: {run.domain} is no polyhedron"
            return None
        enumeration = Enumeration(a, b, run.domain, start)
        return enumeration, enumeration.estimate()

    found = run.attempt("estimating the number of joint cells", estimate, 0.2)
    if found is None:
        return None, math.inf
    run.cost = (
        f"Joint cells: about {found[1]:.3g} expected, about {found[1] / CELLS_PER_SECOND:.2g} s"
    )
    run.say(run.cost)
    return found


def cheap(expected: float) -> bool:
    """Whether so many cells come before lines: few, or in three fifths of the time left."""
    return expected <= max(SMALL, 0.6 * left() * CELLS_PER_SECOND)


def _enumerate(run: Run, enumeration: Enumeration, tolerant: bool) -> CellTree | None:
    """The whole tree, or None; two fifths of the time are kept for the checker."""
    progress = run.progress
    told = (lambda n: progress(f"{n} joint cells")) if progress else None
    tolerance = Tolerance(run.a, run.b, enumeration).leaf if tolerant else None
    try:
        return run.attempt(
            "joint cells", lambda: enumeration.run(run.budget.cells, told, tolerance), 0.6
        )
    except CellBudget as stop:
        run.say(f"joint cells: stopped after {stop.args[0]}, all equal so far")
    except Loud:
        run.say("joint cells: on one of them the difference is not within rounding")
    return None


def cells(run: Run, enumeration: Enumeration) -> Verdict | None:
    """EQUAL or DIFFERENT by enumerating every joint cell; None if the budget ends first."""
    tree = _enumerate(run, enumeration, tolerant=False)
    if tree is None:
        return None
    if tree.witness is not None:
        return run.different(tree.witness, "joint cells")
    run.say(f"all {tree.leaves} joint cells: equal")
    return _equal_on_cells(run, enumeration, tree)


def _equal_on_cells(run: Run, enumeration: Enumeration, tree: CellTree) -> Verdict | None:
    start = enumeration.frame
    data = {"lift": start.lift, "base": start.base, "steps": tree.steps}
    return run.equal(
        Certificate("cells", str(run.domain), data),
        f"f = g exactly on each of the {tree.leaves} joint cells that cover the domain",
        Bounds(0.0, 0.0),
    )


def tolerant_cells(run: Run, enumeration: Enumeration) -> Verdict | None:
    """EQUAL up to rounding by bounding f - g on every joint cell."""
    tree = _enumerate(run, enumeration, tolerant=True)
    if tree is None:
        return None
    run.say(f"all {tree.leaves} joint cells: equal up to rounding")
    if not tree.bounds:
        return _equal_on_cells(run, enumeration, tree)
    offset = max(leaf.offset for leaf in tree.bounds)
    slope = max(leaf.slope for leaf in tree.bounds)
    start = enumeration.frame
    data = {"lift": start.lift, "base": start.base, "steps": tree.steps, "bounds": tree.bounds}
    certificate = Certificate("cell bounds", str(run.domain), data)
    bounds = publishable([(offset, slope)], run.radius)
    kind, precision = kind_of_bound(run, bounds.upper)
    if kind is None:
        run.upper, run.proof = min((run.upper, run.proof), (bounds.upper, (certificate, bounds)),
                                   key=lambda held: held[0])  # fmt: skip
        return None
    how = "" if kind is Kind.EQUAL else " of the stored weights"
    return run.equal(
        certificate,
        f"equal up to rounding{how} on each of the {tree.leaves} joint cells that cover the "
        f"domain: "
        f"|f - g| <= {offset:.2g} + {slope:.2g}·|x|",
        bounds._replace(precision=precision),
        kind,
    )
