r"""Closed form for abelian groups: the irreducibles are characters, and the basis is Fourier's.

On one orbit an abelian group acts as a regular representation of a quotient A = ⟨g₁, …, g_k⟩. Along
the chain A_j = ⟨A_{j−1}, g_j⟩ of relative orders m_j, with g_j^{m_j} = ∏_{i<j} g_i^{c_ji} on the
orbit, a character is a vector of phases f (the generator g_j acts by e^{2πi f_j}) with
m_j f_j ≡ Σ_i c_ji f_i modulo 1: m_j solutions at each step, exact fractions, |A| in total. The
point ∏ g_j^{a_j}·x₀ then carries the phase Σ a_j f_j.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from .orbits import Index

Phases = tuple[Fraction, ...]


@dataclass(frozen=True, eq=False)
class FourierBasis:
    """The real Fourier basis of one orbit of an abelian group.

    Args:
        phases: one entry for each real irreducible: the phases of its character at the generators,
            of the two conjugate ones the smaller.
        columns: orthonormal bases (s × 1 or s × 2), in the same order.
        grid: the orders (m₁, …, m_k) if the orbit is a grid, ℤ/m₁ × … × ℤ/m_k; else None.
        order: position of the point with exponents a, in the order of a row-major grid.
    """

    phases: tuple[Phases, ...]
    columns: tuple[NDArray[np.float64], ...]
    grid: tuple[int, ...] | None
    order: Index


def fourier_basis(moves: Sequence[Index]) -> FourierBasis:
    """The characters and the real Fourier basis of a transitive abelian action.

    Args:
        moves: commuting generators on the positions 0, …, s−1 of one orbit.
    """
    orders, relations, exponents = _chain(moves)
    size = len(exponents)
    points = np.array(exponents).reshape(size, len(orders))
    kept = sorted(f for f in _characters(orders, relations) if f <= tuple(-x % 1 for x in f))
    grid = orders if not any(any(relation) for relation in relations) else None
    order = np.empty(size, dtype=np.intp)
    order[np.ravel_multi_index(points.T, orders)] = np.arange(size)
    return FourierBasis(tuple(kept), tuple(_columns(kept, points)), grid, order)


def _characters(orders: Sequence[int], relations: Sequence[tuple[int, ...]]) -> list[Phases]:
    """The phases of all characters: m_j f_j ≡ Σ_i c_ji f_i modulo 1, one generator at a time."""
    characters: list[Phases] = [()]
    for m, relation in zip(orders, relations, strict=True):
        characters = [
            (*f, (sum((c * x for c, x in zip(relation, f, strict=True)), Fraction(0)) + t) / m % 1)
            for f in characters
            for t in range(m)
        ]
    return characters


def _columns(characters: list[Phases], points: Index) -> Iterator[NDArray[np.float64]]:
    """For each character its sign, or its cosine and sine, at the points given by exponents."""
    common = lcm(*(x.denominator for f in characters for x in f))
    angles = np.arange(common) * (2 * np.pi / common)
    cosine, sine = np.cos(angles), np.sin(angles)
    for f in characters:
        steps = np.array([int(x * common) for x in f], dtype=np.int64)
        phase = points @ steps % common
        if all(2 * x % 1 == 0 for x in f):
            yield np.sign(cosine[phase])[:, None] / np.sqrt(len(points))
        else:
            yield np.stack([cosine[phase], sine[phase]], 1) * np.sqrt(2 / len(points))


def _chain(
    moves: Sequence[Index],
) -> tuple[tuple[int, ...], list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Relative orders, the relations c_j, and the exponents of each point."""
    at: dict[int, tuple[int, ...]] = {0: ()}
    orders, relations = [], []
    for move in moves:
        layer = list(at)
        image, extended = layer, {point: (*a, 0) for point, a in at.items()}
        step = 0
        while True:
            step += 1
            image = [int(move[point]) for point in image]
            if image[0] in at:  # g^step is in the subgroup so far
                relations.append(at[image[0]])
                break
            for start, point in zip(layer, image, strict=True):
                extended[point] = (*at[start], step)
        orders.append(step)
        at = extended
    return tuple(orders), relations, [at[point] for point in range(len(at))]


def order_in_circle(phases: Phases) -> tuple[int, int]:
    """(l, m) for a cyclic group: the source's name of the eigenvalue e^{2πi m/l}, ½ ≤ m/l ≤ 1."""
    fraction = -phases[0] % 1
    return fraction.denominator, int(fraction.numerator) or 1
