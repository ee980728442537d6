"""Sums of powers: what is found is the polynomial, and what is ruled out is not to be had."""

from __future__ import annotations

from itertools import product
from math import factorial, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym import waring
from paramsym.waring.real_factors import real_factors

from .written_out import Written, affine, plus, power, substituted, sum_of_powers, times, value

small = st.integers(-3, 3)
# variables, degree, terms: unique decompositions, by diagonalisation or by a search
PLANTED = [(2, 5, 3), (3, 3, 3), (4, 3, 4), (3, 4, 3), (3, 5, 6), (4, 3, 5), (3, 4, 4), (6, 3, 6)]


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def planted(case: tuple[int, int, int], generator: torch.Generator) -> tuple[Written, Tensor]:
    """A polynomial, and its terms as rows (sign, v), with signs in turns, and no two v that are
    nearly parallel, which one term could stand in for."""
    variables, degree, count = case
    rows: list[Tensor] = []
    while len(rows) < count:
        (v,) = drawn((1, variables), generator)
        if all(float((v @ w).abs() / v.norm() / w.norm()) < 0.8 for w in rows):
            rows.append(v)
    vectors = torch.stack(rows)
    signs = torch.ones(count, dtype=torch.float64)
    signs[::2] = -1.0
    return sum_of_powers(vectors, degree, signs.tolist()), torch.cat([signs[:, None], vectors], 1)


def tensors(rows: list[tuple[int, Tensor]], degree: int) -> list[Tensor]:
    """Each term sign · v^{⊗d} as an array, which knows neither the sign of v nor where it is."""
    made = []
    for sign, v in rows:
        whole = torch.tensor(float(sign), dtype=torch.float64)
        for _ in range(degree):
            whole = whole[..., None] * v
        made.append(whole)
    return made


