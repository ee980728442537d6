"""The part of a network that freed inputs do not touch.

A basis of the inputs that is only read, W₁ ↦ W₁ A⁻¹, has no balance: W₁ can be made as small as one
likes. Who compares parameters leaves out the tensors that read it, and comes back to them once all
else is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from paramsym.algebra import AbstractMonomial
from paramsym.geometry.slices import sliced
from paramsym.structure.axes import spaces_of
from paramsym.structure.shift import Shift
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class Untouched:
    """The tensors of a symmetry that bases of inputs do not move.

    Attributes:
        whole: the symmetry with freed inputs.
        symmetry: what acts on the tensors that are left, with inputs and outputs held.
        spaces: the bases that are left out.
        tensors: the names of what they move.
        crossing: shifts that move or read these tensors.
    """

    whole: ParameterSymmetry
    symmetry: ParameterSymmetry
    spaces: tuple[str, ...]
    tensors: frozenset[str]
    crossing: tuple[Shift, ...]

    @property
    def through(self) -> list[Shift]:
        """Crossing shifts that act through projectors; they stay as they are."""
        return [s for s in self.crossing if any(f.kernel for t in s.terms for f in t.factors)]

    @property
    def plain(self) -> list[Shift]:
        """All others, which are brought to rest beforehand."""
        return [shift for shift in self.crossing if shift not in self.through]

    def at_rest(self, params: Params) -> dict[str, Tensor]:
        """All parameters, at a point of their orbit at which `plain` shifts move nothing."""
        return sliced(self.whole, params, self.plain)[0] if self.plain else dict(params)

    def part(self, params: Params) -> dict[str, Tensor]:
        """The parameters that are left."""
        return {n: p for n, p in params.items() if self.whole.ties.get(n, n) not in self.tensors}


def input_spaces(symmetry: ParameterSymmetry) -> list[str]:
    """The spaces that freed inputs carry."""
    types = [feature.type for feature in symmetry.inputs.values()]
    return [*dict.fromkeys(space for each in types for space in spaces_of(each))]


def untouched(symmetry: ParameterSymmetry, nothing: bool = False) -> Untouched:
    """The part of a symmetry that bases of its inputs do not touch.

    Inputs that orders and scales move, or that something writes to as well (a residual stream),
    are not left out: they have a balance, or need none.

    Args:
        symmetry: with freed inputs.
        nothing: leave out nothing, and have all tensors compared.
    """
    spaces = () if nothing else _read_alone(symmetry)
    tensors = frozenset(name for space in spaces for name in symmetry.parameters_of(space))
    crossing = [shift for shift in symmetry.shifts if _tensors_of(shift) & tensors]
    kept = {name: axes for name, axes in symmetry.signature.items() if name not in tensors}
    left = replace(
        symmetry,
        spaces={name: space for name, space in symmetry.spaces.items() if name not in spaces},
        signature=kept,
        shifts=tuple(shift for shift in symmetry.shifts if shift not in crossing),
        ties={alias: name for alias, name in symmetry.ties.items() if name in kept},
        inputs={},
        outputs={},
    )
    return Untouched(symmetry, left, spaces, tensors, tuple(crossing))


def _read_alone(symmetry: ParameterSymmetry) -> tuple[str, ...]:
    """The bases of inputs that their readers alone carry, and in no frame."""
    return tuple(
        name for name in input_spaces(symmetry)
        if not isinstance(symmetry.spaces[name].group, AbstractMonomial)
        and not symmetry.spaces[name].over
        and all(leg.is_dual and not leg.frame for leg in symmetry.legs(name))
    )  # fmt: skip


def _tensors_of(shift: Shift) -> set[str]:
    """The tensors that a shift moves or reads."""
    moved = shift.parameters
    return {*moved, *(name for own in moved for name in shift.reads(own, inverse=True))}
