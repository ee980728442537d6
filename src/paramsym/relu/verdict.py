"""The answers, each with what makes it trustworthy."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple


class Kind(enum.Enum):
    """EQUAL needs a certificate, DIFFERENT an input, UNDECIDED a reason.

    EQUAL_TO_PRECISION needs a proved bound on |f - g| that is within what rounding the weights to
    the format that they are stored in can do. It does not say that the two networks are roundings
    of one exact network, only that no larger difference than that of roundings exists.
    """

    EQUAL = "EQUAL"
    EQUAL_TO_PRECISION = "EQUAL_TO_PRECISION"
    DIFFERENT = "DIFFERENT"
    UNDECIDED = "UNDECIDED"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.value == other
        return self is other

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.value


class Bounds(NamedTuple):
    """lower <= sup |f - g| <= upper, over |x| <= radius where the domain is all of R^d.

    `offset` and `slope` hold everywhere: |f(x) - g(x)| <= offset + slope·|x|. `upper` is inf
    where nothing is known. `precision` is what `upper` is within for EQUAL_TO_PRECISION: the bound
    on what rounding the weights of both networks to their storage can do, or the tolerance.
    """

    lower: float
    upper: float
    radius: float | None = None
    offset: float | None = None
    slope: float | None = None
    precision: float | None = None


@dataclass(frozen=True)
class Certificate:
    """Why two networks are the same function.

    Attributes:
        kind: "canonical" (one hidden layer), "absolute-value" (normal form), "absolute-value with
            signs" (the same, given the signs of later units, which are proved), "cells" (every
            joint cell compared); in float mode "bound" (|f - g| on the whole domain) or "cell
            bounds" (on every joint cell).
        domain: where it holds, in words.
        data: what the checker replays; its shape depends on the kind.
    """

    kind: str
    domain: str
    data: Any = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """The answer to "do a and b compute the same function on this domain?".

    Attributes:
        kind: `Kind.EQUAL`, `Kind.EQUAL_TO_PRECISION`, `Kind.DIFFERENT` or `Kind.UNDECIDED`; equals
            its own name as a string.
        certificate: what `verify` re-checks: for the two kinds of equality, and for the others
            where `bounds.upper` is finite; else None.
        witness: for DIFFERENT, an input x (a tuple of `Fraction`) with f(x) != g(x); else None.
        reason: one sentence, always; for UNDECIDED what was tried and what more would cost.
        bounds: lower and upper bounds on sup |f - g|; both are re-checked by `verify`.
        furthest: an input with |f - g| >= `bounds.lower`, unless that is 0 or the witness has it.
        tolerance: what the caller allowed |f - g| to be, if anything.
        method: what settled it.
        mode: "exact" or "float".
        tried: the steps in order, with seconds and results.
        values: for DIFFERENT, (f(x), g(x)) exactly.
    """

    kind: Kind
    reason: str
    method: str
    mode: str
    domain: Any
    certificate: Certificate | None = None
    witness: tuple[Fraction, ...] | None = None
    values: tuple[tuple[Fraction, ...], tuple[Fraction, ...]] | None = None
    bounds: Bounds = Bounds(0.0, float("inf"))
    furthest: tuple[Fraction, ...] | None = None
    tolerance: float | None = None
    tried: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True for EQUAL and EQUAL_TO_PRECISION."""
        return self.kind in (Kind.EQUAL, Kind.EQUAL_TO_PRECISION)

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"

    @property
    def claim(self) -> str:
        """What `verify` checks, in one sentence; the reason is what the finder says beside it."""
        domain, (lower, upper, radius) = self.domain, self.bounds[:3]
        if self.mode == "exact":
            how = "exactly"
        elif self.tolerance is not None:
            how = f"up to the tolerance {self.tolerance:.3g}"
        else:
            stored = self.kind is Kind.EQUAL_TO_PRECISION
            how = f"up to {'storage precision' if stored else 'rounding'}"
        near = "" if radius is None else f", where |x| <= {radius:.3g}"
        bounds = f"{lower:.3g} <= sup |f - g| <= {upper:.3g}{near}"
        if self.kind is Kind.DIFFERENT:
            at = ", ".join(map(str, self.witness or ()))
            return f"{self.kind}: not equal {how} on {domain}, as at x = ({at}); {bounds}"
        if self.kind is Kind.UNDECIDED:
            return f"{self.kind} on {domain}; {bounds}"
        return f"{self.kind} {how} on {domain}; {bounds}"

    def having(self, **fields: Any) -> Verdict:
        """The same verdict with other fields."""
        return replace(self, **fields)

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain JSON values; rationals as strings."""

        def text(values: Sequence[Fraction] | None) -> list[str] | None:
            return None if values is None else [str(v) for v in values]

        return {
            "kind": self.kind.value,
            "reason": self.reason,
            "method": self.method,
            "mode": self.mode,
            "domain": str(self.domain),
            "certificate": self.certificate.kind if self.certificate else None,
            "witness": text(self.witness),
            "values": [text(v) for v in self.values] if self.values else None,
            "bounds": {
                "lower": self.bounds.lower,
                "upper": None if self.bounds.upper == float("inf") else self.bounds.upper,
                "radius": self.bounds.radius,
                "precision": self.bounds.precision,
            },
            "furthest": text(self.furthest),
            "tolerance": self.tolerance,
            "tried": list(self.tried),
        }
