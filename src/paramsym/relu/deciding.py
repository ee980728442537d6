"""Are two ReLU networks the same function? A ladder of methods and three answers.

    one hidden layer      canonical form: complete for all parameters, polynomial
    any depth             a few exact evaluations, the absolute-value normal form, candidate lines,
                          exact enumeration of joint cells, mixed-integer search on a box

EQUAL is returned only after the independent checker has accepted the certificate; DIFFERENT only
with an input at which both networks were evaluated exactly. From two hidden layers on the question
is coNP-hard (already "is this ReLU network with one hidden layer never positive?"), so UNDECIDED
cannot be avoided; it says what was tried and what more would cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paramsym.relu.absolute import OutOfTime, absolute_forms
from paramsym.relu.arithmetic import fmpq
from paramsym.relu.bounded import bounded_forms
from paramsym.relu.bounded_check import checked_bound
from paramsym.relu.cell_bounds import Loud, Tolerance
from paramsym.relu.cells import CellBudget, Enumeration, frame
from paramsym.relu.domains import Ball, Box, Domain, Everywhere, as_domain
from paramsym.relu.errors import ReLUError
from paramsym.relu.float_atoms import Reach
from paramsym.relu.milp import maximise_on_box
from paramsym.relu.network import Network
from paramsym.relu.rationals import fractions, nearest_float, small_rational
from paramsym.relu.reading import as_network
from paramsym.relu.shallow import canonical_form, shallow_witness
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict
from paramsym.relu.verification import bound_holds_at_random, check
from paramsym.relu.witness import Search, simplest

CELLS_PER_SECOND = 700  # measured, one core; used for the estimate that is printed beforehand
SMALL = 400  # joint cells that are enumerated before any further search
EXACT_SIZE = 60_000  # weights up to which the float mode also tries the exact methods


@dataclass(frozen=True)
class Budget:
    """What a decision may cost: wall-clock seconds and joint cells."""

    seconds: float = 30.0
    cells: int = 50_000


def decide(
    a: Any,
    b: Any,
    mode: str = "exact",
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
            weights, with rigorous bounds.
        domain: all inputs by default; (lower, upper) or `Box`, `Ball`, `Orthant`.
        budget: a `Budget` or a number of seconds (30 by default).
        tolerance: float mode only: EQUAL if |f - g| <= tolerance is proved for |x| up to
            `bounds.radius`, DIFFERENT if an input exceeds it. By default rounding decides.
        progress: called with one line per step; the cost is estimated there beforehand.
        seed: for the candidates; verdicts do not depend on it, only time does.

    Returns a `Verdict`. Raises `ReLUError` if a network, the domain or the shapes cannot be read.

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
    if mode not in ("exact", "float"):
        raise ReLUError(
            f"mode {mode!r}", "'exact' or 'float'", "relu.decide(mode=...)", "Pick one of the two."
        )
    if budget is None:
        budget = Budget()
    elif not isinstance(budget, Budget):
        seconds = float(budget)
        budget = Budget(seconds, max(1, int(seconds * 4 * CELLS_PER_SECOND)))
    where = as_domain(domain, f.input_dim)
    run = _Run(f, g, where, mode, budget, tolerance, progress, seed)
    return run.exact() if mode == "exact" else run.float()


class _Run:
    """One decision: the networks, the clock, and the record of what was tried."""

    def __init__(self, a, b, domain: Domain, mode, budget: Budget, tolerance, progress, seed):
        self.a: Network = a
        self.b: Network = b
        self.domain, self.mode, self.budget = domain, mode, budget
        self.tolerance = tolerance
        self.progress = progress
        self.began = time.perf_counter()
        self.deadline = self.began + budget.seconds
        self.tried: list[str] = []
        self.upper = math.inf
        self.cost = ""
        self.search = Search(a, b, domain, mode, tolerance, self.deadline, seed)
        if mode == "float":
            self.search.radius = self.radius

    # ------------------------------------------------------------ answers

    def say(self, line: str) -> None:
        """Record a step."""
        line = f"{line} [{time.perf_counter() - self.began:.2f} s]"
        self.tried.append(line)
        if self.progress:
            self.progress(line)

    def equal(self, kind: str, data: Any, reason: str, bounds: Bounds) -> Verdict | None:
        """EQUAL if the independent checker accepts the certificate."""
        certificate = Certificate(kind, str(self.domain), data)
        if not check(certificate, self.a, self.b, self.domain, bounds):
            self.say(f"the checker rejected a certificate of kind {kind!r}: not used")
            return None
        return Verdict(
            Kind.EQUAL, reason, kind, self.mode, self.domain,
            certificate=certificate, bounds=bounds, tried=tuple(self.tried),
        )  # fmt: skip

    def different(self, x: list[fmpq], method: str) -> Verdict:
        """DIFFERENT, with the witness shortened where that keeps it one."""
        accept = self.search.confirm if self.mode == "float" else None
        if sum(len(str(v)) for v in x) > 8 * len(x):
            x = simplest(self.a, self.b, self.domain, x, accept)
        f, g = self.a.evaluate(x), self.b.evaluate(x)
        if f == g or not self.domain.contains(x):
            raise AssertionError("a witness that is none: a bug of paramsym")
        gap = max(nearest_float(abs(u - v)) for u, v in zip(f, g, strict=True))
        return Verdict(
            Kind.DIFFERENT,
            f"at the witness the outputs differ by {gap:.3g}",
            method, self.mode, self.domain,
            witness=fractions(x), values=(fractions(f), fractions(g)),
            bounds=Bounds(max(gap, self.search.best), self.upper), tried=tuple(self.tried),
        )  # fmt: skip

    def undecided(self, reason: str) -> Verdict:
        """UNDECIDED, with what was tried and what more would cost."""
        seen = self.search
        text = (
            f"{reason}. Tried: {seen.points} inputs and {seen.lines} lines exactly, "
            + "; ".join(line.split(" [")[0] for line in self.tried)
            + (f". {self.cost}" if self.cost else "")
        )
        bounds = Bounds(seen.best, self.upper, self.radius if math.isfinite(self.upper) else None)
        return Verdict(
            Kind.UNDECIDED, text, "none", self.mode, self.domain, bounds=bounds,
            tried=tuple(self.tried),
        )  # fmt: skip

    @property
    def radius(self) -> float:
        """|x| up to which `bounds.upper` is stated."""
        if isinstance(self.domain, Ball):
            return nearest_float(self.domain.radius)
        reach = Reach.of(self.domain)
        if reach is not None and math.isfinite(reach.radius):
            return reach.radius
        return math.sqrt(max(self.a.input_dim, 1))

    # ------------------------------------------------------------ exact mode

    def exact(self) -> Verdict:
        """The ladder in rationals."""
        if self.a.depth <= 1 and self.b.depth <= 1:
            return self.shallow()
        quick = self.search.try_points(count=64, exact=2)
        if quick is not None:
            return self.different(quick, "evaluation")
        self.say("evaluation at a few inputs: no difference")
        verdict = self.absolute()
        if verdict is not None:
            return verdict
        found = self.search.try_points()
        if found is not None:
            return self.different(found, "search")
        self.say("inputs with prescribed signs of the first layer: no difference")
        enumeration, expected = self.prepare_cells()
        if enumeration is not None and expected <= SMALL:
            verdict = self.cells(enumeration)
            if verdict is not None:
                return verdict
            enumeration = None
        for name, lines, limit in (
            ("across first-layer units", self.search.across_first_layer(), 160),
            ("across second-layer units", self.search.across_second_layer(), 160),
            ("through common zeros", self.search.through_vertices(), 60),
        ):
            found = self.search.run_lines(lines, limit)
            if found is not None:
                return self.different(found, f"line search {name}")
        self.say(f"{self.search.lines} lines, every point of each: no difference")
        return self.last_resort(enumeration, expected)

    def last_resort(self, enumeration: Enumeration | None, expected: float) -> Verdict:
        """Cells if they may fit the budget, the box program, and lines until the time is over."""
        if enumeration is not None and expected <= 3 * self.budget.cells:
            verdict = self.cells(enumeration)
            if verdict is not None:
                return verdict
        units = sum(self.a.widths[1:-1]) + sum(self.b.widths[1:-1])
        left = self.deadline - time.perf_counter()
        if isinstance(self.domain, Box) and units <= 200 and left > 0.5:
            evidence = maximise_on_box(self.a, self.b, self.domain, left / 2)
            self.say(f"mixed-integer search on the box: |f - g| <= {evidence.bound:.3g} according "
                     "to HiGHS (numerical evidence, tolerance 1e-6)")  # fmt: skip
            for p in evidence.points:
                x = [small_rational(float(v), 40) for v in p]
                if self.search.confirm(x):
                    return self.different(x, "mixed-integer search")
        found = self.search.run_lines(self.search.through_vertices(), 1_000_000)
        if found is not None:
            return self.different(found, "line search through common zeros")
        return self.undecided("The budget ended without a proof or a witness")

    def shallow(self) -> Verdict:
        """Complete for at most one hidden layer, in polynomial time."""
        left, right = canonical_form(self.a, self.domain), canonical_form(self.b, self.domain)
        self.say(f"canonical forms: {len(left.kinks)} and {len(right.kinks)} visible hyperplanes")
        if left != right:
            x = shallow_witness(self.a, self.b, left, right, self.domain)
            return self.different(x, "canonical form")
        verdict = self.equal(
            "canonical",
            hyperplane_groups(self.a, self.b, self.domain),
            f"the canonical forms agree: {len(left.kinks)} visible hyperplanes, and the affine "
            "parts are equal",
            Bounds(0.0, 0.0),
        )
        if verdict is None:
            raise AssertionError("the checker rejected a canonical form: a bug of paramsym")
        return verdict

    def absolute(self) -> Verdict | None:
        """EQUAL if the absolute-value normal forms agree."""
        try:
            forms = absolute_forms(self.a, self.b, self.domain, self.deadline)
        except OutOfTime:
            self.say("absolute-value normal form: out of time")
            return None
        count = len(forms.registry.atoms)
        if not forms.equal:
            self.say(f"absolute-value normal forms differ ({count} atoms): not equal by this means")
            return None
        self.say(f"absolute-value normal forms agree ({count} atoms)")
        return self.equal(
            "absolute-value", forms.passes,
            f"the absolute-value normal forms agree ({count} atoms)", Bounds(0.0, 0.0),
        )  # fmt: skip

    def prepare_cells(self) -> tuple[Enumeration | None, float]:
        """The enumeration and the expected number of cells."""
        rank = min(self.a.input_dim, self.a.widths[1] + self.b.widths[1])
        if not isinstance(self.domain, Everywhere):
            rank = self.a.input_dim
        if rank > 14:
            self.cost = f"Joint cells: at least 2^{rank}, out of reach"
            self.say(self.cost)
            return None, math.inf
        start = frame(self.a, self.b, self.domain)
        if start is None:
            self.cost = f"Joint cells: {self.domain} is no polyhedron"
            return None, math.inf
        enumeration = Enumeration(self.a, self.b, self.domain, start)
        expected = enumeration.estimate()
        self.cost = (
            f"Joint cells: about {expected:.3g} expected, about {expected / CELLS_PER_SECOND:.2g} s"
        )
        self.say(self.cost)
        return enumeration, expected

    def cells(self, enumeration: Enumeration) -> Verdict | None:
        """EQUAL or DIFFERENT by enumerating every joint cell; None if the budget ends first."""
        try:
            tree = enumeration.run(
                self.budget.cells, self.deadline,
                (lambda n: self.progress(f"{n} joint cells")) if self.progress else None,
            )  # fmt: skip
        except CellBudget as stop:
            self.say(f"joint cells: stopped after {stop.args[0]}, all equal so far")
            return None
        if tree.witness is not None:
            return self.different(tree.witness, "joint cells")
        self.say(f"all {tree.leaves} joint cells: equal")
        start = enumeration.frame
        data = {"lift": start.lift, "base": start.base, "steps": tree.steps}
        return self.equal(
            "cells", data, f"f = g on each of the {tree.leaves} joint cells that cover the domain",
            Bounds(0.0, 0.0),
        )  # fmt: skip

    def tolerant_cells(self, enumeration: Enumeration) -> Verdict | None:
        """EQUAL up to rounding by bounding f - g on every joint cell."""
        tolerance = Tolerance(self.a, self.b, enumeration)
        try:
            tree = enumeration.run(self.budget.cells, self.deadline, tolerate=tolerance.leaf)
        except CellBudget as stop:
            self.say(f"joint cells: stopped after {stop.args[0]}, all equal up to rounding so far")
            return None
        except Loud:
            self.say("joint cells: on one of them the difference is not within rounding")
            return None
        self.say(f"all {tree.leaves} joint cells: equal up to rounding")
        offset = max((leaf.offset for leaf in tree.bounds), default=0.0)
        slope = max((leaf.slope for leaf in tree.bounds), default=0.0)
        upper = (offset + slope * self.radius) * (1 + 1e-9)
        if self.tolerance is not None and upper > self.tolerance:
            return None
        self.upper = min(self.upper, upper)
        start = enumeration.frame
        data = {"lift": start.lift, "base": start.base, "steps": tree.steps, "bounds": tree.bounds}
        if not tree.bounds:
            return self.equal(
                "cells",
                data,
                f"f = g exactly on each of the {tree.leaves} joint cells that cover the domain",
                Bounds(0.0, 0.0),
            )
        return self.equal(
            "cell bounds",
            data,
            f"equal up to rounding on each of the {tree.leaves} joint cells that cover the domain: "
            f"|f - g| <= {offset:.2g} + {slope:.2g}·|x|",
            Bounds(0.0, upper, self.radius, offset, slope),
        )

    # ------------------------------------------------------------ float mode

    def float(self) -> Verdict:
        """The ladder in float64 with rigorous bounds; exact methods where they are cheap."""
        verdict = self.bound()
        if verdict is not None:
            return verdict
        found = self.search.try_points(exact=8)
        if found is not None:
            return self.different(found, "search")
        self.say("inputs with prescribed signs of the first layer: no difference beyond rounding")
        weights = sum(w.size for net in (self.a, self.b) for w, _ in net.floats)
        if weights <= EXACT_SIZE:
            if self.a.depth <= 1 and self.b.depth <= 1:
                if canonical_form(self.a, self.domain) == canonical_form(self.b, self.domain):
                    return self.shallow()
            else:
                verdict = self.absolute()
                if verdict is not None:
                    return verdict
        for name, lines, limit in (
            ("across first-layer units", self.search.across_first_layer(), 120),
            ("across second-layer units", self.search.across_second_layer(), 120),
            ("through common zeros", self.search.through_vertices(), 120),
        ):
            found = self.search.run_lines(lines, limit)
            if found is not None:
                return self.different(found, f"line search {name}")
        self.say(f"{self.search.lines} lines: no difference beyond rounding")
        if weights <= EXACT_SIZE and max(self.a.depth, self.b.depth) > 1:
            enumeration, expected = self.prepare_cells()
            if enumeration is not None and expected <= self.budget.cells:
                verdict = self.tolerant_cells(enumeration)
                if verdict is not None:
                    return verdict
        if self.tolerance is None:
            self.ladder()
        return self.undecided(
            f"Between rounding and proof: {self.search.best:.3g} <= sup |f - g| <= "
            f"{self.upper:.3g} for |x| <= {self.radius:.3g}"
        )

    def bound(self) -> Verdict | None:
        """EQUAL if every residual is within rounding, or the proved bound within tolerance."""
        if Reach.of(self.domain) is None:
            return None
        if self.tolerance is not None:
            return self.ladder()
        forms = bounded_forms(self.a, self.b, self.domain)
        self.upper = min(self.upper, forms.upper(self.radius))
        rounding = "all within rounding" if forms.explained else "not all within rounding"
        self.say(
            f"float normal forms: |f - g| <= {self.upper:.3g} for |x| <= {self.radius:.3g}, "
            + rounding
        )
        if not forms.explained:
            return None
        # Large magnitudes that cancel leave room for a real difference below the proved bound: an
        # input beyond the rounding of its own evaluation speaks against "equal up to rounding".
        found = self.search.try_points(count=256, exact=4, only_loud=True)
        if found is not None:
            self.say("an input differs beyond rounding: the bound is not enough")
            return None
        return self._bounded(forms)

    def ladder(self) -> Verdict | None:
        """The best bound over match radii; with a tolerance, EQUAL if it is proved."""
        for radius in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4):
            if Reach.of(self.domain) is None or time.perf_counter() > self.deadline:
                break
            forms = bounded_forms(self.a, self.b, self.domain, radius)
            self.upper = min(self.upper, forms.upper(self.radius))
            if self.tolerance is not None and forms.upper(self.radius) <= self.tolerance:
                verdict = self._bounded(forms)
                if verdict is not None and verdict.bounds.upper <= self.tolerance:
                    return verdict
        self.say(f"best bound over match radii: |f - g| <= {self.upper:.3g} for "
                 f"|x| <= {self.radius:.3g}")  # fmt: skip
        return None

    def _bounded(self, forms) -> Verdict | None:
        data = {"atoms": forms.atoms.rows, "logs": forms.logs}
        proved = checked_bound(self.a, self.b, self.domain, data)
        if proved is None:
            self.say("the checker found no finite bound: not used")
            return None
        offset, slope = (float(v) for v in proved.max(axis=0))
        upper = float((proved[:, 0] + proved[:, 1] * self.radius).max()) * (1 + 1e-9)
        self.upper = min(self.upper, upper)
        bounds = Bounds(0.0, upper, self.radius, offset, slope)
        if not bound_holds_at_random(self.a, self.b, self.domain, proved):
            raise AssertionError("a proved bound fails at an input: a bug of paramsym")
        reason = (
            f"equal up to rounding: |f - g| <= {offset:.2g} + {slope:.2g}·|x| on {self.domain}, "
            f"{upper:.2g} for |x| <= {self.radius:.3g}"
        )
        return Verdict(
            Kind.EQUAL,
            reason,
            "bound",
            self.mode,
            self.domain,
            certificate=Certificate("bound", str(self.domain), data),
            bounds=bounds,
            tried=tuple(self.tried),
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
