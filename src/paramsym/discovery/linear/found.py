"""What a search for linear symmetries returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from paramsym.structure.symmetry import ParameterSymmetry

from ..algebras.comparison import Comparison, compare_fields
from ..algebras.lie_algebra import LieAlgebra, lie_algebra
from ..algebras.vector_fields import WORK, Coordinates
from .generators import Gap, Generator


@dataclass(frozen=True)
class LinearSymmetries:
    """All vector fields of an ansatz that leave a function unchanged, up to a measured residual.

    Attributes:
        generators: a basis, of orthonormal coefficients in the ansatz.
        gap: what separates them from all other directions.
        level: of the ansatz, "full", "tensors" or "sides".
        searched: in words, what was searched and what was not.
        dead: tensors that the function does not depend on; whatever moves them is no generator.
        shapes: of the tensors that were searched, in real numbers (a complex one has a last axis
            of two), in the order of `Generator.dense`.
        unknowns: coefficients of the ansatz.
        trivial: independent coefficients whose matrix is zero, which were left out.
        idle: coefficients that enter no constraint, since they move dead entries of a tensor.
        samples: constraints that were solved, each at weights and inputs of its own.
        noise: the largest rounding error of a generator's constraints, by differences.
        affine: whether constants were searched.
        infinitesimal: directions along which the constraints are zero and finite elements change
            the function, which jumps or whose derivatives are others; none of the generators.
        change: of the function by finite elements of random combinations of the generators, the
            largest over fresh weights and inputs, relative to how far the function varies.
        live: the entries of each tensor that the function depends on, marked in row-major order.
    """

    generators: tuple[Generator, ...]
    gap: Gap
    level: str
    searched: str
    dead: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    unknowns: int
    trivial: int
    idle: int
    samples: int
    noise: float
    affine: bool = False
    infinitesimal: tuple[Generator, ...] = ()
    change: float = 0.0
    live: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def dimension(self) -> int:
        """How many generators there are."""
        return len(self.generators)

    @cached_property
    def algebra(self) -> LieAlgebra:
        """The Lie algebra of the generators: a sparse basis that can be read, and its name.

        Raises:
            ValueError: so many parameters that their matrices take too long.
        """
        error = 10 * self.gap.largest_null / self.gap.next if self.generators else 0.0
        return lie_algebra(self.generators, self.shapes, tolerance=min(max(1e-8, error), 1e-2))

    def compare(
        self, symmetry: ParameterSymmetry, params: Mapping[str, Tensor] | None = None
    ) -> Comparison:
        """What was found against a derived symmetry, in both directions.

        Both are spaces of vector fields; what counts are combinations with constant coefficients.
        Of the derived fields those are compared that leave buffers where they are, and their
        linearity in θ is measured. Entries that the function does not depend on are left out.

        Args:
            symmetry: what `find_symmetry` derived for the same model.
            params: a state dict whose buffers are taken; by default they are drawn.

        Raises:
            ValueError: the symmetry of another model, one with free inputs or outputs, or so many
                generators and parameters that they do not fit in memory.
        """
        readable = len(self.generators) * Coordinates(self.shapes).size ** 2 <= WORK
        fields = self.algebra.basis if readable else self.generators
        return compare_fields(
            fields, self.shapes, symmetry, params, self.affine, self.searched, self.dead, self.live
        )

    def __str__(self) -> str:
        lines = [
            f"{self.dimension} generators (level {self.level!r}), "
            f"residual {self.gap.largest_null:.1e}, next {self.gap.next:.1e}",
            f"  searched: {self.searched}",
        ]
        if not self.gap.clear:
            lines.append("  no clear gap: directions were rejected that are nearly generators")
        if self.infinitesimal:
            lines.append(f"  infinitesimal only: {len(self.infinitesimal)}")
        if self.dead:
            lines.append(f"  dead: {', '.join(self.dead)}")
        return "\n".join(lines)