def unmatched(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest distance from a term of the first to its nearest of the second."""
    return max(min(float((a - b).abs().max()) for b in second) for a in first)


def difference(found: waring.Decomposition, polynomial: Written) -> float:
    """The largest coefficient of f − Σ, multiplied out, relative to the largest of f."""
    made = plus(*(
        power(affine(t.weight.tolist(), float(t.bias)), t.degree, t.sign) for t in found.terms
    ))  # fmt: skip
    left = plus(polynomial, {e: -c for e, c in made.items()})
    return max(map(abs, left.values())) / max(map(abs, polynomial.values()))


@pytest.mark.parametrize("case", PLANTED, ids=str)
def test_planted_terms_are_found_up_to_order_and_sign(
    case: tuple[int, int, int], generator: torch.Generator
) -> None:
    variables, degree, count = case
    polynomial, rows = planted(case, generator)
    found = waring.decompose(polynomial)
    assert (found.rank, found.status) == (count, "EXACT")
    assert found.residual <= 1e-13 and difference(found, polynomial) <= 1e-10
    own = tensors([(t.sign, t.weight) for t in found.terms], degree)
    theirs = tensors([(int(row[0]), row[1:]) for row in rows], degree)
    assert max(unmatched(own, theirs), unmatched(theirs, own)) <= 1e-9
    other = tensors([(int(row[0]), 1.01 * row[1:]) for row in rows], degree)
    assert unmatched(own, other) > 1e-3


@pytest.mark.parametrize("case", PLANTED, ids=str)
def test_one_term_less_leaves_a_residual(
    case: tuple[int, int, int], generator: torch.Generator
) -> None:
    polynomial, _ = planted(case, generator)
    found = waring.decompose(polynomial, rank=case[2] - 1)
    assert found.residual >= 1e-3 and found.status != "EXACT" and found.is_minimal is None
    floors = found.lower_bound.floors
    assert found.rank >= len(floors) or found.residual >= floors[found.rank] * (1 - 1e-9)


# exponents, rank over the complex numbers, rank over the reals, whether that is proved to be least
MONOMIALS = [
    ((1, 1), 2, 2, True),
    ((1, 2), 3, 3, True),
    ((1, 3), 4, 4, True),
    ((2, 2), 3, 4, True),
    ((2, 3), 4, 5, True),
    ((3, 3), 4, 6, True),
    ((2, 4), 5, 6, True),
    ((1, 1, 1), 4, 4, True),
    ((1, 1, 2), 6, 6, None),
    ((1, 1, 1, 1), 8, 8, None),
]


@pytest.mark.parametrize(("exponent", "over_c", "over_r", "proved"), MONOMIALS, ids=str)
def test_monomials_have_their_known_ranks(
    exponent: tuple[int, ...], over_c: int, over_r: int, proved: bool | None
) -> None:
    least, *others = sorted(exponent)
    assert over_c == prod(k + 1 for k in others)  # Carlini, Catalisano and Geramita 2012
    found = waring.decompose({exponent: 1.0})
    assert (found.rank, found.status, found.is_minimal) == (over_r, "EXACT", proved)
    assert difference(found, {exponent: 1.0}) <= 1e-12
    if len(exponent) == 2:
        assert found.complex_rank == over_c
        assert over_r == sum(exponent)  # Boij, Carlini and Geramita 2011
    else:  # no proof is claimed for what a search did not find
        assert found.lower_bound.rank <= over_c
        assert set(found.lower_bound.searched) == set(range(found.lower_bound.rank, over_r))
        assert all("numerically" in how for how in found.lower_bound.searched.values())


@pytest.mark.parametrize(("exponent", "rank"), [((1, 2), 2), ((1, 3), 2), ((1, 2, 1), 4)], ids=str)
def test_a_limit_of_shorter_sums_is_no_such_sum(exponent: tuple[int, ...], rank: int) -> None:
    found = waring.decompose({exponent: 1.0}, rank=rank)
    assert found.status == "DIVERGENT" and found.residual < 1e-2 and found.cancellation > 30
    assert found.is_minimal is None and "times as large as their sum" in str(found)
    # nor does a tolerance that the residual stays below make it one
    loose = waring.decompose({exponent: 1.0}, rank=rank, tolerance=10 * found.residual)
    assert loose.status == "DIVERGENT"


def test_a_best_approximation_need_not_diverge() -> None:
    """No three cubes come near x y z: its border rank is four."""
    found = waring.decompose({(1, 1, 1): 1.0}, rank=3)
    assert found.status == "APPROXIMATE" and found.residual > 0.1 and found.cancellation < 10


@pytest.mark.parametrize("signs", [*product([1.0, -1.0, 0.0], repeat=3)], ids=str)
def test_quadrics_have_as_many_squares_as_eigenvalues_of_their_signs(
    signs: tuple[float, ...], generator: torch.Generator
) -> None:
    polynomial = sum_of_powers(drawn((3, 4), generator), 2, signs)
    found = waring.decompose(polynomial)
    assert sorted(t.sign for t in found.terms) == sorted(int(s) for s in signs if s)
    assert found.status == "EXACT" and found.is_minimal
    if found.rank:
        assert waring.decompose(polynomial, rank=found.rank + 2).rank == found.rank
    if found.rank > 1:  # fewer squares: what Eckart and Young leave
        less = waring.decompose(polynomial, rank=found.rank - 1)
        assert less.residual == pytest.approx(less.lower_bound.floors[found.rank - 1])
        assert less.residual > 1e-3


# a polynomial of degree two, how many squares it takes, and how many terms of degrees one and two
QUADRATICS = [
    ({(2, 0): 1.0, (0, 1): 1.0}, 3, 2),
    ({(2, 0): 1.0, (1, 0): 2.0, (0, 0): 1.0}, 1, 1),
    ({(2, 0): 1.0, (1, 0): 2.0, (0, 0): 3.0}, 2, 2),
    ({(1, 1): 1.0}, 2, 2),
    ({(1, 1): 1.0, (1, 0): 1.0, (0, 1): -2.0, (0, 0): -2.0}, 2, 2),
    ({(1, 1): 1.0, (1, 0): 1.0, (0, 1): -2.0}, 3, 3),
    ({(1, 0): 1.0, (0, 0): 5.0}, 2, 1),
]


@pytest.mark.parametrize(("polynomial", "pure", "mixed"), QUADRATICS, ids=str)
def test_a_term_of_degree_one_may_save_a_square(polynomial: Written, pure: int, mixed: int) -> None:
    squares = waring.decompose(polynomial, degree=2)
    assert (squares.rank, {t.degree for t in squares.terms}) == (pure, {2})
    both = waring.decompose(polynomial, mixed=True)
    assert both.rank == mixed and sum(t.degree == 1 for t in both.terms) <= 1
    for found in (squares, both):
        assert found.status == "EXACT" and found.is_minimal
        assert difference(found, polynomial) <= 1e-12


@pytest.mark.parametrize(("variables", "degree"), [(3, 3), (3, 4), (4, 3), (4, 4), (5, 3)], ids=str)
def test_random_forms_are_sums_of_about_generic_rank(
    variables: int, degree: int, generator: torch.Generator
) -> None:
    """The real rank of an open set of forms may be larger, by one here, and never smaller."""
    every = [e for e in product(range(degree + 1), repeat=variables) if sum(e) == degree]
    polynomial = {
        e: c * (factorial(degree) / prod(map(factorial, e))) ** 0.5
        for e, c in zip(every, drawn((len(every),), generator).tolist(), strict=True)
    }
    found = waring.decompose(polynomial)
    assert found.status == "EXACT" and found.residual <= 1e-12
    assert found.generic_rank == waring.generic_rank(variables, degree)
    assert 0 <= found.rank - found.generic_rank <= 1
    less = waring.decompose(polynomial, rank=found.generic_rank - 1, starts=8)
    assert less.status != "EXACT" and less.residual >= 1e-3


@pytest.mark.parametrize(
    ("roots", "proof"),
    [
        ((0.0, 1.0, 2.0, 3.0, -1.5), "real linear factors"),
        ((0.5, 0.5, -1.0, 2.0), "linear factors"),
    ],
    ids=str,
)
def test_as_many_real_factors_need_as_many_real_powers(
    roots: tuple[float, ...], proof: str
) -> None:
    polynomial: Written = {(0, 0): 1.0}
    for root in roots:
        polynomial = times(polynomial, affine([1.0, -root]))
    found = waring.decompose(polynomial)
    assert (found.rank, found.is_minimal) == (len(roots), True)
    assert proof in found.lower_bound.by
    assert found.complex_rank is not None and found.complex_rank < len(roots)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(small, small).filter(any), max_size=4), st.integers(0, 2), st.booleans())
def test_real_factors_are_counted_with_their_multiplicity(
    roots: list[tuple[int, int]], circles: int, twice: bool
) -> None:
    """Σ c_j x^{d−j} y^j, multiplied out of linear factors and of (x² + x y + (k + 1) y²)²."""
    own = [*roots, *(roots[:1] if twice else [])]
    polynomial: Written = {(0, 0): 1.0}
    for a, b in own:
        polynomial = times(polynomial, affine([a, b]))
    for k in range(circles):
        square = {(2, 0): 1.0, (1, 1): 1.0, (0, 2): k + 1.0}
        polynomial = times(polynomial, times(square, square))
    degree = len(own) + 4 * circles
    coefficients = [polynomial.get((degree - j, j), 0.0) for j in range(degree + 1)]
    assert real_factors(coefficients) == len(own)


def test_terms_that_nearly_cancel_are_neither_taken_nor_ruled_out() -> None:
    """x y² + ε x³ has two cubes, 1/√ε times as large; a double root in rounded numbers has not."""
    near = waring.decompose({(1, 2): 1.0, (3, 0): 1e-8})
    assert (near.rank, near.status, near.lower_bound.rank, near.is_minimal) == (3, "EXACT", 2, None)
    assert "the only candidate has terms" in near.lower_bound.searched[2]
    for wide in (1e-2, 1e-5):
        assert waring.decompose({(1, 2): 1.0, (3, 0): wide}).rank == 2
    assert waring.decompose({(1, 2): 1.0, (3, 0): -1e-2}).lower_bound.rank == 3


def test_a_polynomial_in_one_variable_is_a_binary_form() -> None:
    """x³ + x + 2 is homogeneous with x₀, and has two cubes; x⁴ − x² has four real factors."""
    cubes = waring.decompose({(3,): 1, (1,): 1, (0,): 2})
    assert (cubes.rank, cubes.is_minimal, cubes.generic_rank) == (2, True, 2)
    four = waring.decompose({(4,): 1.0, (2,): -1.0})
    assert (four.rank, four.complex_rank, four.is_minimal) == (4, 3, True)
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    assert torch.allclose(four(x), x[:, 0] ** 4 - x[:, 0] ** 2, atol=1e-12)


@st.composite
def polynomials(draw: st.DrawFn) -> Written:
    variables = draw(st.integers(1, 3))
    exponents = st.tuples(*[st.integers(0, 3)] * variables).filter(lambda e: sum(e) <= 3)
    return draw(st.dictionaries(exponents, small, min_size=1, max_size=5))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(polynomials())
def test_the_sum_takes_the_values_of_the_polynomial(polynomial: Written) -> None:
    found = waring.decompose(polynomial, starts=16)
    x = drawn((7, len(next(iter(polynomial)))), torch.Generator().manual_seed(1))
    size = value({e: abs(c) for e, c in polynomial.items()}, 1 + x.abs())
    assert found.status == "EXACT" and found.rank >= found.lower_bound.rank
    assert bool(((found(x) - value(polynomial, x)).abs() <= 1e-9 * (1 + size)).all())
    assert bool(((value(found.to_polynomial(), x) - found(x)).abs() <= 1e-9 * (1 + size)).all())
    assert (found.is_minimal is True) == (found.rank == found.lower_bound.rank)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 4), st.integers(0, 10**6))
def test_the_rank_is_the_same_in_other_coordinates(
    variables: int, degree: int, count: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = min(count, variables)  # so that it is unique, or a quadric
    polynomial, _ = planted((variables, degree, count), generator)
    left, right = (torch.linalg.qr(drawn((variables, variables), generator))[0] for _ in range(2))
    matrix = left @ torch.diag(torch.linspace(0.5, 2, variables).double()) @ right
    found, moved = map(waring.decompose, (polynomial, substituted(polynomial, matrix)))
    assert found.rank == moved.rank == count
    assert found.lower_bound.rank == moved.lower_bound.rank
    # and one variable more that nothing depends on changes nothing
    wider = {(*e[:1], 0, *e[1:]): c for e, c in polynomial.items()}
    assert waring.decompose(wider).rank == count


def test_terms_are_a_layer(generator: torch.Generator) -> None:
    first, second = {(3, 0): 1.0, (1, 1): -2.0, (0, 0): 0.5}, {(0, 2): 1.0, (1, 0): 1.0}
    layer = waring.Polynomial.from_terms([waring.decompose(p).terms for p in (first, second)])
    x = drawn((6, 2), generator)
    expected = torch.stack([value(first, x), value(second, x)], -1)
    assert torch.allclose(layer(x), expected, atol=1e-10)


def test_scales_and_seeds_do_not_matter(generator: torch.Generator) -> None:
    polynomial, _ = planted((3, 4, 4), generator)
    found = waring.decompose(polynomial)
    for scale in (1e-200, 1e200):
        scaled = waring.decompose({e: scale * c for e, c in polynomial.items()})
        assert (scaled.rank, scaled.is_minimal) == (found.rank, found.is_minimal)
    again = waring.decompose(polynomial, generator=torch.Generator().manual_seed(0))
    assert all(
        torch.equal(a.weight, b.weight) for a, b in zip(found.terms, again.terms, strict=True)
    )


def test_a_result_says_what_is_known() -> None:
    proved = waring.decompose({(1, 1, 1): 1.0})
    assert str(proved).startswith("EXACT: 4 powers of degree 3, residual ")
    assert "no fewer exist\n  at least 4: simultaneous diagonalisation" in str(proved)
    searched = waring.decompose({(1, 1, 2): 1.0})
    assert "no fewer exist" not in str(searched) and "4 not ruled out: num" in str(searched)
    assert "over the complex numbers 3 are enough" in str(waring.decompose({(2, 2): 1.0}))
    many = waring.decompose({(1, 1, 1): 1.0}, rank=9)
    assert many.is_minimal is False and many.rank == 9 and "fewer exist" in str(many)


BAD = [
    ([1.0], TypeError, "a list came.*dictionary.*Pass for example"),
    ({}, ValueError, "no monomial came.*at least one was expected"),
    (
        {(1, 2): 1.0 + 0j},
        TypeError,
        r"coefficient of \(1, 2\) is .*complex.*real ones were expected",
    ),
    ({(1, 2): "1"}, TypeError, r"a str, and a real number was expected.*float"),
    ({(1, 2): True}, TypeError, "a bool, and a real number was expected"),
    ({(1, 2): torch.ones(1)}, TypeError, r"a Tensor, and a real number was expected.*item"),
    ({(1, 2): float("nan")}, ValueError, r"\(1, 2\) is nan, and a finite number"),
    ({(1, 2): 10**400}, ValueError, "and a finite number of double precision was expected"),
    ({(1, 2): 2**53 + 1}, ValueError, "an integer that double precision rounds to"),
    ({(1, 2): 1.0, (1,): 1.0}, ValueError, "of 2 variables and .* of 1 came.*Fill the shorter"),
    ({(): 1.0}, ValueError, r"the exponent \(\) came, and a tuple of integers"),
    ({3: 1.0}, ValueError, "the exponent 3 came, and a tuple of integers"),
    ({(-1, 2): 1.0}, ValueError, "tuple of integers from zero on"),
    ({(0.5, 2): 1.0}, ValueError, "tuple of integers from zero on"),
    ({(1,) * 20: 1.0}, ValueError, "coefficients, and at most 3000 were expected"),
]


@pytest.mark.parametrize(("polynomial", "error", "message"), BAD, ids=range(len(BAD)))
def test_what_is_no_real_polynomial_is_refused(
    polynomial: Written, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        waring.decompose(polynomial)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, "rank=0.*positive integer was expected"),
        ({"starts": None}, "starts=None.*positive integer was expected"),
        ({"degree": 2}, "degree 3, and powers of at least that degree.*Pass degree=3"),
        ({"degree": True}, "degree=True.*positive integer"),
        ({"tolerance": 0.0}, "tolerance=0.0.*between zero and one"),
        ({"mixed": True}, "degree 3 came, and one of at most two"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        waring.decompose({(1, 2): 1.0}, **wrong)  # pyright: ignore[reportArgumentType]


def test_constants_and_zero() -> None:
    constant = waring.decompose({(0, 0): 3})
    (term,) = constant.terms
    assert (term.degree, float(term.bias)) == (1, 3.0) and not term.weight.any()
    zero = waring.decompose({(1, 1): 0.0})
    assert (zero.rank, zero.is_minimal, zero.status) == (0, True, "EXACT")
    assert not zero(torch.ones(2, 2)).any() and not any(zero.to_polynomial().values())
