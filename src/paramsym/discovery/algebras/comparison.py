"""Vector fields that were found against those of a derived symmetry, in both directions.

Two finite-dimensional spaces of vector fields are compared by their values at a few random points,
stacked: a combination with constant coefficients that vanishes at all of them vanishes everywhere.
What was derived need not be linear in θ; which of it is affine is measured at midpoints,
ξ(½θ + ½θ') = ½ξ(θ) + ½ξ(θ'), and linear, by ξ(2θ) = 2ξ(θ).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.discovery.algebras.derived_fields import Derived, State, derived_fields, states
from paramsym.discovery.algebras.vector_fields import VectorField
from paramsym.structure.symmetry import ParameterSymmetry

RANK = 1e-8  # singular values below it, relative to the largest, count as zero
_POINTS, _MOST = 4, 256  # random parameters, twice as many as long as ranks grow
_SHOWN, _EXAMPLES = 8, 2  # fields that are shown: those that leave derived orbits, and others


@dataclass(frozen=True)
class ComparedSpace:
    """What became of the fields of one space or shift.

    Attributes:
        name: of the space or shift.
        kind: "space" or "shift".
        derived: independent fields, those that leave buffers where they are.
        linear: how many of them are linear in θ.
        affine: how many are affine, the linear ones included.
        found: how many were found.
        exact: False where a negligible constant of the model limits it.
    """

    name: str
    kind: str
    derived: int
    linear: int
    affine: int
    found: int
    exact: bool

    @property
    def note(self) -> str:
        """Why not all were found, in words."""
        parts = []
        if self.derived > self.affine:
            parts.append(f"{self.derived - self.affine} not linear in θ")
        if self.affine > max(self.linear, self.found):
            parts.append(f"{self.affine - max(self.linear, self.found)} affine, not linear")
        if self.linear > self.found:
            parts.append(f"{self.linear - self.found} linear and not found")
        return ", ".join(parts) + ("" if self.exact else " (approximate)" if parts else "")


@dataclass(frozen=True)
class Comparison:
    """Found against derived vector fields; all numbers are dimensions of spaces of fields.

    Attributes:
        found: independent fields that were found.
        derived: independent fields of the symmetry that leave buffers where they are.
        both: of the intersection, with constant coefficients.
        beyond: what was found and not derived, modulo what was.
        pointwise: how many of these are derived at each single θ, with coefficients that depend
            on it: they move along the derived orbits.
        fields: found fields that represent what is beyond, in words.
        nonlinear: derived fields that are not affine in θ, modulo those that are.
        affine: derived fields that are affine, modulo linear ones, where only linear ones were
            searched.
        missed: derived fields of the searched kind that were not found: they are not in the ansatz.
        spaces: the same by space and shift. Fields that leave buffers where they are only together
            with those of another space are in the sums alone.
        searched: what was searched, in words.
    """

    found: int
    derived: int
    both: int
    beyond: int
    pointwise: int
    fields: tuple[str, ...]
    nonlinear: int
    affine: int
    missed: int
    spaces: tuple[ComparedSpace, ...] = ()
    searched: str = ""

    @property
    def agrees(self) -> bool:
        """Whether what was found is what was derived, as far as that is of the searched kind."""
        return not self.beyond and not self.missed

    def __str__(self) -> str:
        lines = [
            f"found {self.found}, derived {self.derived}, both {self.both}",
            f"found but not derived: {self.beyond}{self._along()}",
            *(f"  {line}" for line in self.fields[:_SHOWN]),
            f"derived but not found: {self.derived - self.both}{self._reasons()}",
        ]
        if self.spaces:
            width = max(len(s.name) for s in self.spaces)
            head = f"  {'':{width}}  derived  linear  found"
            rows = [
                f"  {s.name:{width}}  {s.derived:7}  {s.linear:6}  {s.found:5}  {s.note}".rstrip()
                for s in self.spaces
            ]
            lines += [head, *rows]
        return "\n".join(lines)

    def _along(self) -> str:
        if not self.pointwise:
            return ""
        return f" ({self.pointwise} along derived orbits, with coefficients that depend on θ)"

    def _reasons(self) -> str:
        reasons = [
            (self.nonlinear, "not linear in θ"),
            (self.affine, "affine, and only linear fields were searched"),
            (self.missed, "not in the searched ansatz"),
        ]
        words = ", ".join(f"{count} {why}" for count, why in reasons if count)
        return f" ({words})" if words else ""


def compare_fields(
    fields: Sequence[VectorField],
    shapes: Mapping[str, tuple[int, ...]],
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor] | None = None,
    affine: bool = False,
    searched: str = "",
    dead: Sequence[str] = (),
    live: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Compare affine vector fields with those of a derived symmetry.

    Both are evaluated at random parameters, and buffers are held: of the derived fields those
    combinations with constant coefficients count that leave buffers where they are.

    Args:
        fields: what was found; `str` of each is shown where it was not derived.
        shapes: the shape of each parameter on which they live, in real numbers.
        symmetry: what `find_symmetry` derived for the same model.
        params: a state dict whose buffers are taken; by default they are drawn.
        affine: whether constants were searched.
        searched: what was searched, in words, to be kept with the result.
        dead: parameters that the function ignores; derived fields may move them. All others that
            are not in `shapes` are held as buffers are.
        live: marks the entries of a parameter that count, in row-major order; by default all. How
            fields move the others makes no difference: a dead key bias goes with queries or not.
        generator: draws the parameters; by default seeded with 0.

    Raises:
        ValueError: the symmetry of another model, one with free inputs or outputs, or so many
            generators and parameters that they do not fit in memory.
    """
    generator = generator or torch.Generator().manual_seed(0)
    span = _compared(fields, shapes, symmetry, params, dead, live or {}, generator)
    kept = span.affine if affine else span.linear
    both = rank(span.own) + rank(kept) - rank(span.own, kept)
    beyond = rank(span.own) - both
    leaving = span.leaving() if beyond else 0
    return Comparison(
        rank(span.own), rank(span.whole), both, beyond, max(beyond - leaving, 0),
        _representatives(fields, span, kept, beyond, leaving),
        rank(span.whole) - rank(span.affine),
        0 if affine else rank(span.affine) - rank(span.linear),
        rank(kept) - both,
        tuple(span.of_blocks(symmetry, affine)), searched,
    )  # fmt: skip


