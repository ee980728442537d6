"""Units of one layer that are one unit up to scale: weights on them are added before they cancel.

Units that were read as one atom, in one orientation, have one nominal value A, that of the member
with the least upper bound; linear units are grouped by their rows. How far the rows of the members
are from each other is paid for, as everything is in the float form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.float_atoms import UNIT, UP, Atoms, explained
from paramsym.relu.logs import CONSTANT, DEAD, LINEAR, UNBEND_NEGATIVE, LayerLog

_TRIED = 256  # linear units that a further one is compared with

Key = tuple[int, float, int]  # (atom or -1 - head, orientation, whether z is p and not q)


@dataclass
class Groups:
    """Units of a layer read as share·A, with one nominal A for each group.

    Attributes:
        of: unit ↦ group, -1 for dead and constant units.
        share: unit ↦ its scale relative to A.
        top: group ↦ upper bound of A.
        size: group ↦ (offset, slope) bounding A.
        dy, dz: unit ↦ errors relative to the common A, as in the head of `bounded`.
    """

    of: np.ndarray
    share: np.ndarray
    top: np.ndarray
    size: np.ndarray
    dy: np.ndarray
    dz: np.ndarray


def grouped(atoms: Atoms, log: LayerLog, y, z, mz, ey, ez, dy, residual, top) -> Groups:
    """The groups of a layer whose units were read as the log says.

    Args:
        log: gets the heads and factors of linear units.
        y, z, mz: (units, basis) rows of the values and of what is under the ReLU, and magnitudes.
        ey, ez, dy: (units, 2) errors, as in the head of `bounded`.
        residual: (units, 2), what reading |z| as an atom costs.
        top: (units,) upper bounds of the nominal values.
    """
    members, apart = _members(atoms, log, z, mz, residual)
    share = np.where(log.scale > 0, log.scale, 1.0)
    of = np.full(len(top), -1)
    group_top, group_size = np.zeros(len(members)), np.zeros((len(members), 2))
    dy, dz = dy.copy(), ez.copy()
    for number, units in enumerate(members):
        of[units] = number
        head = min(units, key=lambda k: top[k] / share[k])
        group_top[number] = top[head] / share[head]
        reach = atoms.largest(y[head : head + 1])[0] + ey[head] + dy[head]
        group_size[number] = reach / share[head] * UP
        common = apart[head] + ez[head]
        for k in units:
            if k != head:
                dz[k] = apart[k] + share[k] / share[head] * common
                dy[k] = dy[k] + ez[k] + dz[k]
    return Groups(of, share, group_top, group_size, dy, dz)


def _members(
    atoms: Atoms, log: LayerLog, z, mz, residual: np.ndarray
) -> tuple[list[list[int]], np.ndarray]:
    """The units of each group, and how far each is from what its group was read as."""
    keys: dict[Key, list[int]] = {}
    apart = residual.copy()
    heads: list[int] = []
    for unit in np.flatnonzero((log.rule != DEAD) & (log.rule != CONSTANT)).tolist():
        rule = int(log.rule[unit])
        key = (int(log.atom[unit]), float(log.sign[unit]), int(rule == UNBEND_NEGATIVE))
        if rule == LINEAR:
            head, factor = _parallel(z, mz, unit, heads, atoms.dimension)
            log.atom[unit], log.scale[unit] = head, factor
            key = (-1 - head, 0.0, 0)
            if head == unit:
                heads.append(unit)
            else:
                apart[unit] = _distance(atoms, *_beside(z, mz, unit, head, factor))
        elif rule == UNBEND_NEGATIVE:
            # Here z is p while the atom is that of q: the distance to the first p counts.
            apart[unit] = 0.0
            if key in keys:
                first = keys[key][0]
                beside = _beside(z, mz, unit, first, log.scale[unit] / log.scale[first])
                if explained(*beside, atoms.dimension):
                    apart[unit] = _distance(atoms, *beside)
                else:
                    key = (-1 - unit, 0.0, 1)
        keys.setdefault(key, []).append(unit)
    return list(keys.values()), apart


def _beside(z, mz, unit: int, head: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """The difference of a row from a multiple of another, and its magnitudes."""
    return z[unit] - factor * z[head], mz[unit] + factor * mz[head]


def _distance(atoms: Atoms, gap: np.ndarray, size: np.ndarray) -> np.ndarray:
    """(offset, slope) of a difference of rows, its rounding included."""
    return atoms.largest((np.abs(gap) + 4 * UNIT * size)[None, :])[0]


def _parallel(z, mz, unit: int, heads: list[int], dimension: int) -> tuple[int, float]:
    """The first linear unit whose row is proportional up to rounding, and the factor."""
    tick()
    for head in heads[:_TRIED]:
        factor = float(z[unit] @ z[head]) / float(z[head] @ z[head])
        if factor > 0 and explained(*_beside(z, mz, unit, head, factor), dimension):
            return head, factor
    return unit, 1.0
