"""A linear vector field in words: which slices of which parameters move, and by what.

`0.weight[2, :] grows, 2.weight[:, 2] shrinks` is the field of a scaling of unit 2, and
`0.weight[1, :] += 0.weight[3, :]` one that mixes two of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy
from scipy.sparse import csr_array

from paramsym.discovery.algebras.vector_fields import Coordinates

_SHOWN = 6  # terms of one field

Index = tuple[int | None, ...]  # None stands for all of an axis
Pair = tuple[Index, Index]


def describe(matrix: csr_array, coordinates: Coordinates, shown: int = _SHOWN) -> str:
    """One line for one field, given as M̂: `shown` terms of it at most."""
    terms = []
    for (target, source, value), pairs in _groups(matrix, coordinates).items():
        found, crossed = _compressed(
            pairs, _shape(coordinates, target), _shape(coordinates, source)
        )
        terms += [_term(target, source, pair, value, crossed) for pair in found]
    more = f", and {len(terms) - shown} more" if len(terms) > shown else ""
    return ", ".join(terms[:shown]) + more if terms else "nothing moves"


def _shape(coordinates: Coordinates, name: str) -> tuple[int, ...]:
    return coordinates.shapes[name] if name else ()


def _groups(
    matrix: csr_array, coordinates: Coordinates
) -> dict[tuple[str, str, float], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Entries by target tensor, source tensor (none for constants) and coefficient."""
    entries = matrix.tocoo()
    names = list(coordinates.places)
    starts = numpy.array([coordinates.places[n].start for n in names])
    stops = numpy.array([coordinates.places[n].stop for n in names])

    def place(k: int) -> tuple[str, tuple[int, ...]]:
        if k == coordinates.size:
            return "", ()
        which = int(numpy.flatnonzero((starts <= k) & (k < stops))[0])
        name = names[which]
        index = numpy.unravel_index(k - starts[which], coordinates.shapes[name] or (1,))
        return name, tuple(int(i) for i in index) if coordinates.shapes[name] else ()

    found = defaultdict(list)
    order = numpy.lexsort((entries.coords[1], entries.coords[0]))
    for row, column, value in zip(
        entries.coords[0][order], entries.coords[1][order], entries.data[order], strict=True
    ):
        (target, a), (source, b) = place(int(row)), place(int(column))
        found[target, source, float(f"{value:.6g}")].append((a, b))
    return dict(found)


def _compressed(
    pairs: Sequence[Pair], target: tuple[int, ...], source: tuple[int, ...]
) -> tuple[list[Pair], bool]:
    """Axes along which all entries move alike, each from its own place, written as one slice.

    Also whether an axis runs with another one than itself, as in a transpose.
    """
    found: list[Pair] = list(pairs)
    used: list[int] = []
    crossed = False
    for k, size in enumerate(target):
        axes = [j for j in dict.fromkeys([k, *range(len(source))]) if j < len(source)]
        options: list[int | None] = [j for j in axes if j not in used and source[j] == size]
        for j in options if source else [None]:
            fewer = _along(found, k, j, size)
            if fewer is None:
                continue
            found = fewer
            used += [] if j is None else [j]
            crossed |= j not in (None, k)
            break
    return found, crossed


def _along(pairs: list[Pair], k: int, j: int | None, size: int) -> list[Pair] | None:
    """The pairs with axis k of the target and j of the source running together, if all do."""
    groups: dict[Pair, set[int]] = defaultdict(set)
    for a, b in pairs:
        at = a[k]
        if at is None or (j is not None and b[j] != at):
            return None
        rest = b if j is None else (*b[:j], None, *b[j + 1 :])
        groups[(*a[:k], None, *a[k + 1 :]), rest].add(at)
    return list(groups) if all(len(seen) == size for seen in groups.values()) else None


def _slice(name: str, index: Index) -> str:
    if all(i is None for i in index):
        return name
    return f"{name}[{', '.join(':' if i is None else str(i) for i in index)}]"


def _number(value: float) -> str:
    size = abs(value)
    if math.isclose(size, round(size), rel_tol=1e-9) and size < 1e6:
        return str(round(size))
    return f"{size:.4g}"


def _term(target: str, source: str, pair: Pair, value: float, crossed: bool) -> str:
    a, b = pair
    left, size = _slice(target, a), _number(value)
    if not source:
        return f"{left} {'+' if value > 0 else '−'}= {size}"
    transposed = crossed and sum(i is None for i in b) > 1
    if source == target and a == b and not transposed:
        rate = "" if size == "1" else f" at rate {size}"
        return f"{left} {'grows' if value > 0 else 'shrinks'}{rate}"
    factor = "" if size == "1" else f"{size} · "
    right = _slice(source, b) + ("ᵀ" if transposed else "")
    return f"{left} {'+' if value > 0 else '−'}= {factor}{right}"
