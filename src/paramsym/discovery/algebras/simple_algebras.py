"""Which simple real Lie algebra it is: the root system, then the real form.

The root system follows from the weights of a Cartan subalgebra: their number, and how many of them
are long, tell A_r, B_r, C_r, D_r, E_r, F₄ and G₂ apart. Two root systems that are orthogonal to
each other mean a complex algebra, seen as a real one. The real form is the one whose Killing form
has as many positive squares; so*(18) and so(12, 6) alone share that number.

Source: Helgason, Differential Geometry, Lie Groups, and Symmetric Spaces, 1978, chapter X, section
6 (real forms and their characters) and chapter III, section 4 (roots).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch

from paramsym.discovery.algebras.ideals import (
    ad,
    draw,
    killing,
    signature,
    zero_weights,
)

_EXCEPTIONAL = {(72, 6): "e_6", (126, 7): "e_7", (240, 8): "e_8"}


@dataclass(frozen=True)
class Simple:
    """A simple real Lie algebra by name, with the letter and rank of its root system.

    `size` is n of the smallest usual module, sl_n or so_n; 0 where there is none.
    """

    name: str
    letter: str
    rank: int
    signature: tuple[int, int, int]
    size: int = 0


def simple_algebra(f: numpy.ndarray, generator: torch.Generator) -> Simple | None:
    """The type of a simple real algebra; None if its roots fit none of the list.

    Args:
        f: structure constants of an algebra without a proper ideal.
    """
    squares = signature(killing(f))
    lengths, components, rank = _roots(f, generator)
    if components not in (1, 2) or len(lengths) % components or rank % components:
        return None
    long = int((lengths > 0.75 * lengths.max()).sum()) // components
    found = _letter(len(lengths) // components, rank // components, long)
    if found is None:
        return None
    letter, single = found
    if components == 2 and squares[0] != squares[1]:
        return None
    if components == 2:
        name, size = _complex_name(letter, single)
        return Simple(name, letter, single, squares, size)
    for positive, name, size in _real_forms(letter, single):
        if positive == squares[0]:
            return Simple(name, letter, single, squares, size)
    return None


def _roots(f: numpy.ndarray, generator: torch.Generator) -> tuple[numpy.ndarray, int, int]:
    """Squared lengths of the roots, how many orthogonal sets they form, and the rank."""
    values, vectors = numpy.linalg.eig(ad(f, draw(generator, len(f))))
    zero = zero_weights(f, values)
    cartan = _kernel(f, vectors[:, zero])
    roots = vectors[:, ~zero]
    duals = numpy.linalg.pinv(vectors)[~zero]
    # α(h) from [h, e_α] = α(h) e_α
    weights = numpy.einsum(
        "ai,hk,kij,ja->ah", duals, cartan.T, _transposed(f), roots, optimize=True
    )
    form = weights.T @ weights  # the Killing form on the Cartan subalgebra
    pairs = (weights @ numpy.linalg.solve(form, weights.T)).real
    lengths = numpy.diagonal(pairs).copy()
    return lengths, _components(numpy.abs(pairs) > 1e-4 * lengths.max()), cartan.shape[1]


def _kernel(f: numpy.ndarray, vectors: numpy.ndarray) -> numpy.ndarray:
    """A well-conditioned basis of the span of eigenvectors."""
    return numpy.linalg.qr(vectors)[0]


def _transposed(f: numpy.ndarray) -> numpy.ndarray:
    """T[h, i, j] such that ad h = T[h]."""
    return f.transpose(0, 2, 1)


def _components(joined: numpy.ndarray) -> int:
    """Connected components of a graph given by its adjacency matrix."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    return int(connected_components(csr_array(joined), directed=False)[0])


def _letter(roots: int, rank: int, long: int) -> tuple[str, int] | None:
    """The letter of an irreducible root system."""
    if long == roots:
        if roots == rank * (rank + 1):
            return "A", rank
        if rank >= 4 and roots == 2 * rank * (rank - 1):
            return "D", rank
        return (_EXCEPTIONAL[roots, rank], rank) if (roots, rank) in _EXCEPTIONAL else None
    if rank == 2 and roots == 12:
        return "g_2", 2
    if rank == 4 and roots == 48:
        return "f_4", 4
    if roots != 2 * rank**2:
        return None
    return ("C", rank) if long == 2 * rank and rank > 2 else ("B", rank)


def _complex_name(letter: str, rank: int) -> tuple[str, int]:
    if (letter, rank) == ("A", 1):
        return "so(3, 1)", 4
    names = {
        "A": f"sl_{rank + 1}(C)", "B": f"so_{2 * rank + 1}(C)", "C": f"sp_{2 * rank}(C)",
        "D": f"so_{2 * rank}(C)",
    }  # fmt: skip
    return names.get(letter, f"{letter}(C)"), 0


def _real_forms(letter: str, rank: int) -> Iterator[tuple[int, str, int]]:
    """(positive squares of the Killing form, name, size of the usual module) of each real form.

    Of isomorphic ones the first: sl_2 before so(2, 1), so_3 before su(2).
    """
    if letter == "A":
        yield from _forms_of_a(rank + 1)
    elif letter in ("B", "D"):
        yield from _forms_of_so(2 * rank + 1 if letter == "B" else 2 * rank)
    elif letter == "C":
        yield rank * (rank + 1), f"sp({2 * rank}, R)", 0
        for q in range(rank // 2 + 1):
            yield 4 * q * (rank - q), f"sp({rank - q}, {q})" if q else f"sp({rank})", 0
    else:
        yield from _forms_of_exceptional(letter)


def _forms_of_a(n: int) -> Iterator[tuple[int, str, int]]:
    yield n * (n + 1) // 2 - 1, f"sl_{n}", n
    if n == 2:
        yield 0, "so_3", 3
    if n == 4:
        yield from _forms_of_so(6)
    for q in range(n // 2 + 1):
        yield 2 * q * (n - q), f"su({n - q}, {q})" if q else f"su({n})", 0
    if n % 2 == 0:
        half = n // 2
        yield half * (2 * half - 1) - 1, f"sl_{half}(H)", 0


def _forms_of_so(m: int) -> Iterator[tuple[int, str, int]]:
    for q in range(m // 2 + 1):
        if m == 6 and q == 3:  # sl_4
            continue
        yield q * (m - q), f"so({m - q}, {q})" if q else f"so_{m}", m
    if m % 2 == 0:
        half = m // 2
        yield half * (half - 1), f"so*({m})", 0


def _forms_of_exceptional(letter: str) -> Iterator[tuple[int, str, int]]:
    positive = {
        "g_2": (0, 8), "f_4": (0, 28, 16), "e_6": (0, 42, 40, 32, 26), "e_7": (0, 70, 64, 54),
        "e_8": (0, 128, 112),
    }[letter]  # fmt: skip
    for count in positive:
        yield count, letter if not count else f"{letter} with {count} positive squares", 0
