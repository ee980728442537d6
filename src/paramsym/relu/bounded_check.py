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
from paramsym.relu.layer_check import Layer, replayed
from paramsym.relu.logs import CONSTANT, DEAD, LINEAR, PLAIN, LayerLog, fits
from paramsym.relu.network import Network
from paramsym.relu.nominal_check import EPS, FLOAT, Basis, Long, Units
from paramsym.relu.spans import Span


def checked_bound(a: Network, b: Network, domain: Domain, data: Any) -> np.ndarray | None:
    """(m, 2): |f - g| <= offset + slope·|x| on the domain, or None if the log is not valid."""
    reach = Span.of(domain)
    if reach is None:
        return None
    atoms = [np.asarray(row, dtype=Long) for row in data["atoms"]]
    d = a.input_dim
    basis = Basis(d, atoms, np.zeros((len(atoms), 2)), reach)
    for k, row in enumerate(atoms):
        tick()
        if len(row) > d + 1 + k or len(row) < d + 1:
            return None  # an atom may only use earlier ones
        basis.sup[k] = basis.size(row)
    sides = []
    with np.errstate(all="ignore"):
        for net, log in zip((a, b), data["logs"], strict=True):
            side = _Side(net, basis).run(log)
            if side is None:
                return None
            sides.append(side)
        (f, ef), (g, eg) = sides
        gap = np.array([basis.size(row) for row in f - g])
        bound = (gap + ef + eg) * (1 + 1e-9)
    return bound if np.isfinite(bound).all() else None


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right by blocks of rows: extended precision has no fast product to call at once."""
    at_once = max(1, 4_000_000 // max(1, right.size))
    parts = []
    for start in range(0, len(left), at_once):
        tick()
        parts.append(left[start : start + at_once] @ right)
    return np.concatenate(parts) if parts else left @ right


class _Side:
    """One network, replayed layer by layer."""

    def __init__(self, net: Network, basis: Basis) -> None:
        self.net, self.basis, self.reach = net, basis, basis.reach
        self.d = net.input_dim

    def run(self, log: list[LayerLog]) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows of the outputs and their errors; None if the log is not valid."""
        if not fits(log, self.net.widths):
            return None
        if self.net.depth == 1:
            return self._one_hidden_layer(log[0])
        d = self.d
        y = np.zeros((d, self.basis.width), dtype=Long)
        ey = np.zeros((d, 2))
        before: Units | None = None
        for index, (weight, bias) in enumerate(self.net.floats):
            w = weight.astype(Long)
            rows = self._wide(w if index == 0 else _product(w, y))
            rows[:, d] += bias
            size = self._wide(np.abs(w) if index == 0 else _product(np.abs(w), np.abs(y)))
            size[:, d] += np.abs(bias)
            unit = 0.0 if index == 0 else (weight.shape[1] + 4) * EPS
            unit += 0.0 if self.net.born_float else 1.01 * FLOAT
            error = self._sizes(size) * unit
            if index:
                error += np.abs(weight) @ ey * (1 + 1e-9)
            error[:, 0] += 1e-290
            if index == self.net.depth:
                return rows, error
            if len(log[index].rule) != len(rows):
                return None
            layer = Layer(log[index], weight, bias, rows, error, self.net.born_float)
            before = replayed(self.basis, layer, before)
            if before is None:
                return None
            y, ey = before.y, before.ey
        return None

    def _sizes(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self.basis.size(row) for row in rows]).reshape(-1, 2)

    def _wide(self, rows: np.ndarray) -> np.ndarray:
        return np.pad(rows, ((0, 0), (0, self.basis.width - rows.shape[1])))

    def _one_hidden_layer(self, log: LayerLog) -> tuple[np.ndarray, np.ndarray] | None:
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
        out = np.zeros((m, self.basis.width), dtype=Long)
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
                if not 0 <= k < len(self.basis.atoms) or len(self.basis.atoms[k]) > d + 1:
                    return None
                factor = Long(log.sign[i]) * Long(log.scale[i])
                gap = (rows[i] - factor * self.basis.atoms[k]).astype(float)
                rest = np.array([abs(gap[d]), np.linalg.norm(gap[:d])]) * (1 + 1e-9)
                rest += (
                    4 * EPS * (np.array([abs(b1[i]), norms[i]]) + abs(factor) * self.basis.sup[k])
                )
                share[i] = 0.5
                error[i] += rest / 2
                out[:, d + 1 + k] += w2[:, i].astype(Long) * abs(factor) / 2
            else:
                return None
        out[:, : d + 1] = _product(w2.astype(Long) * share, rows.astype(Long))
        out[:, d] += w2.astype(Long) @ kept.astype(Long) + b2
        size = np.zeros((m, self.basis.width))
        size[:, : d + 1] = (np.abs(w2) * share) @ np.abs(rows)
        size[:, d] += np.abs(w2) @ kept + np.abs(b2)
        plain = np.flatnonzero(share == 0.5)
        half = np.abs(w2[:, plain]) * (log.scale[plain] / 2)
        np.add.at(size.T, d + 1 + log.atom[plain], half.T)
        total = np.abs(w2) @ error * (1 + 1e-9)
        unit = (n + 6) * EPS + (0 if born else 1.01 * FLOAT)
        total += unit * self._sizes(size)
        total[:, 0] += 1e-290
        return out, total
