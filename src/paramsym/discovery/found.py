"""What a search for linear symmetries returns."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def dimension(self) -> int:
        """How many generators there are."""
        return len(self.generators)

    def __str__(self) -> str:
        lines = [
            f"{self.dimension} generators (level {self.level!r}), "
            f"residual {self.gap.largest_null:.1e}, next {self.gap.next:.1e}",
            f"  searched: {self.searched}",
        ]
        if self.dead:
            lines.append(f"  dead: {', '.join(self.dead)}")
        return "\n".join(lines)
