"""`compare`: one checkpoint held against another, next to pairs that are unrelated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paramsym.geometry.alignment import Aligned, align
from paramsym.geometry.alike import alike
from paramsym.geometry.bringing import counted
from paramsym.geometry.reduced import Reduced, reduce
from paramsym.geometry.same_orbit import Kind as Orbit
from paramsym.geometry.same_orbit import same_orbit
from paramsym.origin.comparison import ComparedTensor, Comparison, Kind
from paramsym.origin.nulls import independent_draw
from paramsym.origin.parameters import effective
from paramsym.origin.partners import Cell, Partners, partners
from paramsym.origin.verdict import Measured, judged
from paramsym.structure.action import act
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
Progress = Callable[[str], None]


def compare(
    symmetry: ParameterSymmetry,
    a: Params,
    b: Params,
    independent: Iterable[Params] = (),
    null: int = 4,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    tol: float | None = None,
) -> Comparison:
    """Whether two checkpoints of one architecture are one network, or have one origin.

    b is aligned to a. If they agree then, that is all. If not, the aligned pair is held against
    pairs that are unrelated, and two things are read:

    - in each space of orders, how many units have a clear partner (`partners`), by all tensors
      together and by each alone. A share of a half and more, which unrelated networks do not reach,
      with a chance below 1e-4 over all that was read, says DERIVED;
    - for each tensor, the aligned distance. It keeps near networks from being called UNRELATED.
      Alone it decides only where no space has units to count, and only beside independent
      checkpoints.

    One network has one origin, too: where `same_orbit` does not decide whether they are one, what
    would be DERIVED is UNDECIDED.

    DERIVED means a common origin: fine-tuning, pruning, rounding, a common initialisation. It does
    not say which of the two was first. Where data and task determine the weights (a small student
    of a small teacher), independent networks have clear partners too; pass some as `independent`.

    Args:
        symmetry: of both.
        a: a complete state dict, only read.
        b: another, of the same shapes and dtypes.
        independent: checkpoints of which it is known that they are related to neither. Each is
            aligned with both, and sets what independence looks like on this task.
        null: how many pairs are drawn, with the spectra of a and b (`independent_draw`).
        generator: of the draws; seed 0 if none is given.
        progress: called with a line for each step.
        tol: what counts as equal, as for `same_orbit`.

    Returns:
        A `Comparison`, which prints itself as tables.

    Raises:
        ValueError: tensors that are missing, without finite numbers or of other shapes; two dtypes
            for one tensor; no pair to compare with.

    Source: clear partners: Lowe 2004, section 7.1. That an independent network cannot know the
        order of another's units is the idea of Zhu et al., Independence tests for language models
        (2025), arXiv 2502.12292.
    """
    others = list(independent)
    _require_pairs(null, len(others))
    for other in (b, *others):
        alike(symmetry, a, other, "compare")  # names that nobody knows would be equal in nothing
    if _identical(symmetry, a, b):
        same = dict.fromkeys(counted(symmetry, a), ComparedTensor(0.0, None, True))
        return Comparison(
            Kind.IDENTICAL, "all numbers are equal", 0.0, None, same, {}, symmetry.identity()
        )
    orbit = same_orbit(symmetry, a, b, tol, progress)
    if orbit.kind is Orbit.EQUAL:
        same = _distances(symmetry, a, act(symmetry, orbit.element, b))
        reason = "an element of the group carries one to the other"
        return Comparison(
            Kind.SAME,
            reason,
            max(same.values(), default=0.0),
            None,
            {n: ComparedTensor(d, None, True) for n, d in same.items()},
            {},
            orbit.element,
            orbit=orbit,
        )
    aligned = align(symmetry, a, b, progress=progress)
    first, second = reduce(symmetry, a, progress), reduce(symmetry, b, progress)
    pairs = _drawn(symmetry, first.params, second.params, null, generator, progress)
    given = _given(symmetry, (a, first), (b, second), others, progress)
    pair = Measured(aligned, _partners(symmetry, a, first, aligned))
    found = replace(judged(symmetry, pair, pairs, given), orbit=orbit)
    if orbit.kind is Orbit.UNDECIDED and found.kind is Kind.DERIVED:
        # one network has one origin, too, and whether they are one was not settled
        reason = f"{orbit.reason.rstrip('.')}; whether one or two, they have one origin: "
        return replace(found, kind=Kind.UNDECIDED, reason=reason + found.reason)
    return found


# -- the pairs ------------------------------------------------------------------------------------


def _partners(
    symmetry: ParameterSymmetry, a: Params, at: Reduced, aligned: Aligned
) -> dict[Cell, Partners]:
    """Clear partners of an aligned pair, where the first point is reduced."""
    return partners(
        symmetry, act(symmetry, at.element, a), act(symmetry, at.element, aligned.params)
    )


def _drawn(
    symmetry: ParameterSymmetry, a: Params, b: Params, count: int,
    generator: torch.Generator | None, progress: Progress | None,
) -> list[Measured]:  # fmt: skip
    """Aligned pairs of draws with the spectra of two reduced points."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    found = []
    for k in range(count):
        if progress:
            progress(f"unrelated pair {k + 1} of {count}")
        x, y = (independent_draw(symmetry, each, generator) for each in (a, b))
        aligned = align(symmetry, x, y)
        found.append(Measured(aligned, partners(symmetry, x, aligned.params)))
    return found


def _given(
    symmetry: ParameterSymmetry, a: tuple[Params, Reduced], b: tuple[Params, Reduced],
    others: list[Params], progress: Progress | None,
) -> list[Measured]:  # fmt: skip
    """Both checkpoints aligned with each of those that are known to be independent."""
    found = []
    for k, other in enumerate(others):
        if progress:
            progress(f"independent checkpoint {k + 1} of {len(others)}")
        for params, reduced in (a, b):
            aligned = align(symmetry, params, other)
            found.append(Measured(aligned, _partners(symmetry, params, reduced, aligned)))
    return found


# -- one orbit ------------------------------------------------------------------------------------


def _identical(symmetry: ParameterSymmetry, a: Params, b: Params) -> bool:
    names = [n for n in (*symmetry.signature, *symmetry.ties) if n in a]
    return all(n in b and torch.equal(a[n], b[n]) for n in names)


def _distances(symmetry: ParameterSymmetry, a: Params, b: Params) -> dict[str, float]:
    """Relative distances by tensor, without alignment."""
    found = {}
    for name in counted(symmetry, a):
        one, other = (effective(symmetry, each, name) for each in (a, b))
        size = math.hypot(float(one.norm()), float(other.norm()))
        found[name] = float((one - other).norm()) / size if size else 0.0
    return found


# -- what is refused ------------------------------------------------------------------------------


def _require_pairs(null: int, given: int) -> None:
    if null < 0 or null + given == 0:
        raise ValueError(
            f"compare(null={null}, independent={given} checkpoints): there is no unrelated pair to "
            "compare with, and at least one was expected. Leave null at 4."
        )