def _compared(
    fields: Sequence[VectorField], shapes: Mapping[str, tuple[int, ...]],
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor] | None, dead: Sequence[str],
    live: Mapping[str, Tensor], generator: torch.Generator,
) -> _Spans:  # fmt: skip
    """Both spaces at so many points that no combination vanishes at all of them by chance."""
    count, before = _POINTS, None
    counted = [live[n] if n in live else torch.ones(math.prod(s)) for n, s in shapes.items()]
    mask = torch.cat([torch.zeros(0), *counted]).to(torch.float64)
    while True:
        points = states(shapes, symmetry, params, count, generator, dead)
        own, derived = _stacked(fields, points), derived_fields(symmetry, points)
        span = _Spans(own * mask.repeat(count), derived.masked(mask), points, generator)
        ranks = rank(span.own), rank(span.values)
        full = ranks == (len(fields), int(span.values.any(1).sum()))
        if full or ranks == before or count >= _MOST:
            return span
        count, before = 2 * count, ranks


def rank(*matrices: Tensor) -> int:
    """The rank of rows stacked, each row of length one."""
    rows = torch.cat(matrices)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows = (rows / norms.clamp_min(1e-300))[norms[:, 0] > 0]
    if not rows.numel():
        return 0
    values = torch.linalg.svdvals(rows)
    return int((values > RANK * values[0]).sum())


def _stacked(fields: Sequence[VectorField], points: Sequence[State]) -> Tensor:
    """(fields, points · entries)."""
    width = sum(point.width for point in points)
    rows = [torch.cat([point.row(f.velocity(point.found)) for point in points]) for f in fields]
    return torch.stack(rows) if rows else torch.zeros(0, width, dtype=torch.float64)


