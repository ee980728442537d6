"""Exact rationals and their matrices: FLINT where it is installed, Python's fractions elsewhere.

`python-flint` comes with the extra `relu`, and exact mode asks for it. Everything else needs few
exact numbers; for that the classes below do the same, ten to thirty times slower. They have what
this package uses of FLINT, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any


class Rational(Fraction):
    """`flint.fmpq`: a fraction whose parts are called p and q."""

    @property
    def p(self) -> int:
        return self.numerator

    @property
    def q(self) -> int:
        return self.denominator

    def floor(self) -> Integer:
        return Integer(math.floor(self))


def _closed(name: str) -> Callable[..., Any]:
    """An operation of `Fraction` whose result is of our kind."""
    operation = getattr(Fraction, name)

    def method(self: Rational, *others: Any) -> Any:
        result = operation(self, *others)
        return Rational(result) if isinstance(result, Fraction) else result

    return method


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Rational, f"__{_name}__", _closed(f"__{_name}__"))
    setattr(Rational, f"__r{_name}__", _closed(f"__r{_name}__"))
for _name in ("__neg__", "__pos__", "__abs__", "__pow__"):
    setattr(Rational, _name, _closed(_name))


class Integer(int):
    """`flint.fmpz`, whose quotient with a rational is one."""

    def __truediv__(self, other: Any) -> Any:
        return Rational(self) / other


class RationalMatrix:
    """`flint.fmpq_mat`: a table of rationals, by size and entries row after row, or by its rows."""

    number: Callable[[Any], Any] = Rational

    def __init__(self, first: Any, columns: int | None = None, entries: Iterable | None = None):
        if columns is None:
            given = first.tolist() if isinstance(first, RationalMatrix) else list(first)
            self._rows = [[self.number(v) for v in row] for row in given]
            self._columns = len(self._rows[0]) if self._rows else 0
            return
        flat = [0] * (first * columns) if entries is None else list(entries)
        if len(flat) != first * columns:
            raise ValueError(f"{len(flat)} entries for a table of {first}×{columns}")
        numbers = [self.number(v) for v in flat]
        self._rows = [numbers[k * columns : (k + 1) * columns] for k in range(first)]
        self._columns = columns

    def _like(self, table: Sequence[Sequence[Any]], columns: int) -> Any:
        return type(self)(len(table), columns, [v for row in table for v in row])

    def nrows(self) -> int:
        return len(self._rows)

    def ncols(self) -> int:
        return self._columns

    def tolist(self) -> list[list[Any]]:
        return [list(row) for row in self._rows]

    table = tolist

    def entries(self) -> list[Any]:
        return [v for row in self._rows for v in row]

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return self._rows[place[0]][place[1]]

    def __setitem__(self, place: tuple[int, int], value: Any) -> None:
        self._rows[place[0]][place[1]] = self.number(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RationalMatrix):
            return NotImplemented
        return self._columns == other._columns and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return any(self.entries())

    def transpose(self) -> Any:
        table = [[row[k] for row in self._rows] for k in range(self._columns)]
        return self._like(table, len(self._rows))

    def _each(self, other: RationalMatrix, sign: int) -> Any:
        if (self.nrows(), self.ncols()) != (other.nrows(), other.ncols()):
            raise ValueError("matrices of different sizes")
        pairs = zip(self._rows, other._rows, strict=True)
        table = [[a + sign * b for a, b in zip(u, v, strict=True)] for u, v in pairs]
        return self._like(table, self._columns)

    def __add__(self, other: RationalMatrix) -> Any:
        return self._each(other, 1)

    def __sub__(self, other: RationalMatrix) -> Any:
        return self._each(other, -1)

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, RationalMatrix):
            return self._like([[v * other for v in row] for row in self._rows], self._columns)
        if self.ncols() != other.nrows():
            raise ValueError("matrices that cannot be multiplied")
        columns = list(zip(*other._rows, strict=True)) or [()] * other.ncols()
        table = [
            [sum((a * b for a, b in zip(row, column, strict=True) if a and b), self.number(0))
             for column in columns] for row in self._rows
        ]  # fmt: skip
        return self._like(table, other.ncols())

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self * (Rational(1) / Rational(other))

    def rref(self) -> tuple[Any, int]:
        """The reduced echelon form and the rank."""
        table, rank, _ = self._reduced(self._columns)
        return self._like(table, self._columns), rank

    def _reduced(self, columns: int) -> tuple[list[list[Any]], int, Any]:
        """Elimination with pivots in the first columns; the last value is the pivots' product."""
        table, rank, product = self.tolist(), 0, Rational(1)
        for k in range(columns):
            pivot = next((i for i in range(rank, len(table)) if table[i][k]), None)
            if pivot is None:
                continue
            if pivot != rank:
                table[rank], table[pivot], product = table[pivot], table[rank], -product
            lead = table[rank][k]
            product *= lead
            table[rank] = [v / lead for v in table[rank]]
            for i, row in enumerate(table):
                if i != rank and row[k]:
                    factor = row[k]
                    table[i] = [a - factor * b for a, b in zip(row, table[rank], strict=True)]
            rank += 1
        return table, rank, product

    def rank(self) -> int:
        return self.rref()[1]

    def det(self) -> Any:
        if self.nrows() != self.ncols():
            raise ValueError("the determinant of a table that is not square")
        _, rank, product = self._reduced(self._columns)
        return product if rank == self.nrows() else Rational(0)

    def inv(self) -> Any:
        n = self.nrows()
        if n != self.ncols():
            raise ValueError("the inverse of a table that is not square")
        wide = [[*row, *(Rational(int(i == k)) for k in range(n))]
                for i, row in enumerate(self._rows)]  # fmt: skip
        table, rank, _ = self._like(wide, 2 * n)._reduced(n)
        if rank < n:
            raise ZeroDivisionError("matrix is singular")
        return self._like([row[n:] for row in table], n)


class IntegerMatrix(RationalMatrix):
    """`flint.fmpz_mat`."""

    number = int


if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz, fmpz_mat
else:
    try:
        from flint import fmpq, fmpq_mat, fmpz, fmpz_mat
    except ModuleNotFoundError:
        fmpq, fmpq_mat, fmpz, fmpz_mat = Rational, RationalMatrix, Integer, IntegerMatrix

__all__ = ["fmpq", "fmpq_mat", "fmpz", "fmpz_mat"]
