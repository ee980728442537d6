"""Expressions over absolute values: the basis, the atoms and the identities between them.

An expression is a row over the basis x_1 … x_d, 1, atoms; an atom is |e| for an expression e scaled
so that its first non-constant coefficient is 1. Identities are kept in echelon form: the deepest
atom is eliminated, never a hyperplane of the first layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.rationals import HALF, ZERO

Row = list[fmpq]


class Atom(NamedTuple):
    """|Σ value·basis| with `terms` the pairs (basis index, value), first non-constant value 1."""

    terms: tuple[tuple[int, fmpq], ...]
    depth: int


@dataclass
class Registry:
    """The atoms and identities that two networks share on one domain."""

    domain: Domain
    atoms: list[Atom] = field(default_factory=list)
    place: dict[tuple[tuple[int, fmpq], ...], int] = field(default_factory=dict)
    identities: dict[int, dict[int, fmpq]] = field(default_factory=dict)

    @property
    def dimension(self) -> int:
        """d; basis index d is the constant 1, d+1+k the atom k."""
        return self.domain.dimension

    @property
    def size(self) -> int:
        """The number of basis elements."""
        return self.dimension + 1 + len(self.atoms)

    def pad(self, row: Row) -> Row:
        """The row with zeros for atoms that are newer than it."""
        return row + [ZERO] * (self.size - len(row))

    def reduce(self, row: Row) -> Row:
        """The row with every eliminated atom replaced."""
        for pivot, rest in self.identities.items():
            tick()
            if pivot < len(row) and row[pivot]:
                factor = row[pivot]
                row = self.pad(row)
                for index, value in rest.items():
                    row[index] -= factor * value
        return row

    def is_constant(self, row: Row) -> bool:
        """Whether only the constant coefficient may be non-zero."""
        d = self.dimension
        return not any(row[:d]) and not any(row[d + 1 :])

    def is_affine(self, row: Row) -> bool:
        """Whether the row has no atom."""
        return not any(row[self.dimension + 1 :])

    def absolute(self, row: Row) -> tuple[fmpq, int]:
        """(s, basis index k) with |row| = s·basis_k, s > 0; the row is not constant."""
        d = self.dimension
        terms = [(i, v) for i, v in enumerate(row) if v]
        pivot = next(v for i, v in terms if i != d)
        key = tuple((i, v / pivot) for i, v in terms)
        found = self.place.get(key)
        if found is None:
            depth = 1 + max((self.atoms[i - d - 1].depth for i, _ in terms if i > d), default=0)
            found = d + 1 + len(self.atoms)
            self.atoms.append(Atom(key, depth))
            self.place[key] = found
        return abs(pivot), found

    def relu(self, row: Row) -> Row:
        """relu(row) = row/2 + |row|/2 as a row."""
        row = self.reduce(row)
        if self.is_constant(row):
            value = row[self.dimension]
            return row if value >= 0 else [ZERO] * len(row)
        size, index = self.absolute(row)
        half = self.pad([v * HALF if v else v for v in row])
        half[index] += size * HALF
        return half

    def learn(self, row: Row) -> bool:
        """Record that a row is the zero function; True if that was new."""
        d = self.dimension
        row = self.reduce(self.pad(row))
        present = [i for i in range(d + 1, len(row)) if row[i]]
        if not present:
            if any(row):
                raise AssertionError("an affine identity on an open set: a bug of paramsym")
            return False
        pivot = max(present, key=lambda i: (self.atoms[i - d - 1].depth, i))
        lead = row[pivot]
        rest = {i: v / lead for i, v in enumerate(row) if v}
        for held in self.identities.values():
            factor = held.get(pivot)
            if factor:
                for index, value in rest.items():
                    updated = held.get(index, ZERO) - factor * value
                    if updated:
                        held[index] = updated
                    else:
                        held.pop(index, None)
        self.identities[pivot] = rest
        return True


def combine(registry: Registry, parts: list[tuple[fmpq, Row]]) -> Row:
    """Σ factor·row, reduced."""
    total = [ZERO] * registry.size
    for factor, row in parts:
        tick()
        for i, v in enumerate(row):
            if v:
                total[i] += factor * v
    return registry.reduce(total)
