"""The Lie algebra of some affine vector fields on parameter space: a readable basis, and its name.

    fields ξ_1, …, ξ_d  →  a sparse basis of their span  →  [ξ_i, ξ_j] = Σ_k c_ij^k ξ_k
        →  centre, derived series, Killing form  →  direct summands  →  gl_3 ⊕ R^2

Generators come out of a null space in no particular basis. Here they are given one in which each
field moves few entries, and what they generate is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy
import torch
from scipy.sparse import csr_array

from paramsym.discovery.algebras import ideals
from paramsym.discovery.algebras.brackets import structure_constants
from paramsym.discovery.algebras.named_entries import describe
from paramsym.discovery.algebras.recognition import Summand, abelian, combined, direct_sum, summand
from paramsym.discovery.algebras.sparse_basis import flattened, matrices_of, sparse_rows
from paramsym.discovery.algebras.vector_fields import (
    Coordinates,
    VectorField,
    homogeneous_matrices,
)
from paramsym.structure.tangent import as_real

LIMIT = 160  # dimensions up to which an algebra that is not abelian is recognised
CLOSED = 1e-6  # the largest remainder of a bracket that counts as none
_LINES = 24


@dataclass(frozen=True, eq=False)
class BasisField:
    """One field of the sparse basis: M̂ in homogeneous coordinates, with its entries by name."""

    coordinates: Coordinates
    matrix: csr_array

    def velocity(self, params: Mapping[str, torch.Tensor], /) -> dict[str, torch.Tensor]:
        """ξ(θ) for the tensors that move, in the shape and dtype of each."""
        own = {n: as_real(params[n]) for n in self.coordinates.shapes}
        one = next(iter(own.values())).new_ones(1)
        x = torch.cat([*(tensor.reshape(-1) for tensor in own.values()), one])
        rows, columns, values = self._entries
        moved = x.new_zeros(len(x)).index_add(0, rows, values.to(x) * x[columns])
        found = {n: moved[self.coordinates.places[n]].reshape(own[n].shape) for n in self.targets}
        return {
            n: torch.view_as_complex(v.contiguous()) if params[n].is_complex() else v
            for n, v in found.items()
        }

    @cached_property
    def _entries(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        entries = self.matrix.tocoo()
        rows, columns = (torch.from_numpy(c.astype(numpy.int64)) for c in entries.coords)
        return rows, columns, torch.from_numpy(entries.data)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The tensors that move."""
        rows = self._entries[0]
        places = self.coordinates.places
        return tuple(
            n for n, s in places.items() if bool(((s.start <= rows) & (rows < s.stop)).any())
        )

    def __str__(self) -> str:
        return describe(self.matrix, self.coordinates)


@dataclass(frozen=True, eq=False)
class LieAlgebra:
    """What some vector fields generate, as far as their span is closed.

    Attributes:
        basis: a sparse basis of the span; `str` of each names the entries that it moves.
        constants: c[i, j, k] with [ξ_i, ξ_j] = Σ_k c_ij^k ξ_k in that basis, where the bracket is
            that of vector fields, Dξ_j ξ_i − Dξ_i ξ_j: the negative of the commutator of matrices.
        defect: the largest remainder of a bracket, relative to the norms of the two matrices.
        name: such as `gl_5`, `gl_3 ⊕ R^2`, `aff_2`; says so where it is not recognised.
        summands: the ideals whose direct sum it is, of abelian ones by how they act.
        centre: the dimension of the centre.
        derived: the dimensions of g ⊇ [g, g] ⊇ [[g, g], [g, g]] ⊇ …, as long as they fall.
        signature: positive, negative and zero squares of the Killing form.
        rank: the dimension of a Cartan subalgebra.
    """

    basis: tuple[BasisField, ...]
    constants: numpy.ndarray = field(repr=False)
    defect: float
    name: str
    summands: tuple[Summand, ...] = ()
    centre: int | None = None
    derived: tuple[int, ...] = ()
    signature: tuple[int, int, int] | None = None
    rank: int | None = None

    @property
    def dimension(self) -> int:
        return len(self.basis)

    @property
    def closed(self) -> bool:
        """Whether brackets stay in the span, to CLOSED of the size of their factors."""
        return self.defect <= CLOSED

    @property
    def lines(self) -> list[str]:
        """One line for each field of the basis."""
        return [str(one) for one in self.basis]

    def __str__(self) -> str:
        head = f"{self.name}  dimension {self.dimension}"
        if self.rank is not None:
            head += f", rank {self.rank}, centre {self.centre}"
        lines = self.lines[:_LINES]
        more = [f"… and {self.dimension - _LINES} more"] if self.dimension > _LINES else []
        return "\n".join([head, f"brackets close to {self.defect:.1e}", *lines, *more])


