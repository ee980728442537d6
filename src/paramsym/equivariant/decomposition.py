r"""The isotypic decomposition of orthogonal representations, and the change of basis Q_σ.

ℝⁿ = ⊕_i V_i^{d_i} with V_i irreducible over ℝ of dimension p_i and type D_i = ℝ, ℂ or ℍ of
dimension δ_i. In the orthogonal basis Q the matrices that commute with G are, by Schur's lemma,

    Q_Wᵀ M Q_V = ⊕_i  I_{p_i/δ_i} ⊗ realise(A_i),      A_i ∈ D_i^{e_i × d_i},

for two orthogonal representations V = ℝⁿ, W = ℝᵐ of G with multiplicities d_i and e_i.

Order of coordinates: for each i in turn p_i/δ_i slices, in each the copies 0, …, d_i − 1, in each
the δ_i coordinates of a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import finite_matrix
from .assembly import ClassBasis, assemble
from .characters import Phases, order_in_circle
from .division import compress, realise
from .errors import EquivariantError
from .groups import PermutationGroup
from .orbits import OrbitClass, classify
from .orthogonal import Group, as_representation

Real = NDArray[np.float64]
TYPES = {1: "real", 2: "complex", 4: "quaternionic"}


@dataclass(frozen=True)
class Isotypic:
    """One isotypic block: copies of one irreducible in the source and in the target.

    Args:
        name: the source's l,m for a cyclic group (eigenvalue e^{2πi m/l}); phases of the
            generators for an abelian one; else dimension and type, as 54R, with a number if
            several irreducibles share them.
        size: δ, the real dimension of D: 1, 2, 4.
        dimension: p, the real dimension of the irreducible: the rank that one unit costs.
        source: d, the multiplicity in the source.
        target: e, the multiplicity in the target.
        phases: the phases of the generators, for an abelian group.
    """

    name: str
    size: int
    dimension: int
    source: int
    target: int
    phases: Phases | None = None

    @property
    def type(self) -> str:
        """ "real", "complex" or "quaternionic"."""
        return TYPES[self.size]

    @property
    def slices(self) -> int:
        """p/δ: how often the block is repeated."""
        return self.dimension // self.size

    @property
    def largest_rank(self) -> int:
        """min(d, e)."""
        return min(self.source, self.target)


@dataclass(frozen=True)
class Decomposition:
    """Two orthogonal representations of one group, decomposed together.

    Two values are equal if their groups, their generators and their blocks are, wherever and
    whenever they were computed: the bases follow from these.

    Args:
        group: the action on the source space ℝⁿ.
        target_group: the action on the target space ℝᵐ, generator by generator.
        isotypics: the blocks, those of multiplicity 0 on either side included.
        source_classes: the bases of the orbits in the source, or of all of it.
        target_classes: those in the target.
    """

    group: Group
    target_group: Group
    isotypics: tuple[Isotypic, ...]
    source_classes: tuple[ClassBasis, ...] = field(compare=False)
    target_classes: tuple[ClassBasis, ...] = field(compare=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n): rows and columns of an equivariant matrix."""
        return self.target_group.degree, self.group.degree

    @property
    def largest_rank(self) -> int:
        """The largest rank of an equivariant matrix, Σ p_i min(d_i, e_i)."""
        return sum(v.dimension * v.largest_rank for v in self.isotypics)

    @property
    def dimension(self) -> int:
        """The dimension Σ δ_i d_i e_i of the space of equivariant matrices."""
        return sum(v.size * v.source * v.target for v in self.isotypics)

    @cached_property
    def source_basis(self) -> Real:
        """Q_V (n × n): orthogonal, columns in the adapted order."""
        return _dense(self.source_classes, self.group.degree)

    @cached_property
    def target_basis(self) -> Real:
        """Q_W (m × m)."""
        return _dense(self.target_classes, self.target_group.degree)

    @cached_property
    def invariants(self) -> Real:
        """What the group fixes in the target (k × m): its orbits, or an orthonormal basis."""
        group = self.target_group
        if isinstance(group, PermutationGroup):
            rows = np.zeros((len(group.orbits), group.degree))
            for row, orbit in zip(rows, group.orbits, strict=True):
                row[list(orbit)] = 1
            return rows
        basis = self.target_basis.T[: self.isotypics[0].target]  # the trivial block is the first
        moved = [group.act(index, basis) for index in range(len(group.generators))]
        return basis if all(np.allclose(m, basis, atol=1e-8) for m in moved) else basis[:0]

    def blocks(self, matrix: Any) -> list[Real]:
        """The blocks A_i (e_i × d_i × δ_i) of the equivariant matrix nearest to M.

        For an equivariant M these determine it; for any other they are those of its average over
        the group, which is the orthogonal projection to the equivariant matrices.

        Args:
            matrix: M (m × n), NumPy or torch.

        Raises:
            ShapeMismatchError: M has another shape.
            NotFiniteError: M has entries that are NaN or infinite.
        """
        given = finite_matrix(matrix, "Decomposition.blocks(matrix)", self.shape)
        columns = _to_adapted(self.source_classes, given)
        adapted = _to_adapted(self.target_classes, np.ascontiguousarray(columns.T)).T
        result, row, column = [], 0, 0
        for v in self.isotypics:
            height, width = v.target * v.size, v.source * v.size
            total = np.zeros((height, width))
            for _ in range(v.slices):
                total += adapted[row : row + height, column : column + width]
                row, column = row + height, column + width
            result.append(compress(total / v.slices, v.size))
        return result

    def matrix(self, blocks: Sequence[Real]) -> Real:
        """The equivariant matrix (m × n) with these blocks A_i (e_i × d_i × δ_i)."""
        adapted = np.zeros(self.shape)
        row = column = 0
        for v, block in zip(self.isotypics, blocks, strict=True):
            real = realise(block)
            for _ in range(v.slices):
                adapted[row : row + real.shape[0], column : column + real.shape[1]] = real
                row, column = row + real.shape[0], column + real.shape[1]
        half = _from_adapted(self.source_classes, adapted)
        return _from_adapted(self.target_classes, np.ascontiguousarray(half.T)).T

    def average(self, matrix: Any) -> Real:
        """The nearest equivariant matrix, which is the average of P_W(g) M P_V(g)⁻¹ over G."""
        return self.matrix(self.blocks(matrix))

    def equivariance_error(self, matrix: NDArray[Any]) -> float:
        """The largest ‖P_W M − M P_V‖ / ‖M‖ over the generators (Frobenius norms)."""
        matrix = finite_matrix(matrix, "Decomposition.equivariance_error(matrix)", self.shape)
        size = float(np.linalg.norm(matrix)) or 1.0
        worst = 0.0
        for index in range(len(self.group.generators)):
            turned = self.group.act(index, matrix)  # M P_V⁻¹
            moved = self.target_group.act(index, turned.T).T
            worst = max(worst, float(np.linalg.norm(moved - matrix)) / size)
        return worst

    def __repr__(self) -> str:
        blocks = " + ".join(f"{v.source} x {v.name}" for v in self.isotypics)
        return f"<Decomposition {self.shape[0]} x {self.shape[1]}: {blocks}>"


