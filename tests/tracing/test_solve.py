"""The exact solver of scales and signs agrees with dense elimination."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.primitives.solve import System

Equations = list[list[tuple[int, int]]]
UNKNOWNS = 6

coefficients = st.integers(-3, 3).filter(bool)
terms = st.lists(st.tuples(coefficients, st.integers(0, UNKNOWNS - 1)), min_size=1, max_size=4)
systems = st.lists(terms, max_size=7)


def rows(equations: Equations) -> list[list[int]]:
    table = []
    for equation in equations:
        row = [0] * UNKNOWNS
        for c, u in equation:
            row[u] += c
        table.append(row)
    return table


def solve(equations: Equations, modulo: int = 0) -> list[list[Fraction]]:
    """A basis of the solutions on all unknowns."""
    system = System(modulo)
    for equation in equations:
        system.add(list(equation))
    basis = system.solve({u: 1 for u in range(UNKNOWNS)})
    return [[Fraction(system.value(u, row)) for u in range(UNKNOWNS)] for row in basis]


def rank_modulo_two(table: list[list[int]]) -> int:
    rank, left = 0, [[c % 2 for c in row] for row in table]
    for column in range(UNKNOWNS):
        pivot = next((r for r in left if r[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left = [[a ^ b for a, b in zip(r, pivot, strict=True)] if r[column] else r for r in left]
        rank += 1
    return rank


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(systems)
def test_the_solutions_are_the_null_space(equations: Equations) -> None:
    table = rows(equations)
    basis = solve(equations)
    for solution in basis:
        for row in table:
            assert sum(c * x for c, x in zip(row, solution, strict=True)) == 0
    rank = sympy.Matrix(table).rank() if table else 0
    assert len(basis) == UNKNOWNS - rank
    if basis:
        matrix = sympy.Matrix([[sympy.Rational(x) for x in row] for row in basis])
        assert matrix.rank() == len(basis)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(systems)
def test_signs_are_solved_modulo_two(equations: Equations) -> None:
    table = rows(equations)
    basis = solve(equations, 2)
    for solution in basis:
        for row in table:
            assert sum(c * x for c, x in zip(row, solution, strict=True)) % 2 == 0
    assert len(basis) == UNKNOWNS - rank_modulo_two(table)
    assert rank_modulo_two([[int(x) for x in row] for row in basis]) == len(basis)


def test_a_pinned_unknown_remembers_what_pinned_it() -> None:
    system = System()
    system.add([(1, "a"), (-2, "b")])
    system.add([(1, "b")], "gelu at model.py:3")
    root, _ = system.find("a")
    assert system.why[root] == "gelu at model.py:3"
    assert system.value("a", {}) == 0


@pytest.mark.parametrize(("power", "expected"), [(2, Fraction(1, 2)), (Fraction(1, 2), 2)])
def test_powers_are_exact(power: Fraction, expected: Fraction) -> None:
    system = System()
    system.add([(power, "x"), (-1, "y")])
    (row,) = system.solve({"y": 2, "x": 1})
    assert system.value("x", row) == expected * system.value("y", row)


def test_the_heaviest_unknown_stays_free() -> None:
    system = System()
    system.add([(1, "a"), (1, "b"), (-1, "c")])
    basis = system.solve({"a": 1, "b": 1, "c": 5})
    assert len(basis) == 2
    assert any(row.get("c") == 1 for row in basis)
