"""The nominal pre-activation of a unit, as the checker of float certificates computes it.

Rows are in extended precision over a basis x, 1, atoms; each comes with an (offset, slope) that
bounds how far the true value is from it at x, offset + slope·|x|.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paramsym.relu.spans import Span

Long = np.longdouble
EPS = float(np.finfo(Long).eps)
FLOAT = 2.0**-53
_CANCELLED = 1e-11  # weights on a group that cancel to less than this of their sizes are left out
_UP = 1 + 1e-9

Group = tuple  # ("atom" or "negative", atom, orientation), or ("linear", the first of its units)


@dataclass(frozen=True)
class Basis:
    """x_1 … x_d, 1 and atoms, with (offset, slope) bounding each |atom|, on a domain."""

    dimension: int
    atoms: list[np.ndarray]
    sup: np.ndarray
    reach: Span

    @property
    def width(self) -> int:
        """The number of basis elements."""
        return self.dimension + 1 + len(self.atoms)

    def size(self, row: np.ndarray) -> np.ndarray:
        """(offset, slope) of a row over x, 1 and the first atoms."""
        d, row = self.dimension, np.abs(row)
        tail = row[d + 1 :].astype(float) @ self.sup[: len(row) - d - 1]
        head = np.array([float(row[d]), float(np.sqrt(np.sum(row[:d] ** 2)))])
        return (tail + head) * _UP

    def most(self, bound: np.ndarray) -> float:
        """Largest value of offset + slope·|x| on the domain."""
        far = float(bound[1]) * self.reach.radius if bound[1] > 0 else 0.0
        return float(bound[0]) + far


@dataclass
class Units:
    """The units of a layer before any was read, or of a finished one.

    For each unit: `y`, `z` rows of its value and of what is under its ReLU; `ey` >= |true - y|.
    For the nominal value share·A of its group: `dy` >= |true - share·A|, and for the nominal u with
    A = relu(u): `dz` >= |share·u - z|. `group` is None for constants and dead units, which count
    as y. Per group: `top` >= A and `reach` >= |A| as (offset, slope).
    """

    y: np.ndarray
    z: np.ndarray
    ey: np.ndarray
    dy: np.ndarray
    dz: np.ndarray
    share: np.ndarray
    group: list[Group | None]
    members: dict[Group, list[int]] = field(default_factory=dict)
    top: dict[Group, float] = field(default_factory=dict)
    reach: dict[Group, np.ndarray] = field(default_factory=dict)


class Nominal:
    """The nominal pre-activation of one unit: Σ total·A over groups, plus a base.

    `error` >= |true pre-activation - nominal|; weights on a group that cancel to less than a
    1e-11 of their sizes are left out, at the cost of their reach.
    """

    def __init__(
        self, basis: Basis, weights, bias: float, before: Units | None, error, born_float: bool
    ) -> None:
        self.basis, self.weights, self.before = basis, weights, before
        self.low, self.high = -np.inf, np.inf
        self.total: dict[Group, float] = {}
        if before is None:
            self.error = error.copy()
            return
        spent = np.zeros(2)
        base, magnitude = Long(bias), abs(bias)
        scale: dict[Group, float] = {}
        exact: dict[Group, Long] = {}
        for k, w in enumerate(weights):
            if not w:
                continue
            spent += abs(w) * before.dy[k]
            name = before.group[k]
            if name is None:
                value = before.y[k, basis.dimension]
                base += Long(w) * value
                magnitude += abs(w) * float(value)
            else:
                exact[name] = exact.get(name, Long(0)) + Long(w) * Long(before.share[k])
                scale[name] = scale.get(name, 0.0) + abs(w) * before.share[k]
        rounding = (len(weights) + 4) * (EPS + FLOAT) + (0.0 if born_float else 1.01 * FLOAT)
        for name, value in exact.items():
            spent += rounding * scale[name] * before.reach[name]
            if abs(float(value)) <= _CANCELLED * scale[name]:
                spent += abs(float(value)) * before.reach[name]
            else:
                self.total[name] = float(value)
        spent[0] += rounding * magnitude + 1e-290
        self.error = spent * _UP
        self.base = float(base)
        magnitude += sum(
            abs(t) * before.top[g] for g, t in self.total.items() if np.isfinite(before.top[g])
        )
        self.slack = rounding * magnitude
        self.low = self.base - self.slack
        self.high = self.base + self.slack
        for name, value in self.total.items():
            if value > 0:
                self.high += value * before.top[name]
            else:
                self.low += value * before.top[name]

    def unbend(self, sign: int, chosen, row, error):
        """q, its error, and what the rest exceeds zero by; None if a condition fails.

        relu(T·relu(u) + r) = relu(T·u + r) needs T > 0 and r <= 0; r > 0 costs r.
        """
        before = self.before
        names = self._groups(sign, chosen)
        rests = [self._rest(sign, name) for name in names]
        if before is None or not names or not np.isfinite(rests).all():
            return None
        q, eq, size = sign * row, self.error + error, self.basis.size(row)
        for k in sorted(set(chosen)):
            y, z, w = before.y[k], before.z[k], self.weights[k]
            q = q + Long(sign) * Long(w) * (z - y)
            eq = eq + abs(w) * (before.dz[k] + before.dy[k] + before.ey[k])
            size = size + abs(w) * (self.basis.size(z) + self.basis.size(y))
        eq = eq + (len(self.weights) + 12) * (EPS + FLOAT) * size
        return q, eq * _UP, sum(max(rest, 0.0) for rest in rests)

    def _groups(self, sign: int, chosen) -> list[Group]:
        """The groups that may be unbent, if `chosen` is all that is read of them; none if not."""
        before = self.before
        if before is None:
            return []
        found: list[Group] = []
        for name in dict.fromkeys(before.group[k] for k in chosen):
            if name is None or name[0] == "linear" or not self._along(sign, name) > 0:
                return []
            found.append(name)
        used = {k for name in found for k in before.members[name] if self.weights[k]}
        return found if used == set(chosen) else []

    def _along(self, sign: int, name: Group) -> float:
        """sign times the weight on a group, 0 where it cancelled."""
        return sign * self.total.get(name, 0.0)

    def _rest(self, sign: int, name: Group) -> float:
        """An upper bound of sign·(pre-activation without a group)."""
        assert self.before is not None
        others = sum(
            self._along(sign, other) * self.before.top[other]
            for other in self.total
            if other != name and self._along(sign, other) > 0
        )
        return sign * self.base + self.slack + others