def _to_adapted(classes: Sequence[ClassBasis], x: Real) -> Real:
    """Qᵀ on the last axis, orbit by orbit."""
    result = np.empty_like(x)
    for c in classes:
        result[..., c.places] = x[..., c.orbits] @ c.basis
    return result


def _from_adapted(classes: Sequence[ClassBasis], x: Real) -> Real:
    """Q on the last axis."""
    result = np.empty_like(x)
    for c in classes:
        result[..., c.orbits] = x[..., c.places] @ c.basis.T
    return result


def _dense(classes: Sequence[ClassBasis], degree: int) -> Real:
    return np.ascontiguousarray(_to_adapted(classes, np.eye(degree)))


def decompose(group: Any, target: Any = None) -> Decomposition:
    """The isotypic decomposition of an orthogonal representation, or of two of the same group.

    Closed form (exact phases, Fourier bases) for abelian permutation groups; from random elements
    of the algebra of the group for all others, certified, for permutations by the exact number of
    orbits on pairs. Results are cached.

    Args:
        group: a group acting on the n source coordinates, one generator, or a list of generators:
            lists of images, or orthogonal matrices (n × n).
        target: the action of the same generators, in the same order, on the m target coordinates;
            None for the source action itself.

    Returns:
        The decomposition, with orthogonal bases Q_V (n × n) and Q_W (m × m).

    Raises:
        NotAPermutationError: not a permutation.
        NotOrthogonalError: a matrix that is not orthogonal.
        NearlyEqualError: matrices whose irreducible actions differ by little more than rounding.
        EquivariantError: the two actions have different numbers of generators.

    Source: arXiv:2309.13736, the real orthogonal base change Q_σ, for cyclic groups; Serre, Linear
    Representations of Finite Groups, chapters 2 and 13, in general.
    """
    source = as_representation(group)
    return _decompose(source, source if target is None else as_representation(target))


