"""What is known of a polynomial as a sum of powers: the terms, and which fewer were ruled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from .coefficients import expanded
from .forms import Form, powers
from .terms import Term

GROWN = 30  # sum of the norms of terms that do not add up to the polynomial, relative to its own


class Exactness(StrEnum):
    """What the terms are to the polynomial: equal up to the tolerance, near, or part of a sequence
    that comes near only as its terms grow without bound and cancel."""

    EXACT = "EXACT"
    APPROXIMATE = "APPROXIMATE"
    DIVERGENT = "DIVERGENT"


@dataclass(frozen=True)
class LowerBound:
    """Which numbers of terms are ruled out.

    Attributes:
        rank: no decomposition has fewer terms. The proof is in numbers, and stands up to the
            tolerance of the call and to rounding, which does not tell terms that cancel by a factor
            of 10⁶ from one multiple term.
        by: what the bound rests on.
        floors: entry r is a relative residual that no r terms fall below, however large they are:
            what the catalecticants lack to rank r. Numbers of terms from its end on up to `rank`
            are ruled out as decompositions, by other arguments, but may come as near as one likes.
        searched: numbers of terms from `rank` on for which a search found nothing, and how it
            went. That is no proof.
    """

    rank: int
    by: str
    floors: tuple[float, ...] = ()
    searched: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decomposition:
    """A polynomial as a sum of signed powers of affine forms, Σ_t s_t (a_tᵀx + b_t)^{d_t}.

    Attributes:
        terms: the powers, by falling norm, with a and b in double precision, and the sign 1 where
            the degree is odd; `Polynomial.from_terms([terms])` is the layer.
        variables: how many the polynomial has.
        degree: of the homogenised form in whose norm the residual is measured.
        status: EXACT if the residual, or the rounding of terms so large if that is more, times the
            cancellation is at most the tolerance. Otherwise
            DIVERGENT if the cancellation is more than 30, a sign that sums of so few powers come
            nearer without end as their terms grow: the polynomial, or something near it, is a
            limit of such sums, and none itself. Otherwise APPROXIMATE.
        residual: ‖f − Σ_t …‖/‖f‖ in the norm of Bombieri, which is the Frobenius norm of the
            symmetric tensor of the homogenised polynomial.
        cancellation: Σ_t ‖term t‖/‖f‖ in that norm; 1 if nothing cancels.
        lower_bound: which numbers of terms are ruled out, and how.
        generic_rank: that of almost every form of the homogenised shape, over the complex numbers.
        complex_rank: how many powers with complex coefficients are enough, where that is known.
        is_minimal: whether no fewer terms exist: True if the proved bound is reached, False if
            fewer terms are known to exist, and None if nothing is known.
    """

    terms: list[Term]
    variables: int
    degree: int
    status: Exactness
    residual: float
    cancellation: float
    lower_bound: LowerBound
    generic_rank: int
    complex_rank: int | None = None
    is_minimal: bool | None = None

    @property
    def rank(self) -> int:
        """The number of terms."""
        return len(self.terms)

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of the terms, of shape (…), at points of shape (…, variables)."""
        total = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        for term in self.terms:
            form = x @ term.weight.to(x) + term.bias.to(x)
            total = total + term.sign * form**term.degree
        return total

    def to_polynomial(self) -> dict[tuple[int, ...], float]:
        """The coefficients of the sum by exponents."""
        return expand(self.terms, self.variables)

    def __str__(self) -> str:
        degrees = sorted({term.degree for term in self.terms})
        kind = f"of degree {' and '.join(map(str, degrees))}" if degrees else "at all"
        known = {True: ", no fewer exist", False: ", fewer exist", None: ""}[self.is_minimal]
        bound = self.lower_bound
        lines = [
            f"{self.status}: {self.rank} powers {kind}, residual {self.residual:.1e}{known}",
            f"  at least {bound.rank}: {bound.by}",
            *(f"  {rank} not ruled out: {how}" for rank, how in bound.searched.items()),
        ]
        if self.complex_rank is not None and self.complex_rank != self.rank:
            lines.append(f"  over the complex numbers {self.complex_rank} are enough")
        if self.status == "DIVERGENT":
            lines.append(f"  terms are {self.cancellation:.1e} times as large as their sum")
        return "\n".join([*lines, f"  generic rank {self.generic_rank}"])


def expand(terms: Sequence[Term], variables: int) -> dict[tuple[int, ...], float]:
    """The coefficients of Σ_t s_t (a_tᵀx + b_t)^{d_t} by exponents."""
    total: dict[tuple[int, ...], float] = {(0,) * variables: 0.0} if not terms else {}
    for degree in sorted({term.degree for term in terms}):
        own = [term for term in terms if term.degree == degree]
        affine = any(bool(term.bias) for term in own)
        vectors = torch.stack([torch.cat([t.bias[None], t.weight]) for t in own])
        vectors = vectors[:, 0 if affine else 1 :]
        signs = torch.tensor([t.sign for t in own], dtype=torch.float64)
        made = signs.numpy() @ powers(vectors.double().numpy(), degree)
        for e, c in expanded(Form(vectors.shape[1], degree, made), affine).items():
            total[e] = total.get(e, 0.0) + c
    return total
