"""Atoms, magnitudes and reaches: the vocabulary of the float form with rigorous bounds."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.domains import Ball, Box, Domain, Everywhere
from paramsym.relu.rationals import nearest_float

UNIT = 2.0**-53
NOISE = 512.0  # residuals up to NOISE·UNIT·magnitude are explained by rounding of the weights
TINY = 1e-280  # covers underflow
UP = 1.0 + 1e-9  # absorbs the rounding of sums of positive bounds


@dataclass(frozen=True)
class Reach:
    """What bounds need of a domain: |x| <= radius (inf for R^d) and the box if there is one."""

    radius: float
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None

    @staticmethod
    def of(domain: Domain) -> Reach | None:
        """None for domains that floats do not handle."""
        if isinstance(domain, Everywhere):
            return Reach(np.inf)
        if isinstance(domain, Ball):
            return Reach(nearest_float(domain.radius) * UP)
        if isinstance(domain, Box):
            lower = np.array([nearest_float(v) for v in domain.lower])
            upper = np.array([nearest_float(v) for v in domain.upper])
            far = np.maximum(np.abs(lower), np.abs(upper))
            return Reach(float(np.linalg.norm(far)) * UP, lower, upper)
        return None

    def span(self, normals: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of normals·x + offsets, outward."""
        if self.lower is not None and self.upper is not None:
            plus, minus = np.maximum(normals, 0), np.minimum(normals, 0)
            low = plus @ self.lower + minus @ self.upper + offsets
            high = plus @ self.upper + minus @ self.lower + offsets
            far = np.maximum(np.abs(self.lower), np.abs(self.upper))
            slack = (len(far) + 4) * UNIT * (np.abs(normals) @ far + np.abs(offsets))
            return low - slack, high + slack
        size = np.linalg.norm(normals, axis=1)
        reach = np.where(size > 0, size * UP, 0.0)
        with np.errstate(invalid="ignore"):
            reach = np.where(reach > 0, reach * self.radius, 0.0)
        slack = 4 * UNIT * np.abs(offsets)
        return offsets - reach - slack, offsets + reach + slack


@dataclass
class Atoms:
    """The shared atoms |row·basis|; basis x_1 … x_d, 1, atom_0, atom_1, …"""

    dimension: int
    rows: list[np.ndarray] = field(default_factory=list)
    magnitudes: list[np.ndarray] = field(default_factory=list)
    sup: np.ndarray = field(default_factory=lambda: np.zeros((64, 2)))
    probe: np.ndarray = field(default_factory=lambda: np.empty(0))
    order: list[tuple[float, int]] = field(default_factory=list)  # (probe value, atom), both signs
    spread: float = 1.0  # the largest magnitude of an atom of norm 1
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    @property
    def size(self) -> int:
        """The number of basis elements."""
        return self.dimension + 1 + len(self.rows)

    def direction(self) -> np.ndarray:
        """A fixed random vector on the basis: rows close to each other have close products."""
        missing = self.size - len(self.probe)
        if missing > 0:
            self.probe = np.concatenate([self.probe, self.rng.uniform(0.5, 1.5, missing + 64)
                                         * self.rng.choice([-1.0, 1.0], missing + 64)])  # fmt: skip
        return self.probe[: self.size]

    def largest(self, rows: np.ndarray) -> np.ndarray:
        """(n, 2): |row·basis| <= offset + slope·|x| for each row."""
        return largest(rows, self.dimension, self.sup)

    def add(self, row: np.ndarray, magnitude: np.ndarray) -> int:
        """A new atom |row·basis|."""
        used = np.flatnonzero(row[self.dimension + 1 :])
        keep = self.dimension + 1 + (int(used[-1]) + 1 if len(used) else 0)
        row, magnitude = row[:keep], magnitude[:keep]
        index = len(self.rows)
        value = float(row @ self.direction()[: len(row)])
        if index == len(self.sup):
            self.sup = np.concatenate([self.sup, np.zeros_like(self.sup)])
        self.sup[index] = self.largest(row[None, :])[0]
        self.spread = max(self.spread, min(float(np.linalg.norm(magnitude)), 1e6))
        self.rows.append(row)
        self.magnitudes.append(magnitude)
        bisect.insort(self.order, (value, index))
        bisect.insort(self.order, (-value, index))
        return index

    def match(
        self, row: np.ndarray, size: np.ndarray, radius: float
    ) -> tuple[int, float, float, np.ndarray]:
        """(atom, orientation, scale, largest residual) for |row| = scale·atom + residual.

        The atom is the nearest that explains the row up to rounding or lies within `radius` of it,
        relatively; or else a new one.
        """
        tick()
        scale = float(np.linalg.norm(row))
        width = len(row)
        spread = max(float(np.linalg.norm(size)) / scale, self.spread)
        wide = max(NOISE * UNIT * spread, radius) * 4
        value = float(row @ self.direction()[:width]) / scale
        window = wide * 1.5 * np.sqrt(width) + 1e-15
        at = bisect.bisect_left(self.order, (value - window, -1))
        best = None
        while at < len(self.order) and self.order[at][0] <= value + window:
            found, atom = self.order[at]
            at += 1
            held = self.rows[atom]
            k = min(len(held), width)
            sign = 1.0 if row[:k] @ held[:k] >= 0 else -1.0
            # The best multiple rather than the ratio of norms: residuals stay in the noise.
            factor = abs(float(row[:k] @ held[:k])) / float(held @ held)
            length = max(len(held), width)
            gap, reference = np.zeros(length), np.zeros(length)
            gap[:width], reference[:width] = row, size
            gap[: len(held)] -= sign * factor * held
            reference[: len(held)] += factor * self.magnitudes[atom]
            distance = float(np.linalg.norm(gap)) / scale
            if distance > radius and not explained(gap, reference, self.dimension):
                continue
            if best is None or distance < best[0]:
                best = (distance, atom, sign, factor, gap, reference)
        if best is None:
            held = row / scale
            atom = self.add(held, size / scale)
            gap, reference, sign, factor = row - scale * held, size, 1.0, scale
        else:
            _, atom, sign, factor, gap, reference = best
        padded = np.abs(gap) + 4 * UNIT * reference
        return atom, sign, factor, self.largest(padded[None, :])[0]


def largest(rows: np.ndarray, dimension: int, sup: np.ndarray) -> np.ndarray:
    """(n, 2): |row·(x, 1, atoms)| <= offset + slope·|x|, given such bounds `sup` of the atoms."""
    d = dimension
    size = np.abs(rows)
    count = rows.shape[1] - d - 1
    out = size[:, d + 1 :] @ sup[:count]
    out[:, 0] += size[:, d]
    out[:, 1] += np.linalg.norm(rows[:, :d], axis=1)
    return out * UP


def explained(gap: np.ndarray, size: np.ndarray, dimension: int) -> bool:
    """Whether a residual is within rounding of sums of the given magnitudes."""
    noise = NOISE * UNIT
    d = dimension
    return bool(
        np.linalg.norm(gap[:d]) <= noise * np.linalg.norm(size[:d])
        and np.all(np.abs(gap[d:]) <= noise * size[d:])
    )
