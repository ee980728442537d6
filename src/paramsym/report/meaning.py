"""What a group does to the features of a space, in a sentence that takes no algebra to read."""

from __future__ import annotations

from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Orthogonal,
    OrthogonalFixingOnes,
    Trivial,
    UnitComplex,
)
from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.algebra.monomial import AbstractMonomial
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_THINGS = {
    "residual": "features of the stream between layers",
    "head": "heads",
    "group": "query heads that share a key",
    "qk": "coordinates of queries and keys",
    "vo": "coordinates of values",
    "mlp": "hidden units",
    "channels": "channels",
    "state": "coordinates of the state",
    "embedding": "coordinates of the table",
}  # by the role that ends the name of a space
_BASES = {
    Orthogonal: "may turn together, lengths kept",
    OrthogonalFixingOnes: "may turn together, lengths and means kept",
    GeneralLinear: "may change to any other basis",
    ComplexScaling: "may turn, and grow or shrink",
    UnitComplex: "may turn",
}


def meaning(symmetry: ParameterSymmetry, spaces: tuple[Space, ...]) -> str:
    """What may happen to the features of a space, or of several that are shown as one."""
    first = spaces[0]
    units = first if not _is_scalar(first) else symmetry.spaces[first.over[-1]]
    sizes = {s.size if not _is_scalar(s) else symmetry.spaces[s.over[-1]].size for s in spaces}
    low, high = min(sizes), max(sizes)
    count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    inside = "" if _is_scalar(first) or not first.over else _inside(symmetry, first)
    if isinstance(first.group, AbstractComplexScaling):
        return f"Each pair of {_things(units, high)} {_verb(first.group)}{inside}."
    return f"{count} {_things(units, high)} {_verb(first.group)}{inside}."


def _inside(symmetry: ParameterSymmetry, space: Space) -> str:
    """Where copies of a group act, if their units have a name."""
    units = symmetry.spaces[space.over[0]]
    things = _things(units, 1)
    return "" if things.startswith("feature") else f", in each {things} by itself"


def _is_scalar(space: Space) -> bool:
    """Whether it is one number for each unit of another space."""
    return space.size == 1 and bool(space.over)


def _things(units: Space, count: int) -> str:
    said = (_THINGS[part] for part in reversed(units.name.split(".")) if part in _THINGS)
    things = next(said, "features")
    first, _, rest = things.partition(" ")
    return things if count > 1 else " ".join(filter(None, (first.removesuffix("s"), rest)))


def _verb(group: Group) -> str:
    if isinstance(group, Trivial):
        return "stay as they are: they tell apart copies of another space"
    if isinstance(group, AbstractMonomial):
        each = [
            *(["grow or shrink"] if group.scales else []),
            *(["change sign"] if group.signs else []),
        ]
        own = "each " + " and ".join(each) if each else ""
        trade = "trade places" if group.permutes else ""
        return "may " + " and ".join(filter(None, (trade, own)))
    return _BASES.get(type(group), "may move together")
