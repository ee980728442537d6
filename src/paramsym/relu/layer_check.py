"""One layer of a float certificate, replayed unit by unit in extended precision.

A log names the rule by which each unit was read. Every rule here checks its condition and says what
the unit becomes (`_Read`): a row over the basis x, 1, atoms, and how far the true value is from it.
Units that were read as one atom are one unit up to scale; `_settle` gives each such group one
nominal value A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.logs import LayerLog
from paramsym.relu.nominal_check import EPS, FLOAT, Basis, Group, Long, Nominal, Units


@dataclass
class Layer:
    """A layer about to be replayed: its weights, and the rows of its pre-activations.

    `error` >= |true pre-activation - row|, and `born_float` says whether the weights are exact.
    """

    log: LayerLog
    weight: np.ndarray
    bias: np.ndarray
    rows: np.ndarray
    error: np.ndarray
    born_float: bool


@dataclass
class _Read:
    """What one unit was read as: see `Units`; `own` >= |true - nominal|, before it is a group's.

    `ez` >= |nominal under the ReLU - z|; `apart` bounds |z - share·atom|.
    """

    y: np.ndarray
    ey: np.ndarray
    z: np.ndarray
    own: np.ndarray
    ez: np.ndarray = field(default_factory=lambda: np.zeros(2))
    apart: np.ndarray = field(default_factory=lambda: np.zeros(2))
    share: float = 1.0
    group: Group | None = None
    top: float = 0.0


def replayed(basis: Basis, layer: Layer, before: Units | None) -> Units | None:
    """The layer as its log reads it; None if the condition of a rule does not hold."""
    reads: list[_Read] = []
    for i in range(len(layer.rows)):
        tick()
        read = _Unit(basis, layer, before, i).read()
        if read is None:
            return None
        reads.append(read)
    shape = len(reads), basis.width
    units = Units(
        np.array([r.y for r in reads], dtype=Long).reshape(shape),
        np.array([r.z for r in reads], dtype=Long).reshape(shape),
        _pairs(r.ey for r in reads),
        _pairs(r.own for r in reads),
        np.zeros((len(reads), 2)),
        np.array([r.share for r in reads]),
        [r.group for r in reads],
    )
    for i, name in enumerate(units.group):
        if name is not None:
            units.members.setdefault(name, []).append(i)
    for name in units.members:
        _settle(basis, units, name, reads)
    return units


def _pairs(bounds) -> np.ndarray:
    return np.array(list(bounds), dtype=float).reshape(-1, 2)


def _settle(basis: Basis, units: Units, name: Group, reads: list[_Read]) -> None:
    """One nominal value for the units of a group: that of the member with the least top."""
    members = units.members[name]
    apart = {k: reads[k].apart for k in members}
    first = members[0]
    if name[0] != "atom":  # distances are between the rows themselves
        apart[first] = np.zeros(2)
        for k in members[1:]:
            ratio = Long(units.share[k]) / Long(units.share[first])
            gap = np.abs(units.z[k] - ratio * units.z[first])
            size = np.abs(units.z[k]) + ratio * np.abs(units.z[first])
            apart[k] = basis.size(gap + 4 * EPS * size)
    head = min(members, key=lambda k: reads[k].top / units.share[k])
    units.top[name] = float(reads[head].top / units.share[head])
    reach = basis.size(units.y[head]) + units.ey[head] + reads[head].own
    units.reach[name] = reach / units.share[head] * (1 + 1e-9)
    for k in members:
        if k == head:
            units.dz[k] = reads[k].ez
        else:
            ratio = units.share[k] / units.share[head]
            common = apart[head] + reads[head].ez
            units.dz[k] = (apart[k] + ratio * common) * (1 + 1e-9)
            units.dy[k] = reads[k].own + reads[k].ez + units.dz[k]


class _Unit:
    """One unit, to be read by the rule that the log names."""

    def __init__(self, basis: Basis, layer: Layer, before: Units | None, index: int) -> None:
        self.basis, self.row, self.error = basis, layer.rows[index], layer.error[index]
        log = layer.log
        self.rule, self.atom = int(log.rule[index]), int(log.atom[index])
        self.sign, self.scale = log.sign[index], log.scale[index]
        self.chosen = log.units.get(index, ())
        self.nominal = Nominal(
            basis, layer.weight[index], float(layer.bias[index]), before, self.error,
            layer.born_float,
        )  # fmt: skip
        self.low, self.high = self._range()

    def read(self) -> _Read | None:
        """What the unit becomes; None for a rule that is none, or whose condition fails."""
        if not 0 <= self.rule < len(_RULES):
            return None
        read = _RULES[self.rule](self)
        if read is not None:
            read.top = max(self.high, 0.0)
        return read

    def _range(self) -> tuple[float, float]:
        """Bounds of the nominal value: from its parts and, where the row is affine, from that."""
        low, high = self.nominal.low, self.nominal.high
        basis, row, d = self.basis, self.row, self.basis.dimension
        if np.any(row[d + 1 :]):
            return low, high
        lo, hi = basis.reach.range(row[None, :d].astype(float), row[None, d].astype(float))
        size = basis.size(row)
        slack = basis.most(self.error) + basis.most(self.nominal.error)
        slack += 4 * FLOAT * (basis.most(size) if np.any(row[:d]) else float(size[0]))
        if not np.isfinite(slack):
            return low, high
        return max(low, float(lo[0]) - slack), min(high, float(hi[0]) + slack)

    # ------------------------------------------------------------ rules

    def constant(self) -> _Read:
        """relu(row) for a row that is all but its constant, at the cost of the rest."""
        d, loose = self.basis.dimension, self.row.copy()
        loose[d] = 0
        value = np.zeros_like(self.row)
        value[d] = max(self.row[d], 0)
        error = self.error + self.basis.size(loose)
        return _Read(value, error, np.zeros_like(self.row), error)

    def dead(self) -> _Read | None:
        """Zero, at the cost of what the pre-activation exceeds it by."""
        if not np.isfinite(self.high):
            return None
        nothing = np.zeros_like(self.row)
        error = self.nominal.error + [max(self.high, 0.0), 0.0]
        return _Read(nothing, error, nothing, error)

    def linear(self) -> _Read | None:
        """The row itself, at the cost of what it falls below zero by."""
        if not np.isfinite(self.low) or not self.scale > 0:
            return None
        own = self.nominal.error
        error = self.error + own + [max(-self.low, 0.0), 0.0]
        group = ("linear", self.atom)
        return _Read(self.row, error, self.row, own, error + own,
                     share=float(self.scale), group=group)  # fmt: skip

    def plain(self) -> _Read | None:
        """relu(z) = z/2 + |z|/2 with |z| read as a multiple of an atom."""
        own = self.nominal.error
        return self._bent(self.row, own + self.error, own, self.error)

    def unbend(self) -> _Read | None:
        """relu(w·relu(u) + r) = relu(w·u + r)."""
        made = self.nominal.unbend(1, self.chosen, self.row, self.error)
        if made is None:
            return None
        z, ez, excess = made
        own = self.nominal.error + [excess, 0.0]
        return self._bent(z, ez, own, own + ez)

    def unbend_negative(self) -> _Read | None:
        """relu(p) = p + relu(-p), the latter unbent: z is p, the atom that of -p."""
        made = self.nominal.unbend(-1, self.chosen, self.row, self.error)
        if made is None:
            return None
        z, ez, excess = made
        own = self.nominal.error
        read = self._bent(z, ez, own, own + [excess, 0.0] + ez)
        if read is None:
            return None
        read.y = read.y + self.row
        rounding = self._rounding(z) + 4 * EPS * self.basis.size(self.row)
        read.ey = read.ey + self.error + own + rounding
        read.z, read.ez = self.row, own + self.error
        read.group = ("negative", self.atom, float(self.sign))
        return read

    def _bent(self, z, ez, own, error) -> _Read | None:
        """relu(z) with |z| read as the atom, where the true value is within `error` of relu(z)."""
        factor = Long(self.sign) * Long(self.scale)
        if not 0 <= self.atom < len(self.basis.atoms) or not factor:
            return None
        atom, gap, size = self.basis.atoms[self.atom], z.copy(), abs(factor)
        gap[: len(atom)] -= factor * atom
        rounding = self._rounding(z)
        apart = self.basis.size(gap) + rounding
        y = z / 2
        y[self.basis.dimension + 1 + self.atom] += size / 2
        group = ("atom", self.atom, float(self.sign))
        return _Read(y, error + apart / 2 + rounding, z, own, ez, apart, float(size), group)

    def _rounding(self, z: np.ndarray) -> np.ndarray:
        """What extended precision loses where z is compared with a multiple of its atom."""
        factor = float(Long(self.sign) * Long(self.scale))
        return 4 * EPS * (self.basis.size(z) + abs(factor) * self.basis.sup[self.atom])


# In the order of `logs`: CONSTANT, DEAD, LINEAR, PLAIN, UNBEND, UNBEND_NEGATIVE.
_RULES: tuple[Callable[[_Unit], _Read | None], ...] = (
    _Unit.constant, _Unit.dead, _Unit.linear, _Unit.plain, _Unit.unbend, _Unit.unbend_negative,
)  # fmt: skip
