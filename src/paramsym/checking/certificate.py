"""The certificate of completeness: nothing leaves the function unchanged but what is claimed.

Let T span the claimed directions and J be the Jacobian at generic inputs, its columns scaled to
unit length. The claim is right and complete where

    J·T = 0                          (no claimed direction changes the outputs)
    [J ; Tᵀ] has full column rank    (no other direction leaves them unchanged).

With an orthogonal Q whose first columns span T, J·Q = [J·T | K], and the second statement says that
K has full column rank. So J is rotated, K made triangular, and the smallest singular values of that
found by inverse iteration. Both statements are needed: a false direction only raises the rank, and
shows in J·T. What J·T is where the claim is right is the rounding of everything before, and tells
which singular values are numbers.

A Gram matrix JᵀJ would square the singular values: 8e-9 and 4.8e-10, which GPT-2 and Gemma-2 have,
would lie below its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paramsym.checking.claimed import Claimed
from paramsym.checking.householder import STEP, Advance, Basis, runs, smallest, span, triangular

FALSE = 1e-8  # a claimed direction that changes the outputs by more is no symmetry
_ROUNDING = 1e-12  # a column this small next to the largest is a dead parameter, rounded
_MEASURED = (1e-14, 1e-10)  # bounds of what counts as rounding, relative to the largest value
_MARGIN = 100.0  # a singular value above so many roundings is a number
_STEEP = 1e3  # a jump between neighbouring singular values that cannot be chance
_PROBES = 64
_PICTURE = 512  # columns up to which all singular values are computed, for the report
_REDUCED = 1e-7  # a claimed direction with so little of it in live parameters moves dead ones only


@dataclass(frozen=True)
class Certificate:
    """What the rotated Jacobian shows; singular values are relative to the largest.

    `suspects` are directions of the parameters, as columns, that these inputs do not tell from
    zero. `residuals` gives for each claimed space and shift how much a unit direction of it
    changes the outputs.
    """

    alive: torch.Tensor  # (parameters,), False for columns of zeros
    scale: torch.Tensor  # (live parameters,), the length of each column
    claimed: int  # dimension of what is claimed rightly, among live parameters
    idle: Claimed  # what is claimed among dead parameters alone, (directions, dead parameters)
    residual: float  # the largest of a direction that is counted in `claimed`
    residuals: dict[str, float]
    values: torch.Tensor  # descending, one per live parameter; NaN where it was not computed
    above: float  # the smallest singular value that is no suspect; 0 if there is none
    below: float  # the largest that counts as zero, of claimed directions and of suspects
    suspects: torch.Tensor  # (parameters, suspects)

    @property
    def dead(self) -> torch.Tensor:
        """The numbers of the parameters whose columns vanish."""
        return (~self.alive).nonzero()[:, 0]


def certify(
    rows: torch.Tensor,
    claimed: Claimed,
    inexact: set[str],
    ceiling: float,
    advance: Advance,
) -> Certificate:
    """Rotate, factor, and find suspects; `rows` is overwritten.

    Args:
        rows: of the Jacobian, (rows, parameters), at least as many as there are directions that
            are not claimed; missing ones count as zero.
        claimed: unit directions with their names.
        inexact: names that claim to leave the outputs unchanged only approximately.
        ceiling: singular values below this share of the largest are looked at for a gap.
        advance: is told the work of each step.
    """
    norms = torch.linalg.vector_norm(rows, dim=0)
    alive = norms > _ROUNDING * norms.max() if len(rows) else torch.zeros(len(norms)).bool()
    scale = norms[alive]
    if not bool(alive.all()):  # in runs, many times faster than by numbers
        rows = torch.cat([rows[:, run] for run in runs(alive)], dim=1)
    rows.div_(scale)
    size = _largest(rows)
    live, idle = _among_live(claimed, alive, scale)
    residuals = _residuals(rows, live, size)
    basis = span(live.rows, advance)
    basis.rotate(rows, advance)
    wrong = {n for n, r in residuals.items() if r > FALSE and n not in inexact}
    bound = 10 * max((r for n, r in residuals.items() if n not in wrong), default=0.0)
    false = _false(rows[:, : basis.rank], size, max(FALSE, bound)) if wrong else None
    true, residual = _kept(rows[:, : basis.rank], false, size)
    rest = _rest(rows, basis.rank, false)
    triangle = triangular(rest, advance)
    del rows, rest
    least, most = _MEASURED
    cut = _MARGIN * min(max(residual, least), most)
    values, found = smallest(triangle, max(cut, ceiling) * max(size, 1e-300), advance=advance)
    values = values / max(size, 1e-300)
    count = _suspects(values, cut, ceiling)
    suspects = torch.zeros(len(alive), count, dtype=found.dtype)
    suspects[alive] = _back(basis, found[:, :count], false) / scale[:, None]
    above = float(values[count]) if count < len(values) else 0.0
    below = max([residual] * (true > 0) + values[:count].tolist(), default=0.0)
    shown = _values(triangle, values, size, true, residual)
    return Certificate(alive, scale, true, idle, residual, residuals, shown, above, below, suspects)


def _largest(rows: torch.Tensor) -> float:
    """The largest singular value, by power iteration from a fixed start, to within percents."""
    if not rows.numel():
        return 0.0
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(rows.shape[1], generator=generator, dtype=rows.dtype)
    size = 0.0
    for _ in range(5):
        vector = rows.T @ (rows @ (vector / vector.norm()))
        size = float(vector.norm()) ** 0.5
    return size


def _among_live(
    claimed: Claimed, alive: torch.Tensor, scale: torch.Tensor
) -> tuple[Claimed, Claimed]:
    """(claims on live parameters, scaled as the columns and to unit length; those on dead ones)."""
    part = claimed.rows[:, alive]
    present = torch.linalg.vector_norm(part, dim=1) > _REDUCED
    idle = claimed[~present]
    part = part if bool(present.all()) else part[present]
    live = _local_first(Claimed(part * scale, claimed[present].names))
    live.rows.div_(torch.linalg.vector_norm(live.rows, dim=1, keepdim=True))
    return live, Claimed(idle.rows[:, ~alive], idle.names)


def _local_first(claimed: Claimed) -> Claimed:
    """The same claims, those of names that move few parameters before the others."""
    moved = (claimed.rows != 0).sum(dim=1).tolist()
    most: dict[str, int] = {}
    for name, count in zip(claimed.names, moved, strict=True):
        most[name] = max(count, most.get(name, 0))
    names = claimed.names
    order = sorted(range(len(names)), key=lambda k: (most[names[k]], names[k]))
    return Claimed(claimed.rows[order], [names[k] for k in order])


def _residuals(rows: torch.Tensor, claimed: Claimed, size: float) -> dict[str, float]:
    """How much the worst unit direction of each name changes the outputs, relative to `size`.

    ‖J·g‖ is estimated from random combinations of rows, whose mean square it is.
    """
    generator = torch.Generator().manual_seed(1)
    probes = torch.zeros(_PROBES, rows.shape[1], dtype=rows.dtype)
    for part in rows.split(max(1, int(STEP / (2 * _PROBES * max(1, rows.shape[1]))))):
        drawn = torch.randn(_PROBES, len(part), generator=generator, dtype=rows.dtype)
        probes.addmm_(drawn, part)
    found: dict[str, float] = {}
    step = max(1, int(STEP / (2 * _PROBES * max(1, rows.shape[1]))))
    for low in range(0, len(claimed.names), step):
        along = torch.linalg.vector_norm(claimed.rows[low : low + step] @ probes.T, dim=1)
        along = along / (max(size, 1e-300) * _PROBES**0.5)
        for name, value in zip(claimed.names[low : low + step], along.tolist(), strict=True):
            found[name] = max(value, found.get(name, 0.0))
    return found


def _false(image: torch.Tensor, size: float, bound: float) -> torch.Tensor:
    """Coordinates of the claimed directions that change the outputs, orthonormal columns.

    The image J·T has low rank where few are false, so that random combinations of its rows find
    its row space; there are twice as many until that is not full.
    """
    generator = torch.Generator().manual_seed(2)
    count = 32
    while True:
        drawn = torch.randn(count, len(image), generator=generator, dtype=image.dtype)
        _, values, right = torch.linalg.svd(drawn @ image / count**0.5, full_matrices=False)
        rank = int((values > bound * size).sum())
        if rank < min(count, len(right)) or rank == image.shape[1] or count >= len(image):
            return right[:rank].T
        count *= 2


def _kept(image: torch.Tensor, false: torch.Tensor | None, size: float) -> tuple[int, float]:
    """(dimension, largest residual) of the claimed directions without the false ones."""
    if false is not None:
        image = image - (image @ false) @ false.T
    worst = float(torch.linalg.vector_norm(image, dim=0).max()) if image.numel() else 0.0
    return image.shape[1] - (0 if false is None else false.shape[1]), worst / max(size, 1e-300)


def _rest(rows: torch.Tensor, rank: int, false: torch.Tensor | None) -> torch.Tensor:
    """J along everything that is not rightly claimed, with rows of zeros where there are few."""
    rest = rows[:, rank:]
    if false is not None:
        rest = torch.cat([rows[:, :rank] @ false, rest], dim=1)
    missing = rest.shape[1] - len(rest)
    return torch.cat([rest, rest.new_zeros(missing, rest.shape[1])]) if missing > 0 else rest


def _back(basis: Basis, found: torch.Tensor, false: torch.Tensor | None) -> torch.Tensor:
    """From coordinates of `_rest` to those of the scaled live parameters."""
    along = found.new_zeros(basis.rank, found.shape[1])
    if false is not None:
        along, found = false @ found[: false.shape[1]], found[false.shape[1] :]
    return basis.back(torch.cat([along, found]))


def _suspects(values: torch.Tensor, cut: float, ceiling: float) -> int:
    """How many of the ascending values are not told from zero.

    Those below the cut, and those below a jump that cannot be chance: along small columns noise
    may be larger than along the claimed directions, where it was measured.
    """
    count = int((values < cut).sum())
    floored = values.clamp_min(cut)
    for k in range(count, len(values) - 1):
        if values[k] < ceiling and floored[k + 1] > _STEEP * floored[k]:
            count = k + 1
    return count


def _values(
    triangle: torch.Tensor, least: torch.Tensor, size: float, true: int, residual: float
) -> torch.Tensor:
    """Singular values for a picture, descending, NaN where there was no need to know them."""
    count = len(triangle)
    if count <= _PICTURE:
        known = torch.linalg.svdvals(triangle) / max(size, 1e-300)
    else:
        known = torch.full((count,), float("nan"), dtype=least.dtype)
        known[0] = 1.0
        known[count - len(least) :] = least.flip(0)
    return torch.cat([known, known.new_full((true,), residual)])
