"""Which spaces and shifts a norm is minimised along, and why the others are held."""

from __future__ import annotations

from dataclasses import dataclass, field

from paramsym.algebra import AbstractMonomial, ComplexScaling, GeneralLinear
from paramsym.algebra.linear import AbstractRotation
from paramsym.geometry.costs import scales_of
from paramsym.geometry.rotations import rotates_in_frames
from paramsym.structure.patterns import Patterns, matching
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass
class Movers:
    """Spaces that move by their scales, by changes of basis, by rotations, and shifts; `held` says
    why others do not."""

    scales: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    rotations: list[str] = field(default_factory=list)
    shifts: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def without_shifts(self, why: str) -> Movers:
        """Others of the same spaces, with the shifts held."""
        held = self.held | dict.fromkeys(self.shifts, why)
        return Movers([*self.scales], [*self.bases], [*self.rotations], [], held)


def movers_of(
    symmetry: ParameterSymmetry,
    power: float,
    hold: Patterns,
    include: Patterns,
    shifts: bool,
    call: str = "balance",
    rotations: bool = False,
) -> Movers:
    """Who takes part in Σ |w|^p.

    Args:
        symmetry: whose spaces and shifts they are.
        power: p; what mixes coordinates takes part for p = 2 alone, but for moduli of complex
            scalings, whose phases are then in `held`.
        hold: patterns of those to leave as they are.
        include: patterns of approximate spaces to move all the same.
        shifts: whether shifts take part.
        call: the function that is named in errors.
        rotations: whether rotations in the frames of gains take part.

    Raises:
        UnknownName: a pattern matches nothing.
    """
    names = [*symmetry.spaces, *symmetry.shift_of]
    still = matching(hold, names, f"{call}(hold=…)") if hold else set()
    named = matching(include, names, f"{call}(include=…)") if include else set()
    found = Movers()
    for space in symmetry.spaces.values():
        if not symmetry.dimension(space.name):
            continue
        if space.name in still:
            found.held[space.name] = "it was asked for"
        elif not space.exact and space.name not in named:
            found.held[space.name] = _APPROXIMATE
        else:
            _place(found, symmetry, space, power, rotations)
    for name in symmetry.shift_of if shifts else ():
        if name in still:
            found.held[name] = "it was asked for"
        elif power != 2:
            found.held[name] = "along shifts only the sum of squares is minimised"
        elif symmetry.shift_of[name].is_flow:
            found.held[name] = _FLOWS
        else:
            found.shifts.append(name)
    return found


_FLOWS = "it moves along a curve, on which the norm is not convex"
_PHASES = "a phase mixes the coordinates of a pair: moduli alone can move"
_APPROXIMATE = "it keeps the function only approximately; name it in include= to move it"


def _place(
    found: Movers, symmetry: ParameterSymmetry, space: Space, power: float, rotations: bool
) -> None:
    """Put a space that nobody asked to hold where it belongs."""
    if rotations and power == 2 and rotates_in_frames(symmetry, space.name):
        found.rotations.append(space.name)
    elif why := _held(symmetry, space, power):
        found.held[space.name] = why
    else:
        (found.scales if scales_of(space) else found.bases).append(space.name)
        if power != 2 and isinstance(space.group, ComplexScaling):
            found.held[f"{space.name} (phases)"] = _PHASES


def _held(symmetry: ParameterSymmetry, space: Space, power: float) -> str:
    """Why a norm is not minimised along a space; nothing where it is."""
    group = space.group
    if scales_of(space):
        return ""  # moduli too: one of them multiplies both coordinates of its pair
    if power != 2 and not isinstance(group, AbstractMonomial):
        return "of mixed coordinates only the sum of squares is convex"
    framed = any(leg.frame for leg in symmetry.legs(space.name))
    if isinstance(group, AbstractRotation) and rotates_in_frames(symmetry, space.name):
        return (
            "along rotations in the frame of a gain the norm is not convex; rotations=True descends"
        )
    if not isinstance(group, GeneralLinear) and not framed:
        return "rotations keep the norm"
    if framed:
        return "in the frame of a gain the norm is not convex"
    return ""
