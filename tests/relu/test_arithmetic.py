"""The fractions that stand in for FLINT do the same: every operation, against FLINT itself."""

import random
from fractions import Fraction

import flint
import pytest

from paramsym.relu import arithmetic
from paramsym.relu.arithmetic import Integer, IntegerMatrix, Rational, RationalMatrix


def numbers(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.choice([0, 0, 1, -1, rng.randint(-9, 9)]), rng.randint(1, 7))
            for _ in range(count)]  # fmt: skip


def plain(value: object) -> object:
    """A number or a table of either kind as fractions."""
    if isinstance(value, (flint.fmpq, Rational)):
        return Fraction(int(value.p), int(value.q))
    if isinstance(value, (flint.fmpz, int)):
        return Fraction(int(value))
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    return [[plain(v) for v in row] for row in value.tolist()]  # type: ignore[attr-defined]


def pairs(seed: int, rows: int, columns: int) -> tuple[flint.fmpq_mat, RationalMatrix]:
    given = numbers(random.Random(seed), rows * columns)
    return (
        flint.fmpq_mat(rows, columns, [flint.fmpq(*v) for v in given]),
        RationalMatrix(rows, columns, [Rational(*v) for v in given]),
    )


@pytest.mark.parametrize("seed", range(12))
def test_numbers(seed: int):
    (a, b), (c, d) = numbers(random.Random(seed), 2)
    x, y, u, v = flint.fmpq(a, b), flint.fmpq(c, d), Rational(a, b), Rational(c, d)
    for name in ("__add__", "__sub__", "__mul__", "__lt__", "__le__", "__eq__"):
        ours, theirs = getattr(u, name)(v), getattr(x, name)(y)
        assert plain(ours) == plain(theirs), name
    if c:
        assert plain(u / v) == plain(x / y)
    assert plain(u.floor()) == plain(x.floor()) and plain(-u) == plain(-x)
    assert plain(abs(u)) == plain(abs(x)) and plain(2 * u + 1) == plain(2 * x + 1)
    assert str(u) == str(x)
    for result in (u + v, 1 - u, u * 2, -u, abs(u), u**2, Integer(3) / Rational(2)):
        assert isinstance(result, Rational)  # it stays in the family


@pytest.mark.parametrize("seed", range(12))
def test_tables(seed: int):
    n = 1 + seed % 4
    (x, u), (y, v) = pairs(seed, n, n + 1), pairs(seed + 100, n + 1, n)
    for name in ("transpose", "rref", "rank", "nrows", "ncols"):
        assert plain(getattr(u, name)()) == plain(getattr(x, name)()), name
    assert plain(u * v) == plain(x * y) and plain(u + v.transpose()) == plain(x + y.transpose())
    assert plain(u - u) == plain(x - x) and plain(u * Rational(2)) == plain(x * flint.fmpq(2))
    square, other = u * v, x * y
    assert plain(square.det()) == plain(other.det())
    if other.det():
        assert plain(square.inv()) == plain(other.inv())
    else:
        with pytest.raises(ZeroDivisionError):
            square.inv()
    assert [plain(e) for e in u.entries()] == [plain(e) for e in x.entries()]


def test_tables_without_rows_or_columns():
    for rows, columns in ((0, 3), (3, 0), (0, 0)):
        x, u = flint.fmpq_mat(rows, columns), RationalMatrix(rows, columns)
        for name in ("transpose", "rref", "rank", "nrows", "ncols"):
            assert plain(getattr(u, name)()) == plain(getattr(x, name)()), name
    ours = RationalMatrix(2, 0) * RationalMatrix(0, 3)
    assert plain(ours) == plain(flint.fmpq_mat(2, 0) * flint.fmpq_mat(0, 3))


def test_whole_numbers():
    x, u = flint.fmpz_mat(2, 2, [1, 2, 3, 4]), IntegerMatrix(2, 2, [1, 2, 3, 4])
    assert plain(u * u) == plain(x * x) and isinstance((u * u).tolist()[0][0], int)


def test_wrong_sizes_are_refused():
    for wrong in (
        lambda: RationalMatrix(2, 2, [1]),
        lambda: RationalMatrix(2, 2) * RationalMatrix(3, 2),
        lambda: RationalMatrix(2, 2) + RationalMatrix(3, 2),
        lambda: RationalMatrix(2, 3).det(),
        lambda: RationalMatrix(2, 3).inv(),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_flint_is_used_where_it_is_installed():
    assert arithmetic.fmpq is flint.fmpq and arithmetic.fmpq_mat is flint.fmpq_mat
