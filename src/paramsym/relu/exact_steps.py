"""The exact ladder: are the two real functions that the numbers define the same?"""

from __future__ import annotations

from paramsym.relu.absolute import absolute_forms
from paramsym.relu.arithmetic import fmpq
from paramsym.relu.cell_steps import cells, cheap, prepare_cells
from paramsym.relu.cells import Enumeration
from paramsym.relu.clock import left
from paramsym.relu.domains import Box, Domain
from paramsym.relu.image_signs import image_signs
from paramsym.relu.milp import maximise_on_box
from paramsym.relu.network import Network
from paramsym.relu.rationals import small_rational
from paramsym.relu.run import Run
from paramsym.relu.shallow import canonical_form, shallow_witness
from paramsym.relu.verdict import Bounds, Certificate, Verdict

ENDED = "The budget ended without a proof or a witness"


def decide_exactly(run: Run) -> Verdict:
    """The ladder in rationals."""
    if run.a.depth <= 1 and run.b.depth <= 1:
        settled = run.attempt("canonical forms", lambda: shallow(run))
        return run.undecided(ENDED) if settled is None else settled
    search = run.search
    quick = run.attempt("a few inputs", lambda: search.try_points(count=64, exact=2))
    if quick is not None:
        return run.different(quick, "evaluation")
    run.say("evaluation at a few inputs: no difference")
    for step in (absolute, absolute_with_signs):
        verdict = step(run)
        if verdict is not None:
            return verdict
    found = run.attempt("prescribed signs", search.try_points, 0.5)
    if found is not None:
        return run.different(found, "search")
    run.say("inputs with prescribed signs of the first layer: no difference")
    enumeration, expected = prepare_cells(run)
    if enumeration is not None and cheap(expected):
        verdict = cells(run, enumeration)
        if verdict is not None:
            return verdict
        enumeration = None
    verdict = lines(run, 160, 60, 0.25 if enumeration is None else 0.12)
    if verdict is not None:
        return verdict
    run.say(f"{search.lines} lines, every point of each: no difference")
    return _last_resort(run, enumeration, expected)


def lines(run: Run, across: int, through: int, share: float) -> Verdict | None:
    """DIFFERENT by a point on one of the candidate lines; each sort gets a share of the time."""
    for name, candidates, limit in (
        ("across first-layer units", run.search.across_first_layer(), across),
        ("across second-layer units", run.search.across_second_layer(), across),
        ("through common zeros", run.search.through_vertices(), through),
    ):
        found = run.attempt(
            f"lines {name}",
            lambda candidates=candidates, limit=limit: run.search.run_lines(candidates, limit),
            share,
        )
        if found is not None:
            return run.different(found, f"line search {name}")
    return None


def _last_resort(run: Run, enumeration: Enumeration | None, expected: float) -> Verdict:
    """Cells if they may fit the budget, the box program, and lines until the time is over."""
    if enumeration is not None and expected <= 3 * run.budget.cells:
        verdict = cells(run, enumeration)
        if verdict is not None:
            return verdict
    units = sum(run.a.widths[1:-1]) + sum(run.b.widths[1:-1])
    box = run.domain
    if isinstance(box, Box) and units <= 200 and left() > 0.5:
        evidence = maximise_on_box(run.a, run.b, box, min(left() / 2, 3600.0))
        run.say(f"mixed-integer search on the box: |f - g| <= {evidence.bound:.3g} according "
                "to HiGHS (numerical evidence, tolerance 1e-6)")  # fmt: skip
        for p in evidence.points:
            x = [small_rational(float(v), 40) for v in p]
            if run.search.confirm(x):
                return run.different(x, "mixed-integer search")
    found = run.attempt(
        "more lines", lambda: run.search.run_lines(run.search.through_vertices(), 1_000_000)
    )
    if found is not None:
        return run.different(found, "line search through common zeros")
    return run.undecided(ENDED)


def shallow(run: Run) -> Verdict | None:
    """Complete for at most one hidden layer, in polynomial time."""
    a, b, domain = run.a, run.b, run.domain
    first, second = canonical_form(a, domain), canonical_form(b, domain)
    run.say(f"canonical forms: {len(first.kinks)} and {len(second.kinks)} visible hyperplanes")
    if first != second:
        return run.different(shallow_witness(a, b, first, second, domain), "canonical form")
    return run.equal(
        Certificate("canonical", str(domain), hyperplane_groups(a, b, domain)),
        f"the canonical forms agree: {len(first.kinks)} visible hyperplanes, and the affine "
        "parts are equal",
        Bounds(0.0, 0.0),
    )


def absolute(run: Run) -> Verdict | None:
    """EQUAL if the absolute-value normal forms agree."""
    forms = run.attempt(
        "absolute-value normal form", lambda: absolute_forms(run.a, run.b, run.domain), 0.5
    )
    if forms is None:
        return None
    count = len(forms.registry.atoms)
    if not forms.equal:
        run.say(f"absolute-value normal forms differ ({count} atoms): not equal by this means")
        return None
    run.say(f"absolute-value normal forms agree ({count} atoms)")
    return run.equal(
        Certificate("absolute-value", str(run.domain), forms.passes),
        f"the absolute-value normal forms agree ({count} atoms)",
        Bounds(0.0, 0.0),
    )


def absolute_with_signs(run: Run) -> Verdict | None:
    """EQUAL if the normal forms agree once the signs of later units are proved.

    DIFFERENT where a unit that seemed to keep its sign shows a difference at its exception.
    """
    a, b, domain = run.a, run.b, run.domain
    found = run.attempt("signs of later units", lambda: image_signs(a, b, domain), 0.45)
    if found is None:
        return None
    run.say(
        f"signs of later units: {len(found.proofs)} proved, {len(found.inputs)} refuted at an input"
    )
    for x in found.inputs:
        if run.attempt("an exception to a sign", lambda x=x: run.search.confirm(x)):
            return run.different(x, "signs of later units")
    if not found.proofs:
        return None
    signs = (found.of(0), found.of(1))
    forms = run.attempt("normal form with signs", lambda: absolute_forms(a, b, domain, signs), 0.5)
    if forms is None:
        return None
    if not forms.equal:
        run.say("absolute-value normal forms differ with these signs too")
        return None
    count, proved = len(forms.registry.atoms), len(found.proofs)
    run.say(f"absolute-value normal forms agree with these signs ({count} atoms)")
    data = {"signs": found.proofs, "passes": forms.passes}
    return run.equal(
        Certificate("absolute-value with signs", str(domain), data),
        f"the absolute-value normal forms agree ({count} atoms), given the signs of {proved} later "
        "units, which are proved",
        Bounds(0.0, 0.0),
    )


def hyperplane_groups(a: Network, b: Network, domain: Domain) -> list[list[tuple[int, int]]]:
    """The crossing hidden units of both networks, by hyperplane: the canonical certificate."""
    groups: dict[tuple[fmpq, ...], list[tuple[int, int]]] = {}
    for which, net in enumerate((a, b)):
        if net.depth == 0:
            continue
        weight, bias = net.exact[0]
        for unit, (row, t) in enumerate(zip(weight.tolist(), bias, strict=True)):
            if domain.side(row, t) == 0:
                pivot = next(v for v in row if v)
                key = (*(v / pivot for v in row), t / pivot)
                groups.setdefault(key, []).append((which, unit))
    return list(groups.values())
