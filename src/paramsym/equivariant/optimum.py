r"""The best equivariant linear autoencoder in closed form, over all components.

For data with second moment C = E[x xᵀ] and an equivariant M the loss is

    E‖x − Mx‖² = tr (I − M) C (I − M)ᵀ = Σ_i p_i tr (1 − A_i) C_i (1 − A_i)*,

where C_i over D_i are the blocks of the average of C over the group: averaging changes no loss,
because M commutes with the group. In each block the optimum of rank r_i is the projection to the
r_i leading eigenvectors of C_i, and what it captures is p_i Σ_{k ≤ r_i} λ_ik. Choosing the vector r
is a knapsack with costs p_i, solved exactly for all components at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .arguments import finite_matrix, second_moment_matrix, whole
from .component import Component
from .components import Components, components
from .division import Real, adjoint, eigenvalues, eigenvectors, multiply
from .errors import ShapeMismatchError
from .knapsack import choose_ranks


@dataclass(frozen=True, eq=False)
class Optimum:
    r"""The optimal autoencoder of a component, or of all, with a certificate.

    Args:
        component: where the optimum lies.
        loss: E‖x − Mx‖² at the optimum, summed over the n coordinates.
        lower_bound: no equivariant M of rank ≤ r on any component has a smaller loss: what the
            relaxation leaves that may split the unit at the cut (`next_value`).
        next_value: the eigenvalue at which the rank ran out.
        spectrum: the eigenvalues λ_ik of each block, descending.
        covariance_blocks: C_i (d_i × d_i × δ_i).
    """

    component: Component
    loss: float
    lower_bound: float
    next_value: float
    spectrum: tuple[Real, ...]
    covariance_blocks: tuple[Real, ...]

    @property
    def loss_per_pixel(self) -> float:
        """The loss divided by n."""
        return self.loss / self.component.decomposition.shape[1]

    @property
    def gap(self) -> float:
        """loss − lower_bound ≥ 0; at 0 the bound alone proves that no component does better."""
        return self.loss - self.lower_bound

    @cached_property
    def directions(self) -> tuple[Real, ...]:
        """The leading eigenvectors of each block (d_i × r_i × δ_i)."""
        pairs = zip(self.covariance_blocks, self.component.ranks, strict=True)
        return tuple(
            eigenvectors(c)[:, :r] if r else np.zeros((c.shape[0], 0, c.shape[2])) for c, r in pairs
        )

    @cached_property
    def matrix(self) -> Real:
        """The optimal M (n × n), an orthogonal projection of rank r."""
        blocks = [multiply(u, adjoint(u)) for u in self.directions]
        return self.component.decomposition.matrix(blocks)

    @cached_property
    def encoder(self) -> Real:
        """The optimal encoder (r × n); the decoder is its transpose."""
        return self.component.encoder([adjoint(u) for u in self.directions])

    def __repr__(self) -> str:
        return (
            f"<Optimum {self.component.ranks}: loss {self.loss:.6g}, "
            f"certified >= {self.lower_bound:.6g}>"
        )


def best_component(
    covariance: Any, permutation_or_group: Any, rank: int, exactly: bool = False
) -> Optimum:
    r"""The optimal equivariant linear autoencoder of rank ≤ r over all components.

    Args:
        covariance: C = E[x xᵀ] (n × n), NumPy or torch; the raw second moment for a network
            without bias, the centred covariance for one with an (invariant) bias and mean.
        permutation_or_group: the group on ℝⁿ, or a `Decomposition`.
        rank: r.
        exactly: only components that contain a matrix of rank exactly r. Without it the optimum
            may have a lower rank where no unit of a block fits what is left.

    Returns:
        The optimum with its certificate.

    Raises:
        ShapeMismatchError: C is not n × n.
        NotASecondMomentError: C is not symmetric and positive semidefinite, up to rounding.
        NotFiniteError: C has entries that are NaN or infinite.
        RankTooLargeError: no equivariant matrix has rank r.
        NoSuchComponentError: `exactly`, and no component contains a matrix of rank r.

    Source: closed form for the study of arXiv:2309.13736, which trains one component at a time.
    """
    family = components(permutation_or_group, rank)
    spectrum, blocks, total = _spectrum(covariance, family)
    costs = [v.dimension for v in family.decomposition.isotypics]
    if exactly and not family.count:
        family.component((0,) * len(costs))  # raises, and says why
    choice = choose_ranks(spectrum, costs, rank, exactly)
    component = Component(family.decomposition, choice.ranks)
    loss = max(total - choice.gain, 0.0)
    # Equal up to rounding where the greedy choice fits.
    bound = min(loss, max(total - choice.bound, 0.0))
    return Optimum(component, loss, bound, choice.next_value, spectrum, blocks)


def best_on_component(covariance: Any, component: Component) -> Optimum:
    """The optimal autoencoder of one given component.

    Args:
        covariance: C (n × n).
        component: the component (source and target representation the same).

    Returns:
        The optimum; its `lower_bound` is still the one over all components of the same rank.

    Raises:
        ShapeMismatchError: C is not n × n.
        NotASecondMomentError: C is not symmetric and positive semidefinite, up to rounding.
        NotFiniteError: C has entries that are NaN or infinite.
    """
    family = Components(component.decomposition, component.rank)
    spectrum, blocks, total = _spectrum(covariance, family)
    costs = [v.dimension for v in component.decomposition.isotypics]
    captured = sum(
        cost * float(s[:r].sum())
        for cost, s, r in zip(costs, spectrum, component.ranks, strict=True)
    )
    choice = choose_ranks(spectrum, costs, component.rank)
    loss = max(total - captured, 0.0)
    bound = min(loss, max(total - choice.bound, 0.0))
    return Optimum(component, loss, bound, choice.next_value, spectrum, blocks)


def dense_loss(covariance: Any, rank: int) -> float:
    """The loss of the best rank-r autoencoder without equivariance: what is left of C.

    Args:
        covariance: C (n × n).
        rank: r.

    Raises:
        BadNumberError: r is no integer, or negative.
        NotASecondMomentError: C is no second moment; see `best_component`.
    """
    kept = whole(rank, "dense_loss(rank=…)")
    matrix = second_moment_matrix(covariance, "dense_loss(covariance)")
    values = np.maximum(np.linalg.eigvalsh(matrix), 0)
    return float(values[: max(len(values) - kept, 0)].sum())


def loss_of(matrix: Any, covariance: Any) -> float:
    """E‖x − Mx‖² = tr (I − M) C (I − M)ᵀ for any matrix M (n × n).

    Raises:
        NotASecondMomentError: C is no second moment; see `best_component`.
        ShapeMismatchError: M and C differ in size.
        NotFiniteError: an entry is NaN or infinite.
    """
    moment = second_moment_matrix(covariance, "loss_of(covariance)")
    rest = np.eye(len(moment)) - finite_matrix(matrix, "loss_of(matrix)", moment.shape)
    return float(np.sum((rest @ moment) * rest))


def _spectrum(
    covariance: Any, family: Components
) -> tuple[tuple[Real, ...], tuple[Real, ...], float]:
    """Eigenvalues and blocks of the averaged covariance, and its trace."""
    decomposition = family.decomposition
    m, n = decomposition.shape
    matrix = second_moment_matrix(covariance, "best_component(covariance)", n)
    if m != n or decomposition.group != decomposition.target_group:
        raise ShapeMismatchError("best_component(group): the target space", (m,), (n,))
    blocks: Sequence[Real] = decomposition.blocks(matrix)
    spectrum = tuple(np.maximum(eigenvalues(block), 0) for block in blocks)
    costs = (v.dimension for v in decomposition.isotypics)
    total = sum(cost * float(values.sum()) for cost, values in zip(costs, spectrum, strict=True))
    return spectrum, tuple(blocks), total
