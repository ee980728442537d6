"""Which tensors must be together, so that one of them can be moved.

A part of an element moves a tensor by what the tensors were before it: values of spaces read the
gains in whose frames they act, slides read windows. Parts act one after the other, so that what a
later part reads must have been moved by the earlier ones: the needs are closed under reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paramsym.structure.data import SymmetryData
from paramsym.structure.element import GroupElement, Part, Slide


@dataclass(frozen=True)
class Steps:
    """What has to be done to move one tensor.

    `names` are the tensors that it needs, itself first; `moved` are those of them that each part,
    by its place in the word, has to move.
    """

    names: tuple[str, ...]
    moved: dict[int, tuple[str, ...]]

    @property
    def moved_names(self) -> set[str]:
        """All tensors that some part has to move."""
        return {name for names in self.moved.values() for name in names}


def moves(symmetry: SymmetryData, part: Part, name: str) -> bool:
    """Whether a part moves a tensor."""
    if isinstance(part, Slide):
        return name in symmetry.shift_of[part.shift].terms_of
    return name in symmetry.signature and any(s in part for s in symmetry.movers[name])


def moved_by(symmetry: SymmetryData, part: Part) -> Iterable[str]:
    """All tensors that a part moves."""
    if isinstance(part, Slide):
        return symmetry.shift_of[part.shift].parameters
    return [name for name in symmetry.signature if moves(symmetry, part, name)]


def reads(symmetry: SymmetryData, part: Part, name: str) -> Iterable[str]:
    """What a part reads to move a tensor, besides the tensor itself."""
    if isinstance(part, Slide):
        return symmetry.shift_of[part.shift].reads(name, part.inverse)
    return _gains(symmetry, part, name)


def _gains(symmetry: SymmetryData, spaces: Iterable[str], name: str) -> Iterable[str]:
    """The gains in whose frames some spaces move a tensor."""
    legs = [leg for block in symmetry.blocks.get(name, ()) for leg in block.legs if leg.frame]
    return dict.fromkeys(f.parameter for leg in legs if leg.space in spaces for f in leg.frame)


def steps(symmetry: SymmetryData, element: GroupElement, name: str) -> Steps:
    """What an element needs and does to move one tensor, from its last part back to the first."""
    parts = element.parts
    names: dict[str, None] = {}
    moved: dict[int, dict[str, None]] = {}
    left = [(name, len(parts))]
    while left:
        name, end = left.pop()
        names[name] = None
        places = {k for s in symmetry.movers.get(name, ()) for k in element.places.get(s, ())}
        last = max((k for k in places if k < end and moves(symmetry, parts[k], name)), default=None)
        if last is None or name in moved.get(last, ()):
            continue
        moved.setdefault(last, {})[name] = None
        left += [(n, last) for n in (name, *reads(symmetry, parts[last], name))]
    return Steps(tuple(names), {k: tuple(moved[k]) for k in sorted(moved)})


def needs(symmetry: SymmetryData, name: str, element: GroupElement | None) -> tuple[str, ...]:
    """See `ParameterSymmetry.needs`."""
    name = symmetry.ties.get(name, name)
    if element is not None:
        return steps(symmetry, element, name).names
    names, left = {name: None}, [name]
    while left:
        name = left.pop()
        read = set(_gains(symmetry, symmetry.spaces, name))
        for mover in symmetry.movers.get(name, ()):
            if mover in symmetry.shift_of:
                read.update(symmetry.shift_of[mover].reads(name, inverse=True))
        new = sorted(read - names.keys())
        names |= dict.fromkeys(new)
        left += new
    return tuple(names)
