"""From irreducibles on each class of orbits to adapted coordinates of the whole space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .characters import FourierBasis, Phases, fourier_basis
from .orbits import Index, OrbitClass
from .splitting import split

Real = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassBasis:
    """The basis of one class of isomorphic orbits.

    Args:
        orbits: point numbers (k × s).
        basis: orthogonal (s × s); its columns are the adapted coordinates of one orbit.
        places: where coefficient j of orbit o stands in the adapted order (k × s).
        fourier: the Fourier description, for abelian groups.
    """

    orbits: Index
    basis: Real
    places: Index
    fourier: FourierBasis | None


class Parts(NamedTuple):
    """What a decomposition consists of; one entry for each irreducible in the first five."""

    phases: list[Phases | None]
    sizes: list[int]
    dimensions: list[int]
    source: list[int]
    target: list[int]
    source_classes: tuple[ClassBasis, ...]
    target_classes: tuple[ClassBasis, ...]


class _Copies(NamedTuple):
    """copies[i][c]: the bases (s_c × p_i) of irreducible i on class c."""

    phases: list[Phases | None]
    sizes: list[int]
    dimensions: list[int]
    copies: list[list[list[Real]]]
    fourier: list[FourierBasis | None]


def assemble(classes: Sequence[OrbitClass], degree: int, same: bool, abelian: bool) -> Parts:
    """Decomposes every class and lays out the coordinates of source and target.

    Args:
        classes: the classes of orbits on the points of source and target together.
        degree: n; points below it belong to the source, the others to the target.
        same: whether source and target are the same action (then all points are the source's).
        abelian: whether the generators commute.
    """
    found = _fourier_copies(classes) if abelian else _split_copies(classes)
    source, source_classes = _lay_out(classes, found, 0, degree)
    if same:
        target, target_classes = source, source_classes
    else:
        top = max(int(c.orbits.max()) for c in classes) + 1
        target, target_classes = _lay_out(classes, found, degree, top)
    lists = (found.phases, found.sizes, found.dimensions, source, target)
    return Parts(*lists, source_classes, target_classes)


def _fourier_copies(classes: Sequence[OrbitClass]) -> _Copies:
    bases = [fourier_basis(c.moves) for c in classes]
    phases = sorted({f for basis in bases for f in basis.phases})
    columns = [dict(zip(b.phases, b.columns, strict=True)) for b in bases]
    copies = [[[c[f]] if f in c else [] for c in columns] for f in phases]
    sizes = [1 if all(2 * x % 1 == 0 for x in f) else 2 for f in phases]
    return _Copies(list(phases), sizes, sizes, copies, list(bases))


def _split_copies(classes: Sequence[OrbitClass]) -> _Copies:
    found = split(classes)
    return _Copies(
        [None] * len(found),
        [v.size for v in found],
        [v.dimension for v in found],
        [v.copies for v in found],
        [None] * len(classes),
    )


def _lay_out(
    classes: Sequence[OrbitClass], found: _Copies, low: int, high: int
) -> tuple[list[int], tuple[ClassBasis, ...]]:
    """Multiplicities, and for each class where its coefficients stand in the adapted order."""
    here = [c.orbits[(low <= c.orbits[:, 0]) & (c.orbits[:, 0] < high)] - low for c in classes]
    multiplicities = [
        sum(len(orbits) * len(c) for orbits, c in zip(here, copies, strict=True))
        for copies in found.copies
    ]
    places: list[list[NDArray[np.intp]]] = [[] for _ in classes]
    start = 0
    for i, copies in enumerate(found.copies):
        p, size, copy = found.dimensions[i], found.sizes[i], 0
        within = np.arange(p)
        for c, bases in enumerate(copies):
            for _ in bases:
                numbers = copy + len(bases) * np.arange(len(here[c]))[:, None]
                slice_start = within // size * (multiplicities[i] * size)
                places[c].append(start + slice_start + numbers * size + within % size)
                copy += 1
            copy += len(bases) * (len(here[c]) - 1) if len(here[c]) else -len(bases)
        start += p * multiplicities[i]
    laid = []
    for c, orbits in enumerate(here):
        if len(orbits):
            columns = np.column_stack([b for copies in found.copies for b in copies[c]])
            where = np.concatenate(places[c], axis=1)
            laid.append(ClassBasis(orbits, columns, where, found.fourier[c]))
    return multiplicities, tuple(laid)
