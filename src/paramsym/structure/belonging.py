"""Whether an element may act: what moves must be spaces and shifts of the symmetry at hand."""

from __future__ import annotations

from paramsym.structure.data import SymmetryData
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.space import Space


def require_own(symmetry: SymmetryData, element: GroupElement) -> None:
    """Raise a `ValueError` if an element says more than the groups of a symmetry allow.

    It may belong to a smaller symmetry, or to the dual one: what counts is what it moves.
    """
    own = element.symmetry
    if own is symmetry:
        return
    shifts = {shift.name: shift for shift in symmetry.shifts}
    for part in element.parts:
        if isinstance(part, Slide):
            if part.shift not in shifts or shifts[part.shift] not in own.shifts:
                raise _stranger(f"it slides along {part.shift!r}", "shifts", [*shifts])
            continue
        for name in part:
            theirs, ours = own.spaces.get(name), symmetry.spaces.get(name)
            if theirs is None or ours is None or not _is_within(theirs, ours):
                said = "it moves " + (repr(name) if theirs is None else _text(theirs))
                raise _stranger(said, "spaces", [*map(_text, symmetry.spaces.values())])


def _is_within(space: Space, larger: Space) -> bool:
    alike = (space.size, space.over) == (larger.size, larger.over)
    return alike and (space.group == larger.group or space.group <= larger.group)


def _text(space: Space) -> str:
    return f"{space.name!r} by {space.group}" + (f" over {space.over}" if space.over else "")


def _stranger(said: str, kind: str, known: list[str]) -> ValueError:
    return ValueError(
        f"act(symmetry, element, …): the element belongs to another symmetry: {said}, which is not "
        f"among the {kind} of this one. Expected at most: {'; '.join(known[:8]) or 'none'}. Sample "
        "or write the element with the symmetry that you act with."
    )
