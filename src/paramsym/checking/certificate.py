"""The certificate of completeness: nothing leaves the function unchanged but what is claimed.

Let T span the claimed directions and J be the Jacobian at generic inputs, its columns scaled to
unit length. The claim is right and complete where

    J·T = 0                          (no claimed direction changes the outputs)
    [J ; Tᵀ] has full column rank    (no other direction leaves them unchanged).

Both are needed: a false direction only raises the rank, and shows in J·T. That is computed for
random combinations of rows, which see every direction as J does in the mean square.

For the rank nothing is rotated. Elimination of T chooses as many coordinates as it has directions,
such that T and the n coordinates that are left give all. Where J·T = 0, a direction x of these
changes the outputs as its part beside T does, so that the values of interest, those of J beside T,
are the stationary ones of

    ‖A·x‖ / ‖x − T Tᵀ x‖,        A: the columns of J that are left.

A is eliminated, which takes half the operations of a QR, and the smallest values are found by
inverse iteration, for the n rows that the elimination has chosen: fewer rows see less, so that
these values are lower bounds. What is a number and what is not is told by two measurements: J·T is
the rounding of everything before, and the products of the factors differ from A by what the
elimination lost, which counts against the part of x that is beside T.

A Gram matrix JᵀJ would square the singular values: 8e-9 and 4.8e-10, which GPT-2 and Gemma-2 have,
would lie below its rounding.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from paramsym.checking.claimed import Claimed
from paramsym.checking.elimination import Factors, eliminate, factored, smallest
from paramsym.checking.hidden import Numbers, hidden_columns, reaches
from paramsym.checking.orthogonal import STEP, Advance, span

FALSE = 1e-8  # a claimed direction that changes the outputs by more is no symmetry
LOOSE = 1e-5  # the same for one that is claimed only approximately
_ROUNDING = 1e-12  # a column this small next to the largest is a dead parameter, rounded
_MEASURED = (1e-14, 1e-10)  # bounds of what counts as rounding, relative to the largest value
_MARGIN = 100.0  # a singular value above so many roundings is a number
_LOST = 2.0  # the same for what elimination lost, whose measure is a bound
_STEEP = 1e3  # a jump between neighbouring singular values that cannot be chance
_PROBES = 64
_MOVED = 1 << 24  # entries of rows that are moved at once
_PICTURE = 512  # columns up to which all singular values are computed, for the report
REDUCED = 1e-7  # a claimed direction with so little of it in live parameters moves dead ones only


@dataclass(frozen=True)
class Certificate:
    """What the Jacobian shows; singular values are relative to the largest.

    `suspects` are directions of the parameters, as columns, that these inputs do not tell from
    zero. `residuals` gives for each claimed space and shift how much a unit direction of it
    changes the outputs, and `undecided` those with directions that these columns cannot tell, as
    they reach from live columns into `hidden` ones.
    """

    alive: torch.Tensor  # (parameters,), False for columns of zeros
    scale: torch.Tensor  # (live parameters,), the length of each column
    claimed: int  # dimension of what is claimed rightly, among live parameters
    idle: Claimed  # what is claimed among dead parameters alone, (directions, dead parameters)
    residual: float  # the largest of a direction that is counted in `claimed`
    noise: float  # that, or what elimination lost, if it is more; 0 where nothing is claimed
    residuals: dict[str, float]
    values: torch.Tensor  # descending, one per live parameter; NaN where it was not computed
    above: float  # no more than the smallest singular value that is no suspect; 0 without one
    below: float  # the largest that counts as zero, of claimed directions and of suspects
    suspects: torch.Tensor  # (parameters, suspects)
    hidden: torch.Tensor  # (parameters,), True for dead columns that are claimed and no rounding
    undecided: frozenset[str]

    @property
    def dead(self) -> torch.Tensor:
        """The numbers of the parameters whose columns vanish."""
        return (~self.alive).nonzero()[:, 0]

    @property
    def refuted(self) -> frozenset[str]:
        """The spaces and shifts with a direction that changes the outputs."""
        return frozenset(name for name, value in self.residuals.items() if value > FALSE)

    def without(self, noise: Collection[str]) -> Certificate:
        """The same with claims undecided that only rounding denied."""
        left = {n: r for n, r in self.residuals.items() if n not in noise}
        return replace(self, residuals=left, undecided=self.undecided.union(noise))


def certify(
    rows: torch.Tensor,
    claimed: Claimed,
    inexact: set[str],
    ceiling: float,
    advance: Advance,
    numbers: Numbers,
) -> Certificate:
    """Test the claims, factor what is beside them, find suspects; `rows` is overwritten.

    Args:
        rows: of the Jacobian, (rows, parameters), at least as many as there are directions that
            are not claimed; missing ones count as zero.
        claimed: unit directions with their names.
        inexact: names that claim to leave the outputs unchanged only approximately.
        ceiling: singular values below this share of the largest are looked at for a gap.
        advance: is told the work of each step.
        numbers: tells columns that are numbers, if small ones, from the rounding of zero.
    """
    norms = torch.linalg.vector_norm(rows, dim=0)
    alive = norms > _ROUNDING * norms.max() if len(rows) else torch.zeros(len(norms)).bool()
    scale = norms[alive]
    rows.div_(torch.where(alive, norms, torch.inf))
    size = max(_largest(rows), 1e-300)
    hidden = hidden_columns(claimed, norms, alive, numbers)
    beyond = reaches(claimed, torch.where(alive | hidden, norms, 0.0), hidden)
    live, idle, undecided = _among_live(claimed, alive, scale, beyond)
    probes = _combined(rows, _PROBES, 1, advance)[:, alive]
    residuals = _residuals(probes, live, size)
    basis = span(live.rows, advance)
    wrong = {n for n, r in residuals.items() if r > (LOOSE if n in inexact else FALSE)}
    if wrong:
        bound = 10 * max((r for n, r in residuals.items() if n not in wrong), default=0.0)
        basis = _true(rows, basis, alive, max(FALSE, bound) * size, advance)
    along = torch.linalg.vector_norm(probes @ basis, dim=0)
    residual = max(along.tolist(), default=0.0) / (size * _PROBES**0.5)
    shown = _picture(rows, basis, alive)
    rest, strength = _complement(basis, advance)
    factors = factored(_compacted(rows, alive.nonzero()[rest, 0]), advance)
    least, most = _MEASURED
    lost = factors.error / (size * strength)
    cut = max(_MARGIN * min(max(residual, least), most), _LOST * lost)
    values, found = smallest(
        factors, lambda x: _beside(x, rest, basis), rest, max(cut, ceiling) * size, advance=advance
    )
    values = values / size
    count = _suspects(values, cut, ceiling)
    suspects = torch.zeros(len(alive), count, dtype=found.dtype)
    suspects[alive] = (found[:count] / scale).T
    true = basis.shape[1]
    above = float(values[count]) if count < len(values) else 0.0
    noise = max(residual, lost) if true else 0.0
    below = max([noise, *values[:count].tolist()])
    shown = _values(shown / size, values, true, residual)
    return Certificate(
        alive, scale, true, idle, residual, noise, residuals, shown, above, below, suspects,
        hidden, undecided,
    )  # fmt: skip


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
    claimed: Claimed, alive: torch.Tensor, scale: torch.Tensor, beyond: torch.Tensor
) -> tuple[Claimed, Claimed, frozenset[str]]:
    """(claims on live parameters, scaled as the columns and to unit length; those on dead ones;
    the names of those that reach from live into hidden columns, which are neither)."""
    part = claimed.rows[:, alive]
    present = torch.linalg.vector_norm(part, dim=1) > REDUCED
    idle, undecided = claimed[~present], claimed[present & beyond].names
    present = present & ~beyond
    part = part if bool(present.all()) else part[present]
    live = _local_first(Claimed(part * scale, claimed[present].names))
    live.rows.div_(torch.linalg.vector_norm(live.rows, dim=1, keepdim=True))
    return live, Claimed(idle.rows[:, ~alive], idle.names), frozenset(undecided)


def _local_first(claimed: Claimed) -> Claimed:
    """The same claims, those of names that move few parameters before the others."""
    moved = (claimed.rows != 0).sum(dim=1).tolist()
    most: dict[str, int] = {}
    for name, count in zip(claimed.names, moved, strict=True):
        most[name] = max(count, most.get(name, 0))
    names = claimed.names
    order = sorted(range(len(names)), key=lambda k: (most[names[k]], names[k]))
    return Claimed(claimed.rows[order], [names[k] for k in order])


def _combined(rows: torch.Tensor, count: int, seed: int, advance: Advance) -> torch.Tensor:
    """Random combinations of rows: the mean square of their products with g is ‖rows·g‖²."""
    generator = torch.Generator().manual_seed(seed)
    found = rows.new_zeros(count, rows.shape[1])
    for part in rows.split(max(1, int(STEP / (2 * count * max(1, rows.shape[1]))))):
        drawn = torch.randn(count, len(part), generator=generator, dtype=rows.dtype)
        found.addmm_(drawn, part)
        advance(2.0 * count * part.numel())
    return found


def _residuals(probes: torch.Tensor, claimed: Claimed, size: float) -> dict[str, float]:
    """How much the worst unit direction of each name changes the outputs, relative to `size`."""
    found: dict[str, float] = {}
    step = max(1, int(STEP / (2 * max(1, probes.numel()))))
    for low in range(0, len(claimed.names), step):
        along = torch.linalg.vector_norm(claimed.rows[low : low + step] @ probes.T, dim=1)
        along = along / (size * _PROBES**0.5)
        for name, value in zip(claimed.names[low : low + step], along.tolist(), strict=True):
            found[name] = max(value, found.get(name, 0.0))
    return found


def _true(
    rows: torch.Tensor, basis: torch.Tensor, alive: torch.Tensor, bound: float, advance: Advance
) -> torch.Tensor:
    """The part of the claimed span that leaves the outputs where they are, orthonormal columns.

    The image J·T has low rank where few directions are false, so that random combinations of its
    rows find its row space; there are twice as many until that is not full.
    """
    count = 32
    while True:
        image = _combined(rows, count, 2, advance)[:, alive] @ basis / count**0.5
        _, values, right = torch.linalg.svd(image, full_matrices=True)
        rank = int((values > bound).sum())
        if rank < min(count, len(right)) or rank == len(right) or count >= len(rows):
            return basis @ right[rank:].T
        count *= 2


def _compacted(rows: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The columns that are kept, moved to the front in place; zeros below where rows are few."""
    count = len(kept)
    for part in rows.split(max(1, _MOVED // max(1, rows.shape[1]))):
        part[:, :count] = part.index_select(1, kept)
    missing = count - len(rows)
    found = rows[:, :count]
    return torch.cat([found, found.new_zeros(missing, count)]) if missing > 0 else found


def _complement(basis: torch.Tensor, advance: Advance) -> tuple[torch.Tensor, float]:
    """Coordinates that, with the claimed directions, give all; and how far they are from these.

    That is the least length that is left of a unit direction along these coordinates when it is
    made orthogonal to the claimed ones: the smallest singular value of these at the others.
    """
    rank = basis.shape[1]
    packed = basis.clone()
    rest = eliminate(packed, advance)[rank:].sort().values
    values, _ = smallest(
        Factors(packed[:rank], torch.arange(rank), 0.0), lambda x: x, torch.arange(rank), 0.0
    )
    return rest, max(min(values.tolist(), default=1.0), 1e-300)


def _beside(rows: torch.Tensor, kept: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Rows given at some coordinates, made orthogonal to the claimed directions."""
    found = rows.new_zeros(len(rows), len(basis))
    found[:, kept] = rows
    return found.addmm_(found @ basis, basis.T, alpha=-1)


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


def _picture(rows: torch.Tensor, basis: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
    """Singular values of J beside the claimed directions; NaN where there is no need to know."""
    count = len(basis) - basis.shape[1]
    if count > _PICTURE:
        return torch.full((count,), float("nan"), dtype=rows.dtype)
    live = rows[:, alive]
    known = torch.linalg.svdvals(live - (live @ basis) @ basis.T)[:count]
    return torch.cat([known, known.new_zeros(count - len(known))])


def _values(known: torch.Tensor, least: torch.Tensor, true: int, residual: float) -> torch.Tensor:
    """Singular values for a picture, descending, with those of claimed directions at the end."""
    if len(known) > _PICTURE:
        known[0] = 1.0
        known[len(known) - len(least) :] = least.flip(0)
    return torch.cat([known, known.new_full((true,), residual)])
