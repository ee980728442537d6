r"""Irreducible subspaces of any permutation representation, from its commutant.

Let S be a generic symmetric matrix that commutes with G. Each eigenspace of S is irreducible over
ℝ, because the commutant is ⊕ D_i^{d_i × d_i} with D_i = ℝ, ℂ or ℍ and a generic Hermitian matrix
has distinct eigenvalues. Then, all by random elements of the commutant and with wide gaps:

- the type of an irreducible V is dim End_G(V) = 1, 2 or 4;
- V and W are isomorphic exactly if a random equivariant map between them is not zero, and that map
  is orthogonal up to a scalar (it is a number of D), which aligns their bases;
- imaginary units are the skew-symmetric elements of End_G(V), and a basis (w, iw), or
  (w, iw, jw, kw), repeated, gives them the standard form.

The numbers found are certified exactly: Σ_i δ_i d_i e_i must equal the number of orbits on pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .orbits import OrbitClass, orbitals

Real = NDArray[np.float64]
ATTEMPTS = 6
NOISE = 1e-7  # between rounding (1e-12) and generic size (1)


@dataclass(eq=False)
class Irreducible:
    """An irreducible found: its reference copy, and all copies in every class of orbits.

    Args:
        size: δ, the dimension of the division algebra of equivariant endomorphisms.
        home: number of the class of orbits in which it was first seen.
        copies: for each class, orthonormal bases (s × p) in which G acts by the same matrices.
    """

    size: int
    home: int
    reference: Real
    copies: list[list[Real]] = field(default_factory=list)

    @property
    def dimension(self) -> int:
        """p, the real dimension."""
        return self.reference.shape[1]


class _Commutant:
    """Random equivariant maps between classes of orbits."""

    def __init__(self, classes: Sequence[OrbitClass], seed: int) -> None:
        self.tables = {
            (a, b): orbitals(first.moves, second.moves)
            for a, first in enumerate(classes)
            for b, second in enumerate(classes)
        }
        self.generator = np.random.default_rng(seed)

    def sample(self, a: int, b: int) -> Real:
        """A random equivariant map from class b to class a (s_a × s_b)."""
        count, labels = self.tables[a, b]
        return self.generator.standard_normal(count)[labels]

    def average(self, a: int, matrix: Real) -> Real:
        """The equivariant part of a matrix on one class, exactly constant on orbits of pairs."""
        count, labels = self.tables[a, a]
        total = np.bincount(labels.ravel(), weights=matrix.ravel(), minlength=count)
        return (total / np.bincount(labels.ravel(), minlength=count))[labels]


def split(classes: Sequence[OrbitClass]) -> list[Irreducible]:
    """The irreducibles of permutation representations, one transitive action for each class.

    Raises:
        ArithmeticError: the exact count of orbits on pairs never matched (rounding; not expected).
    """
    for seed in range(ATTEMPTS):
        commutant = _Commutant(classes, seed)
        found: list[Irreducible] = []
        for number, orbit_class in enumerate(classes):
            for basis in _eigenspaces(commutant, number, orbit_class.size):
                _place(found, basis, number, len(classes), commutant)
        if _certified(found, commutant, len(classes)):
            return sorted(found, key=lambda v: (not _is_trivial(v), v.dimension, v.size))
    raise ArithmeticError(
        f"split: {ATTEMPTS} random elements of the commutant gave no decomposition with the exact "
        "number of orbits on pairs; expected one. Please report the generators as a bug."
    )


def _eigenspaces(commutant: _Commutant, number: int, size: int) -> list[Real]:
    """Eigenspaces of a random symmetric element, polished to rounding by averaging projectors."""
    sample = commutant.sample(number, number)
    values, vectors = np.linalg.eigh(sample + sample.T)
    gap = NOISE * max(1.0, float(np.abs(values).max()) / size)
    cuts = np.flatnonzero(np.diff(values) > gap) + 1
    spaces = []
    for basis in np.split(vectors, cuts, axis=1):
        projector = commutant.average(number, basis @ basis.T)
        spaces.append(np.linalg.qr(projector @ basis)[0])
    return spaces


def _is_trivial(irreducible: Irreducible) -> bool:
    column = irreducible.reference
    return column.shape[1] == 1 and bool(np.ptp(column) < NOISE)


def _place(
    found: list[Irreducible], basis: Real, number: int, classes: int, commutant: _Commutant
) -> None:
    """Adds a subspace to the irreducible that it is a copy of, in aligned coordinates."""
    for known in found:
        if known.dimension != basis.shape[1]:
            continue
        samples = [commutant.sample(number, known.home) for _ in range(3)]
        maps = [basis.T @ b @ known.reference / np.linalg.norm(b) for b in samples]
        best = max(maps, key=np.linalg.norm)
        if np.linalg.norm(best) > NOISE:
            left, _, right = np.linalg.svd(best)
            known.copies[number].append(basis @ (left @ right))
            return
    basis, size = _standard_form(basis, number, commutant)
    new = Irreducible(size, number, basis, [[] for _ in range(classes)])
    new.copies[number].append(basis)
    found.append(new)


def _standard_form(basis: Real, number: int, commutant: _Commutant) -> tuple[Real, int]:
    """The type δ of an irreducible, and a basis in which its imaginary units are standard."""
    samples = []
    for _ in range(6):
        sample = commutant.sample(number, number)
        samples.append(basis.T @ sample @ basis / np.linalg.norm(sample))
    units: list[Real] = []
    for sample in samples:
        skew = sample - sample.T
        for unit in units:
            skew = skew - np.sum(skew * unit) / np.sum(unit * unit) * unit
        if np.linalg.norm(skew) > NOISE:
            left, _, right = np.linalg.svd(skew)
            unit = left @ right  # the nearest orthogonal matrix: a unit quaternion
            units.append((unit - unit.T) / 2)
    if not units:
        return basis, 1
    if len(units) == 1:
        return basis @ _adapted([np.eye(len(units[0])), units[0]]), 2
    i, j = units[0], units[1]
    return basis @ _adapted([np.eye(len(i)), i, j, i @ j]), 4


def _adapted(units: list[Real]) -> Real:
    """An orthogonal matrix with columns (w, iw, …) for orthonormal w over the algebra."""
    size = len(units[0])
    columns = np.zeros((size, 0))
    while columns.shape[1] < size:
        rest = np.eye(size) - columns @ columns.T
        vector = rest[:, np.linalg.norm(rest, axis=0).argmax()]
        vector = vector - columns @ (columns.T @ vector)
        vector = vector / np.linalg.norm(vector)
        columns = np.column_stack([columns, *(unit @ vector for unit in units)])
    return columns


def _certified(found: list[Irreducible], commutant: _Commutant, classes: int) -> bool:
    """Whether dimensions and numbers of equivariant maps agree with the orbits on pairs."""
    for a in range(classes):
        for b in range(classes):
            maps = sum(v.size * len(v.copies[a]) * len(v.copies[b]) for v in found)
            if maps != commutant.tables[a, b][0]:
                return False
    return True
