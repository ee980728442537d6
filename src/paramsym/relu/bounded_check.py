"""The independent checker of float certificates.

It replays which rule each neuron got and which atom each row was read as, in extended precision
and its own bookkeeping of errors, checks the condition of every rule, and returns its own bound on
|f - g|. It shares no arithmetic with `bounded` (`spans` is its own, too); a log that claims too
much gets a large bound or is rejected.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import (
    CONSTANT,
    DEAD,
    LINEAR,
    PLAIN,
    UNBEND,
    UNBEND_NEGATIVE,
    LayerLog,
    fits,
)
from paramsym.relu.network import Network
from paramsym.relu.spans import Span

Long = np.longdouble
EPS = float(np.finfo(Long).eps)
FLOAT = 2.0**-53


def checked_bound(a: Network, b: Network, domain: Domain, data: Any) -> np.ndarray | None:
    """(m, 2): |f - g| <= offset + slope·|x| on the domain, or None if the log is not valid."""
    reach = Span.of(domain)
    if reach is None:
        return None
    atoms = [np.asarray(row, dtype=Long) for row in data["atoms"]]
    d = a.input_dim
    sup = np.zeros((len(atoms), 2))
    for k, row in enumerate(atoms):
        tick()
        if len(row) > d + 1 + k or len(row) < d + 1:
            return None  # an atom may only use earlier ones
        sup[k] = _size(row, sup, d)
    width = d + 1 + len(atoms)
    sides = []
    with np.errstate(all="ignore"):
        for net, log in zip((a, b), data["logs"], strict=True):
            side = _Side(net, atoms, sup, reach, width).run(log)
            if side is None:
                return None
            sides.append(side)
        (f, ef), (g, eg) = sides
        gap = np.array([_size(row, sup, d) for row in f - g])
        bound = (gap + ef + eg) * (1 + 1e-9)
    return bound if np.isfinite(bound).all() else None


def _size(row: np.ndarray, sup: np.ndarray, d: int) -> np.ndarray:
    """(offset, slope) of a row over the basis x, 1, atoms."""
    row = np.abs(row)
    tail = row[d + 1 :].astype(float) @ sup[: len(row) - d - 1]
    head = np.array([float(row[d]), float(np.sqrt(np.sum(row[:d] ** 2)))])
    return (tail + head) * (1 + 1e-9)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right by blocks of rows: extended precision has no fast product to call at once."""
    at_once = max(1, 4_000_000 // max(1, right.size))
    parts = []
    for start in range(0, len(left), at_once):
        tick()
        parts.append(left[start : start + at_once] @ right)
    return np.concatenate(parts) if parts else left @ right


class _Done:
    """A finished layer.

    For each unit: `y`, `z` rows of its value and of what is under its ReLU; `ey` >= |true - y|.
    For the nominal value share·A of its group: `dy` >= |true - share·A|, and for the nominal u with
    A = relu(u): `dz` >= |share·u - z|. `group` is None for constants and dead units, which count
    as y. Per group: `top` >= A, `reach` >= |A| as (offset, slope), `bends` if z may replace y.
    """

    def __init__(self, n: int, width: int) -> None:
        self.y = np.zeros((n, width), dtype=Long)
        self.z = np.zeros((n, width), dtype=Long)
        self.ey, self.dy, self.dz = (np.zeros((n, 2)) for _ in range(3))
        self.share = np.ones(n)
        self.group: list[tuple | None] = [None] * n
        self.members: dict[tuple, list[int]] = {}
        self.top: dict[tuple, float] = {}
        self.reach: dict[tuple, np.ndarray] = {}


class _Side:
    def __init__(self, net: Network, atoms, sup, reach: Span, width: int) -> None:
        self.net, self.atoms, self.sup, self.reach, self.width = net, atoms, sup, reach, width
        self.d = net.input_dim

    def _total(self, e: np.ndarray) -> float:
        """Largest value of offset + slope·|x| on the domain."""
        return float(e[0]) + (float(e[1]) * self.reach.radius if e[1] > 0 else 0.0)

    def run(self, log: list[LayerLog]):
        if not fits(log, self.net.widths):
            return None
        if self.net.depth == 1:
            return self._one_hidden_layer(log[0])
        d = self.d
        y = np.zeros((d, self.width), dtype=Long)
        ey = np.zeros((d, 2))
        before: _Done | None = None
        for index, (weight, bias) in enumerate(self.net.floats):
            w = weight.astype(Long)
            rows = self._wide(w if index == 0 else _product(w, y))
            rows[:, d] += bias
            size = self._wide(np.abs(w) if index == 0 else _product(np.abs(w), np.abs(y)))
            size[:, d] += np.abs(bias)
            unit = 0.0 if index == 0 else (weight.shape[1] + 4) * EPS
            unit += 0.0 if self.net.born_float else 1.01 * FLOAT
            error = np.array([_size(r, self.sup, d) for r in size]).reshape(-1, 2) * unit
            if index:
                error += np.abs(weight) @ ey * (1 + 1e-9)
            error[:, 0] += 1e-290
            if index == self.net.depth:
                return rows, error
            before = self._layer(log[index], weight, bias, rows, error, before)
            if before is None:
                return None
            y, ey = before.y, before.ey
        return None

    def _wide(self, rows: np.ndarray) -> np.ndarray:
        return np.pad(rows, ((0, 0), (0, self.width - rows.shape[1])))

    def _one_hidden_layer(self, log: LayerLog):
        """The outputs of a network with one hidden layer, without forming its rows over atoms."""
        d = self.d
        (w1, b1), (w2, b2) = self.net.floats
        n, m = len(b1), len(b2)
        if len(log.rule) != n:
            return None
        born = self.net.born_float
        rows = np.concatenate([w1, b1[:, None]], axis=1)
        low, high = self.reach.range(w1, b1)
        norms = np.linalg.norm(w1, axis=1)
        input_error = (0.0 if born else 1.01 * FLOAT) * np.stack([np.abs(b1), norms], axis=1)
        far = input_error[:, 0] + np.where(
            input_error[:, 1] > 0, input_error[:, 1] * self.reach.radius, 0.0
        )
        low, high = low - far, high + far
        share = np.zeros(n)
        kept = np.zeros(n)
        error = input_error.copy()
        out = np.zeros((m, self.width), dtype=Long)
        for i in range(n):
            tick()
            rule = int(log.rule[i])
            if rule == CONSTANT:
                kept[i] = max(b1[i], 0.0)
                error[i, 1] += norms[i] * (1 + 1e-9)
            elif rule == DEAD:
                error[i, 0] += max(high[i], 0.0)
            elif rule == LINEAR:
                share[i] = 1.0
                error[i, 0] += max(-low[i], 0.0)
            elif rule == PLAIN:
                k = int(log.atom[i])
                if not 0 <= k < len(self.atoms) or len(self.atoms[k]) > d + 1:
                    return None
                factor = Long(log.sign[i]) * Long(log.scale[i])
                gap = (rows[i] - factor * self.atoms[k]).astype(float)
                rest = np.array([abs(gap[d]), np.linalg.norm(gap[:d])]) * (1 + 1e-9)
                rest += 4 * EPS * (np.array([abs(b1[i]), norms[i]]) + abs(factor) * self.sup[k])
                share[i] = 0.5
                error[i] += rest / 2
                out[:, d + 1 + k] += w2[:, i].astype(Long) * abs(factor) / 2
            else:
                return None
        out[:, : d + 1] = _product(w2.astype(Long) * share, rows.astype(Long))
        out[:, d] += w2.astype(Long) @ kept.astype(Long) + b2
        size = np.zeros((m, self.width))
        size[:, : d + 1] = (np.abs(w2) * share) @ np.abs(rows)
        size[:, d] += np.abs(w2) @ kept + np.abs(b2)
        plain = np.flatnonzero(share == 0.5)
        half = np.abs(w2[:, plain]) * (log.scale[plain] / 2)
        np.add.at(size.T, d + 1 + log.atom[plain], half.T)
        total = np.abs(w2) @ error * (1 + 1e-9)
        unit = (n + 6) * EPS + (0 if born else 1.01 * FLOAT)
        total += unit * np.array([_size(r, self.sup, d) for r in size])
        total[:, 0] += 1e-290
        return out, total

    def _layer(self, log: LayerLog, weight, bias, rows, error, before) -> _Done | None:
        n, d = rows.shape[0], self.d
        if len(log.rule) != n:
            return None
        done = _Done(n, self.width)
        apart, own, ez = np.zeros((n, 2)), np.zeros((n, 2)), np.zeros((n, 2))
        tops = np.full(n, np.inf)
        for i in range(n):
            tick()
            rule, k = int(log.rule[i]), int(log.atom[i])
            nominal = _Nominal(self, weight[i], float(bias[i]), before, error[i])
            low, high = self._range(nominal, rows[i], error[i])
            dp = nominal.error
            own[i], tops[i] = dp, max(high, 0.0)
            if rule == CONSTANT:
                loose = rows[i].copy()
                loose[d] = 0
                done.y[i, d] = max(rows[i, d], 0)
                done.ey[i] = error[i] + _size(loose, self.sup, d)
                done.dy[i] = done.ey[i]
            elif rule == DEAD:
                if not np.isfinite(high):
                    return None
                done.ey[i] = dp + [max(high, 0.0), 0.0]
                done.dy[i] = done.ey[i]
            elif rule == LINEAR:
                if not np.isfinite(low):
                    return None
                done.y[i] = done.z[i] = rows[i]
                done.ey[i] = error[i] + dp + [max(-low, 0.0), 0.0]
                if not log.scale[i] > 0:
                    return None
                done.group[i], done.share[i] = ("linear", k), float(log.scale[i])
                ez[i] = done.ey[i] + dp
            elif rule in (PLAIN, UNBEND, UNBEND_NEGATIVE) and 0 <= k < len(self.atoms):
                q, eq, excess = rows[i], dp + error[i], 0.0
                if rule != PLAIN:
                    sign = 1 if rule == UNBEND else -1
                    made = nominal.unbend(sign, log.units.get(i, ()), rows[i], error[i])
                    if made is None:
                        return None
                    q, eq, excess = made
                factor = Long(log.sign[i]) * Long(log.scale[i])
                if not factor:
                    return None
                atom, gap = self.atoms[k], q.copy()
                gap[: len(atom)] -= factor * atom
                rounding = 4 * EPS * (_size(q, self.sup, d) + abs(float(factor)) * self.sup[k])
                apart[i] = _size(gap, self.sup, d) + rounding
                done.y[i] = q / 2
                done.y[i, d + 1 + k] += abs(factor) / 2
                done.share[i] = abs(float(factor))
                done.z[i], ez[i] = q, eq
                done.group[i] = ("atom", k, float(log.sign[i]))
                if rule == PLAIN:
                    done.ey[i] = error[i] + apart[i] / 2 + rounding
                else:
                    own[i] = dp + [excess, 0.0]
                    done.ey[i] = own[i] + eq + apart[i] / 2 + rounding
                if rule == UNBEND_NEGATIVE:
                    done.y[i] += rows[i]
                    done.ey[i] += error[i] + dp + rounding
                    done.ey[i] += 4 * EPS * _size(rows[i], self.sup, d)
                    done.z[i], ez[i], own[i] = rows[i], dp + error[i], dp
                    done.group[i] = ("negative", k, float(log.sign[i]))
            else:
                return None
        for i, name in enumerate(done.group):
            if name is not None:
                done.members.setdefault(name, []).append(i)
        for name, members in done.members.items():
            self._settle(done, name, members, apart, own, ez, tops)
        return done

    def _settle(self, done: _Done, name, members, apart, own, ez, tops) -> None:
        """One nominal value for the units of a group: that of the member with the least top."""
        first = members[0]
        if name[0] != "atom":  # distances are between the rows themselves
            for k in members:
                ratio = Long(done.share[k]) / Long(done.share[first])
                gap = np.abs(done.z[k] - ratio * done.z[first])
                size = np.abs(done.z[k]) + ratio * np.abs(done.z[first])
                apart[k] = _size(gap + 4 * EPS * size, self.sup, self.d) if k != first else 0.0
        head = min(members, key=lambda k: tops[k] / done.share[k])
        done.top[name] = float(tops[head] / done.share[head])
        reach = _size(done.y[head], self.sup, self.d) + done.ey[head] + own[head]
        done.reach[name] = reach / done.share[head] * (1 + 1e-9)
        for k in members:
            ratio = done.share[k] / done.share[head]
            if k == head:
                done.dz[k], done.dy[k] = ez[k], own[k]
            else:
                done.dz[k] = (apart[k] + ratio * (apart[head] + ez[head])) * (1 + 1e-9)
                done.dy[k] = own[k] + ez[k] + done.dz[k]

    def _range(self, nominal: _Nominal, row, error) -> tuple[float, float]:
        """Bounds of the nominal value: from its parts and, where the row is affine, from that."""
        low, high = nominal.low, nominal.high
        d = self.d
        if not np.any(row[d + 1 :]):
            lo, hi = self.reach.range(row[None, :d].astype(float), row[None, d].astype(float))
            reach = _size(row, self.sup, d)
            slack = self._total(error) + self._total(nominal.error)
            if np.any(row[:d]):
                slack += 4 * FLOAT * self._total(reach)
            else:
                slack += 4 * FLOAT * float(reach[0])
            if np.isfinite(slack):
                low, high = max(low, float(lo[0]) - slack), min(high, float(hi[0]) + slack)
        return low, high


class _Nominal:
    """The nominal pre-activation of one unit: Σ total·A over groups, plus a base.

    `error` >= |true pre-activation - nominal|; weights on a group that cancel to less than a
    1e-11 of their sizes are left out, at the cost of their reach.
    """

    def __init__(self, side: _Side, weights, bias: float, before: _Done | None, error) -> None:
        self.side, self.weights, self.before = side, weights, before
        self.low, self.high = -np.inf, np.inf
        self.total: dict[tuple, float] = {}
        if before is None:
            self.error = error.copy()
            return
        spent = np.zeros(2)
        base, magnitude = Long(bias), abs(bias)
        scale: dict[tuple, float] = {}
        exact: dict[tuple, Long] = {}
        for k, w in enumerate(weights):
            if not w:
                continue
            spent += abs(w) * before.dy[k]
            name = before.group[k]
            if name is None:
                value = before.y[k, side.d]
                base += Long(w) * value
                magnitude += abs(w) * float(value)
            else:
                exact[name] = exact.get(name, Long(0)) + Long(w) * Long(before.share[k])
                scale[name] = scale.get(name, 0.0) + abs(w) * before.share[k]
        rounding = (len(weights) + 4) * (EPS + FLOAT)
        if not side.net.born_float:
            rounding += 1.01 * FLOAT
        for name, value in exact.items():
            spent += rounding * scale[name] * before.reach[name]
            if abs(float(value)) <= 1e-11 * scale[name]:
                spent += abs(float(value)) * before.reach[name]
            else:
                self.total[name] = float(value)
        spent[0] += rounding * magnitude + 1e-290
        self.error = spent * (1 + 1e-9)
        self.base, self.rounding = float(base), rounding
        self.magnitude = magnitude + sum(
            abs(t) * before.top[g] for g, t in self.total.items() if np.isfinite(before.top[g])
        )
        slack = rounding * self.magnitude
        self.low = self.base - slack
        self.high = self.base + slack
        for name, value in self.total.items():
            if value > 0:
                self.high += value * before.top[name]
            else:
                self.low += value * before.top[name]

    def unbend(self, sign: int, chosen, row, error):
        """q, its error, and what the rest exceeds zero by; None if a condition fails.

        relu(T·relu(u) + r) = relu(T·u + r) needs T > 0 and r <= 0; r > 0 costs r.
        """
        before, d = self.before, self.side.d
        if before is None or not chosen:
            return None
        names = {before.group[k] for k in chosen}
        q, eq, excess = sign * row, self.error + error, 0.0
        size = _size(row, self.side.sup, d)
        for name in names:
            if name is None or name[0] == "linear" or sign * self.total.get(name, 0.0) <= 0:
                return None
            used = [k for k in before.members[name] if self.weights[k]]
            if not set(used) <= set(chosen):
                return None
            rest = sign * self.base + self.rounding * self.magnitude
            for other, value in self.total.items():
                if other != name and sign * value > 0:
                    rest += sign * value * before.top[other]
            if not np.isfinite(rest):
                return None
            excess += max(rest, 0.0)
            for k in used:
                w = Long(sign) * Long(self.weights[k])
                q = q + w * (before.z[k] - before.y[k])
                eq = eq + abs(self.weights[k]) * (before.dz[k] + before.dy[k] + before.ey[k])
                size = size + abs(self.weights[k]) * (
                    _size(before.z[k], self.side.sup, d) + _size(before.y[k], self.side.sup, d)
                )
        if any(self.weights[k] == 0 for k in chosen):
            return None
        eq = eq + (len(self.weights) + 12) * (EPS + FLOAT) * size
        return q, eq * (1 + 1e-9), excess
