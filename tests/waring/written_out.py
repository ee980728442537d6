"""Polynomials multiplied out monomial by monomial: the slow twin, and what tests start from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Written = dict[tuple[int, ...], float]


def times(p: Written, q: Written) -> Written:
    product: Written = {}
    for e, c in p.items():
        for f, k in q.items():
            both = tuple(a + b for a, b in zip(e, f, strict=True))
            product[both] = product.get(both, 0.0) + c * k
    return product


def plus(*summands: Written) -> Written:
    total: Written = {}
    for p in summands:
        for e, c in p.items():
            total[e] = total.get(e, 0.0) + c
    return total


def affine(a: Iterable[float], b: float = 0.0) -> Written:
    """aᵀx + b."""
    a = [*map(float, a)]
    unit = [tuple(int(i == j) for j in range(len(a))) for i in range(len(a))]
    constant: Written = {(0,) * len(a): float(b)} if b else {}
    return {**dict(zip(unit, a, strict=True)), **constant}


def power(form: Written, degree: int, weight: float = 1.0) -> Written:
    variables = len(next(iter(form)))
    made: Written = {(0,) * variables: float(weight)}
    for _ in range(degree):
        made = times(made, form)
    return made


def sum_of_powers(
    vectors: Sequence[Sequence[float]] | Tensor, degree: int, weights: Iterable[float] | None = None
) -> Written:
    """Σ_t w_t (v_tᵀx)^degree."""
    rows = torch.as_tensor(vectors).tolist()
    weights = [1.0] * len(rows) if weights is None else weights
    return plus(*(power(affine(v), degree, w) for v, w in zip(rows, weights, strict=True)))


def value(p: Written, x: Tensor) -> Tensor:
    """p at points of shape (…, variables)."""
    parts = [c * (x ** torch.tensor(e)).prod(-1) for e, c in p.items()]
    return torch.stack(parts).sum(0)


def substituted(p: Written, matrix: Tensor) -> Written:
    """p(T x)."""
    rows = matrix.tolist()
    made: list[Written] = []
    for e, c in p.items():
        product: Written = {(0,) * len(rows[0]): c}
        for row, times_ in zip(rows, e, strict=True):
            product = times(product, power(affine(row), times_))
        made.append(product)
    return plus(*made)
