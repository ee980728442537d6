"""The ladder in float64 with rigorous bounds; exact methods where they are cheap."""

from __future__ import annotations

from paramsym.relu.cell_steps import prepare_cells, tolerant_cells
from paramsym.relu.exact_steps import absolute, lines, shallow
from paramsym.relu.float_steps import ladder, rounding
from paramsym.relu.precision import coarse
from paramsym.relu.run import Run
from paramsym.relu.shallow import canonical_form
from paramsym.relu.verdict import Verdict

EXACT_SIZE = 60_000  # weights up to which the float mode also tries the exact methods


def decide_in_floats(run: Run) -> Verdict:
    """Do the networks agree up to the rounding of their weights?"""
    verdict = run.attempt("float normal forms", lambda: rounding(run), 0.7)
    if verdict is None and (run.tolerance is not None or coarse(run.a, run.b)):
        verdict = run.attempt("bounds over match radii", lambda: ladder(run), 0.5)
    if verdict is not None:
        return verdict
    found = run.attempt("prescribed signs", lambda: run.search.try_points(exact=8), 0.5)
    if found is not None:
        run.attempt("the largest difference", run.search.widen, 0.5)
        return run.different(found, "search")
    run.say("inputs with prescribed signs of the first layer: no difference beyond rounding")
    weights = sum(w.size for net in (run.a, run.b) for w, _ in net.floats)
    if weights <= EXACT_SIZE:
        verdict = _exactly_equal(run)
        if verdict is not None:
            return verdict
    verdict = lines(run, 120, 120, 0.12)
    if verdict is not None:
        return verdict
    run.say(f"{run.search.lines} lines: no difference beyond rounding")
    verdict = _on_cells(run) if weights <= EXACT_SIZE else None
    if verdict is not None:
        return verdict
    if run.proof is None:
        run.attempt("bounds over match radii", lambda: ladder(run))
    run.attempt("the largest difference", run.search.widen)
    return run.undecided(
        f"Between rounding and proof: {run.search.best:.3g} <= sup |f - g| <= "
        f"{run.upper:.3g} {run.region()}"
    )


def _exactly_equal(run: Run) -> Verdict | None:
    if max(run.a.depth, run.b.depth) > 1:
        return absolute(run)

    def same() -> bool:
        return canonical_form(run.a, run.domain) == canonical_form(run.b, run.domain)

    return shallow(run) if run.attempt("canonical forms", same, 0.5) else None


def _on_cells(run: Run) -> Verdict | None:
    if max(run.a.depth, run.b.depth) <= 1:
        return None
    enumeration, expected = prepare_cells(run)
    if enumeration is None or expected > run.budget.cells:
        return None
    return tolerant_cells(run, enumeration)
