"""Two checkpoints in files held against each other, in a memory that they do not fit into."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from paramsym.checkpoints.checkpoint import Opened
from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.source import Weights
from paramsym.checkpoints.streaming.finding import NotFound, found_by_samples
from paramsym.checkpoints.streaming.gaps import Gap, is_slid, seen_through, typical_size, units_of
from paramsym.checkpoints.streaming.job import Job, one_thread, require_finite
from paramsym.checkpoints.streaming.spelling import Named
from paramsym.engines import Engine
from paramsym.geometry.invariants import FLOOR
from paramsym.geometry.same_orbit import COARSE, TOLERANCES
from paramsym.origin.comparison import ComparedTensor, Comparison, Kind
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

_WIDE = (torch.float32, torch.float64)
_FIRST = 8  # rows by which files that are equal are told before all of them are read


def compare_files(
    symmetry: ParameterSymmetry, a: Weights, b: Weights, tol: float | None, engine: Engine,
    progress: Callable[[str], None],
) -> Comparison:  # fmt: skip
    """Whether an element of their symmetry carries one checkpoint to the other, and which.

    A candidate is read off samples (`found_by_samples`); then b is moved by it, panel by panel, and
    every number is held against that of a.

    Args:
        symmetry: of both.
        a, b: files of the same tensors.
        tol: the largest difference within a tensor, relative to its root mean square, that counts
            as equal; by default as for `same_orbit`.
        engine: who holds the tensors against each other.
        progress: is told each step when it begins.

    Returns:
        IDENTICAL, SAME, or UNDECIDED with the reason: this way finds no common origin.

    Raises:
        CheckpointError: names, shapes or dtypes differ, or a number is not finite.
    """
    _require_alike(a, b)
    tol = _tolerance(a) if tol is None else tol
    nothing = GroupElement(symmetry)
    if _begin_alike(a, b):
        found = _gaps(symmetry, nothing, a, b, engine, progress)
        if all(each.largest == 0.0 for each in found.values()):
            return _verdict(Kind.IDENTICAL, "all numbers are equal", found, nothing)
    with Opened(a.checkpoint) as one, Opened(b.checkpoint) as two:
        try:
            element = found_by_samples(
                symmetry, _named(one, a, symmetry), _named(two, b, symmetry), tol, progress
            )
        except NotFound as error:
            return _verdict(Kind.UNDECIDED, _undecided(str(error)), {}, nothing)
    found = _gaps(symmetry, element, a, b, engine, progress)
    floor = FLOOR * typical_size(found.values())
    slid = {name for name, own in b.names.items() if is_slid(symmetry, own)}
    left = {name: gap.relative(floor if name in slid else 0.0) for name, gap in found.items()}
    worst = max(left, key=left.__getitem__)
    if left[worst] > tol:
        reason = f"of {worst!r}, or of a unit of it, {left[worst]:.1e} of its size is left"
        return _verdict(Kind.UNDECIDED, _undecided(reason), found, nothing)
    reason = "an element of the group carries one to the other"
    return _verdict(Kind.SAME, reason, found, element)


def _undecided(reason: str) -> str:
    return (
        f"no element was read off samples of the files ({reason}); they are too large to be held "
        "against unrelated pairs in memory"
    )


def _verdict(kind: Kind, reason: str, found: dict[str, Gap], element: GroupElement) -> Comparison:
    tensors = {n: ComparedTensor(each.distance, None, True) for n, each in found.items()}
    distance = max((each.distance for each in found.values()), default=math.inf)
    return Comparison(kind, reason, distance, None, tensors, {}, element)


def _named(opened: Opened, weights: Weights, symmetry: ParameterSymmetry) -> Named:
    joins = weights.joins
    return Named(joins.of(opened), joins.spelled(symmetry.ties), {})


def _tolerance(a: Weights) -> float:
    floats = [e.dtype for e in a.checkpoint.entries.values() if e.dtype.is_floating_point]
    return max((TOLERANCES.get(dtype, COARSE) for dtype in floats), default=0.0)


def _require_alike(a: Weights, b: Weights) -> None:
    """Raise where two checkpoints are no two points of one space."""
    where, one, two = b.checkpoint.place.address, a.checkpoint.entries, b.checkpoint.entries
    expected, instead = "two checkpoints of one architecture", "Give two of one kind"
    for name, entry in one.items():
        if name not in two:
            raise CheckpointError(where, f"{name!r} is missing", expected, instead)
        if (entry.code, entry.shape) != (two[name].code, two[name].shape):
            came = f"{name!r} is {two[name].code} {two[name].shape}, not {entry.code} {entry.shape}"
            raise CheckpointError(where, came, expected, instead)
    if extra := [name for name in two if name not in one]:
        raise CheckpointError(where, f"{extra[0]!r} is not in the first", expected, instead)


def _begin_alike(a: Weights, b: Weights) -> bool:
    """Whether the first rows of all tensors are equal."""
    with Opened(a.checkpoint) as one, Opened(b.checkpoint) as two:
        return all(torch.equal(one[n][:_FIRST], two[n][:_FIRST]) for n in a.checkpoint)


def _gaps(
    symmetry: ParameterSymmetry, element: GroupElement, a: Weights, b: Weights, engine: Engine,
    progress: Callable[[str], None],
) -> dict[str, Gap]:  # fmt: skip
    """Every tensor of b, moved, held against that of a."""
    job = Job(b.checkpoint, symmetry, element, b.names, b.windows)
    names = list(b.checkpoint)
    total, done, found = b.checkpoint.bytes, 0, {}
    with one_thread():
        for place, each in engine.map(partial(_gap, job, a), names):
            found[names[place]] = each
            done += b.checkpoint.entries[names[place]].bytes
            progress(f"comparing all numbers, {done / 1e9:.1f} of {total / 1e9:.1f} GB")
    return {name: found[name] for name in names}


def _gap(job: Job, a: Weights, name: str) -> Gap:
    """One tensor, panel by panel."""
    still = Job(a.checkpoint, job.symmetry, GroupElement(job.symmetry), a.names, a.windows)
    own = job.names.get(name)
    units = {} if own is None else units_of(job.symmetry, own)
    if name in job.windows:
        units = seen_through(job.windows[name], units)
    found, low = Gap(units, job.checkpoint.entries[name].shape), 0
    with Opened(a.checkpoint) as one, Opened(job.checkpoint) as two:
        moved = job.panels(two, name, two[job.source(name)])
        for x, y in _pairs(one.tensor(name, one.room), moved):
            found.add(_numbers(x), _numbers(y), low)
            if not found.finite:  # an infinity may be meant
                require_finite(still, name, x)
                require_finite(job, name, y)
            if not _is_rounded(x) and not torch.equal(x, y):
                found.largest = math.inf  # whole numbers are equal or not
            low += x.shape[0] if x.ndim else 1
    return found


def _is_rounded(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _numbers(x: torch.Tensor) -> torch.Tensor:
    """All numbers of a panel in a dtype in which their differences can be summed."""
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point():
        return x.double()
    return x.to(x.dtype if x.dtype in _WIDE else torch.float32)


def _pairs(x, panels: Iterator[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The panels of one tensor beside the same rows of another."""
    at = 0
    for panel in panels:
        if not panel.ndim:
            yield x[:], panel
            continue
        yield x[at : at + panel.shape[0]], panel
        at += panel.shape[0]
