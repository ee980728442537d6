"""Dimensions, degrees and ED degrees against Gröbner bases, from pixel coordinates.

Everything is over the prime field 𝔽_p with p = 32003, where a generic instance has the same
numbers as over ℂ.
"""

from itertools import combinations, product
from math import comb, prod

import numpy as np
import pytest
import sympy as sp

from paramsym.equivariant import InvariantVariety, components, decompose
from paramsym.equivariant.determinantal import degree, dimension, ed_degree
from paramsym.equivariant.orbits import orbitals
from tests.equivariant.instances import cycles

PRIME = 32003


def leading_monomials(equations, variables):
    basis = sp.groebner(equations, *variables, order="grevlex", modulus=PRIME)
    return [sp.Poly(g, *variables, modulus=PRIME).monoms(order="grevlex")[0] for g in basis.exprs]


def hilbert(equations, variables):
    """Dimension (as an affine cone) and degree of a homogeneous ideal, from standard monomials."""
    leading = leading_monomials(equations, variables)
    n = len(variables)
    supports = [frozenset(i for i in range(n) if m[i]) for m in leading]
    # The largest set of variables that contains no leading monomial.
    size = next(
        k
        for k in range(n, -1, -1)
        if any(not any(s <= set(free) for s in supports) for free in combinations(range(n), k))
    )

    # The numerator of the Hilbert series by the exact sequence for one variable at a time.
    def numerator(ideal):
        ideal = [m for m in ideal if not any(o != m and divides(o, m) for o in ideal)]
        if not ideal:
            return [1]
        if any(not any(m) for m in ideal):
            return [0]
        simple = all(sum(1 for e in m if e) == 1 for m in ideal)
        if simple:
            result = [1]
            for m in set(ideal):
                e = sum(m)
                result = np.convolve(result, [1] + [0] * (e - 1) + [-1]).tolist()
            return result
        mixed = next(m for m in ideal if sum(1 for e in m if e) > 1)
        pivot = next(i for i in range(n) if mixed[i])
        quotient = [tuple(max(e - (i == pivot), 0) for i, e in enumerate(m)) for m in ideal]
        plus = [*ideal, tuple(int(i == pivot) for i in range(n))]
        first, second = numerator(plus), [0, *numerator(sorted(set(quotient)))]
        width = max(len(first), len(second))
        first, second = (x + [0] * (width - len(x)) for x in (first, second))
        return [a + b for a, b in zip(first, second, strict=True)]

    def divides(a, b):
        return all(x <= y for x, y in zip(a, b, strict=True))

    t = sp.symbols("t")
    series = sum(int(c) * t**i for i, c in enumerate(numerator(leading)))
    for _ in range(n - size):
        series = sp.cancel(series / (1 - t))
    return size, int(series.subs(t, 1))


def minors(matrix, size):
    rows, columns = matrix.shape
    found = {
        sp.expand(matrix.extract(list(r), list(c)).det())
        for r in combinations(range(rows), size)
        for c in combinations(range(columns), size)
    }
    return sorted(found - {0}, key=str)


def equivariant_matrix(group):
    """A generic matrix that commutes with the group: one variable for each orbit on pairs."""
    count, labels = orbitals(group.arrays, group.arrays)
    variables = sp.symbols(f"x0:{count}")
    return sp.Matrix(labels.shape[0], labels.shape[1], lambda i, j: variables[labels[i, j]]), (
        variables
    )


def complex_components(group, rank):
    """(dimension, degree) of every component of the complex variety, for an abelian group.

    Over ℂ a complex block is two independent blocks of cost 1.
    """
    tops = [v.source for v in decompose(group).isotypics for _ in range(v.size)]
    total = min(rank, sum(tops))
    vectors = [v for v in product(*(range(t + 1) for t in tops)) if sum(v) == total]
    return [
        (
            sum(dimension(t, t, r) for t, r in zip(tops, v, strict=True)),
            prod(degree(t, t, r) for t, r in zip(tops, v, strict=True)),
        )
        for v in vectors
    ]


