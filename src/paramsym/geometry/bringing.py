"""Both points of a question reduced, and the one brought next to the other by a compact group."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from paramsym.geometry.approach import Approach
from paramsym.geometry.compact import compact_part
from paramsym.geometry.loose import carried_along
from paramsym.geometry.pair import Pair, square
from paramsym.geometry.reduced import Reduced
from paramsym.geometry.support import supported
from paramsym.geometry.transvections import received
from paramsym.geometry.unframed import unframed_params, without_frames
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class Brought:
    """Two reduced points, of which the second moves.

    Attributes:
        symmetry: the symmetry of both.
        first, second: the points, reduced.
        approach: how the second is brought next to the first.
    """

    symmetry: ParameterSymmetry
    first: Reduced
    second: Reduced
    approach: Approach

    @property
    def stuck(self) -> dict[str, str]:
        """The spaces that cannot act in one of the points, with the gain that has a zero."""
        return {**self.first.stuck, **self.second.stuck}

    @cached_property
    def plain(self) -> ParameterSymmetry:
        """The symmetry as it acts outside of frames."""
        return without_frames(self.symmetry, self.stuck)

    @property
    def pair(self) -> Pair:
        """The effective parameters of both, as they are now."""
        return self.approach.pair

    @property
    def compact(self) -> GroupElement:
        """The compact element that has moved the second point so far."""
        return GroupElement(self.symmetry, self.pair.element.parts)

    @property
    def element(self) -> GroupElement:
        """The element that carries the second point, as it was given, next to the first one."""
        step = self.compact
        if self.loose:
            step = self._along() @ step
        for name in (n for n in self.loose if n in self.symmetry.shift_of):
            moving = act(self.symmetry, step, self.second.params)
            offset = received(self.symmetry.shift_of[name], self.first.params, moving)
            if offset is not None:
                step = self.symmetry.element({name: offset}) @ step
        return ~self.first.element @ step @ self.second.element

    @property
    def distance(self) -> float:
        """‖a − b‖ / √(‖a‖² + ‖b‖²), as the points are now, of what the objective counts."""
        return distance(self.pair.fixed, self.pair.moving, self.approach.counts)

    @property
    def loose(self) -> dict[str, int]:
        """By space, in how many directions of either point one side stands against zeros."""
        return {**self.first.loose, **self.second.loose}

    def supports(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Both points, buffers too, as they are now, without what stands against zeros."""
        points = self.first.free, self.moved
        one, other = (supported(self.plain, point)[0] for point in points)
        return one, other

    def _along(self) -> GroupElement:
        """What carries the loose directions of the second point to those of the first."""
        fixed, moving = (
            unframed_params(self.symmetry, point.params, self.stuck)
            for point in (self.first, self.second)
        )
        moving = act(self.plain, self.compact, moving)
        loose = [name for name in self.loose if name in self.plain.spaces]
        return GroupElement(self.symmetry, carried_along(self.plain, fixed, moving, loose).parts)

    @property
    def held(self) -> dict[str, str]:
        """What could not be brought to its place in either point."""
        frame = "it acts in the frame of {!r}, which has a zero"
        why = {name: frame.format(gain) for name, gain in self.stuck.items()}
        return {**self.first.held, **self.second.held, **why}

    @property
    def moved(self) -> dict[str, Tensor]:
        """All of the second point, buffers too, in the coordinates of `first.free`."""
        return act(self.plain, self.compact, self.second.free)


def bring(
    symmetry: ParameterSymmetry,
    within: ParameterSymmetry,
    first: Reduced,
    second: Reduced,
    readings: Mapping[str, str] | None = None,
) -> Brought:
    """The question how near two reduced points can be brought, before anything has moved.

    Args:
        symmetry: the symmetry of both.
        within: the subgroup that may move them.
        first: the point that stays.
        second: the point that moves.
        readings: names of activations that stand beside the parameters, which spaces are read from
            if they carry them.
    """
    beside = [*(readings or {}).values()]
    counts = [*counted(symmetry, first.params), *beside]
    told = witnesses(symmetry, first.params)
    names = [*counts, *(n for n in told if n not in beside)]
    stuck = {**first.stuck, **second.stuck}
    fixed, moving = (_free(symmetry, point, stuck, names) for point in (first, second))
    compact = compact_part(within, stuck, names)
    return Brought(symmetry, first, second, Approach(Pair(compact, fixed, moving), beside, told))


def _free(
    symmetry: ParameterSymmetry, point: Reduced, stuck: Mapping[str, str], names: Collection[str]
) -> dict[str, Tensor]:
    """What enters distances, with zeros in rows that nothing reaches."""
    free = point.free
    if {*stuck} != {*point.stuck}:  # a gain has a zero in one of the points alone
        free = unframed_params(symmetry, point.params, stuck)
    found = {name: free[name].contiguous() for name in names}
    for name, rows in symmetry.unreached.items():
        if rows and name in found:
            found[name] = found[name].clone()
            found[name][list(rows)] = 0
    return found


def counted(symmetry: ParameterSymmetry, params: Params) -> list[str]:
    """The parameters that enter distances: no buffers, nothing dead, tied tensors once."""
    left_out = {*symmetry.buffers, *symmetry.dead, *symmetry.ties}
    return [
        n for n in symmetry.signature
        if n in params and n not in left_out
        and (params[n].is_floating_point() or params[n].is_complex())
    ]  # fmt: skip


def witnesses(symmetry: ParameterSymmetry, params: Params) -> list[str]:
    """Buffers of numbers: running statistics enter no distance, but units may differ in them."""
    return [
        n for n in symmetry.buffers
        if n in params and n in symmetry.signature and n not in symmetry.ties
        and params[n].is_floating_point()
    ]  # fmt: skip


def distance(fixed: Params, moving: Params, names: Collection[str]) -> float:
    """‖a − b‖ / √(‖a‖² + ‖b‖²) over some parameters."""
    apart = square([fixed[n] - moving[n] for n in names])
    sizes = [square([side[n] for n in names]) for side in (fixed, moving)]
    return math.sqrt(apart / (sum(sizes) or 1.0))
