"""Passes over all weights at given scales: ranges, a start, and the weights that matter.

Weights are scaled in double precision, panel by panel, and never stored a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paramsym.quantize.incidence import Incidence, Rows

_PANEL = 1 << 17  # weights that are scaled at a time; they stay in the cache
_SWEEPS = 2


class Panel(NamedTuple):
    """Some rows of a block, scaled, with the nodes of each weight."""

    tensor: int
    upper: Tensor
    lower: Tensor
    raising: Tensor
    lowering: Tensor


class Edges(NamedTuple):
    """Weights as edges u → v: u, v, the slot (2 · tensor, or + 1 if negative), and log|w|."""

    lowering: np.ndarray
    raising: np.ndarray
    slot: np.ndarray
    size: np.ndarray


def panels(rows: Rows, scales: Tensor) -> Iterator[Panel]:
    """A block times e^{y_v − y_u}, panel by panel; `scales` are e^y, of shape (nodes,)."""
    inverse = 1 / scales
    step = max(1, _PANEL // max(1, rows.upper[0].numel()))
    for start in range(0, len(rows.upper), step):
        raising, lowering = (
            nodes[start : start + step] if len(nodes) > 1 else nodes
            for nodes in (rows.raising, rows.lowering)
        )
        piece = rows.upper[start : start + step]
        up, down = scales[raising], inverse[lowering]
        upper = piece.double() * up * down
        if rows.lower is rows.upper:
            lower = upper
        else:
            lower = rows.lower[start : start + step].double() * up * down
        yield Panel(rows.tensor, upper, lower, raising, lowering)


def extremes(incidence: Incidence, y: Tensor) -> Tensor:
    """The largest positive and negative magnitude of each tensor, of shape (2 · tensors,)."""
    found, scales = torch.zeros(2 * len(incidence.tensors), dtype=torch.float64), y.exp()
    for rows in incidence.rows:
        for panel in panels(rows, scales):
            k = 2 * panel.tensor
            found[k] = torch.maximum(found[k], panel.upper.max())
            found[k + 1] = torch.maximum(found[k + 1], -panel.lower.min())
    return found


def equalised(incidence: Incidence) -> Tensor:
    """Scales at which what raises a node and what it lowers are about equally large: a start.

    A few sweeps of cross-layer equalisation, space by space.
    """
    y = torch.zeros(incidence.nodes, dtype=torch.float64)
    for _ in range(_SWEEPS):
        for family in incidence.families.values():
            nodes = slice(family.start, family.start + int(np.prod(family.shape)))
            above, below = _pulls(incidence, y, nodes)
            step = (below / above).log() / 2
            y[nodes] += torch.where((above > 0) & (below > 0), step, torch.zeros_like(step))
    return y


def _pulls(incidence: Incidence, y: Tensor, nodes: slice) -> tuple[Tensor, Tensor]:
    """The largest magnitude that grows with each of some nodes, and that falls with it."""
    found, scales = torch.zeros(2, incidence.nodes, dtype=torch.float64), y.exp()
    for rows in incidence.rows:
        ends = [_inside(end, nodes) for end in (rows.raising, rows.lowering)]
        if not any(ends):
            continue
        for panel in panels(rows, scales):
            size = torch.maximum(panel.upper.abs(), panel.lower.abs())
            for k, end in enumerate((panel.raising, panel.lowering)):
                if ends[k]:
                    over = [d for d in range(end.ndim) if end.shape[d] == 1]
                    most = size.amax(over, keepdim=True) if over else size
                    found[k].scatter_reduce_(0, end.reshape(-1), most.reshape(-1), "amax")
    return found[0, nodes], found[1, nodes]


def _inside(end: Tensor, nodes: slice) -> bool:
    return nodes.start <= int(end.reshape(-1)[0]) < nodes.stop


def edges_above(incidence: Incidence, y: Tensor, least: Tensor) -> Edges:
    """The weights that are larger at y than `least` says for their slot, (2 · tensors,)."""
    made: list[tuple[Tensor, ...]] = []
    scales = y.exp()
    for rows in incidence.rows:
        for panel in panels(rows, scales):
            for sign, scaled in ((0, panel.upper), (1, -panel.lower)):
                slot = 2 * panel.tensor + sign
                at = (scaled > least[slot]).nonzero(as_tuple=True)
                if not len(at[0]):
                    continue
                u = panel.lowering.expand(scaled.shape)[at].reshape(-1)
                v = panel.raising.expand(scaled.shape)[at].reshape(-1)
                size = scaled[at].reshape(-1).log() - y[v] + y[u]
                made.append((u, v, torch.full_like(u, slot), size))
    if not made:
        return Edges(*(np.zeros(0, dtype=t) for t in (np.int64, np.int64, np.int64, np.float64)))
    return Edges(*(torch.cat(parts).numpy() for parts in zip(*made, strict=True)))


def united(first: Edges, second: Edges, nodes: int) -> Edges:
    """Edges of both; of those with one slot and the same ends, the one of the largest weight.

    Blocks of one tensor may share their nodes, such as queries and values that read one gain.
    """
    joined = Edges(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    order = np.argsort(-joined.size, kind="stable")
    key = (joined.slot * nodes + joined.lowering) * nodes + joined.raising
    once = order[np.unique(key[order], return_index=True)[1]]
    return Edges(*(part[once] for part in joined))
