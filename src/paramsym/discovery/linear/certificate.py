"""Which directions are generators: residuals on samples that they were not found on, and noise.

The threshold is absolute where arithmetic is exact to float64. Where it is not, it is a multiple of
the noise: of that of most samples, or of the sample's own, since a saturated function rounds more.

A kink that few samples see leaves apparent null vectors, which come out mixed with the true ones,
and then every column fails by its share of the false ones. So what fails is not dropped column by
column: the span is turned to the singular vectors of the samples that rejected something, what they
reject is dropped, and this is repeated until fresh samples reject nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .constraints import Constraints
from .noise import noise_differences
from .null_space import Smallest
from .sampling import Points

EXACT = 1e-11  # the residual of a generator, if rounding is far below
_NOISES = 32  # and in units of the measured noise, if it is not
_MOST = 0.9  # of the samples: errors have long tails
_FALSE = 1e-3  # no residual of a generator is as large, whatever the noise
_HEARD = 0.25  # of the samples must have less noise than that
_FRESH, _WIDE, _SPREAD = 128, 64, 8.0  # samples of a certificate: usual, and of large inputs
_ROUNDS = 8
_LONGEST = 4  # times as many after samples that rejected something, which was a rare one


@dataclass(frozen=True)
class Judged:
    """Directions that pass, with residuals on fresh samples and thresholds; and what did not.

    Attributes:
        span: orthonormal columns, what the rows of the search are null on.
        turn: orthonormal columns, those of its directions that fresh samples confirm.
        noise: the largest of a generator's constraints, at nine samples of ten.
        next: the least root mean square of the constraints along what did not pass.
        fresh: constraints of the span at the samples that rejected nothing.
        seen: and at those before, which it was turned by; None if there were none.
    """

    span: Tensor
    turn: Tensor
    noise: float
    next: float
    fresh: Evidence | None
    seen: Evidence | None

    @property
    def vectors(self) -> Tensor:
        """Orthonormal columns of coefficients."""
        return self.span @ self.turn

    def of(self, columns: Tensor) -> list[tuple[float, float]]:
        """Residual and threshold of directions within the span, orthonormal columns."""
        if self.fresh is None or not columns.shape[1]:
            return []
        return self.fresh.of(self.span.T @ columns)


@dataclass(frozen=True)
class Evidence:
    """Constraints along the columns of a basis at fresh samples.

    Attributes:
        images: (samples, columns).
        errors: sixth differences of them along lines, (differences, samples, columns), or None.
        wide: which samples have large inputs, (samples,), and more rounding than others.
        threshold: the user's, or None.
    """

    images: Tensor
    errors: Tensor | None
    wide: Tensor
    threshold: float | None

    def turned(self, turn: Tensor) -> Evidence:
        """In another basis."""
        errors = None if self.errors is None else self.errors @ turn
        return Evidence(self.images @ turn, errors, self.wide, self.threshold)

    def limits(self) -> tuple[Tensor, Tensor]:
        """How large a constraint may be, (samples, columns), and the usual noise, (columns,)."""
        if self.errors is None:
            limit = self.threshold or EXACT
            return torch.full_like(self.images, limit), self.images.new_zeros(self.images.shape[1])
        noises = self.errors.square().mean(dim=0).sqrt().nan_to_num(nan=math.inf)
        usual = noises.quantile(_MOST, dim=0)
        limits = torch.maximum(noises, usual)
        if bool(self.wide.any()):
            there = torch.maximum(limits[self.wide], noises[self.wide].quantile(_MOST, dim=0))
            limits[self.wide] = there
        return (_NOISES * limits).clamp_min(EXACT), usual

    def excess(self) -> Tensor:
        """Constraints in units of their limits; zero where the noise hides everything."""
        limits, _ = self.limits()
        return torch.where(limits <= self.most, self.images.abs() / limits, 0.0)

    def heard(self) -> float:
        """The share of the samples whose noise hides no column."""
        limits, _ = self.limits()
        return float((limits <= self.most).all(dim=1).double().mean())

    def of(self, turn: Tensor) -> list[tuple[float, float]]:
        """The largest constraint and the largest limit in another basis, at samples that count."""
        there = self.turned(turn)
        limits, _ = there.limits()
        counts = limits <= there.most
        sizes, most = (torch.where(counts, v.abs(), 0.0).amax(0) for v in (there.images, limits))
        return list(zip(sizes.tolist(), most.tolist(), strict=True))

    def rejects(self, turn: Tensor) -> bool:
        """Whether some direction is no null vector at some sample."""
        return not bool((self.turned(turn).excess() <= 1).all())

    @property
    def most(self) -> float:
        """The limit above which a sample says nothing."""
        return _FALSE if self.threshold is None else math.inf


def judged(constraints: Constraints, found: Smallest, threshold: float | None) -> Judged:
    """Which of the directions are generators, by samples that they were not found on."""
    close = found.sizes <= (_FALSE if threshold is None else threshold)
    vectors, others = found.vectors[:, close], found.sizes[~close].tolist()
    if not vectors.shape[1]:
        least = min(others, default=math.inf)
        return Judged(vectors, vectors.new_zeros(0, 0), 0.0, least, None, None)
    fresh = _evidence(constraints, vectors, threshold, 1)
    if threshold is None:  # what the rows themselves reject is apart, as other singular vectors
        near = found.sizes[close] <= fresh.limits()[0].square().mean(dim=0).sqrt()
    else:  # what is nearly null is as it was found: no sample makes it more exact
        near = (fresh.excess() <= 1).all(dim=0)
    others += found.sizes[close][~near].tolist()
    fresh = fresh.turned(torch.eye(len(near), dtype=torch.float64)[:, near])
    return _settled(constraints, vectors[:, near], fresh, None, min(others, default=math.inf))


def narrowed(
    constraints: Constraints, before: Judged, points: Points | None, threshold: float | None
) -> Judged:
    """The same without what these samples reject, and what fresh samples reject after that."""
    if threshold is not None or points is None:
        return before
    known = [e for e in (before.seen, before.fresh) if e is not None]
    suspect = _at(constraints, points, before.span, threshold)
    if suspect is None or not suspect.rejects(before.turn):
        return before
    fresh = _evidence(constraints, before.span, threshold, 1)
    seen = _joined([*known, suspect])
    return _settled(constraints, before.span, fresh, seen, before.next)


def _settled(
    constraints: Constraints, span: Tensor, fresh: Evidence, seen: Evidence | None, least: float
) -> Judged:
    """What is left of a span when fresh samples reject nothing more.

    All that was seen is solved together: a direction that one sample hardly rejects cannot be told
    from null ones to more digits than it is rejected by, and the next samples say more.
    """
    turn, others = torch.eye(span.shape[1], dtype=torch.float64), torch.zeros(0)
    if seen is not None:
        turn, others = _null(seen)
    for k in range(1, _ROUNDS + 1):
        if not turn.shape[1]:
            break
        _require_heard(constraints, fresh.turned(turn))
        if not fresh.rejects(turn):
            break
        seen = fresh if seen is None else _joined([seen, fresh])
        turn, others = _null(seen)
        fresh = _evidence(constraints, span, fresh.threshold, min(2**k, _LONGEST))
    else:  # still something rare: what these samples pass
        turn = turn[:, (fresh.turned(turn).excess() <= 1).all(dim=0)]
    noise = float(fresh.turned(turn).limits()[1].max()) if turn.shape[1] else 0.0
    return Judged(span, turn, noise, min([least, *others.tolist()]), fresh, seen)


def _null(seen: Evidence) -> tuple[Tensor, Tensor]:
    """The directions that all samples pass, and the root mean squares of the others."""
    limits, _ = seen.limits()
    limit = limits.amax(dim=1, keepdim=True)
    counts = limit <= seen.most
    _, _, right = torch.linalg.svd(torch.where(counts, seen.images / limit, 0.0))
    turn = right.flip(0).T
    there = seen.turned(turn)
    good = (there.excess() <= 1).all(dim=0)
    return turn[:, good], there.images[:, ~good].square().mean(dim=0).sqrt()


def _require_heard(constraints: Constraints, evidence: Evidence) -> None:
    heard = evidence.heard()
    if heard >= _HEARD:
        return
    sampler = constraints.sampler
    raise ValueError(
        f"linear_symmetries(model={type(sampler.model).__name__}): at {100 * (1 - heard):.0f} % of "
        f"random weights and inputs derivatives change from point to point by more than "
        f"{_FALSE / _NOISES:.0e} of their size, as by rounding or by oscillations faster than "
        "1e-6 of the weights, but a function that is smooth at that distance was expected, since "
        "nothing is told from zero otherwise. Use dtype=torch.float64, scale the function, or say "
        "with threshold=… which residual counts as zero."
    )


def _evidence(
    constraints: Constraints, vectors: Tensor, threshold: float | None, times: int
) -> Evidence:
    """Constraints along columns at fresh samples, some of them of large inputs."""
    found = []
    for count, spread in ((_FRESH, 1.0), (_WIDE, _SPREAD)):
        constraints.sampler.spread = spread
        for rows, points in constraints.rows(times * count):
            found.append(_along(constraints, points, rows, vectors, threshold, spread > 1))
    constraints.sampler.spread = 1.0
    return _joined(found)


def _at(
    constraints: Constraints, points: Points, vectors: Tensor, threshold: float | None
) -> Evidence | None:
    """Constraints along columns at given samples; None if they have none."""
    rows, good = constraints.at(points)
    if not len(rows):
        return None
    return _along(constraints, points.among(good), rows, vectors, threshold, True)


def _along(
    constraints: Constraints, points: Points, rows: Tensor, vectors: Tensor,
    threshold: float | None, wide: bool,
) -> Evidence:  # fmt: skip
    errors = None if threshold is not None else _errors(constraints, points, vectors)
    return Evidence(rows @ vectors, errors, torch.full((len(rows),), wide), threshold)


def _joined(found: list[Evidence]) -> Evidence:
    errors = [e.errors for e in found if e.errors is not None]
    return Evidence(
        torch.cat([e.images for e in found]),
        torch.cat(errors, dim=1) if errors else None,
        torch.cat([e.wide for e in found]),
        found[0].threshold,
    )


def _errors(constraints: Constraints, points: Points, vectors: Tensor) -> Tensor:
    """Sixth differences of constraints along lines of weights, inputs that are drawn, covectors.

    Of inputs as well, since the derivative of what is linear in the weights has no line in them.
    """
    sampler = constraints.sampler
    drawn = {k: leaf for k, leaf in enumerate(points.leaves) if sampler.is_drawn_float(k)}

    def values(there: Mapping[str | int, Tensor]) -> Tensor:
        rows, good = constraints.at(points.moved(there))
        whole = rows.new_zeros(len(good), rows.shape[1])
        whole[good] = rows
        return whole @ vectors

    where: dict[str | int, Tensor] = {**points.weights, **drawn, "": points.covectors}
    return noise_differences(values, where, sampler.generator)
