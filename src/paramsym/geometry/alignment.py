"""The nearest equivalent of one network to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral

import torch
from torch import Tensor

from paramsym.algebra import Permutation
from paramsym.geometry.alike import alike
from paramsym.geometry.bringing import Brought, bring, distance
from paramsym.geometry.pair import square
from paramsym.geometry.reading import Reading
from paramsym.geometry.reduced import Reduced, alongside, reduce, unit
from paramsym.structure.action import act
from paramsym.structure.axes import Fixed
from paramsym.structure.element import GroupElement
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
Progress = Callable[[str], None]
Readings = Mapping[str, Reading]

PERMUTATIONS = "permutations"  # the name of the group of orders alone


@dataclass(frozen=True)
class Aligned:
    """One point of an orbit next to a given point.

    Attributes:
        params: b moved next to a, in the scales and bases of a: `act(symmetry, element, b)`.
        element: the group element that moves b there.
        distance: ‖a − b‖ / √(‖a‖² + ‖b‖²) between the reduced points: 0 for equal ones, about 1
            for independent ones that have not been aligned.
        distances: the same tensor by tensor, for parameters that count: no buffers, nothing dead.
        objective: ⟨a, g·b⟩ / (‖a‖ ‖b‖), of the readings where data was given, after the first pass
            and after every sweep; it never falls.
        held: what could not be brought to its place, or was not told by anything, with the reason.
    """

    params: dict[str, Tensor]
    element: GroupElement
    distance: float
    distances: dict[str, float]
    objective: list[float]
    held: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        first = f"distance {self.distance:.3g} after {len(self.objective) - 1} sweeps"
        return "\n".join([first, *(f"  {name}: {why}" for name, why in self.held.items())])


def align(
    symmetry: ParameterSymmetry,
    a: Params,
    b: Params,
    data: tuple[Readings, Readings] | None = None,
    *,
    spaces: Patterns | None = None,
    sweeps: int = 100,
    restarts: int = 0,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Aligned:
    """The nearest point to a on the orbit of b.

    Both points are reduced, so that a compact group is left (`reduce`). Then ⟨a, g·b⟩ is maximised
    over it: spaces are read one by one, those first whose tensors are fixed or known along all
    other axes, each in closed form (an assignment, a Procrustes problem, a sign, a phase); sweeps
    over all spaces follow until nothing is gained. On one orbit the first pass is exact. Otherwise
    the point is a local optimum: to find the best assignment of all layers at once is NP-hard.

    Args:
        symmetry: of both networks, derived or written by hand.
        a: the complete state dict that stays.
        b: the one that moves; neither is modified.
        data: what the networks do on data, as `paramsym.merging.readings` of a and of b: spaces
            that carry readings are then aligned by them, and the others by weights.
        spaces: patterns of spaces and shifts that may move, or "permutations" for orders alone,
            without balance. By default everything exact. Scales of gains that serve as frames move
            along, for what acts in a frame is compared outside of it.
        sweeps: at most so many after the first pass.
        restarts: how many sweeps from random elements to try besides; the best one counts.
        generator: draws the restarts, and the order of visits in them.
        progress: called with a line for each step.

    Returns:
        An `Aligned`.

    Raises:
        ValueError: tensors that are missing, left over, of different shapes or dtypes, or not
            finite; readings that do not fit; restarts without a generator.
        UnknownName: a pattern of spaces that matches nothing.

    Source: Ainsworth, Hayase and Srinivasa, "Git Re-Basin" (2023), for permutations; Kempf and Ness
    (1979) for the reduction; Schönemann (1966) for Procrustes.
    """
    _require_counts(sweeps, restarts, generator)
    a, b = alike(symmetry, a, b, "align")
    readings = data or ({}, {})
    beside = _read_beside(symmetry, *readings)
    within = subgroup(beside, spaces)
    points = [
        reduced_within(beside, _joined(params, own), within, spaces, progress)
        for params, own in zip((a, b), readings, strict=True)
    ]
    best = bring(beside, within, *points, readings=_names(readings[0]))
    best.approach.read(progress=progress)
    best.approach.sweep(sweeps, progress=progress)
    for _ in range(restarts):
        other = bring(beside, within, *points, readings=_names(readings[0]))
        other.approach.start(generator)
        other.approach.sweep(sweeps, generator, progress)
        if other.approach.objective[-1] > best.approach.objective[-1]:
            best = other
    if not data and not best.approach.is_met:
        near = bring(beside, within, points[0], alongside(beside, points[0], b))
        near.approach.start()
        if near.distance < best.distance:
            near.approach.sweep(sweeps, progress=progress)
            best = near
    found = _aligned(symmetry, best)
    del best, points  # makes room for the moved parameters
    return replace(found, params=act(symmetry, found.element, b))


def reduced_within(
    symmetry: ParameterSymmetry,
    params: Params,
    within: ParameterSymmetry,
    spaces: Patterns | None,
    progress: Progress | None,
) -> Reduced:
    """A point modulo the compact part of a subgroup; under orders alone only gains are folded."""
    if spaces == PERMUTATIONS:
        return unit(symmetry, params)
    return reduce(symmetry, params, progress, within)


def subgroup(symmetry: ParameterSymmetry, spaces: Patterns | None) -> ParameterSymmetry:
    """The restriction that `spaces` of `align` asks for."""
    if spaces is None:
        return symmetry
    if spaces == PERMUTATIONS:
        return symmetry.restrict(Permutation, translations=False)
    return symmetry.restrict(spaces=spaces)


def _require_counts(sweeps: int, restarts: int, generator: torch.Generator | None) -> None:
    for name, count in (("sweeps", sweeps), ("restarts", restarts)):
        if not isinstance(count, Integral) or count < 0:
            raise ValueError(
                f"align({name}={count!r}): a whole number was expected, zero or more. Leave "
                f"{name}= out for the default."
            )
    if restarts and generator is None:
        raise ValueError(
            f"align(restarts={restarts}): random starts came without a generator that draws them. "
            "Pass generator=torch.Generator().manual_seed(0)."
        )


def _aligned(symmetry: ParameterSymmetry, brought: Brought) -> Aligned:
    """What is known of two points next to each other, before the second one itself is moved."""
    pair, element = brought.pair, GroupElement(symmetry, brought.element.parts)
    own = [n for n in pair.moving if n in symmetry.signature and n not in symmetry.buffers]
    counts = brought.approach.counts
    sizes = [square([side[n] for n in counts]) for side in (pair.fixed, pair.moving)]
    fixed, moving = brought.supports() if brought.loose else (pair.fixed, pair.moving)
    return Aligned(
        {}, element, distance(fixed, moving, own),
        {n: distance(fixed, moving, [n]) for n in own},
        [value / (math.sqrt(sizes[0] * sizes[1]) or 1.0) for value in brought.approach.objective],
        {**brought.held, **brought.approach.doubts},
    )  # fmt: skip


# -- readings --------------------------------------------------------------------------------------


def _names(readings: Readings) -> dict[str, str]:
    """The names under which activations stand beside parameters."""
    return {name: f"reading:{name}" for name in readings}


def _joined(params: Params, readings: Readings) -> dict[str, Tensor]:
    """Parameters with activations beside them, around their means, which shifts move."""
    names = _names(readings)
    return {
        **params,
        **{names[n]: each.values - each.values.mean(0) for n, each in readings.items()},
    }


def _read_beside(
    symmetry: ParameterSymmetry, first: Readings, second: Readings
) -> ParameterSymmetry:
    """The symmetry with readings as buffers: they move along and weigh nothing in balance."""
    typed = {}
    for name, one in first.items():
        other = second.get(name)
        if other is None or other.type != one.type or other.values.shape != one.values.shape:
            came = (
                "is missing" if other is None else f"has {other.type}, {tuple(other.values.shape)}"
            )
            raise ValueError(
                f"align(data=(of a, of b)): the reading {name!r} of b {came}; that of a has type "
                f"'{one.type}' and shape {tuple(one.values.shape)}, and the same was expected. "
                "Take both with readings(model, symmetry, params, inputs) on the same inputs."
            )
        typed[_names(first)[name]] = (Fixed(len(one.values)), one.type)
    if not typed:
        return symmetry
    signature = {**symmetry.signature, **typed}
    return replace(symmetry, signature=signature, buffers=(*symmetry.buffers, *typed))
