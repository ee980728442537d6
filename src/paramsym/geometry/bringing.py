"""Both points of a question reduced, and the one brought next to the other by a compact group."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from paramsym.geometry.approach import Approach
from paramsym.geometry.compact import compact_part
from paramsym.geometry.pair import Pair, square
from paramsym.geometry.reduced import Reduced
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
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
        return ~self.first.element @ self.compact @ self.second.element

    @property
    def held(self) -> dict[str, str]:
        """What could not be brought to its place in either point."""
        return {**self.first.held, **self.second.held}


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
    names = [*counted(symmetry, first.params), *beside]
    compact = compact_part(within, first.units & second.units, names)
    fixed, moving = (
        {n: effective(symmetry, point.params, n) for n in names} for point in (first, second)
    )
    return Brought(symmetry, first, second, Approach(Pair(compact, fixed, moving), beside))


def counted(symmetry: ParameterSymmetry, params: Params) -> list[str]:
    """The parameters that enter distances: no buffers, nothing dead, tied tensors once."""
    left_out = {*symmetry.buffers, *symmetry.dead, *symmetry.ties}
    return [
        n for n in symmetry.signature
        if n in params and n not in left_out
        and (params[n].is_floating_point() or params[n].is_complex())
    ]  # fmt: skip


def effective(symmetry: ParameterSymmetry, params: Params, name: str) -> Tensor:
    """A parameter as the model uses it, with zeros in rows that nothing reaches."""
    own = added(params[name], symmetry.offsets.get(name, 0.0))
    if rows := symmetry.unreached.get(name):
        own = own.clone()
        own[list(rows)] = 0
    return own.contiguous()


def distance(fixed: Params, moving: Params, names: Collection[str]) -> float:
    """‖a − b‖ / √(‖a‖² + ‖b‖²) over some parameters."""
    apart = square([fixed[n] - moving[n] for n in names])
    sizes = [square([side[n] for n in names]) for side in (fixed, moving)]
    return math.sqrt(apart / (sum(sizes) or 1.0))
