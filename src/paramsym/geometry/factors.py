"""Families that share no tensor: a cost that is a sum over tensors is least for each on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paramsym.geometry.movers import Movers
from paramsym.geometry.result import Balanced, Part, Status
from paramsym.structure.element import GroupElement
from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry

_KNOWN = (Status.OPTIMAL, Status.LOCAL, Status.UNATTAINED)  # from the best to the least certain


@dataclass(frozen=True)
class Factor:
    """Movers, and the tensors of the signature that they move or read, which no others do."""

    movers: Movers
    tensors: tuple[str, ...]


def factors_of(symmetry: ParameterSymmetry, movers: Movers) -> list[Factor]:
    """The movers in as many factors as there are, in the order of the model.

    Two that move or read one tensor are of one factor, and so on along chains of such. Only the
    tensors of one have to be in memory while its best values are looked for.

    Args:
        symmetry: whose spaces and shifts they are.
        movers: those that move; what is held joins nothing.
    """
    kinds = movers.scales, movers.bases, movers.rotations, movers.shifts
    families = [name for kind in kinds for name in kind]
    touched = {name: _touched(symmetry, name) for name in families}
    root = {name: name for name in families}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    owner: dict[str, str] = {}
    for name in families:
        for tensor in touched[name]:
            root[find(name)] = find(owner.setdefault(tensor, name))
    groups: dict[str, set[str]] = {}
    for name in families:
        groups.setdefault(find(name), set()).add(name)
    place = {name: k for k, name in enumerate(symmetry.signature)}
    found = []
    for names in groups.values():
        scales, bases, rotations, shifts = ([n for n in kind if n in names] for kind in kinds)
        own = Movers(scales, bases, rotations, shifts)
        tensors = {tensor for name in names for tensor in touched[name]}
        found.append(Factor(own, tuple(sorted(tensors, key=place.__getitem__))))
    return found


def together(
    symmetry: ParameterSymmetry, start: Params, parts: Sequence[Part], constant: float,
    held: Mapping[str, str],
) -> Balanced:  # fmt: skip
    """The best point of all factors, of those of each.

    Args:
        symmetry: whose factors they are.
        start: the parameters that were given.
        parts: one for each factor.
        constant: the cost of the tensors that none of them moves.
        held: what did not move from the first.
    """
    before, value = (constant + sum(getattr(p, n) for p in parts) for n in ("before", "value"))
    element = GroupElement(symmetry)
    moment: dict[str, float] = {}
    for part in parts:
        element = part.element @ element
        share = (part.value or 1.0) / (value or 1.0)
        moment |= {name: size * share for name, size in part.moment.items()}
    status = max((part.status for part in parts), key=_KNOWN.index, default=Status.OPTIMAL)
    return Balanced(
        start, element, before, value, status, sum(part.gap for part in parts), moment,
        {**held, **{n: why for part in parts for n, why in part.held.items()}},
        max((part.rounds for part in parts), default=1),
    )  # fmt: skip


def _touched(symmetry: ParameterSymmetry, name: str) -> set[str]:
    """The tensors that a space or a shift moves, and those that have to be read for it."""
    shift = symmetry.shift_of.get(name)
    found: set[str] = set()
    moved: Iterable[str] = symmetry.parameters_of(name) if shift is None else shift.parameters
    for tensor in moved:
        found |= {tensor, *symmetry.needs(tensor)}
        if shift is not None:
            found |= {*shift.reads(tensor), *shift.reads(tensor, True)}
    return {symmetry.ties.get(tensor, tensor) for tensor in found}
