"""The null space of many rows, of which all but few singular values are far from zero.

The Gram matrix G = Aᵀ A / N costs one pass over the rows, and its Cholesky factor, shifted by
rounding, turns any block of vectors towards the null space: a step of inverse iteration multiplies
what belongs to a singular value σ by s / (σ² + s). But G forgets half of the digits: σ below 1e-8
of the largest look alike. So what is found is taken back to the rows. There singular values of A·V
are known to rounding, and a step of refinement, v ← v − (G + s)⁻¹ Aᵀ (A v) / N, computes A v from
the rows and not from G: it removes what the squaring left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.terminal.progress import silent

_PANEL = 768  # columns of G that are made at a time: half of the products are its mirror image
_BLOCK = 8  # vectors that are tried first
_SPARE = 4  # of them must be no null vectors, or more are tried
_SWEEPS, _LAST_SWEEPS = 3, 8
# Eigenvalues relative to the mean: below the first a vector is kept, above the second it is far
# from the null space. Between them lies what single precision makes of zero, and near-symmetries.
_LOCKED, _FAR = 1e-9, 1e-6
_POLISHED = 1e-9  # singular values up to it, as root mean squares, are taken for rounding
_ROUNDS = 3
_SHIFT = 1e-15  # of the trace, and ten times more until Cholesky's method succeeds
_DEAD = 1e-26  # of the mean diagonal of G: no row has this unknown


@dataclass(frozen=True)
class Smallest:
    """Directions of the least singular values.

    Attributes:
        vectors: orthonormal columns, (unknowns, k), orthogonal to the deflated ones.
        sizes: (k,), ascending: root mean squares of A v over the rows.
        dead: unknowns that no row has.
    """

    vectors: Tensor
    sizes: Tensor
    dead: int


Rows = Callable[[], Iterable[Tensor]]  # every call goes through the same rows, batch by batch


def smallest(
    rows: Rows, unknowns: int, deflated: Tensor, generator: torch.Generator,
    progress: Callable[[str], None] = silent,
) -> Smallest:  # fmt: skip
    """The null space of rows, and a few directions beyond it.

    Args:
        rows: batches of (rows, unknowns), of length one each.
        unknowns: the number of columns.
        deflated: known null vectors as orthonormal columns, which are left out.
        generator: of the starting vectors.
        progress: is told what is being done.
    """
    progress("constraints")
    gram, count = gram_of(rows(), unknowns)
    diagonal = gram.diagonal()
    alive = diagonal > _DEAD * diagonal.mean()
    if not bool(alive.all()):
        gram = gram[alive][:, alive]
    deflated = _independent(deflated[alive])
    progress("null space")
    inverse = _Inverse(gram, deflated)
    vectors = _iterated(gram, inverse, generator)
    progress("refinement")

    def reduced() -> Iterator[Tensor]:
        for batch in rows():
            yield batch if bool(alive.all()) else batch[:, alive]

    vectors, sizes = _polished(reduced, count, vectors, inverse)
    whole = vectors.new_zeros(unknowns, vectors.shape[1])
    whole[alive] = vectors
    return Smallest(whole, sizes, int((~alive).sum()))


def gram_of(rows: Iterable[Tensor], unknowns: int) -> tuple[Tensor, int]:
    """Aᵀ A / N, and N: only the lower half is multiplied out."""
    gram, count = torch.zeros(unknowns, unknowns, dtype=torch.float64), 0
    for batch in rows:
        for start in range(0, unknowns, _PANEL):
            stop = min(start + _PANEL, unknowns)
            gram[start:stop, :stop].addmm_(batch[:, start:stop].T, batch[:, :stop])
        count += len(batch)
    gram = gram.tril_()
    gram += gram.tril(-1).T
    return gram.div_(max(1, count)), count


class _Inverse:
    """(G + s)⁻¹ beside known null vectors."""

    def __init__(self, gram: Tensor, deflated: Tensor):
        self.deflated = deflated
        shift = _SHIFT * float(gram.diagonal().sum())
        while True:
            shifted = gram.clone()
            shifted.diagonal().add_(shift)
            self.factor, failed = torch.linalg.cholesky_ex(shifted)
            if not int(failed):
                return
            shift *= 10

    def __call__(self, block: Tensor) -> Tensor:
        return self.beside(torch.cholesky_solve(self.beside(block), self.factor))

    def beside(self, block: Tensor, others: Tensor | None = None) -> Tensor:
        """Without the parts along the deflated vectors and along others."""
        for known in (self.deflated, others):
            if known is not None and known.shape[1]:
                block = block - known @ (known.T @ block)
        return block


def _independent(columns: Tensor) -> Tensor:
    """An orthonormal basis of the span of columns."""
    if not columns.shape[1]:
        return columns
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > 1e-8]


def _iterated(gram: Tensor, inverse: _Inverse, generator: torch.Generator) -> Tensor:
    """Block inverse iteration: null vectors are locked, and the block grows until some are none."""
    size = len(gram)
    room = size - inverse.deflated.shape[1]
    mean = float(gram.diagonal().mean()) if size else 0.0
    locked, block = gram.new_zeros(size, 0), gram.new_zeros(size, 0)
    width = _BLOCK
    while True:
        width = min(width, room - locked.shape[1])
        drawn = torch.randn(size, width - block.shape[1], generator=generator, dtype=gram.dtype)
        block, values = _swept(gram, inverse, locked, torch.cat([block, drawn], dim=1), _SWEEPS)
        null = values < _LOCKED * mean
        locked, block = torch.cat([locked, block[:, null]], dim=1), block[:, ~null]
        far = int((values > _FAR * mean).sum())
        if locked.shape[1] + block.shape[1] >= room or far >= _SPARE:
            break
        width = 2 * width
    block, _ = _swept(gram, inverse, locked, block, _LAST_SWEEPS)
    return torch.cat([locked, block], dim=1)


def _swept(
    gram: Tensor, inverse: _Inverse, locked: Tensor, block: Tensor, sweeps: int
) -> tuple[Tensor, Tensor]:
    """Some steps, and the Ritz vectors and values of the block."""
    for _ in range(sweeps):
        block = inverse.beside(torch.linalg.qr(inverse(block)).Q, locked)
        block = torch.linalg.qr(block).Q
    values, turn = torch.linalg.eigh(block.T @ (gram @ block))
    return block @ turn, values


def _polished(
    rows: Callable[[], Iterator[Tensor]], count: int, vectors: Tensor, inverse: _Inverse
) -> tuple[Tensor, Tensor]:
    """Singular vectors of the rows within a span, after refinement of what is nearly null."""
    vectors, sizes, images = _rotated(rows, count, vectors)
    for _ in range(_ROUNDS):
        null = sizes < _POLISHED
        if not bool(null.any()):
            break
        kept = images[:, null]
        back, start = torch.zeros_like(vectors[:, null]), 0
        for batch in rows():
            back += batch.T @ kept[start : start + len(batch)]
            start += len(batch)
        better = vectors.clone()
        better[:, null] -= inverse(back / count)
        before = float(sizes[null].max())
        new, new_sizes, new_images = _rotated(rows, count, better)
        if float(new_sizes[: int(null.sum())].max()) > before:
            break
        vectors, sizes, images = new, new_sizes, new_images
        if float(sizes[: int(null.sum())].max()) > before / 2:
            break
    return vectors, sizes


def _rotated(
    rows: Callable[[], Iterator[Tensor]], count: int, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Right singular vectors of A within a span, σ/√N ascending, and A v for each."""
    vectors = torch.linalg.qr(vectors).Q
    images = torch.cat([batch @ vectors for batch in rows()])
    _, sizes, turn = torch.linalg.svd(torch.linalg.qr(images).R)
    turn, sizes = turn.flip(0).T, sizes.flip(0) / max(1, count) ** 0.5
    return vectors @ turn, sizes, images @ turn
