"""The closed formula against the rank of a Jacobian, which knows of no exception."""

from __future__ import annotations

from math import comb

import pytest
import torch

from paramsym.waring import generic_rank

CASES = [
    (1, 1), (4, 1), (1, 5), (2, 2), (5, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7), (3, 3), (3, 4),
    (3, 5), (3, 6), (4, 3), (4, 4), (4, 5), (5, 3), (5, 4), (6, 3), (6, 4),
]  # fmt: skip
EXCEPTIONS = {(3, 4): 6, (4, 4): 10, (5, 4): 15, (5, 3): 8}


def rank_by_tangents(variables: int, degree: int, generator: torch.Generator) -> int:
    """The least r at which the differential of (v_t) ↦ Σ_t (v_tᵀx)^d is onto, at random v_t.

    The form is known by its values at as many random points as it has coefficients, and the
    differential by v_t is d (v_tᵀx)^{d−1} x there (Terracini).
    """
    monomials = comb(variables + degree - 1, degree)

    def drawn(count: int) -> torch.Tensor:
        free = torch.randn(count, variables, generator=generator, dtype=torch.float64)
        return free / free.norm(dim=1, keepdim=True)

    points, columns = drawn(monomials), torch.zeros(monomials, 0, dtype=torch.float64)
    for rank in range(1, monomials + 1):
        (v,) = drawn(1)
        own = degree * (points @ v)[:, None] ** (degree - 1) * points
        columns = torch.cat([columns, own / own.norm()], 1)
        if torch.linalg.matrix_rank(columns, rtol=1e-10) == monomials:
            return rank
    raise AssertionError("the differential is never onto")


@pytest.mark.parametrize(("variables", "degree"), CASES)
def test_it_is_where_the_differential_is_onto(
    variables: int, degree: int, generator: torch.Generator
) -> None:
    assert generic_rank(variables, degree) == rank_by_tangents(variables, degree, generator)


@pytest.mark.parametrize(("variables", "degree"), EXCEPTIONS)
def test_exceptions_are_one_above_the_count_of_parameters(variables: int, degree: int) -> None:
    counted = -(-comb(variables + degree - 1, degree) // variables)
    assert generic_rank(variables, degree) == EXCEPTIONS[variables, degree] == counted + 1


def test_there_are_no_other_exceptions_above_degree_two() -> None:
    for variables in range(1, 9):
        for degree in range(3, 9):
            if (variables, degree) not in EXCEPTIONS:
                counted = -(-comb(variables + degree - 1, degree) // variables)
                assert generic_rank(variables, degree) == counted


@pytest.mark.parametrize("wrong", [(0, 3), (3, 0), (-1, 2), (True, 2), (2.0, 2)])
def test_other_arguments_are_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a positive integer was expected.*Pass for example"):
        generic_rank(*wrong)
