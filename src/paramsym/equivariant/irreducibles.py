"""Irreducibles and their copies, once they are found: polished to rounding, and certified."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .division import MULTIPLICATION
from .orbits import OrbitClass, orbitals

Real = NDArray[np.float64]
Move = NDArray[Any]  # images of the points, or a matrix
PASSES = 3
NOISE = 1e-7  # between rounding (1e-12) and generic size (1)
EXACT = 1e-10  # what is left after polishing


def spelled(moves: Sequence[Move], recipe: Sequence[tuple[int, ...]]) -> list[Move]:
    """Words in the generators: these, and after them the product of each pair of the recipe."""
    words = list(moves)
    for a, b in recipe:
        words.append(words[a][words[b]] if words[a].ndim == 1 else words[a] @ words[b])
    return words


def moved(move: Move, columns: Real) -> Real:
    """ρ(g) times columns."""
    if move.ndim == 1:
        result = np.empty_like(columns)
        result[move] = columns
        return result
    return np.asarray(move @ columns, dtype=np.float64)


@dataclass(eq=False)
class Irreducible:
    """An irreducible found, with all its copies in every class.

    Args:
        size: δ, the dimension of the division algebra of equivariant endomorphisms.
        copies: for each class, orthonormal bases (s × p) in which G acts by the same matrices.
        actions: these matrices (p × p), one for each generator, as the first copy shows them.
    """

    size: int
    copies: list[list[Real]]
    actions: list[Real] = field(default_factory=list)

    def measure(self, classes: Sequence[OrbitClass]) -> None:
        """Takes the actions from the first copy."""
        home = next(c for c, copies in enumerate(self.copies) if copies)
        reference = self.copies[home][0]
        self.actions = [reference.T @ moved(g, reference) for g in classes[home].moves]

    @property
    def dimension(self) -> int:
        """p, the real dimension."""
        return self.actions[0].shape[0]

    @property
    def order(self) -> tuple[object, ...]:
        """A key that depends on the group alone: trivial first, then by size, then by character."""
        words = [*self.actions, *(a @ b for a, b in product(self.actions, repeat=2))]
        character = tuple(-round(float(np.trace(w)), 5) + 0.0 for w in words)
        trivial = all(np.abs(a - 1).max() < NOISE for a in self.actions) and self.dimension == 1
        return (not trivial, self.dimension, self.size, character)


def polish(
    found: list[Irreducible],
    classes: Sequence[OrbitClass],
    words: Sequence[Sequence[Move]],
    recipe: Sequence[tuple[int, ...]],
) -> None:
    """Bases that are equivariant to rounding, from bases that are nearly so.

    Let a basis X be off by E. The actions R(g) = Xᵀρ(g)X are off by E² only, and the mean of
    ρ(w) X R(w)ᵀ over K words keeps what is equivariant and shrinks the rest, by √K if the words are
    well mixed. One step of Newton's iteration makes all columns orthonormal again.

    Args:
        found: what `certified` accepts; its bases and actions are replaced.
        classes: where it was found.
        words: on each class, the generators and the words of the recipe.
        recipe: how words are spelled.
    """
    for _ in range(PASSES):
        turns = [spelled(v.actions, recipe) for v in found]
        for c, spoken in enumerate(words):
            here = [(i, len(v.copies[c]), v.dimension) for i, v in enumerate(found) if v.copies[c]]
            basis = np.column_stack([copy for v in found for copy in v.copies[c]])
            total = np.zeros_like(basis)
            for k, word in enumerate(spoken):
                image, start = moved(word, basis), 0
                for i, copies, p in here:
                    columns = slice(start, start := start + copies * p)
                    piece = image[:, columns].reshape(len(basis), copies, p) @ turns[i][k].T
                    total[:, columns] += piece.reshape(len(basis), copies * p)
            mean = total / len(spoken)
            mean = 1.5 * mean - 0.5 * mean @ (mean.T @ mean)
            start = 0
            for i, copies, p in here:
                columns = np.split(mean[:, start : (start := start + copies * p)], copies, axis=1)
                found[i].copies[c] = columns
        for v in found:
            v.measure(classes)


def certified(
    found: list[Irreducible], classes: Sequence[OrbitClass], tolerance: float = NOISE
) -> bool:
    """Whether every copy carries the action of its irreducible, and nothing is missing.

    That the actions are irreducible and differ is how they were found: a matrix that commutes with
    the group keeps the eigenspaces, their alignment and the units, hence is one of ours.
    """
    for v in found:
        for g, unit in product(v.actions, MULTIPLICATION[v.size]):
            repeated = np.kron(np.eye(v.dimension // v.size), unit)
            if not np.abs(g @ repeated - repeated @ g).max() <= tolerance:  # NaN is no success
                return False
    for c, orbit_class in enumerate(classes):
        copies = [(v, copy) for v in found for copy in v.copies[c]]
        basis = np.column_stack([copy for _, copy in copies])
        square = basis.shape == (orbit_class.size, orbit_class.size)
        if not square or not np.abs(basis.T @ basis - np.eye(len(basis))).max() <= tolerance:
            return False
        for index, g in enumerate(orbit_class.moves):
            expected = np.column_stack([copy @ v.actions[index] for v, copy in copies])
            if not np.abs(moved(g, basis) - expected).max() <= tolerance:
                return False
    return _counted(found, classes)


def _counted(found: list[Irreducible], classes: Sequence[OrbitClass]) -> bool:
    """Whether numbers of equivariant maps are, exactly, those of orbits on pairs."""
    permuted = [c for c, orbit_class in enumerate(classes) if orbit_class.moves[0].ndim == 1]
    for a, b in product(permuted, repeat=2):
        maps = sum(v.size * len(v.copies[a]) * len(v.copies[b]) for v in found)
        if maps != orbitals(classes[a].moves, classes[b].moves)[0]:
            return False
    return True
