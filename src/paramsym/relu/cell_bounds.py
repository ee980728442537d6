"""Joint cells in float mode: on each cell f - g is affine and must be within rounding.

Rounded twins differ exactly, also by slivers of cells where activations disagree, so "equal on
each cell" fails. What still holds on a cell C with affine difference Δ is a bound
|Δ_k(x)| <= offset + slope·u·x with a vector |u| <= 1, chosen from the vertices and rays of C and
proved afterwards by Farkas multipliers; then |f - g| <= offset + slope·|x| on C, and the largest
offset and slope hold on the whole domain.
"""

from __future__ import annotations

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.cells import Cell, Enumeration, Form
from paramsym.relu.float_atoms import NOISE, UNIT
from paramsym.relu.logs import LeafBound
from paramsym.relu.network import Network
from paramsym.relu.precision import coarse, rounding_at
from paramsym.relu.rationals import nearest_float

_FAR = 2.0**40  # where rays are compared with rounding, which is relative


class Loud(Exception):
    """A cell where the difference is beyond rounding."""


class Tolerance:
    """Bounds for the leaves of one enumeration."""

    def __init__(self, a: Network, b: Network, enumeration: Enumeration) -> None:
        self.a, self.b, self.run = a, b, enumeration
        frame = enumeration.frame
        d, r = frame.lift.nrows(), frame.lift.ncols()
        self.lift = np.array([nearest_float(v) for v in frame.lift.entries()]).reshape(d, r)
        self.base = np.array([nearest_float(v) for v in frame.base])

    def leaf(self, cell: Cell, gaps: list[Form], scale: int) -> LeafBound:
        """The bound on a cell with difference gaps/scale; raises `Loud` if beyond rounding."""
        corners = [k for k, ray in enumerate(cell.rays) if ray[-1] > 0]
        ways = [k for k, ray in enumerate(cell.rays) if ray[-1] == 0]
        at = self._inputs([cell.rays[k] for k in corners]) + self.base
        along = self._inputs([cell.rays[k] for k in ways])
        length = np.linalg.norm(along, axis=1)[:, None]
        if (length == 0).any():
            raise Loud
        value = self._values(cell, gaps, scale, corners)
        tilt = self._values(cell, gaps, scale, ways) / length
        self._require_quiet(value, at)
        self._require_quiet(tilt * _FAR, along / length * _FAR)
        direction, slope = _tilted(along / length, np.abs(tilt))
        rise = slope * (at @ direction)
        size = np.abs(value).max(axis=1)
        spread = size + slope * np.abs(at).sum(axis=1)
        offset = max(0.0, float((size - rise + 1e-6 * spread).max())) + 1e-290
        tight = [
            cell.tight[corners[int((offset + rise - sign * value[:, k]).argmin())]]
            for k in range(value.shape[1])
            for sign in (1.0, -1.0)
        ]
        return LeafBound(offset, slope, tuple(float(v) for v in direction), tuple(tight))

    def _require_quiet(self, value: np.ndarray, points: np.ndarray) -> None:
        """Raise `Loud` where a difference at a point is beyond what rounding can do there."""
        if (np.abs(value) > self._noise(points)).any():
            raise Loud

    def _inputs(self, rays: list[Form]) -> np.ndarray:
        r = self.lift.shape[1]
        table = np.array(
            [[nearest_float(fmpq(v, ray[-1] or _size(ray))) for v in ray[:-1]] for ray in rays]
        ).reshape(len(rays), r)
        return table @ self.lift.T

    def _values(self, cell: Cell, gaps: list[Form], scale: int, chosen: list[int]) -> np.ndarray:
        out = np.zeros((len(chosen), len(gaps)))
        for i, k in enumerate(chosen):
            ray = cell.rays[k]
            weight = (ray[-1] or _size(ray)) * scale
            for o, gap in enumerate(gaps):
                total = sum(g * v for g, v in zip(gap, ray, strict=True))
                out[i, o] = nearest_float(fmpq(total, weight))
        return out

    def _noise(self, points: np.ndarray) -> np.ndarray:
        """What rounding of the weights can do at the points (N, d): (N, m)."""
        if not len(points):
            return np.zeros((0, self.a.output_dim))
        with np.errstate(over="ignore"):
            noise = np.maximum(self.a.magnitude(points), self.b.magnitude(points)) * NOISE * UNIT
            if coarse(self.a, self.b):
                for net in (self.a, self.b):
                    noise += np.array([rounding_at(net, x) for x in points])
        return noise


def _tilted(ways: np.ndarray, tilt: np.ndarray) -> tuple[np.ndarray, float]:
    """(u, slope) with |u| <= 1 and tilt <= slope·u·way along all unit ways of a cell to infinity.

    Raises `Loud` if no one direction leads along all of them.
    """
    if not len(ways):
        return np.zeros(ways.shape[1]), 0.0
    total = ways.sum(axis=0)
    size = float(np.linalg.norm(total))
    direction = total / size * (1 - 1e-9) if size > 0 else total
    cosine = ways @ direction
    if (cosine <= 1e-6).any():
        raise Loud
    return direction, float((tilt.max(axis=1) / cosine).max()) * (1 + 1e-6) + 1e-290


def _size(ray: Form) -> int:
    return max(abs(v) for v in ray)
