"""Less of a symmetry: what may be left of a claim that was refuted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    OrthogonalFixingOnes,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
    UnitComplex,
)
from paramsym.checking.moves import Claim
from paramsym.checking.trial import State
from paramsym.structure.axes import AxisType, Fixed, parts_of, spaces_of
from paramsym.structure.feature import Feature, Features
from paramsym.structure.symmetry import ParameterSymmetry


def weaker(symmetry: ParameterSymmetry, claim: Claim) -> list[tuple[ParameterSymmetry, str]]:
    """The symmetry with less of one claim, the most that may be left first, and what became of it.

    A space tries the smaller groups of the same size (its scale alone, its order alone, …) and
    ends as `Trivial`, its types and copies kept; everything else is taken out. Where even that
    cannot be moved, the copies go, and at last the tensors that carry the space are held.
    """
    if claim.kind == "shift":
        left = tuple(s for s in symmetry.shifts if s.name != claim.name)
        return [(replace(symmetry, shifts=left), f"shift {claim.name} removed")]
    if claim.kind == "dead":
        left = tuple(n for n in symmetry.dead if n != claim.name)
        return [(replace(symmetry, dead=left), f"{claim.name} is not dead")]
    if claim.kind == "unreached":
        rest = {n: rows for n, rows in symmetry.unreached.items() if n != claim.name}
        return [(replace(symmetry, unreached=rest), f"rows of {claim.name} are reached")]
    space, found = symmetry.spaces[claim.name], _with_less(symmetry, claim.name)
    typed = {**symmetry.signature, **symmetry.interfaces}
    tensors = [n for n, axes in typed.items() if claim.name in _carried(axes)]
    text = f"{claim.name}: {space.group} became trivial, and {', '.join(tensors)} held"
    return [*found, (_held(symmetry, tensors), text)]


def _with_less(symmetry: ParameterSymmetry, name: str) -> list[tuple[ParameterSymmetry, str]]:
    """The symmetry with each smaller group on one space, and at last without its copies."""
    space = symmetry.spaces[name]
    options = [
        (replace(space, group=less), f"{name}: {space.group} became {less}")
        for less in _subgroups(space.group)
    ]
    if space.over:  # copies for units that a tensor does not carry make `act` refuse
        single = replace(space, group=Trivial(space.size), over=())
        text = f"{name}: {space.group} became {single.group}, without copies"
        options.append((single, text))
    found = []
    for smaller, text in options:
        try:
            found.append((replace(symmetry, spaces={**symmetry.spaces, name: smaller}), text))
        except ValueError:  # a group that its neighbours on an axis do not admit
            continue
    return found


def _subgroups(group: Group) -> list[Group]:
    """The listed groups strictly inside one, larger ones first; the last is trivial."""
    n = group.size
    listed: list[Group] = [
        Orthogonal(n), OrthogonalFixingOnes(n), Monomial(n, signed=True), Monomial(n), Scaling(n),
        PositiveScaling(n), SignedPermutation(n), Permutation(n), Signs(n), Trivial(n),
    ]  # fmt: skip
    if n % 2 == 0:
        listed += [ComplexScaling(n), UnitComplex(n)]
    listed.append(GeneralLinear(n))
    inside = [g for g in listed if g != group and g <= group]
    return sorted(inside, key=lambda g: (-g.dimension, -g.log_order))


def fitting(
    symmetry: ParameterSymmetry, state: State, interfaces: Mapping[str, tuple[int, ...]]
) -> tuple[ParameterSymmetry, tuple[str, ...]]:
    """The symmetry without types that do not fit their tensors, and what was taken out.

    A wrong type on one tensor makes `act` refuse every move, so that it cannot be found by
    leaving claims out: the tensor is held fixed, and the spaces that it named become trivial.
    """
    lost = {
        name: f"{name}: its type ({', '.join(map(str, axes))}) does not fit"
        for name, axes in symmetry.signature.items()
        if name not in state and _carried(axes)
        or name in state and tuple(state[name].shape) != symmetry.shape(name)
    }  # fmt: skip
    lost |= {
        name: f"{name}: its type ({feature}) does not fit"
        for name, feature in symmetry.features.items()
        if _carried((feature.type,)) and not feature.fits(interfaces.get(name, ()), symmetry.sizes)
    }
    if not lost:
        return symmetry, ()
    shapes = {name: tuple(state[name].shape) for name in lost if name in state}
    return _held(symmetry, [*lost], shapes), tuple(lost.values())


def _carried(axes: tuple[AxisType, ...]) -> set[str]:
    return {space for axis in axes for space in spaces_of(axis)}


def _held(
    symmetry: ParameterSymmetry,
    tensors: list[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> ParameterSymmetry:
    """The symmetry with these tensors held fixed, and every space that they carry trivial.

    A name may be that of a freed input or output.
    """
    typed = {**symmetry.signature, **symmetry.interfaces}
    inside = [name for name in tensors if name in symmetry.signature]
    shapes = shapes or {name: symmetry.shape(name) for name in inside}
    held = {name: tuple(map(Fixed, shapes.get(name, ()))) for name in inside}
    trivial = _sharing(typed, {s for name in tensors for s in _carried(typed[name])})
    return replace(
        symmetry,
        spaces={
            name: replace(space, group=Trivial(space.size)) if name in trivial else space
            for name, space in symmetry.spaces.items()
        },
        signature={**symmetry.signature, **held},
        inputs=_still(symmetry, "input", symmetry.inputs, tensors),
        outputs=_still(symmetry, "output", symmetry.outputs, tensors),
    )


def _sharing(typed: Mapping[str, tuple[AxisType, ...]], names: set[str]) -> set[str]:
    """These spaces and those that stand beside them on an axis, whose group may not admit
    monomial neighbours: they are held together."""
    beside = [
        {space for space, _ in part.factors}
        for axes in typed.values() for axis in axes for part in parts_of(axis)
    ]  # fmt: skip
    while more := set().union(*(each for each in beside if each & names)) - names:
        names = names | more
    return names


def _still(
    symmetry: ParameterSymmetry, side: str, features: Features, held: list[str]
) -> dict[str, Feature]:
    """Features of which those of some interfaces do not move."""
    return {
        name: replace(f, type=Fixed(f.type.size(symmetry.sizes))) if f"{side} {name}" in held else f
        for name, f in features.items()
    }
