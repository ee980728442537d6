r"""Nearest matrices: Eckart–Young in every block, and all critical points of the distance.

For an arbitrary U (m × n) and an equivariant M, ‖U − M‖² = ‖U − Ū‖² + Σ_i p_i ‖B_i − A_i‖² where Ū
is the average of U over the group with blocks B_i. On the component with rank vector r the distance
is minimised block by block by the r_i largest singular values of B_i, and its critical points are
the choices of any r_i of them: ∏ C(min(d_i, e_i), r_i) points, the ED degree, all of them real.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paramsym.arguments import checked

from .arguments import finite_matrix
from .component import Component
from .components import components
from .decomposition import decompose
from .division import SVD, Real, svd
from .knapsack import choose_ranks

Matrix = TypeVar("Matrix", NDArray[Any], torch.Tensor)


def _like(result: Real, original: Matrix) -> Matrix:
    if isinstance(original, torch.Tensor):
        return torch.as_tensor(result, dtype=original.dtype, device=original.device)
    return result  # type: ignore[return-value]


def project(matrix: Matrix, component: Component) -> Matrix:
    """The nearest matrix of a component: equivariant, with ranks at most r_i in the blocks.

    It is unique unless a singular value is repeated across the cut (or U is already degenerate).

    Args:
        matrix: U (m × n), equivariant or not; NumPy or torch.
        component: the component to project to.

    Returns:
        The minimiser of ‖U − M‖ over the component (m × n), of the kind of `matrix`.

    Raises:
        ShapeMismatchError: U has another shape.

    Source: Eckart and Young (1936) in the coordinates of arXiv:2309.13736.
    """
    blocks = [svd(block) for block in component.decomposition.blocks(matrix)]
    chosen = [
        block.select(list(range(r))) for block, r in zip(blocks, component.ranks, strict=True)
    ]
    return _like(component.decomposition.matrix(chosen), matrix)


@dataclass(frozen=True, eq=False)
class CriticalPoint:
    """A critical point of the distance from U to a component.

    Args:
        chosen: the singular values kept in each block, by number.
        matrix: the point (m × n).
        distance: its Frobenius distance from U.
    """

    chosen: tuple[tuple[int, ...], ...]
    matrix: Real
    distance: float


@checked
def critical_points(matrix: Any, component: Component) -> Iterator[CriticalPoint]:
    """All critical points of the distance from U to a component, lazily, the nearest one first.

    There are `component.ed_degree` of them for generic U.

    Args:
        matrix: U (m × n).
        component: the component.

    Raises:
        ShapeMismatchError: U has another shape.
    """
    decomposition = component.decomposition
    original = finite_matrix(matrix, "critical_points(matrix)", decomposition.shape)
    blocks = [svd(block) for block in decomposition.blocks(original)]
    choices = [
        list(combinations(range(len(block.values)), r))
        for block, r in zip(blocks, component.ranks, strict=True)
    ]
    for chosen in product(*choices):
        point = decomposition.matrix(_select(blocks, chosen))
        yield CriticalPoint(chosen, point, float(np.linalg.norm(original - point)))


def _select(blocks: list[SVD], chosen: tuple[tuple[int, ...], ...]) -> list[Real]:
    return [block.select(list(c)) for block, c in zip(blocks, chosen, strict=True)]


def nearest_component(matrix: Any, permutation_or_group: Any, rank: int) -> Component:
    """The component of rank r that comes nearest to a matrix, over all components.

    The squared distance saved by the k-th singular value σ of block i is p_i σ², at cost p_i: a
    small knapsack, solved exactly.

    Args:
        matrix: U (m × n).
        permutation_or_group: the group acting on both sides, or a `Decomposition`.
        rank: r.

    Raises:
        RankTooLargeError: no equivariant matrix has rank r.
        NoSuchComponentError: no component contains a matrix of rank exactly r.
    """
    family = components(permutation_or_group, rank)
    decomposition = family.decomposition
    gains = [svd(block).values ** 2 for block in decomposition.blocks(matrix)]
    costs = [v.dimension for v in decomposition.isotypics]
    if not family.count:
        family.component((0,) * len(costs))
    return family.component(choose_ranks(gains, costs, rank, exactly=True).ranks)


def equivariant_part(matrix: Matrix, group: Any, target: Any = None) -> Matrix:
    """The average of U over the group: the nearest equivariant matrix without a rank bound."""
    return _like(decompose(group, target).average(matrix), matrix)
