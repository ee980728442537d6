"""Orthogonal representations of a group, given by the matrices of its generators.

Signed permutations (a pixel that changes its sign under a reflection), rotations of vectors that
sit in pixels, sums and changes of basis of these: whatever acts on ℝⁿ by orthogonal matrices. The
group generated need not be finite; an irrational rotation stands for all rotations, because what
commutes with it commutes with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import NotOrthogonalError
from .groups import PermutationGroup, as_group, is_one_generator

Real = NDArray[np.float64]
ROUNDING = 1e-10  # what ρᵀρ may differ from the identity


@dataclass(frozen=True, eq=False)
class OrthogonalGroup:
    r"""A group G = ⟨ρ₁, …, ρ_g⟩ of orthogonal matrices (n × n), known by its generators.

    Two values are equal when their generators are, number by number.

    Args:
        generators: at least one orthogonal matrix, NumPy or torch, exact to float64.

    Raises:
        NotOrthogonalError: a generator is not a square matrix with ρᵀρ = 1 to 1e-10, or their sizes
            differ.
    """

    generators: tuple[Real, ...]

    def __post_init__(self) -> None:
        where = "OrthogonalGroup"
        matrices = tuple(
            _orthogonal(g, f"{where}(generators[{i}])") for i, g in enumerate(self.generators)
        )
        sizes = sorted({len(m) for m in matrices})
        if len(sizes) != 1:
            found = f"sizes {sizes}" if sizes else "no generator"
            raise NotOrthogonalError(where, found, "matrices of one size, at least one")
        object.__setattr__(self, "generators", matrices)

    @property
    def degree(self) -> int:
        """The dimension n."""
        return len(self.generators[0])

    @property
    def arrays(self) -> tuple[Real, ...]:
        """The generators."""
        return self.generators

    def act(self, index: int, x: NDArray[Any]) -> NDArray[Any]:
        """ρ x for the generator of this index, on the last axis of x (length n)."""
        return x @ self.generators[index].T

    def matrix(self, index: int) -> Real:
        """The matrix ρ (n × n) of one generator."""
        return self.generators[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrthogonalGroup):
            return NotImplemented
        mine, theirs = np.array(self.generators), np.array(other.generators)
        return mine.shape == theirs.shape and bool((mine == theirs).all())

    def __hash__(self) -> int:
        return hash(tuple(g.tobytes() for g in self.generators))

    def __repr__(self) -> str:
        count = len(self.generators)
        noun = "generator" if count == 1 else "generators"
        return f"<OrthogonalGroup on {self.degree} coordinates, {count} {noun}>"


Group = PermutationGroup | OrthogonalGroup


def as_representation(value: Any) -> Group:
    """A group from whatever names one.

    Args:
        value: a `PermutationGroup`, an `OrthogonalGroup`, one of SymPy's; one generator; or a list
            of generators. A generator is a list of images, a permutation of SymPy's, or a matrix;
            if the entries of any matrix are not 0 and 1 alone, all act as orthogonal matrices.

    Raises:
        NotAPermutationError: a list is none.
        NotOrthogonalError: a matrix is not orthogonal.
    """
    if isinstance(value, OrthogonalGroup):
        return value
    if isinstance(value, PermutationGroup) or hasattr(value, "generators"):
        return as_group(value)
    generators = [value] if is_one_generator(value) else list(value)
    if not any(_is_general_matrix(g) for g in generators):
        return as_group(generators)
    permuted = {i: as_group(g) for i, g in enumerate(generators) if not _is_matrix(g)}
    given = (permuted[i].matrix(0) if i in permuted else g for i, g in enumerate(generators))
    return OrthogonalGroup(tuple(given))


def signed_permutation(images: Sequence[int], signs: Sequence[int]) -> Real:
    """The matrix (n × n) with ρ e_i = s_i e_σ(i).

    Args:
        images: σ(0), …, σ(n−1).
        signs: s_0, …, s_(n−1), each 1 or −1.

    Raises:
        NotAPermutationError: the images are none.
        NotOrthogonalError: a sign is neither 1 nor −1, or there are more or fewer than images.
    """
    matrix = PermutationGroup.from_images(images).matrix(0)
    given = np.asarray(signs)
    if given.shape != (len(matrix),) or not np.isin(given, (1, -1)).all():
        where = "signed_permutation(signs)"
        raise NotOrthogonalError(where, f"{signs}", f"{len(matrix)} signs, each 1 or -1")
    return matrix * given


def _orthogonal(value: Any, where: str) -> Real:
    """A read-only copy of an orthogonal matrix; minus zero is zero."""
    given = _array(value)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise NotOrthogonalError(where, f"an array of shape {given.shape}", "a square matrix")
    if given.dtype.kind not in "biuf":
        raise NotOrthogonalError(where, f"a matrix of type {given.dtype}", "real numbers")
    matrix = np.array(given, dtype=np.float64) + 0.0
    error = float(np.abs(matrix.T @ matrix - np.eye(len(matrix))).max())
    if not error <= ROUNDING:
        found = f"a matrix with ρᵀρ − 1 up to {error:.2g}"
        raise NotOrthogonalError(where, found, f"an orthogonal matrix, to {ROUNDING:.0e}")
    matrix.setflags(write=False)
    return matrix


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    try:
        return np.asarray(getattr(value, "array_form", value))
    except ValueError:
        return np.zeros(0)


def _is_matrix(value: Any) -> bool:
    return _array(value).ndim == 2


def _is_general_matrix(value: Any) -> bool:
    array = _array(value)
    return array.ndim == 2 and not bool(np.isin(array, (0, 1)).all())