def lie_algebra(
    fields: Sequence[VectorField],
    shapes: Mapping[str, Sequence[int]],
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> LieAlgebra:
    """The Lie algebra that affine vector fields span: a sparse basis, brackets, and its name.

    Each field is read as the matrix M̂ of ξ(θ) = M̂(θ, 1). The span gets a basis in reduced echelon
    form, from which multiples are taken crosswise while that leaves fewer entries; in the span of
    gl_n acting on a layer, that is the basis of matrix units. Brackets are projected onto the span
    by least squares, and what remains is the defect. A closed algebra is split: abelian
    summand, and for the rest the ideals that the weights of a generic element generate. Simple ones
    are recognised by roots and by the Killing form, semidirect sums by g/[g, rad g], and abelian
    ones by the trace form: R scales, so_2 rotates.

    Args:
        fields: anything with `.velocity(params)`, made of torch operations.
        shapes: the shape of each parameter on which they live.
        tolerance: entries of a matrix below it, relative to the largest, count as zero, and
            fields as dependent. For generators of noisy models, above the noise.
        generator: draws the elements in general position; by default seeded with 0.

    Returns:
        The algebra. Its name says `not closed` where brackets leave the span, and `unrecognised`
        with dimension and Killing signature where it is none of gl_n, sl_n, so_n, so(p, q), other
        simple algebras, tori, translations, abelian extensions L ⋉ R^k of these such as aff_n, and
        direct sums.

    Raises:
        ValueError: fields that are not affine in θ or not finite, or so many parameters that
            matrices take too long.

    Source: de Graaf, Lie Algebras: Theory and Algorithms, 2000, chapters 1 to 5; Helgason,
        Differential Geometry, Lie Groups, and Symmetric Spaces, 1978, chapter X, section 6.
    """
    generator = generator or torch.Generator().manual_seed(0)
    coordinates = Coordinates({name: tuple(shape) for name, shape in shapes.items()})
    given = homogeneous_matrices(fields, coordinates, generator, tolerance)
    if not given or not any(m.nnz for m in given):
        return LieAlgebra((), numpy.zeros((0, 0, 0)), 0.0, "0", (), 0, (0,), (0, 0, 0), 0)
    dense, places = flattened(given)
    rows = sparse_rows(dense, tolerance)
    matrices = matrices_of(rows, places, coordinates.size + 1)
    basis = tuple(BasisField(coordinates, matrix) for matrix in matrices)
    if len(matrices) > LIMIT:
        return _large(basis, matrices, generator)
    constants = structure_constants(matrices, rows, places)
    values = _whole(constants.values)
    if constants.defect > CLOSED:
        name = f"not closed: brackets leave the span by {constants.defect:.1e} of their size"
        return LieAlgebra(basis, values, constants.defect, name)
    f = constants.orthonormal
    turned = [combined(matrices, row) for row in constants.to_orthonormal]
    return _recognised(basis, values, constants.defect, f, turned, generator)


def _whole(values: numpy.ndarray) -> numpy.ndarray:
    """Numbers within 1e-9 of a whole one made whole."""
    near = values.round()
    return numpy.where(numpy.abs(values - near) <= 1e-9, near, values)


def _recognised(
    basis: tuple[BasisField, ...], values: numpy.ndarray, defect: float,
    f: numpy.ndarray, matrices: Sequence[csr_array], generator: torch.Generator,
) -> LieAlgebra:  # fmt: skip
    """The algebra with these constants in an orthonormal basis, given as matrices too."""
    derived = tuple(part.shape[1] for part in ideals.derived_series(f))
    squares = ideals.signature(ideals.killing(f), ideals.size_of(f) ** 2)
    parts = [
        part
        for ideal in ideals.summands(f, generator)
        for part in summand(
            ideals.restricted(f, ideal), [combined(matrices, c) for c in ideal.T], generator
        )
    ]
    name = direct_sum(parts)
    if any(not part.name for part in parts):
        known = [part for part in parts if part.name]
        beside = f", of which {direct_sum(known)} was recognised" if known else ""
        name = f"unrecognised, dimension {len(f)}, Killing signature {squares}{beside}"
    return LieAlgebra(
        basis, values, defect, name, tuple(parts), ideals.centre(f).shape[1], derived, squares,
        ideals.rank_of_cartan(f, generator),
    )  # fmt: skip


def _large(
    basis: tuple[BasisField, ...], matrices: Sequence[csr_array], generator: torch.Generator
) -> LieAlgebra:
    """Beyond the limit: whether random elements commute, which decides it for all."""
    count = len(matrices)
    x, y = (combined(matrices, ideals.draw(generator, count)) for _ in range(2))
    bracket = y @ x - x @ y
    size = float(numpy.linalg.norm(bracket.data) / (_norm(x) * _norm(y)))
    empty = numpy.zeros((0, 0, 0))
    if size > CLOSED:
        name = f"unrecognised, dimension {count}: at most {LIMIT} are taken apart"
        return LieAlgebra(basis, empty, float("nan"), name)
    parts = tuple(abelian(matrices))
    name = direct_sum(parts)
    return LieAlgebra(
        basis, empty, size, name, parts, count, (count, 0), (0, 0, count), count
    )  # fmt: skip


def _norm(matrix: csr_array) -> float:
    return float(numpy.linalg.norm(matrix.data))