EQUIVARIANT = [
    ("(01) on 2", cycles(2, [[0, 1]]), 1),
    ("(01) on 3", cycles(3, [[0, 1]]), 1),
    ("(01) on 3", cycles(3, [[0, 1]]), 2),
    ("(012)", cycles(3, [[0, 1, 2]]), 1),
    ("(012)", cycles(3, [[0, 1, 2]]), 2),
    ("(0123)", cycles(4, [[0, 1, 2, 3]]), 1),
    ("(0123)", cycles(4, [[0, 1, 2, 3]]), 2),
    ("(0123)", cycles(4, [[0, 1, 2, 3]]), 3),
    ("(01)(23)", cycles(4, [[0, 1], [2, 3]]), 1),
    ("(012) on 4", cycles(4, [[0, 1, 2]]), 1),
    ("Klein", cycles(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]]), 2),
    ("(01234)", cycles(5, [[0, 1, 2, 3, 4]]), 2),
]


@pytest.mark.parametrize(
    "name, group, rank", EQUIVARIANT, ids=[f"{c[0]} r={c[2]}" for c in EQUIVARIANT]
)
def test_rank_bounded_equivariant_matrices(name, group, rank):
    matrix, variables = equivariant_matrix(group)
    found = hilbert(minors(matrix, rank + 1), variables)
    expected = complex_components(group, rank)
    top = max(d for d, _ in expected)
    assert found == (top, sum(g for d, g in expected if d == top))


INVARIANT = [
    ("source example", cycles(5, [[0, 2, 3], [1, 4]]), 2, 1),
    ("(01)", cycles(3, [[0, 1]]), 2, 1),
    ("(01) on 4", cycles(4, [[0, 1]]), 2, 1),
    ("(01)(23) on 5", cycles(5, [[0, 1], [2, 3]]), 3, 1),
    ("(01) on 4, r=2", cycles(4, [[0, 1]]), 3, 2),
    ("one orbit", cycles(4, [[0, 1, 2, 3]]), 3, 2),
    ("two generators", cycles(5, [[0, 1]], [[1, 2]]), 3, 2),
]


@pytest.mark.parametrize("name, group, rows, rank", INVARIANT, ids=[c[0] for c in INVARIANT])
def test_rank_bounded_invariant_matrices(name, group, rows, rank):
    variety = InvariantVariety(group, rows, rank)
    k = len(group.orbits)
    names = sp.symbols(f"x0:{rows * k}")
    folded = sp.Matrix(rows, k, names)
    matrix = folded * sp.Matrix(variety.indicator.astype(int))
    equations = minors(matrix, rank + 1)
    found = hilbert(equations, names) if equations else (rows * k, 1)
    assert found == (variety.dimension, variety.degree)


def count_solutions(equations, variables):
    """The number of solutions of a zero-dimensional system, with multiplicity."""
    leading = leading_monomials(equations, variables)
    n = len(variables)
    bounds = [
        min(m[i] for m in leading if m[i] and not any(m[j] for j in range(n) if j != i))
        for i in range(n)
    ]
    standard = product(*(range(b) for b in bounds))
    return sum(
        not any(all(a <= b for a, b in zip(m, s, strict=True)) for m in leading) for s in standard
    )


def critical_points_of_chart(weights, rows, rank, seed):
    """Critical points of a weighted distance on M_r(m × k), by the chart M = [1; X] Y.

    Points with rank(Y) < r are singular points of the variety, and removed by the equation
    1 = t · det(Y Yᵀ).
    """
    k = len(weights)
    rng = np.random.default_rng(seed)
    x = sp.symbols(f"x0:{(rows - rank) * rank}")
    y = sp.symbols(f"y0:{rank * k}")
    t = sp.Symbol("t")
    lower = sp.Matrix(rows - rank, rank, x) if rows > rank else sp.zeros(0, rank)
    chart = sp.Matrix.vstack(sp.eye(rank), lower)
    matrix = chart * sp.Matrix(rank, k, y)
    data = sp.Matrix(rows, k, [int(v) for v in rng.integers(1, PRIME, rows * k)])
    rest = matrix - data
    distance = sum(weights[j] * rest[i, j] ** 2 for i in range(rows) for j in range(k))
    equations = [sp.expand(sp.diff(distance, v)) for v in (*x, *y)]
    wide = sp.Matrix(rank, k, y)
    equations.append(sp.expand(t * (wide * wide.T).det() - 1))
    return count_solutions(equations, (t, *x, *y))


