"""Floating point with rigorous bounds: the absolute-value form read in float64.

Both networks are rewritten over one registry of atoms, as in `absolute`, but a row is a float
vector together with a **magnitude** row (the same sums with absolute values: what rounding is
proportional to). Three functions belong to a unit with true value Y:

    row       what its coefficients say, Σ row·basis;
    nominal   relu(z°), z° made of the nominal values before it, with weights that cancel up to
              rounding left out and copies of one unit read as one; signs and bounds are decided on
              it, so that rounding cannot turn "bounded" into "unbounded";
    errors    ey >= |Y - row|, dy >= |Y - nominal|, ez >= |z° - row of z|, each an (offset, slope):
              offset + slope·|x| at every input x.

Hyperplanes are not clustered with a tolerance, which would not be transitive. *Any* assignment of
rows to atoms is allowed and paid for: reading E as ±s·atom costs half the largest |E ∓ s·atom|. So
every bound that comes out is rigorous, rounding of this very computation included, and the choice
of assignment only decides how good it is. "Equal up to rounding" is a statement on each
coefficient: every residual is at most `NOISE`·2^-53 times its magnitude.

Source: sections 1.4 and 3.4 of the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.float_atoms import NOISE, TINY, UNIT, UP, Atoms, Reach, explained
from paramsym.relu.float_groups import grouped
from paramsym.relu.logs import (
    CONSTANT,
    DEAD,
    LINEAR,
    PLAIN,
    UNBEND,
    UNBEND_NEGATIVE,
    LayerLog,
)
from paramsym.relu.network import Network


@dataclass
class BoundedForms:
    """Two networks over one registry of float atoms.

    Attributes:
        bound: (m, 2): |f - g| <= offset + slope·|x| on the domain, per output.
        explained: whether every residual is within rounding.
        logs, atoms: the certificate.
    """

    bound: np.ndarray
    explained: bool
    logs: tuple[list[LayerLog], list[LayerLog]]
    atoms: Atoms

    def upper(self, radius: float) -> float:
        """The largest |f - g| over outputs and |x| <= radius."""
        return float((self.bound[:, 0] + self.bound[:, 1] * radius).max() * UP)


class _Reader:
    """One network being rewritten; the state is that of the last finished layer."""

    def __init__(self, net: Network, atoms: Atoms, reach: Reach, radius: float) -> None:
        self.net, self.atoms, self.reach, self.radius = net, atoms, reach, radius
        self.log: list[LayerLog] = []

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, magnitudes and errors of the outputs."""
        d = self.atoms.dimension
        for index, (weight, bias) in enumerate(self.net.floats):
            tick()
            if index == 1 and self.net.depth == 1:
                return self._shallow_output(weight, bias)
            if index == 0:
                rows = np.concatenate([weight, bias[:, None]], axis=1)
                size = np.abs(rows)
                error = np.zeros((len(bias), 2))
                rounding = 0.0 if self.net.born_float else 2 * UNIT
            else:
                rows = weight @ self.pad(self.y)
                rows[:, d] += bias
                size = np.abs(weight) @ self.pad(self.my)
                size[:, d] += np.abs(bias)
                error = np.abs(weight) @ self.ey * UP
                rounding = (weight.shape[1] + 6) * UNIT
            if rounding:
                error = error + rounding * self.atoms.largest(size)
            error[:, 0] += TINY
            if index == len(self.net) - 1:
                return rows, size, error
            self._layer(index, weight, bias, rows, size, error)
        raise AssertionError("a network without layers")

    def pad(self, rows: np.ndarray) -> np.ndarray:
        """Zeros for atoms that are newer than the rows."""
        missing = self.atoms.size - rows.shape[1]
        return np.pad(rows, ((0, 0), (0, missing))) if missing else rows

    def _far(self, error: np.ndarray) -> np.ndarray:
        """The largest offset + slope·|x| on the domain."""
        with np.errstate(invalid="ignore"):
            return error[:, 0] + np.where(error[:, 1] > 0, error[:, 1] * self.reach.radius, 0.0)

    # ------------------------------------------------------------ one layer

    def _layer(self, index, weight, bias, rows, size, error) -> None:
        n, d, atoms = len(bias), self.atoms.dimension, self.atoms
        low, high, room, dp, merged = self._interval(index, weight, bias, rows, size, error)
        log = LayerLog(np.full(n, PLAIN), np.full(n, -1), np.ones(n), np.zeros(n), {})
        varying = np.abs(rows)
        varying[:, d] = 0
        constant = ~np.any(varying > NOISE * UNIT * size, axis=1)
        log.rule[constant] = CONSTANT
        log.rule[~constant & (high <= room)] = DEAD
        log.rule[~constant & (high > room) & (low >= -room)] = LINEAR
        dy, ez = dp.copy(), dp + error
        z, mz = (rows.copy(), size.copy()) if index else (rows, size)
        if index:
            for unit in np.flatnonzero(log.rule == PLAIN):
                self._unbend(int(unit), weight[unit], merged, z, mz, ez, dy, dp, error, log)
        ey = np.zeros_like(error)
        y = np.zeros_like(rows)
        const, dead, line = (log.rule == r for r in (CONSTANT, DEAD, LINEAR))
        if const.any():
            y[const, d] = np.maximum(rows[const, d], 0)
            ey[const] = error[const] + atoms.largest(varying[const])
        ey[dead] = dp[dead]
        ey[dead, 0] += np.maximum(high[dead], 0)
        y[line] = rows[line]
        ey[line] = error[line] + dp[line]
        ey[line, 0] += np.maximum(-low[line], 0)
        dy[const | dead] = ey[const | dead]
        bent = np.flatnonzero(log.rule >= PLAIN)
        width = atoms.size if index else d + 1
        residual = np.zeros((n, 2))
        for unit in bent:
            atom, sign, scale, rest = atoms.match(z[unit, :width], mz[unit, :width], self.radius)
            log.atom[unit], log.sign[unit], log.scale[unit] = atom, sign, scale
            residual[unit] = rest
        self.log.append(log)
        if self.net.depth == 1:
            self._keep_factored(log, rows, size, y, ey, error, residual)
            return
        my = np.zeros_like(size)
        my[const, d] = size[const, d]
        my[line] = size[line]
        y, my, z, mz = (self.pad(v) for v in (y, my, z, mz))
        for unit in bent:
            place, scale = d + 1 + log.atom[unit], log.scale[unit]
            y[unit], my[unit] = z[unit] / 2, mz[unit] / 2
            y[unit, place] += scale / 2
            my[unit, place] += scale / 2
            if log.rule[unit] == PLAIN:
                ey[unit] = error[unit] + residual[unit] / 2
                continue
            ey[unit] = dy[unit] + ez[unit] + residual[unit] / 2
            if log.rule[unit] == UNBEND_NEGATIVE:  # relu(p) = p + relu(q), q for -p
                y[unit, :width] += rows[unit]
                my[unit, :width] += size[unit]
                ey[unit] += error[unit] + dp[unit]
                ey[unit] += 2 * UNIT * atoms.largest(my[unit : unit + 1])[0]
                z[unit, :width], mz[unit, :width] = rows[unit], size[unit]
                ez[unit], dy[unit] = dp[unit] + error[unit], dp[unit]
        other = log.rule < PLAIN
        z[other], mz[other], ez[other] = y[other], my[other], ey[other] + dy[other]
        top = np.where(dead, 0.0, np.where(const, np.maximum(rows[:, d], 0), np.maximum(high, 0)))
        self.y, self.my, self.ey, self.z, self.mz = y, my, ey, z, mz
        self.groups = grouped(atoms, log, y, z, mz, ey, ez, dy, residual, top)

    def _interval(self, index, weight, bias, rows, size, error):
        """Bounds of the nominal pre-activations, what of them is mere rounding, and |p - p°|."""
        d, n = self.atoms.dimension, len(bias)
        room = NOISE * UNIT * size[:, d]
        low, high = np.full(n, -np.inf), np.full(n, np.inf)
        dp, merged = error.copy(), None
        if index:
            groups = self.groups
            dp = np.abs(weight) @ groups.dy * UP
            spread = np.zeros((weight.shape[1], len(groups.top)))
            alive = np.flatnonzero(groups.of >= 0)
            spread[alive, groups.of[alive]] = groups.share[alive]
            total, scale = weight @ spread, np.abs(weight) @ spread
            noise = np.abs(total) <= NOISE * UNIT * scale
            dp = dp + (np.abs(total) * noise) @ groups.size * UP
            dp = dp + (weight.shape[1] + 6) * UNIT * (scale @ groups.size)
            if not self.net.born_float:
                dp = dp + 2 * UNIT * (scale @ groups.size)
            dp[:, 0] += 4 * UNIT * np.abs(bias) + TINY
            total = np.where(noise, 0.0, total)
            fixed = np.flatnonzero(groups.of < 0)
            base = bias + weight[:, fixed] @ self.y[fixed, d]
            magnitude = np.abs(bias) + np.abs(weight[:, fixed]) @ self.my[fixed, d]
            dp[:, 0] += (len(fixed) + 6) * UNIT * magnitude
            merged = (total, base, magnitude)
            plus, minus = np.maximum(total, 0), np.minimum(total, 0)
            open_ends = ~np.isfinite(groups.top)
            top = np.where(open_ends, 0.0, groups.top)
            magnitude = magnitude + np.abs(total) @ top
            slack = (weight.shape[1] + 6) * UNIT * magnitude
            up = np.where(plus[:, open_ends].any(axis=1), np.inf, plus @ top + base + slack)
            down = np.where(minus[:, open_ends].any(axis=1), -np.inf, minus @ top + base - slack)
            low, high = np.maximum(low, down), np.minimum(high, up)
            room = np.maximum(room, NOISE * UNIT * magnitude)
        affine = ~np.any(np.abs(rows[:, d + 1 :]) > 0, axis=1)
        if affine.any():
            lo, hi = self.reach.span(rows[affine, :d], rows[affine, d])
            total_error = self._far(error[affine] + dp[affine])
            low[affine] = np.fmax(low[affine], lo - total_error)
            high[affine] = np.fmin(high[affine], hi + total_error)
        return low, high, room, dp, merged

    def _unbend(self, unit, weights, merged, z, mz, ez, dy, dp, error, log) -> None:
        """Read relu(w·relu(u) + r) as relu(w·u + r) where r <= 0, up to rounding."""
        tick()
        groups = self.groups
        total, base, magnitude = (v[unit] for v in merged)
        rule_before = self.log[-1].rule
        bendable = np.ones(len(total), dtype=bool)
        bendable[groups.of[np.flatnonzero(rule_before == LINEAR)]] = False
        for sign in (1.0, -1.0):
            good = sign * total > 0
            open_ends = np.flatnonzero(good & ~np.isfinite(groups.top))
            finite = good & np.isfinite(groups.top)
            bounded = sign * base + float(sign * total[finite] @ groups.top[finite])
            scale = magnitude + float(np.abs(total[finite]) @ groups.top[finite])
            chosen: list[int] = []
            excess = 0.0
            for g in np.flatnonzero(good & bendable):
                if any(o != g for o in open_ends):
                    continue
                rest = bounded - (sign * total[g] * groups.top[g] if finite[g] else 0.0)
                rest += (len(weights) + 6) * UNIT * scale
                if rest <= NOISE * UNIT * scale:
                    chosen += [int(k) for k in np.flatnonzero(groups.of == g) if weights[k]]
                    excess += max(rest, 0.0)
            if not chosen:
                continue
            w = weights[chosen]
            width = z.shape[1]
            z[unit] = sign * z[unit] + sign * (w @ (self.z[chosen] - self.y[chosen]))[:width]
            mz[unit] += np.abs(w) @ (self.mz[chosen] + self.my[chosen])[:, :width]
            ez[unit] = dp[unit] + error[unit]
            ez[unit] += np.abs(w) @ (groups.dz[chosen] + groups.dy[chosen] + self.ey[chosen])
            ez[unit] += (len(weights) + 12) * UNIT * self.atoms.largest(mz[unit : unit + 1])[0]
            dy[unit] = dp[unit] + [excess, 0.0]
            log.rule[unit] = UNBEND if sign > 0 else UNBEND_NEGATIVE
            log.units[unit] = tuple(chosen)
            return

    # ------------------------------------------------------------ one hidden layer

    def _keep_factored(self, log, rows, size, y, ey, error, residual) -> None:
        """Keep the only hidden layer factored: y = share·row + scale/2 at the atom."""
        plain = log.rule == PLAIN
        share = np.where(plain, 0.5, np.where(log.rule == LINEAR, 1.0, 0.0))
        ey[plain] = error[plain] + residual[plain] / 2
        constant = np.where(log.rule == CONSTANT, y[:, self.atoms.dimension], 0.0)
        self.factored = (share, rows, size, log, constant, ey)

    def _shallow_output(self, weight: np.ndarray, bias: np.ndarray):
        """Rows, magnitudes and errors of the outputs from the factored hidden layer."""
        share, rows, size, log, constant, ey = self.factored
        d = self.atoms.dimension
        out = np.zeros((len(bias), self.atoms.size))
        mag = np.zeros_like(out)
        out[:, : d + 1] = (weight * share) @ rows
        mag[:, : d + 1] = (np.abs(weight) * share) @ size
        out[:, d] += weight @ constant + bias
        mag[:, d] += np.abs(weight) @ constant + np.abs(bias)
        plain = np.flatnonzero(log.rule == PLAIN)
        half = weight[:, plain] * (log.scale[plain] / 2)
        np.add.at(out.T, d + 1 + log.atom[plain], half.T)
        np.add.at(mag.T, d + 1 + log.atom[plain], np.abs(half).T)
        error = np.abs(weight) @ ey * UP
        error = error + (weight.shape[1] + 8) * UNIT * self.atoms.largest(mag)
        error[:, 0] += TINY
        return out, mag, error


def bounded_forms(a: Network, b: Network, domain: Domain, radius: float = 0.0) -> BoundedForms:
    """Rewrite both networks and bound their difference on a domain.

    Args:
        radius: rows closer than this (relative) may share an atom; 0 allows rounding only.
    """
    reach = Reach.of(domain)
    if reach is None:
        raise ValueError(f"bounded_forms: no float bounds on {domain}")
    atoms = Atoms(a.input_dim)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        left, right = _Reader(a, atoms, reach, radius), _Reader(b, atoms, reach, radius)
        f, mf, ef = left.read()
        g, mg, eg = right.read()
        f, mf = left.pad(f), left.pad(mf)
        g, mg = right.pad(g), right.pad(mg)
        gap, size = f - g, mf + mg
        bound = atoms.largest(np.abs(gap) + UNIT * size) + ef + eg
    within = bool(np.isfinite(bound).all()) and all(
        explained(p, q, atoms.dimension) for p, q in zip(gap, size, strict=True)
    )
    bound = np.where(np.isfinite(bound), bound, np.inf) * UP
    return BoundedForms(bound, within and radius == 0.0, (left.log, right.log), atoms)