class _Spans:
    """The derived fields that leave buffers at rest, and of these the affine and linear ones.

    `own` and `values` are found and derived fields in random combinations of their columns: fewer,
    and of the same ranks.
    """

    def __init__(
        self, own: Tensor, derived: Derived, points: Sequence[State], generator: torch.Generator
    ):
        self.derived, self.points, self._own = derived, points, own
        width = len(own) + len(derived.values) + 16
        self.own, self.values = own, derived.values
        if own.shape[1] > width:
            mixing = torch.randn(own.shape[1], width, generator=generator, dtype=own.dtype)
            self.own, self.values = own @ mixing, derived.values @ mixing
        every = torch.eye(len(self.values), dtype=own.dtype)
        self.resting, affine, linear = self._coordinates(every)
        self.whole, self.affine, self.linear = (
            c @ self.values for c in (self.resting, affine, linear)
        )

    def leaving(self) -> int:
        """How many found directions leave the derived orbits, at the point where most do."""
        found = 0
        for k in range(len(self.points)):
            own, orbit = self._at(k)
            found = max(found, rank(orbit, own) - rank(orbit))
        return found

    def leaves(self, field: int) -> bool:
        """Whether one found field leaves the derived orbit at the first point."""
        own, orbit = self._at(0)
        return rank(orbit, own[field : field + 1]) > rank(orbit)

    def _at(self, point: int) -> tuple[Tensor, Tensor]:
        """Found and derived velocities at one point."""
        start = sum(p.width for p in self.points[:point])
        columns = slice(start, start + self.points[point].width)
        return self._own[:, columns], self.resting @ self.derived.values[:, columns]

    def _coordinates(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of coordinates within a span of rows: at rest, and of these affine and linear."""
        scale = self.derived.size
        resting = _vanishing(start, self.derived.held, scale)
        affine = _vanishing(resting, self.derived.bends, scale)
        return resting, affine, _vanishing(affine, self.derived.constants, scale)

    def of_blocks(self, symmetry: ParameterSymmetry, searched_affine: bool) -> list[ComparedSpace]:
        found, start = [], 0
        for block in self.derived.blocks:
            rows = torch.eye(len(self.values), dtype=self.values.dtype)[start : start + block.size]
            start += block.size
            resting, affine, linear = (c @ self.values for c in self._coordinates(rows))
            kept = affine if searched_affine else linear
            both = rank(self.own) + rank(kept) - rank(self.own, kept)
            shift = symmetry.shift_of.get(block.name)
            exact = shift is not None or symmetry.spaces[block.name].exact
            found.append(
                ComparedSpace(
                    block.name, "space" if shift is None else "shift", rank(resting),
                    rank(linear), rank(affine), both, exact,
                )
            )  # fmt: skip
        return found


def _vanishing(rows: Tensor, effects: Tensor, scale: float) -> Tensor:
    """Combinations of rows whose effect is zero beside a scale; effects are (rows, numbers)."""
    if not len(rows) or not effects.shape[1]:
        return rows
    seen = rows @ effects / scale
    tall = seen.shape[0] > seen.shape[1]  # the whole left side is wanted, and never a wide right
    left, values, _ = torch.linalg.svd(seen, full_matrices=tall)
    count = int((values > RANK).sum())
    return left[:, count:].T @ rows


def _representatives(
    fields: Sequence[VectorField], span: _Spans, kept: Tensor, beyond: int, leaving: int
) -> tuple[str, ...]:
    """Fields that span what is beyond, modulo what was derived; first what leaves the orbits."""
    count = min(beyond, _SHOWN if leaving else _EXAMPLES)
    order = sorted(range(len(fields)), key=lambda k: not span.leaves(k)) if leaving else None
    lines, rows, known = [], kept, rank(kept)
    for k in order or range(len(fields)):
        if len(lines) == count:
            break
        more = torch.cat([rows, span.own[k : k + 1]])
        if rank(more) > known:
            rows, known = more, known + 1
            lines.append(str(fields[k]))
    return tuple(lines)
