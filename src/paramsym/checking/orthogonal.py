"""An orthonormal basis of given directions, most of which move few coordinates.

Panels of directions are projected off what is found already, twice (which leaves rounding only),
and compressed to their large singular values. Each panel remembers on which coordinates it lives,
and costs nothing elsewhere: most families live in one layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

PANEL = 128
STEP = 4e9  # multiplications and additions of one call: a fraction of a second, for an interrupt
_BRIDGED = 16  # coordinates between two runs that are not worth a cut
_DEPENDENT = 1e-7  # a unit direction this near to the span of the others is in it

Advance = Callable[[float], None]  # is told the multiplications and additions of each step
Panel = tuple[tuple[slice, ...], torch.Tensor]  # runs of coordinates, orthonormal columns there


def ignore(_: float) -> None:
    """Progress that nobody watches."""


def runs(moved: torch.Tensor, bridged: int = 0) -> tuple[slice, ...]:
    """Ranges that hold all coordinates marked; short gaps are bridged."""
    places = moved.nonzero()[:, 0]
    if not len(places):
        return ()
    breaks = (places.diff() > bridged + 1).nonzero()[:, 0]
    firsts = torch.cat([places[:1], places[breaks + 1]]).tolist()
    lasts = torch.cat([places[breaks], places[-1:]]).tolist()
    return tuple(slice(a, b + 1) for a, b in zip(firsts, lasts, strict=True))


def span(rows: torch.Tensor, advance: Advance = ignore) -> torch.Tensor:
    """Orthonormal columns that span rows of shape (directions, coordinates).

    Rows are scaled to unit length; those of zeros are left out, and those that depend on each other
    count once. Where rows that move few coordinates come first, so do the columns.

    Returns:
        (coordinates, rank).
    """
    found: list[Panel] = []
    rank, size = 0, rows.shape[1]
    for part in rows.split(PANEL):
        if rank == size:
            break
        norms = torch.linalg.vector_norm(part, dim=1)
        part = part[norms > 0] / norms[norms > 0, None]
        if len(part):
            panel = _beside(part.T, found, advance)
            found.append(panel)
            rank += panel[1].shape[1]
    columns = rows.new_zeros(size, rank)
    start = 0
    for support, panel in found:
        _put(panel, columns[:, start : start + panel.shape[1]], support)
        start += panel.shape[1]
    return columns


def _beside(columns: torch.Tensor, found: list[Panel], advance: Advance) -> Panel:
    """What unit columns add to the span of the panels before them."""
    rest = columns.clone(memory_format=torch.contiguous_format)
    for _ in range(2):
        for support, panel in found:
            part = _gathered(rest, support)
            along = panel.T @ part
            if bool(along.any()):
                part.addmm_(panel, along, alpha=-1)
                _put(part, rest, support)
            advance(4.0 * panel.numel() * rest.shape[1])
    support = runs((rest != 0).any(dim=1), _BRIDGED)
    rest, triangle = torch.linalg.qr(_gathered(rest, support))
    left, values, _ = torch.linalg.svd(triangle, full_matrices=False)
    return support, rest @ left[:, values > _DEPENDENT]


def _gathered(matrix: torch.Tensor, support: tuple[slice, ...]) -> torch.Tensor:
    """The rows of a matrix on the support; a view where it is one run."""
    parts = [matrix[run] for run in support]
    return parts[0] if len(parts) == 1 else torch.cat([matrix[:0], *parts])


def _put(part: torch.Tensor, matrix: torch.Tensor, support: tuple[slice, ...]) -> None:
    """Write back what `_gathered` gave, where that was no view."""
    start = 0
    for run in support:
        stop = start + run.stop - run.start
        if matrix[run].data_ptr() != part[start:stop].data_ptr():
            matrix[run] = part[start:stop]
        start = stop
