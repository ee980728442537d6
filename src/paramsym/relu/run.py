"""One decision: the networks, the clock, the record of what was tried, and how answers are made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import OutOfTime, left, limited, unlimited
from paramsym.relu.domains import Domain
from paramsym.relu.network import Network
from paramsym.relu.rationals import fractions, nearest_float, nearest_norm, rational
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict
from paramsym.relu.verification import check, stated_radius
from paramsym.relu.witness import Search, simplest

Found = TypeVar("Found")


@dataclass(frozen=True)
class Budget:
    """What a decision may cost: wall-clock seconds and joint cells."""

    seconds: float = 30.0
    cells: int = 50_000


class Run:
    """One decision.

    Attributes:
        upper, proof: the best bound on |f - g| that the checker has proved, and its certificate.
        cost: what the enumeration of all joint cells would cost, in words.
    """

    def __init__(
        self,
        a: Network,
        b: Network,
        domain: Domain,
        mode: str,
        budget: Budget,
        tolerance: float | None,
        progress: Callable[[str], None] | None,
        seed: int,
    ) -> None:
        self.a, self.b, self.domain, self.mode = a, b, domain, mode
        self.budget, self.tolerance, self.progress = budget, tolerance, progress
        self.began = time.perf_counter()
        self.tried: list[str] = []
        self.upper = math.inf
        self.proof: tuple[Certificate, Bounds] | None = None
        self.cost = ""
        self.search = Search(a, b, domain, mode, tolerance, seed)
        if mode == "float":
            self.search.radius = self.radius

    @property
    def radius(self) -> float:
        """|x| up to which `bounds.upper` is stated."""
        return stated_radius(self.domain)

    def say(self, line: str) -> None:
        """Record a step."""
        line = f"{line} [{time.perf_counter() - self.began:.2f} s]"
        self.tried.append(line)
        if self.progress:
            self.progress(line)

    def attempt(
        self, what: str, step: Callable[[], Found | None], share: float = 1.0
    ) -> Found | None:
        """The result of a step that may take a share of the time that is left; None beyond it."""
        try:
            with limited(max(0.0, share * left())):
                return step()
        except OutOfTime:
            self.say(f"{what}: out of time")
        except RecursionError:
            self.say(f"{what}: the networks are too deep for it")
        return None

    # ------------------------------------------------------------ answers

    def equal(
        self,
        certificate: Certificate,
        reason: str,
        bounds: Bounds,
        kind: Kind = Kind.EQUAL,
        proved: np.ndarray | None = None,
    ) -> Verdict | None:
        """EQUAL, or EQUAL_TO_PRECISION, if the independent checker accepts the certificate."""
        verdict = Verdict(
            kind, reason, certificate.kind, self.mode, self.domain,
            certificate=certificate, bounds=bounds, tolerance=self.tolerance,
        )  # fmt: skip
        accepted = self.attempt(
            "checking the certificate", lambda: check(verdict, self.a, self.b, proved)
        )
        if not accepted:
            self.say(f"the checker did not accept a certificate of kind {certificate.kind!r}")
            return None
        return self.with_furthest(verdict)

    def with_furthest(self, verdict: Verdict) -> Verdict:
        """The verdict with what was tried and the largest difference seen."""
        seen = self.search
        lower = 0.0 if seen.furthest is None else _below(seen.best)
        furthest = fractions(seen.furthest) if seen.furthest is not None and lower else None
        return verdict.having(
            bounds=verdict.bounds._replace(lower=lower if furthest else 0.0),
            furthest=furthest,
            tried=tuple(self.tried),
        )

    def different(self, x: list[fmpq], method: str) -> Verdict:
        """DIFFERENT, with the witness shortened where that keeps it one."""
        with unlimited():
            last = self.search.last
            known = last[1:] if last and last[0] == x else None
            f, g = known or (self.a.evaluate(x), self.b.evaluate(x))
        short = self.attempt("shortening the witness", lambda: self._shorter(x))
        x, f, g = short or (x, f, g)
        if f == g or not self.domain.contains(x):
            raise AssertionError("a witness that is none: a bug of paramsym")
        gap = max(abs(u - v) for u, v in zip(f, g, strict=True))
        certificate, bounds = self.proof or (None, Bounds(0.0, math.inf))
        lower, furthest = _below(nearest_float(gap), gap), None
        outside = nearest_norm(x) > self.search.radius
        if self.search.furthest is not None and (outside or self.search.best > lower):
            lower, furthest = _below(self.search.best), fractions(self.search.furthest)
        elif outside:  # bounds are stated for |x| <= radius
            lower = 0.0
        return Verdict(
            Kind.DIFFERENT,
            f"at the witness the outputs differ by {nearest_float(gap):.3g}{self.apart(lower)}",
            method, self.mode, self.domain, certificate=certificate,
            witness=fractions(x), values=(fractions(f), fractions(g)),
            bounds=bounds._replace(lower=lower), furthest=furthest,
            tolerance=self.tolerance, tried=tuple(self.tried),
        )  # fmt: skip

    def _shorter(self, x: list[fmpq]) -> tuple[list[fmpq], list[fmpq], list[fmpq]] | None:
        """A witness near x that is easier to read, with both values; None if x is short."""
        if sum(len(str(v)) for v in x) <= 8 * len(x):
            return None
        accept = self.search.confirm if self.mode == "float" else None
        x = simplest(self.a, self.b, self.domain, x, accept)
        return x, self.a.evaluate(x), self.b.evaluate(x)

    def apart(self, lower: float) -> str:
        """How far apart the networks are, where an upper bound is proved."""
        if self.proof is None:
            return ""
        return f"; {lower:.3g} <= sup |f - g| <= {self.upper:.3g} {self.region()}"

    def region(self) -> str:
        """Where bounds are stated, in words."""
        bounded = math.isfinite(self.domain.norm())
        return f"on {self.domain}" if bounded else f"for |x| <= {self.radius:.3g}"

    def undecided(self, reason: str) -> Verdict:
        """UNDECIDED, with what was tried and what more would cost."""
        seen = self.search
        text = (
            f"{reason}. Tried: {seen.points} inputs and {seen.lines} lines exactly, "
            + "; ".join(line.split(" [")[0] for line in self.tried)
            + (f". {self.cost}" if self.cost else "")
        )
        certificate, bounds = self.proof or (None, Bounds(0.0, math.inf))
        return self.with_furthest(
            Verdict(
                Kind.UNDECIDED,
                text,
                "none",
                self.mode,
                self.domain,
                certificate=certificate,
                bounds=bounds,
                tolerance=self.tolerance,
            )  # fmt: skip
        )


def _below(value: float, exact: fmpq | None = None) -> float:
    """A float not above the number that `value` is the nearest float of."""
    if math.isinf(value) or (exact is not None and rational(value) <= exact):
        return min(value, 1.7e308)
    return math.nextafter(value, 0.0)
