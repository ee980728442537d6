"""Passes over all weights at given scales: ranges, a start, and the weights that matter.

Weights are scaled in double precision, panel by panel, and never stored a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paramsym.quantize.incidence import Edges, Incidence, Rows

_PANEL = 1 << 17  # weights that are scaled at a time; they stay in the cache
_SWEEPS = 2


class Panel(NamedTuple):
    """Some rows of a block, scaled, with the nodes of each weight."""

    slot: int
    upper: Tensor
    lower: Tensor
    raising: Tensor
    lowering: Tensor

    @property
    def sides(self) -> tuple[tuple[int, int, np.ndarray], ...]:
        """The slot of each sign, the sign, and the weights that may be largest there."""
        return (self.slot, 1, self.upper.numpy()), (self.slot + 1, -1, self.lower.numpy())


def panels(rows: Rows, up: Tensor | None, down: Tensor | None) -> Iterator[Panel]:
    """A block times e^{y_v} and e^{−y_u} of all nodes, or one of them alone, panel by panel."""
    step = max(1, _PANEL // max(1, rows.upper[0].numel()))
    for start in range(0, len(rows.upper), step):
        ends, factors = [], []
        for nodes, scales in ((rows.raising, up), (rows.lowering, down)):
            ends.append(nodes[start : start + step] if len(nodes) > 1 else nodes)
            factors += [] if scales is None else [scales[ends[-1]]]
        upper = _times(rows.upper[start : start + step], factors)
        alone = rows.lower is rows.upper
        lower = upper if alone else _times(rows.lower[start : start + step], factors)
        yield Panel(2 * rows.tensor, upper, lower, *ends)


def _times(weights: Tensor, factors: list[Tensor]) -> Tensor:
    made = weights.double()
    for k, factor in enumerate(factors):
        made = made.mul_(factor) if k or made is not weights else made * factor
    return made


def _factors(y: np.ndarray) -> tuple[Tensor, Tensor]:
    """e^{y} and e^{−y}."""
    return torch.from_numpy(np.exp(y)), torch.from_numpy(np.exp(-y))


def edges_above(
    incidence: Incidence, y: np.ndarray, least: np.ndarray, share: float = 0.0
) -> tuple[np.ndarray, Edges]:
    """The largest positive and negative magnitude of each tensor, and the weights that come near.

    Args:
        incidence: the weights.
        y: the logarithms of the scales, (nodes,).
        least: weights above it count, by slot (2 · tensors,) …
        share: … that are larger than this share of the largest of their slot.
    """
    found, made = _extremes(incidence.few, y, len(least)), [incidence.few]
    factors = _factors(y)
    for rows in incidence.rows:
        for panel in panels(rows, *factors):
            ends = [n.expand(panel.upper.shape).numpy() for n in (panel.lowering, panel.raising)]
            for slot, sign, scaled in panel.sides:
                most = float(scaled.max() if sign > 0 else -scaled.min())
                found[slot] = max(found[slot], most)
                floor = max(float(least[slot]), share * float(found[slot]))
                if most > floor:
                    at = np.flatnonzero(scaled > floor if sign > 0 else scaled < -floor)
                    u, v = (end[np.unravel_index(at, end.shape)] for end in ends)
                    size = np.log(sign * scaled.ravel()[at]) - y[v] + y[u]
                    made.append(Edges(u, v, np.full(len(u), slot), size))
    edges = Edges.joined(made)
    with np.errstate(divide="ignore"):
        floors = np.log(np.maximum(least, share * found))
    return found, edges.where(edges.at(y) > floors[edges.slot])


def extremes(incidence: Incidence, y: np.ndarray) -> np.ndarray:
    """The largest positive and negative magnitude of each tensor, of shape (2 · tensors,)."""
    found = _extremes(incidence.few, y, 2 * len(incidence.tensors))
    factors = _factors(y) if y.any() else (None, None)
    for rows in incidence.rows:
        for panel in panels(rows, *factors):
            for slot, sign, scaled in panel.sides:
                found[slot] = max(found[slot], scaled.max() if sign > 0 else -scaled.min())
    return found


def _extremes(few: Edges, y: np.ndarray, slots: int) -> np.ndarray:
    found = np.full(slots, -np.inf)
    np.maximum.at(found, few.slot, few.at(y))
    return np.exp(found)


def equalised(incidence: Incidence) -> np.ndarray:
    """Scales at which what raises a node and what it lowers are about equally large: a start.

    A few sweeps of cross-layer equalisation, space by space.
    """
    y = np.zeros(incidence.nodes)
    for family in [*incidence.families.values()] * _SWEEPS:
        nodes = slice(family.start, family.start + math.prod(family.shape))
        above, below = _pulls(incidence, y, nodes)
        both = (above > -np.inf) & (below > -np.inf)
        y[nodes][both] += (below - above)[both] / 2
    return y


def _pulls(incidence: Incidence, y: np.ndarray, nodes: slice) -> np.ndarray:
    """The logarithms of the largest magnitude that grows with each of some nodes, and of that
    which falls with it."""
    found, factors = np.full((2, incidence.nodes), -np.inf), _factors(y)
    size = incidence.few.at(y)
    np.maximum.at(found[0], incidence.few.raising, size)
    np.maximum.at(found[1], incidence.few.lowering, size)
    for rows in incidence.rows:
        own = [_inside(end, nodes) for end in (rows.raising, rows.lowering)]
        # where one end is theirs, its scale need not be multiplied with every weight
        alone = [own[k] and not own[1 - k] for k in (0, 1)]
        up, down = (None if alone[k] else factors[k] for k in (0, 1))
        for panel in panels(rows, up, down) if any(own) else ():
            largest = panel.upper.abs()
            if panel.lower is not panel.upper:
                largest = torch.maximum(largest, panel.lower.abs())
            for k, end in enumerate((panel.raising, panel.lowering)):
                if own[k]:
                    over = [d for d in range(end.ndim) if end.shape[d] == 1]
                    most = largest.amax(over) if over else largest
                    at, logs = end.reshape(-1).numpy(), most.reshape(-1).log().numpy()
                    np.maximum.at(found[k], at, logs + alone[k] * (1 - 2 * k) * y[at])
    return found[:, nodes]


def _inside(end: Tensor, nodes: slice) -> bool:
    return nodes.start <= int(end.reshape(-1)[0]) < nodes.stop


def united(first: Edges, second: Edges, nodes: int) -> Edges:
    """Edges of both; of those with one slot and the same ends, the one of the largest weight.

    Blocks of one tensor may share their nodes, such as queries and values that read one gain.
    """
    joined = Edges.joined((first, second))
    order = np.argsort(-joined.size, kind="stable")
    key = (joined.slot * nodes + joined.lowering) * nodes + joined.raising
    return joined.where(order[np.unique(key[order], return_index=True)[1]])
