"""Two points of one architecture: the nearest equivalent of one to the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paramsym.geometry.approach import Approach
from paramsym.geometry.compact import compact_part
from paramsym.geometry.given import numbers_of
from paramsym.geometry.pair import Pair
from paramsym.geometry.reduced import Reduced, reduce
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Aligned:
    """One point of an orbit next to a given point.

    Attributes:
        params: b moved next to a, in the scales and bases of a: `act(symmetry, element, b)`.
        element: the group element that moves b there.
        distance: ‖a − b‖ / √(‖a‖² + ‖b‖²) between the reduced points: 0 for equal ones, about 1
            for random ones, before anything is aligned.
        distances: the same tensor by tensor.
        objective: ⟨a, b⟩ / (‖a‖ ‖b‖) after the first pass and after every sweep; it never falls.
        held: what could not be brought to its place, or was not told by anything, with the reason.
    """

    params: dict[str, Tensor]
    element: GroupElement
    distance: float
    distances: dict[str, float]
    objective: list[float]
    held: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Brought:
    """Both points reduced, and the one next to the other."""

    first: Reduced
    second: Reduced
    approach: Approach
    element: GroupElement

    @property
    def pair(self) -> Pair:
        return self.approach.pair


def align(
    symmetry: ParameterSymmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sweeps: int = 100,
    progress: Progress | None = None,
) -> Aligned:
    first, second = (numbers_of(symmetry, each, "align") for each in (a, b))
    found = brought(symmetry, reduce(symmetry, first, progress), reduce(symmetry, second, progress), progress)
    found.approach.sweep(sweeps, None, progress)
    element = ~found.first.element @ whole(symmetry, found) @ found.second.element
    pair = found.pair
    distances = distances_of(pair)
    size = math.sqrt(norm(pair.fixed) * norm(pair.moving)) or 1.0
    return Aligned(
        act(symmetry, element, second), element, relative_distance(pair), distances,
        [value / size for value in found.approach.objective],
        {**found.first.held, **found.second.held, **found.approach.doubts},
    )  # fmt: skip


def whole(symmetry: ParameterSymmetry, found: Brought) -> GroupElement:
    """The compact element as one of the whole symmetry."""
    return GroupElement(symmetry, found.pair.element.parts)


def brought(symmetry: ParameterSymmetry, first: Reduced, second: Reduced, progress: Progress | None = None) -> Brought:
    units = first.units & second.units
    names = counted(symmetry, first.params)
    held = {*first.held, *second.held}
    compact = compact_part(symmetry, units, (), names)
    pair = Pair(
        compact,
        {n: effective(symmetry, first.params, n) for n in names},
        {n: effective(symmetry, second.params, n) for n in names},
    )
    approach = Approach(pair)
    approach.read(progress=progress)
    return Brought(first, second, approach, pair.element)


def counted(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> list[str]:
    """The parameters that enter distances: no buffers, nothing dead, tied tensors once."""
    left_out = {*symmetry.buffers, *symmetry.dead, *symmetry.ties}
    return [
        n for n in symmetry.signature
        if n in params and n not in left_out
        and (params[n].is_floating_point() or params[n].is_complex())
    ]  # fmt: skip


def effective(symmetry: ParameterSymmetry, params: Mapping[str, Tensor], name: str) -> Tensor:
    """A parameter as the model uses it, with zeros in rows that nothing reaches."""
    own = added(params[name], symmetry.offsets.get(name, 0.0))
    if rows := symmetry.unreached.get(name):
        own = own.clone()
        own[list(rows)] = 0
    return own.contiguous()


def norm(params: Mapping[str, Tensor]) -> float:
    """Σ |w|²."""
    return sum(float(torch.linalg.vector_norm(p, dtype=torch.float64 if not p.is_complex() else None)) ** 2 for p in params.values())


def relative_distance(pair: Pair) -> float:
    total = sum(float((pair.fixed[n] - pair.moving[n]).norm().double()) ** 2 for n in pair.moving)
    return math.sqrt(total / ((norm(pair.fixed) + norm(pair.moving)) or 1.0))


def distances_of(pair: Pair) -> dict[str, float]:
    """The relative distance of every tensor."""
    found = {}
    for n in pair.moving:
        one, other = pair.fixed[n], pair.moving[n]
        size = math.hypot(float(one.norm()), float(other.norm()))
        found[n] = float((one - other).norm()) / size if size else 0.0
    return found
