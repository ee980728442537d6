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
        along_size = np.linalg.norm(along, axis=1)
        if (along_size == 0).any():
            raise Loud
        value = self._values(cell, gaps, scale, corners)
        tilt = self._values(cell, gaps, scale, ways) / along_size[:, None]
        unit = along / along_size[:, None]
        loud = np.abs(value) > self._noise(at)
        far = 2.0**40
        loud_way = np.abs(tilt) > self._noise(unit * far) / far
        if loud.any() or loud_way.any():
            raise Loud
        direction, slope = np.zeros(len(self.base)), 0.0
        if len(ways):
            total = unit.sum(axis=0)
            size = float(np.linalg.norm(total))
            direction = total / size * (1 - 1e-9) if size > 0 else total
            cosine = unit @ direction
            if (cosine <= 1e-6).any():
                raise Loud
            slope = float((np.abs(tilt).max(axis=1) / cosine).max()) * (1 + 1e-6) + 1e-290
        along_direction = at @ direction
        need = np.abs(value).max(axis=1) - slope * along_direction
        spread = np.abs(value).max(axis=1) + slope * np.abs(at).sum(axis=1)
        offset = max(0.0, float((need + 1e-6 * spread).max())) + 1e-290
        tight = []
        for k in range(value.shape[1]):
            for sign in (1.0, -1.0):
                rest = offset + slope * along_direction - sign * value[:, k]
                tight.append(cell.tight[corners[int(rest.argmin())]])
        return LeafBound(offset, slope, tuple(float(v) for v in direction), tuple(tight))

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


def _size(ray: Form) -> int:
    return max(abs(v) for v in ray)
