r"""Relations f(αz + β) = a·f(z) + b·z + c of an arbitrary function of one number.

A layer U f(Vx + v) + o has a symmetry for each of them: what V and v do to the arguments of f, U
and o undo to its values (and a linear path, if b ≠ 0). Scalings of homogeneous functions, signs of
odd ones and the periods of the sine are of this kind, and so are 1 − σ(−z) = σ(z) for the sigmoid
and f(−z) = f(z) − z for softplus, GELU and SiLU.

The maps z ↦ αz + β that occur form a closed subgroup of the affine group of the line, of which
there are few: this is what makes the search finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .affine import affine_families, affine_reflections, nearest_line
from .certificate import Certificate
from .continuous import families
from .discrete import Discrete, discrete_relations
from .function import ScalarFunction, scalar_function
from .numbers import is_short, spelled
from .relation import Family, Relation
from .search import jumps
from .structure import bending_places

NEARLY = 1e-3  # rejected relations are worth a mention up to this residual
COARSEST = 1e-3  # no default tolerance is above this, however few digits a function has


class ResidualGap(NamedTuple):
    """The largest residual that was accepted, and the least that was not."""

    largest: float
    next: float


@dataclass(frozen=True)
class Intertwiners:
    """All relations of a function that were found, and the best that were not accepted.

    Attributes:
        name: of the function.
        domain: the open interval where it was evaluated.
        families: one-parameter groups.
        generators: of the discrete part.
        relations: the generators and the products of two of them that say something new.
        group: of the maps of arguments: "trivial", "Z2", "Z", "D∞", "R>0", "R*", "R", "Aff(1)", …
        nearly: relations that hold to three digits or better, and not to the tolerance.
        gap: between accepted and rejected residuals.
        tolerance: what was accepted.
        searched: in words.
        scalar: the function as it was evaluated: its precision, and the median of |f|.
    """

    name: str
    domain: tuple[float, float]
    families: tuple[Family, ...]
    generators: tuple[Relation, ...]
    relations: tuple[Relation, ...]
    group: str
    nearly: tuple[Relation, ...]
    gap: ResidualGap
    tolerance: float
    searched: str
    scalar: ScalarFunction

    @property
    def parity(self) -> str:
        """ "odd" or "even" without further terms, else "pin": what a rule may state."""
        names = [relation.name for relation in self.relations if relation.alpha == -1]
        return next((name for name in names if name in ("odd", "even")), "pin")

    @property
    def degree(self) -> float | None:
        """d with f(s·z) = s^d·f(z) for s > 0, without further terms; None if there is none."""
        for family in self.families:
            if not family.is_shift and family.tau == family.mu == family.nu == 0:
                return family.degree
        return None

    @property
    def factor(self) -> float | None:
        """k of a linear function kz other than zero; None for another one."""
        if len(self.families) == 2 and self.degree == 1:
            return next(family.nu for family in self.families if family.is_shift) or None
        return None

    @property
    def function(self) -> Callable[[Tensor], Any]:
        """What was given."""
        return self.scalar.function

    def measured(self, relation: Relation, generator: torch.Generator | None = None) -> Relation:
        """A relation of one's own with its residual for this function, such as an exclusion.

        Args:
            relation: its own residual does not count.
            generator: of the points; by default one with a fixed seed.
        """
        generator = generator or torch.Generator().manual_seed(1)
        certificate = Certificate(self.scalar, generator, self.tolerance)
        scaled = relation.times(1 / self.scalar.unit)
        return relation.measured(certificate.residual(scaled))

    def over(self, alpha: float, beta: float, generator: torch.Generator | None = None) -> Relation:
        """The relation over z ↦ αz + β with the best a, b and c, and its residual.

        Args:
            alpha, beta: of the map of arguments.
            generator: of the points; by default one with a fixed seed.
        """
        generator = generator or torch.Generator().manual_seed(1)
        bends = tuple(bending_places(self.scalar))
        certificate = Certificate(self.scalar, generator, self.tolerance, bends=bends)
        return certificate.fitted(alpha, beta).times(self.scalar.unit)

    def __str__(self) -> str:
        low, high = (("−∞" if e < 0 else "∞") if math.isinf(e) else spelled(e) for e in self.domain)
        lines = [f"{self.name} on ({low}, {high}): {self.group}"]
        lines += [f"  {family}" for family in self.families]
        lines += [f"  {relation}" for relation in self.relations]
        for relation in self.nearly:
            lines.append(f"  nearly, to {relation.residual:.1e}: {relation}")
        return "\n".join(lines)


def intertwiners(
    function: Callable[[Tensor], Any],
    *,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> Intertwiners:
    r"""All α, β, a, b, c with f(αz + β) = a·f(z) + b·z + c for all z, by search.

    Continuous relations are the null space of [z f', f', f, z, 1], tried by finite elements;
    reflections, shifts and scalings are minima of a defect over grids of several sizes, refined to
    the last digit. For each pair (α, β) the best a, b and c are linear. Each relation is judged by
    its residual on fresh points, of which a quarter lie at all magnitudes up to 1000; and each one
    that is returned on points 0.01 apart as well, over z and over αz + β in [−64, 64].

    What this cannot exclude: shifts below 0.01, features narrower than that or beyond a distance
    of 64 from the origin, and what differs less than the tolerance. A relation that is missed is
    possible in the range of `searched`, if f has structure on many scales; one that is returned
    holds on all of these points.

    Args:
        function: of the entries of a tensor, each by itself; no derivative is asked for.
        tolerance: the largest relative residual that is accepted. By default 1e-9 (less where f is
            nearly affine), or 8 roundings of a function in lower precision, at most 1e-3; exact
            relations have about 1e-15 in float64.
        generator: of the points; by default one with a fixed seed.

    Raises:
        ValueError: the function mixes entries, is random, or is a number on no interval, or on
            several.

    Source: Zhao et al., "Symmetries, flat minima, and the conserved quantities of gradient flow",
    section 3.3: the equivariance of the activation, here for affine maps in place of linear ones.
    """
    generator = generator or torch.Generator().manual_seed(0)
    f = scalar_function(function, generator)
    limit = min(max(1e-9, 8 * f.epsilon), COARSEST) if tolerance is None else tolerance
    certificate = Certificate(f, generator, limit)
    line = nearest_line(certificate)
    if line.distance <= limit:
        affine, reflections = (
            affine_families(certificate, line),
            affine_reflections(certificate, line),
        )
        if all(r.residual <= limit for r in (*affine, *reflections)):
            found = Discrete(reflections, [], ["nothing: it is affine"])
            return _result(certificate, affine, found)
    breaks = jumps(f)
    if tolerance is None:  # beside a large line, all that matters is what is not affine
        limit = max(limit * min(1.0, 10 * line.distance), min(8 * f.epsilon, COARSEST))
    bends = tuple(bending_places(f))
    certificate = Certificate(f, generator, limit, places=tuple(breaks), bends=bends)
    continuous, _ = families(certificate, breaks)
    discrete = discrete_relations(certificate, continuous, breaks)
    discrete.searched.insert(0, "continuous shifts and scalings")
    return _result(certificate, continuous, discrete, NEARLY * min(1.0, 10 * line.distance))


def _result(
    certificate: Certificate, continuous: list[Family], discrete: Discrete, nearly: float = NEARLY
) -> Intertwiners:
    f, generators = certificate.f, tuple(discrete.generators)
    rejected = sorted(discrete.rejected, key=lambda r: r.residual)
    accepted = [r.residual for r in (*generators, *continuous)]
    if not all(residual <= certificate.tolerance for residual in accepted):
        raise AssertionError(f"intertwiners({f.name}): a relation that was not judged is returned")
    relations = _with_products(certificate, generators)
    gap = ResidualGap(
        max(accepted, default=0.0), min((r.residual for r in rejected), default=math.inf)
    )
    return Intertwiners(
        name=f.name,
        domain=(f.low, f.high),
        families=tuple(family.times(f.unit) for family in continuous),
        generators=tuple(relation.times(f.unit) for relation in generators),
        relations=tuple(relation.times(f.unit) for relation in relations),
        group=_group(f, continuous, generators),
        nearly=tuple(r.times(f.unit) for r in _nearly(certificate, rejected, generators, nearly)),
        gap=gap,
        tolerance=certificate.tolerance,
        searched="; ".join(discrete.searched),
        scalar=f,
    )


def _nearly(
    certificate: Certificate,
    rejected: Sequence[Relation],
    accepted: Sequence[Relation],
    limit: float,
) -> tuple[Relation, ...]:
    """The best rejected relations, one for each neighbourhood: that in short numbers."""
    good = [r for r in rejected if r.residual <= limit and abs(r.a) > 1e-9]
    good = [r.measured(max(r.residual, certificate.on_the_grid(r))) for r in good]
    good = [r for r in good if r.residual <= limit]
    good.sort(key=lambda r: (not (is_short(r.beta) and is_short(r.alpha)), r.residual))
    kept: list[Relation] = []
    for relation in good:  # next to one that holds, others nearly do
        if not any(_close(relation, other) for other in (*accepted, *kept)):
            kept.append(relation)
    return tuple(kept[:3])


def _close(one: Relation, other: Relation) -> bool:
    return abs(one.beta - other.beta) + abs(one.alpha - other.alpha) <= 0.1


def _with_products(
    certificate: Certificate, generators: tuple[Relation, ...]
) -> tuple[Relation, ...]:
    """Generators, the full period where half of it is one, and reflections about other centres."""
    found = list(generators)
    if shift := next((r for r in generators if r.alpha == 1), None):
        found += [shift @ shift] if shift.name == "half period" else []
        found += [shift @ r for r in generators if r.alpha == -1]
    measured = [*generators]
    for relation in found[len(generators) :]:
        measured.append(relation.measured(certificate.residual(relation)))
    return tuple(r for r in measured if certificate.accepts(r))


def _group(f: ScalarFunction, continuous: list[Family], generators: tuple[Relation, ...]) -> str:
    """The name of the group of maps of arguments."""
    reflected = any(r.alpha == -1 for r in generators)
    if len(continuous) == 2:
        return "Aff(1)"
    if continuous:
        if continuous[0].is_shift:
            return "R"
        return "R*" if reflected else "R>0"
    shifted = any(r.alpha == 1 for r in generators)
    scaled = any(abs(r.alpha) != 1 for r in generators)
    if shifted:
        return "D∞" if reflected else "Z"
    if scaled:
        return "Z2 × Z" if reflected else "Z"
    return "Z2" if reflected else "trivial"
