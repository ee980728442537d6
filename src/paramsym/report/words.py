"""Sentences and numbers for readers."""

from __future__ import annotations

import math

from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    OrthogonalFixingOnes,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
    UnitComplex,
)
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import notes_of

_FREEST = {
    GeneralLinear: "nothing limits it: every invertible change of basis is allowed",
    Permutation: "whole units can only trade places",
    Scaling: "each coordinate can only be scaled by itself",
    PositiveScaling: "each coordinate can only be scaled by itself",
    Signs: "each coordinate can only change its sign",
}
_FAMILIES: dict[type, str] = {
    GeneralLinear: "linear", Orthogonal: "orthogonal", OrthogonalFixingOnes: "orthogonal",
    Monomial: "monomial", SignedPermutation: "permutation", Permutation: "permutation",
    PositiveScaling: "scaling", Scaling: "scaling", Signs: "scaling",
    ComplexScaling: "complex", UnitComplex: "complex", Trivial: "trivial",
}  # fmt: skip


def reason(space: Space) -> tuple[str, str]:
    """Why a group is not larger, and the place in the model that says so (may be empty)."""
    text, _, place = space.why.rpartition(" at ")
    if not text:
        text, place = space.why, ""
    if not text:
        text = _FREEST.get(type(space.group), "every move of this group is allowed")
    return text, place


def family(group: Group) -> str:
    """The colour class of a group."""
    return _FAMILIES.get(type(group), "linear")


def tie_text(symmetry: ParameterSymmetry, space: Space) -> str:
    """What a space stands over, and what slides in it."""
    parts = []
    if space.over:
        what = "a scalar" if space.size == 1 else "a copy"
        parts.append(f"{what} for each unit of " + " and ".join(space.over))
    parts += notes_of(symmetry.translations(space.name))
    return "; ".join(parts)


def power_of_ten(log: float) -> str:
    """A count given by its logarithm: exact while it is small, then a power of ten."""
    if log < 5.5:
        return f"{round(10**log):,}"
    return f"10^{log:,.0f}"


def error_text(value: float | None) -> str:
    """A relative error: small ones in powers of ten."""
    if value is None or math.isinf(value):
        return "–" if value is None else "∞"
    if 0.01 <= value < 1000:
        return f"{value:.2g}"
    return "0" if value == 0 else f"{value:.1e}"


def percent(share: float) -> str:
    """A share, with as many digits as it needs."""
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.2f} %" if share < 0.1 else f"{100 * share:.1f} %"


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 space`, `2 spaces`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
