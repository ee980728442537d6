"""Where two networks are compared: all of R^d, a box, a ball, or the non-negative orthant.

A domain answers, exactly, the few questions that the canonical forms ask of it: does the zero set
of an affine function meet the interior, what is its range, which rational point lies on it.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.errors import ReLUError
from paramsym.relu.rationals import HALF, ONE, ZERO, dot, fraction, nearest_float, rational, sign

Vector = list[fmpq]


class Domain(ABC):
    """A full-dimensional convex set of inputs."""

    dimension: int

    @abstractmethod
    def range(self, normal: Sequence[fmpq], offset: fmpq) -> tuple[fmpq | None, fmpq | None]:
        """Bounds (lower, upper) of normal·x + offset on the domain; None where unbounded."""

    def side(self, normal: Sequence[fmpq], offset: fmpq) -> int:
        """+1 if normal·x + offset >= 0 on the domain, -1 if <= 0, 0 if it changes sign inside."""
        lower, upper = self.range(normal, offset)
        if lower is not None and lower >= 0:
            return 1
        if upper is not None and upper <= 0:
            return -1
        return 0

    @abstractmethod
    def contains(self, point: Sequence[fmpq]) -> bool:
        """Whether the point lies in the (closed) domain."""

    @abstractmethod
    def zero(self, normal: Sequence[fmpq], offset: fmpq) -> Vector:
        """An interior point with normal·x + offset = 0, given that `side` is 0."""

    @abstractmethod
    def room(self, point: Sequence[fmpq]) -> fmpq | None:
        """Some r > 0 with point + [-r, r]^d inside the domain; None if every r will do."""

    @abstractmethod
    def centre(self) -> Vector:
        """An interior point."""

    def norm(self) -> float:
        """A bound of |x| on the domain, as a float; inf where it is unbounded."""
        return math.inf

    @abstractmethod
    def draw(self, rng: random.Random) -> list[float]:
        """A random point of the domain, as floats."""

    def corners(self) -> list[Vector]:
        """d+1 affinely independent points of the domain."""
        start = self.centre()
        room = self.room(start)
        step = ONE if room is None else room
        points = [start]
        for i in range(self.dimension):
            moved = list(start)
            moved[i] += step
            points.append(moved)
        return points

    def clip(
        self, start: Sequence[fmpq], direction: Sequence[fmpq]
    ) -> tuple[fmpq | None, fmpq | None]:
        """An interval of t with start + t·direction in the domain (start lies in it)."""
        room = self.room(start)
        if room is None:
            return None, None
        longest = max((abs(v) for v in direction), default=ZERO)
        if longest == 0:
            return ZERO, ZERO
        return -room / longest, room / longest


@dataclass(frozen=True)
class Everywhere(Domain):
    """All of R^d."""

    dimension: int

    def range(self, normal, offset):
        return (None, None) if any(normal) else (offset, offset)

    def contains(self, point):
        return True

    def zero(self, normal, offset):
        square = dot(normal, normal)
        return [-offset * v / square for v in normal]

    def room(self, point):
        return None

    def centre(self):
        return [ZERO] * self.dimension

    def draw(self, rng):
        size = 10 ** rng.uniform(-2, 3)
        return [rng.gauss(0, 1) * size for _ in range(self.dimension)]

    def __str__(self):
        return f"R^{self.dimension}"


@dataclass(frozen=True)
class Box(Domain):
    """The box lower <= x <= upper; both are tuples of d numbers with lower < upper."""

    lower: tuple[Any, ...]
    upper: tuple[Any, ...]

    def __post_init__(self):
        lower = tuple(rational(v, "relu.Box(lower=...)") for v in self.lower)
        upper = tuple(rational(v, "relu.Box(upper=...)") for v in self.upper)
        if len(lower) != len(upper) or any(a >= b for a, b in zip(lower, upper, strict=False)):
            raise ReLUError(
                f"lower of length {len(lower)} and upper of length {len(upper)}",
                "two vectors of one length with lower < upper in every coordinate",
                "relu.Box",
                "A box without interior has no domain to compare functions on.",
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def dimension(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """d."""
        return len(self.lower)

    def range(self, normal, offset):
        low = high = offset
        for a, lo, hi in zip(normal, self.lower, self.upper, strict=True):
            if a > 0:
                low, high = low + a * lo, high + a * hi
            elif a < 0:
                low, high = low + a * hi, high + a * lo
        return low, high

    def contains(self, point):
        return all(lo <= v <= hi for v, lo, hi in zip(point, self.lower, self.upper, strict=True))

    def zero(self, normal, offset):
        # The corners where the form is least and greatest, pulled towards the centre until both
        # are interior and still have opposite signs: the zero lies on the segment between them.
        middle = self.centre()
        least = [lo if a > 0 else hi for a, lo, hi in self._zip(normal)]
        most = [hi if a > 0 else lo for a, lo, hi in self._zip(normal)]
        pull = HALF
        while True:
            p = [m + (v - m) * (1 - pull) for m, v in zip(middle, least, strict=True)]
            q = [m + (v - m) * (1 - pull) for m, v in zip(middle, most, strict=True)]
            low, high = dot(normal, p) + offset, dot(normal, q) + offset
            if low < 0 < high:
                share = low / (low - high)
                return [a + share * (b - a) for a, b in zip(p, q, strict=True)]
            pull = pull / 2

    def _zip(self, normal):
        return zip(normal, self.lower, self.upper, strict=True)

    def room(self, point):
        sides = [
            min(v - lo, hi - v) for v, lo, hi in zip(point, self.lower, self.upper, strict=True)
        ]
        return max(min(sides), ZERO)

    def centre(self):
        return [(a + b) / 2 for a, b in zip(self.lower, self.upper, strict=True)]

    def norm(self):
        far = [max(abs(lo), abs(hi)) for lo, hi in zip(self.lower, self.upper, strict=True)]
        return nearest_float(root_above(dot(far, far))) * (1 + 1e-15)

    def draw(self, rng):
        return [
            rng.uniform(nearest_float(lo), nearest_float(hi))
            for lo, hi in zip(self.lower, self.upper, strict=True)
        ]

    def clip(self, start, direction):
        low: fmpq | None = None
        high: fmpq | None = None
        for s, v, lo, hi in zip(start, direction, self.lower, self.upper, strict=True):
            if v == 0:
                continue
            a, b = (lo - s) / v, (hi - s) / v
            a, b = (a, b) if a < b else (b, a)
            low = a if low is None or a > low else low
            high = b if high is None or b < high else high
        return (low, high) if low is not None else (ZERO, ZERO)

    def __str__(self):
        if len(set(self.lower)) == 1 and len(set(self.upper)) == 1:
            low, high = fraction(self.lower[0]), fraction(self.upper[0])
            return f"the box [{low}, {high}]^{self.dimension}"
        return f"a box in R^{self.dimension}"


@dataclass(frozen=True)
class Ball(Domain):
    """The Euclidean ball |x| <= radius in R^dimension."""

    dimension: int
    radius: Any

    def __post_init__(self):
        radius = rational(self.radius, "relu.Ball(radius=...)")
        if radius <= 0:
            raise ReLUError(
                f"radius {radius}", "radius > 0", "relu.Ball", "Pass a positive radius."
            )
        object.__setattr__(self, "radius", radius)

    def range(self, normal, offset):
        reach = self.radius * root_above(dot(normal, normal))
        return offset - reach, offset + reach

    def side(self, normal, offset):
        # Exact, without the square root that `range` rounds outward.
        if offset * offset >= self.radius * self.radius * dot(normal, normal):
            return 1 if offset >= 0 else -1
        return 0

    def contains(self, point):
        return dot(point, point) <= self.radius * self.radius

    def zero(self, normal, offset):
        square = dot(normal, normal)
        return [-offset * v / square for v in normal]

    def room(self, point):
        gap = self.radius - root_above(dot(point, point))
        if gap <= 0:
            return ZERO
        return gap / max(self.dimension, 1)

    def centre(self):
        return [ZERO] * self.dimension

    def norm(self):
        return nearest_float(self.radius) * (1 + 1e-15)

    def draw(self, rng):
        direction = [rng.gauss(0, 1) for _ in range(self.dimension)]
        norm = sum(v * v for v in direction) ** 0.5 or 1.0
        size = nearest_float(self.radius) * rng.random() ** (1 / max(self.dimension, 1))
        return [v / norm * size * (1 - 1e-12) for v in direction]

    def __str__(self):
        return f"the ball |x| <= {fraction(self.radius)} in R^{self.dimension}"


@dataclass(frozen=True)
class Orthant(Domain):
    """The non-negative orthant x >= 0 of R^d: the image of a full-rank first layer."""

    dimension: int

    def range(self, normal, offset):
        low = None if any(v < 0 for v in normal) else offset
        high = None if any(v > 0 for v in normal) else offset
        return low, high

    def contains(self, point):
        return all(v >= 0 for v in point)

    def zero(self, normal, offset):
        # Start at the all-ones point and move along the coordinates that bring the form to zero.
        start = [ONE] * self.dimension
        value = dot(normal, start) + offset
        if value == 0:
            return start
        share = [i for i, v in enumerate(normal) if sign(v) == -sign(value)]
        if share:
            total = sum((abs(normal[i]) for i in share), ZERO)
            for i in share:
                start[i] += abs(value) / total
            return start
        # Only shrinking helps: form = offset + (terms of one sign), offset of the other sign.
        factor = -offset / (value - offset)
        return [factor] * self.dimension

    def room(self, point):
        return max(min(point, default=ONE), ZERO)

    def centre(self):
        return [ONE] * self.dimension

    def draw(self, rng):
        return [abs(rng.gauss(0, 1)) * 10 ** rng.uniform(-2, 2) for _ in range(self.dimension)]

    def __str__(self):
        return f"the orthant x >= 0 of R^{self.dimension}"


def root_above(square: fmpq, bits: int = 64) -> fmpq:
    """A rational r >= sqrt(square), tight to about 2^-bits relative."""
    if square <= 0:
        return ZERO
    p, q = int(square.p), int(square.q)
    shift = max(0, 2 * bits - p.bit_length() + q.bit_length())
    shift += shift % 2
    scaled = -((-p << shift) // q)  # ceiling
    root = _isqrt_up(scaled)
    return fmpq(root, 1 << (shift // 2))


def _isqrt_up(value: int) -> int:
    root = math.isqrt(value)
    return root if root * root == value else root + 1


def as_domain(spec: object, dimension: int) -> Domain:
    """Read a domain.

    Args:
        spec: None or "R^d" for all inputs; a `Domain`; a pair (lower, upper) of numbers or vectors
            for a box; {"box": [lower, upper]} or {"ball": radius}; "orthant".
        dimension: the number of inputs d.

    Raises `ReLUError` for anything else, or if the dimension differs.
    """
    where = "relu.decide(domain=...)"
    if spec is None or spec in ("R^d", "everywhere", "all"):
        return Everywhere(dimension)
    if spec == "orthant":
        return Orthant(dimension)
    if isinstance(spec, dict) and set(spec) == {"ball"}:
        return Ball(dimension, spec["ball"])
    if isinstance(spec, dict) and set(spec) == {"box"}:
        spec = spec["box"]
    if isinstance(spec, Domain):
        if spec.dimension != dimension:
            raise ReLUError(
                f"a domain of dimension {spec.dimension}",
                f"dimension {dimension}, the number of inputs",
                where,
                "Build the domain for the networks' inputs.",
            )
        return spec
    if isinstance(spec, (tuple, list)) and len(spec) == 2:
        lower, upper = (_spread(v, dimension) for v in spec)
        return as_domain(Box(lower, upper), dimension)
    raise ReLUError(
        repr(spec),
        "None, a pair (lower, upper), relu.Box, relu.Ball, relu.Orthant or 'orthant'",
        where,
        "For a cube write domain=(-1, 1).",
    )


def _spread(value: Any, dimension: int) -> tuple[Any, ...]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (value,) * dimension
