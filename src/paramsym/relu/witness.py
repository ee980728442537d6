"""Looking for an input at which two networks differ.

Floats propose, rationals decide: candidates come from cheap float arithmetic, and an input counts
only after both networks have been evaluated there exactly. The candidates go where differences of
ReLU networks hide:

1. points at many scales, and points with prescribed signs of the first layer's units;
2. lines across one first-layer hyperplane with all other units of that layer off (or one far on):
   a hidden hyperplane pushed over its limit shows only there;
3. lines across the zero set of a second-layer unit;
4. lines through common zeros of a few units of either network, found by Newton steps: bumps in
   tiny polytopes, which random lines miss.

A line is tested as a whole, at every one of its points (`lines`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import left, tick
from paramsym.relu.domains import Domain
from paramsym.relu.float_atoms import UNIT
from paramsym.relu.lines import difference_on_line
from paramsym.relu.network import Network
from paramsym.relu.precision import NOISE_OF_EVALUATION, threshold, unexplained
from paramsym.relu.rationals import ONE, ZERO, nearest_float, nearest_norm, small_rational
from paramsym.relu.sampling import BITS, drawn, moved_into


@dataclass
class Search:
    """One search for a witness.

    Attributes:
        mode: "exact": any difference counts. "float": only a difference beyond what rounding the
            weights to their storage can do there (`precision.threshold`), or `tolerance` if given.
        best: the largest |f - g| seen at an exactly evaluated input with |x| <= radius,
            `furthest`.
        last: the last input evaluated exactly with f(x) != g(x), and both values.
    """

    a: Network
    b: Network
    domain: Domain
    mode: str = "exact"
    tolerance: float | None = None
    seed: int = 5
    radius: float = float("inf")
    best: float = 0.0
    furthest: list[fmpq] | None = None
    last: tuple[list[fmpq], list[fmpq], list[fmpq]] | None = None
    points: int = 0
    lines: int = 0
    rng: random.Random = field(init=False)
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.generator = np.random.default_rng(self.seed)

    def late(self) -> bool:
        """Whether the budget has ended."""
        return left() <= 0

    def confirm(self, x: list[fmpq]) -> bool:
        """Evaluate exactly; True if x is a witness."""
        if not self.domain.contains(x):
            return False
        self.points += 1
        f, g = self.a.evaluate(x), self.b.evaluate(x)
        if f == g:
            return False
        self.last = (x, f, g)
        gaps = [abs(u - v) for u, v in zip(f, g, strict=True)]
        gap = nearest_float(max(gaps))
        if gap > self.best and nearest_norm(x) <= self.radius:
            self.best, self.furthest = gap, x
        if self.mode == "exact":
            return True
        if self.tolerance is not None:
            return gap > self.tolerance
        return unexplained(gaps, threshold(self.a, self.b, x))

    def widen(self, count: int = 4096) -> None:
        """Raise `best`: inputs with |x| <= radius where f and g are furthest apart in floats."""
        points = self._drawn(count)
        norm = np.linalg.norm(points, axis=1)
        with np.errstate(all="ignore"):
            if np.isfinite(self.radius):
                shrink = 0.999 * self.radius / np.maximum(norm, 1e-300)
                points = points * np.minimum(1.0, shrink)[:, None]
            gap = np.abs(self.a.batch(points) - self.b.batch(points)).max(axis=1)
        for k in np.argsort(-np.nan_to_num(gap))[:2]:
            self.confirm([small_rational(float(v), BITS) for v in points[k]])

    # ---------------------------------------------------------------- points

    def try_points(
        self, count: int = 2048, exact: int = 6, only_loud: bool = False
    ) -> list[fmpq] | None:
        """Evaluate a batch in floats, then the most suspicious points exactly.

        With `only_loud` only points whose float difference is beyond rounding are evaluated
        exactly, which spares large networks the rationals.
        """
        start = self.domain.centre()
        for x in [] if only_loud else [start, *self.domain.corners()[1:4]]:
            if self.confirm(x):
                return x
        batches = [self._drawn(count // 4)]
        for net in (self.a, self.b):
            made = self._signed(net, count // 4)
            if made is not None:
                batches.append(made)
        return self._suspicious(np.concatenate(batches), exact, only_loud)

    def _suspicious(
        self, points: np.ndarray, exact: int, only_loud: bool = False
    ) -> list[fmpq] | None:
        with np.errstate(all="ignore"):
            gap = np.abs(self.a.batch(points) - self.b.batch(points))
            size = self.a.magnitude(points) + self.b.magnitude(points)
            score = np.nan_to_num((gap / np.maximum(size, 1e-300)).max(axis=1), posinf=0.0)
        for k in np.argsort(-score)[:exact]:
            if only_loud and score[k] < NOISE_OF_EVALUATION / 4 * UNIT:
                return None
            x = [small_rational(float(v), BITS) for v in points[k]]
            if self.confirm(x):
                return x
            if self.late():
                return None
        return None

    def _drawn(self, count: int) -> np.ndarray:
        tick()
        return drawn(self.domain, self.generator, count)

    def _signed(self, net: Network, count: int) -> np.ndarray | None:
        """Inputs x with prescribed W_1 x + b_1: random signs, sizes 10^(±2.5)."""
        if net.depth == 0:
            return None
        weight, bias = net.floats[0]
        n = len(bias)
        if n > 4 * self.domain.dimension or n > 512:
            return None
        size = 10 ** self.generator.uniform(-2.5, 2.5, (count, n))
        z = size * self.generator.choice([-1.0, 1.0], (count, n))
        z[: count // 4] = -np.abs(z[: count // 4])
        on = self.generator.integers(n, size=count // 4)
        z[np.arange(count // 4), on] *= -1  # a single unit on
        points = (z - bias) @ np.linalg.pinv(weight).T
        return self._into(points)

    def _into(self, points: np.ndarray) -> np.ndarray:
        """Points moved towards the centre until they lie in a bounded domain."""
        tick()
        return moved_into(self.domain, points)

    # ---------------------------------------------------------------- lines

    def try_line(self, start: np.ndarray, direction: np.ndarray) -> list[fmpq] | None:
        """Test a whole line exactly (in float mode: many points of it)."""
        if not (np.isfinite(start).all() and np.isfinite(direction).all()):
            return None
        length = float(np.abs(direction).max(initial=0.0))
        if length == 0:
            return None
        self.lines += 1
        if self.mode != "exact":
            steps = np.concatenate([[0.0], 10.0 ** np.linspace(-7, 2, 28)])
            steps = np.concatenate([-steps[::-1], steps])[:, None]
            return self._suspicious(self._into(start + steps * direction / length), 3)
        x0 = [small_rational(float(v)) for v in start]
        v = [small_rational(float(w) / length, 24) for w in direction]
        if not self.domain.contains(x0):
            return None
        found = difference_on_line(self.a, self.b, x0, v, self.domain)
        return found if found is not None and self.confirm(found) else None

    def run_lines(self, candidates: Iterator[tuple[np.ndarray, np.ndarray]], limit: int):
        """The first witness on at most `limit` candidate lines."""
        for count, (start, direction) in enumerate(candidates):
            if count >= limit or self.late():
                return None
            found = self.try_line(self._into(start[None, :])[0], direction)
            if found is not None:
                return found
        return None

    def across_first_layer(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Lines across one first-layer unit, the others off, then one of them far on."""
        plans = []
        for net in (self.a, self.b):
            if net.depth == 0:
                continue
            weight, bias = net.floats[0]
            if len(bias) <= 512:
                plans.append((np.linalg.pinv(weight), bias))
        for far in (0.0, 1e3, 1.0):
            for right, bias in plans:
                n = len(bias)
                for j in range(n):
                    z = -self.generator.uniform(0.5, 1.5, n) * 10 ** self.generator.uniform(-1, 2)
                    z[j] = 0.0
                    if far and n > 1:
                        z[(j + 1 + self.generator.integers(n - 1)) % n] = far
                    yield right @ (z - bias), right[:, j]

    def across_second_layer(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Lines across the zero set of a second-layer unit, reached from a random sign pattern."""
        for _ in range(3):
            for net in (self.a, self.b):
                if net.depth < 2:
                    continue
                weight, bias = net.floats[0]
                if len(bias) > 512:
                    continue
                right = np.linalg.pinv(weight)
                for w, t in zip(net.floats[1].weight, net.floats[1].bias, strict=True):
                    y = self.generator.exponential(1.0, len(bias))
                    y *= self.generator.integers(0, 2, len(bias))
                    value = float(w @ y + t)
                    usable = np.flatnonzero(w * value < 0)
                    if not len(usable):
                        continue
                    k = int(self.generator.choice(usable))
                    y[k] -= value / w[k]
                    off = -self.generator.exponential(1.0, len(bias))
                    z = np.where(y > 0, y, off)
                    yield right @ (z - bias), right @ self.generator.normal(size=len(bias))

    def through_vertices(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Lines through common zeros of one to d random units of either network, for ever."""
        nets = [net for net in (self.a, self.b) if net.depth]
        if not nets:
            return
        d = self.domain.dimension
        while True:
            x = self._drawn(1)[0]
            count = self.rng.randint(1, min(d, 6))
            chosen = []
            for _ in range(count):
                net = self.rng.choice(nets)
                layer = self.rng.randrange(net.depth)
                chosen.append((net, layer, self.rng.randrange(net.widths[layer + 1])))
            for _ in range(6):
                tick()
                values, normals = [], []
                for net, layer, unit in chosen:
                    value, normal = local_form(net, layer, unit, x)
                    values.append(value)
                    normals.append(normal)
                with np.errstate(all="ignore"):
                    step = np.linalg.lstsq(np.array(normals), -np.array(values), rcond=1e-12)[0]
                if not np.isfinite(step).all():
                    break
                x = x + step
                if np.abs(step).max(initial=0) <= 1e-12 * (1 + np.abs(x).max(initial=0)):
                    break
            yield x, self.generator.normal(size=d)


def local_form(net: Network, layer: int, unit: int, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient at x of the pre-activation of one hidden unit (layers count from 0)."""
    value = x
    masks = []
    for weight, bias in net.floats[:layer]:
        z = weight @ value + bias
        masks.append(z > 0)
        value = np.maximum(z, 0.0)
    weight, bias = net.floats[layer]
    gradient = weight[unit]
    for k in range(layer - 1, -1, -1):
        gradient = (gradient * masks[k]) @ net.floats[k].weight
    return float(weight[unit] @ value + bias[unit]), gradient


def simplest(a: Network, b: Network, domain: Domain, x: list[fmpq], accept=None) -> list[fmpq]:
    """A shorter rational near a witness that still is one (for people to read)."""
    accept = accept or (lambda y: domain.contains(y) and a.evaluate(y) != b.evaluate(y))
    for bits in (4, 8, 14, 20, 30):
        shorter = []
        for v in x:
            scale = ONE * (1 << bits)
            shorter.append((v * scale + fmpq(1, 2)).floor() / scale + ZERO)
        if accept(shorter):
            return [fmpq(v) for v in shorter]
    return x