ED_CASES = [
    # weights of the columns (orbit sizes), rows, rank
    ([1, 1], 2, 1),
    ([1, 1, 1], 2, 1),
    ([1, 1], 3, 1),
    ([3, 2], 2, 1),  # the source's σ = (134)(25), m = 2
    ([2, 1, 1], 2, 1),
    ([1, 1, 1], 3, 1),
    ([2, 3, 1], 3, 1),
    ([4], 3, 1),
]


@pytest.mark.parametrize("weights, rows, rank", ED_CASES, ids=str)
def test_ed_degree_of_invariant_matrices(weights, rows, rank):
    k = len(weights)
    found = critical_points_of_chart(weights, rows, rank, seed=1)
    assert found == ed_degree(rows, k, rank) == comb(min(rows, k), rank)
    points = iter(range(sum(weights)))
    orbits = [[next(points) for _ in range(w)] for w in weights]
    variety = InvariantVariety(cycles(sum(weights), orbits), rows, rank)
    assert found == variety.ed_degree


def test_ed_degree_of_a_complex_block():
    """R(M₁(ℂ²ˣ²)) in real coordinates: Z = (1, x)ᵀ(y₁, y₂) and its conjugate made independent."""
    rng = np.random.default_rng(0)
    x, xc, y1, y2, y1c, y2c, t = variables = sp.symbols("x xc y1 y2 y1c y2c t")
    z, zc = sp.Matrix([1, x]) * sp.Matrix([[y1, y2]]), sp.Matrix([1, xc]) * sp.Matrix([[y1c, y2c]])
    u, uc = (sp.Matrix(2, 2, [int(v) for v in rng.integers(1, PRIME, 4)]) for _ in range(2))
    distance = sum((z - u).multiply_elementwise(zc - uc))
    equations = [sp.expand(sp.diff(distance, v)) for v in (x, xc, y1, y2, y1c, y2c)]
    equations.append(sp.expand(t * (1 + x * xc) * (y1 * y1c + y2 * y2c) - 1))
    assert count_solutions(equations, (t, *variables[:-1])) == comb(2, 1)
    # The component of (012)(345) with one unit in the complex block is exactly this one.
    family = components(cycles(6, [[0, 1, 2], [3, 4, 5]]), 2)
    component = family.component((0, 1))
    assert component.ed_degree == 2 and component.degree == 4


def test_ed_degree_of_a_component_with_two_blocks():
    """(01)(23), ranks (1, 1): in pixel coordinates, 2 · 2 critical points."""
    rng = np.random.default_rng(2)
    a, p, q, b, r, s, t = sp.symbols("a p q b r s t")
    plus, minus = sp.Matrix([1, a]) * sp.Matrix([[p, q]]), sp.Matrix([1, b]) * sp.Matrix([[r, s]])
    same, cross = plus + minus, plus - minus  # blocks [[same, cross], [cross, same]] / 2, pixelwise
    matrix = sp.Matrix(4, 4, lambda i, j: (same if i % 2 == j % 2 else cross)[i // 2, j // 2])
    for images in ([1, 0, 3, 2],):
        permuted = matrix.extract(images, images)
        assert sp.expand(permuted - matrix) == sp.zeros(4, 4)
    data = sp.Matrix(4, 4, [int(v) for v in rng.integers(1, PRIME, 16)])
    distance = sum(e**2 for e in matrix - data)
    variables = (a, p, q, b, r, s)
    equations = [sp.expand(sp.diff(distance, v)) for v in variables]
    equations.append(sp.expand(t * (p**2 + q**2) * (r**2 + s**2) - 1))
    found = count_solutions(equations, (t, *variables))
    family = components(cycles(4, [[0, 1], [2, 3]]), 2)
    assert found == family.component((1, 1)).ed_degree == 4