@lru_cache(maxsize=32)
def _decompose(source: Group, target: Group) -> Decomposition:
    if len(source.generators) != len(target.generators):
        raise EquivariantError(
            f"decompose(group, target): {len(source.generators)} generators act on the source and "
            f"{len(target.generators)} on the target; expected one action of each generator on "
            "both. Give the target action of the same generators in the same order."
        )
    same = source is target or source == target
    n = source.degree
    sides = [source] if same else [source, target]
    permutations = [side for side in sides if isinstance(side, PermutationGroup)]
    abelian = len(permutations) == len(sides) and all(side.is_abelian for side in permutations)
    classes = _classes(sides)
    cyclic = len(source.generators) == 1
    parts = assemble(classes, n, same, abelian)
    names = _names(parts.phases, parts.sizes, parts.dimensions, cyclic)
    isotypics = tuple(
        Isotypic(*values)
        for values in zip(
            names,
            parts.sizes,
            parts.dimensions,
            parts.source,
            parts.target,
            parts.phases,
            strict=True,
        )
    )
    return Decomposition(source, target, isotypics, parts.source_classes, parts.target_classes)


def _classes(sides: Sequence[Group]) -> list[OrbitClass]:
    """Classes of orbits, on the coordinates of all sides one after the other.

    Orbits of permutations are compared across the sides; a side of matrices is one class.
    """
    orbits, moves, matrices = [], [], []
    start = 0
    for side in sides:
        if isinstance(side, PermutationGroup):
            orbits += [tuple(start + i for i in orbit) for orbit in side.orbits]
            moves.append([start + g for g in side.arrays])
        else:
            matrices.append(OrbitClass(side.generators, start + np.arange(side.degree)[None]))
            moves.append([start + np.arange(side.degree) for _ in side.generators])
        start += side.degree
    return classify(orbits, [np.concatenate(g) for g in zip(*moves, strict=True)]) + matrices


def _names(
    phases: Sequence[Phases | None], sizes: Sequence[int], dimensions: Sequence[int], cyclic: bool
) -> list[str]:
    """Names that tell the blocks apart."""
    plain = []
    for f, size, dimension in zip(phases, sizes, dimensions, strict=True):
        if f is None:
            plain.append(f"{dimension}{ {1: 'R', 2: 'C', 4: 'H'}[size] }")
        elif cyclic:
            plain.append("{},{}".format(*order_in_circle(f)))
        else:
            plain.append("(" + ", ".join(map(str, f)) + ")")
    seen: dict[str, int] = {}
    names = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        shared = plain.count(name) > 1
        names.append(f"{name}.{seen[name]}" if shared else name)
    return names
