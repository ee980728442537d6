"""Orbits of a permutation group as G-sets: which are alike, and what happens on pairs of points.

Two orbits are isomorphic as G-sets if some bijection commutes with every generator. Isomorphic
orbits carry the same representation in the same coordinates, so a decomposition is computed once
for each class of orbits and copied (exactly: only indices change). For the row shift of a 28 × 28
image the 28 rows form one class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class OrbitClass:
    """Isomorphic orbits, with matching orders of their points; or a space moved by matrices.

    Args:
        moves: the generators acting on the positions 0, …, s−1 of one orbit, or on ℝˢ (s × s).
        orbits: point numbers (k × s), one orbit in each row; column j corresponds in all rows.
    """

    moves: tuple[NDArray[Any], ...]
    orbits: Index

    @property
    def size(self) -> int:
        """The number s of points of one orbit."""
        return self.orbits.shape[1]


def classify(orbits: Sequence[Sequence[int]], generators: Sequence[Index]) -> list[OrbitClass]:
    """Sorts orbits into classes of isomorphic G-sets.

    Args:
        orbits: disjoint sets of points, each closed under the generators.
        generators: the images of all points under each generator.
    """
    found: list[tuple[tuple[Index, ...], list[Index]]] = []
    for orbit in orbits:
        points = np.array(orbit, dtype=np.intp)
        moves = _local(points, generators)
        for known, members in found:
            order = _isomorphism(known, moves)
            if order is not None:
                members.append(points[order])
                break
        else:
            found.append((moves, [points]))
    return [OrbitClass(moves, np.stack(members)) for moves, members in found]


def _local(points: Index, generators: Sequence[Index]) -> tuple[Index, ...]:
    """The generators in terms of positions within one orbit (points are sorted)."""
    return tuple(np.searchsorted(points, g[points]) for g in generators)


def schreier_tree(moves: Sequence[Index]) -> list[tuple[int, int, int]]:
    """How each point of a transitive action is reached from point 0: (point, parent, generator)."""
    seen, queue, tree = {0}, [0], []
    for parent in queue:
        for index, move in enumerate(moves):
            point = int(move[parent])
            if point not in seen:
                seen.add(point)
                queue.append(point)
                tree.append((point, parent, index))
    return tree


def _isomorphism(first: Sequence[Index], second: Sequence[Index]) -> Index | None:
    """φ with φ(g·x) = g·φ(x), tried from every image of point 0 at once; None if there is none."""
    size = len(first[0])
    if len(second[0]) != size:
        return None
    if all((a == b).all() for a, b in zip(first, second, strict=True)):
        return np.arange(size)
    image = np.zeros((size, size), dtype=np.intp)  # row y: the map that sends 0 to y
    image[:, 0] = np.arange(size)
    for point, parent, index in schreier_tree(first):
        image[:, point] = second[index][image[:, parent]]
    good = np.ones(size, dtype=bool)
    for a, b in zip(first, second, strict=True):
        good &= (image[:, a] == b[image]).all(1)
    return image[int(good.argmax())] if good.any() else None


def orbitals(first: Sequence[Index], second: Sequence[Index]) -> tuple[int, NDArray[np.int32]]:
    """The orbits on pairs (i, j) of points of two actions, as a table of labels.

    A matrix commutes with the actions exactly if it is constant on each; their number is the
    dimension of the space of equivariant maps.

    Returns:
        The number of orbits, and labels (s₁ × s₂).
    """
    rows, columns = len(first[0]), len(second[0])
    node = np.arange(rows * columns).reshape(rows, columns)
    targets = [node[a[:, None], b[None, :]].ravel() for a, b in zip(first, second, strict=True)]
    start = np.tile(node.ravel(), len(targets))
    edges = (np.ones(len(start), dtype=np.int8), (start, np.concatenate(targets)))
    graph = coo_matrix(edges, shape=(node.size, node.size))
    count, labels = connected_components(graph, directed=False)
    return int(count), labels.reshape(rows, columns)
