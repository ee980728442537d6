"""Orders that act in the frames of gains, written without frames: the gains are carried along.

A change of basis behind a gain γ acts as x ↦ γ P γ⁻¹ x on what reads or shifts the stream. That
depends on γ, and γ is trained: as a map of all trainable parameters it is not even linear, so that
no optimiser commutes with it. For a permutation P, and for one with signs P = S Π,

    γ P γ⁻¹ x = (γ / Πγ) · P x

and the scales s of the gain itself, γ ↦ s γ, take that factor up: with s = Πγ / γ the two together
are γ ↦ Πγ and x ↦ P x on every other axis. That is linear and orthogonal, and it is written
without a frame:

    residual[ln.weight]*⊙ln*    becomes    (residual ln)*      a reader
    ln                          becomes    (residual^0 ln)     the gain, which signs do not reach

with what is left of the scales as one scalar for each unit of the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from paramsym.algebra import AbstractMonomial, SignedPermutation, Signs, Trivial
from paramsym.algebra.lattice import monomial
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Frame,
    Product,
    parts_of,
    with_inside,
)
from paramsym.structure.feature import Features
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

# One linear equation for the exponents of scales, Σ (power of a scale) · exponent = Σ gains.
# Keys are (False, scale) for unknowns and (True, gain) for what is wanted; no value is zero.
_Equation: TypeAlias = dict[tuple[bool, str], Fraction]


class _NoPlainOrder(Exception):
    """Why the orders of a space cannot be written without its frames."""


@dataclass(frozen=True)
class _Plan:
    """How the orders of one space are written, and what becomes of the scales beside them.

    Where an order stands beside the space already, `order` names it, and the space keeps its signs
    as one of the `scalars`.
    """

    order: str
    gains: Mapping[str, Carried]  # by parameter: the part of its type that becomes an order
    scalars: frozenset[str]  # one for each unit of the order
    held: frozenset[str] = frozenset()  # such as stand somewhere without the order


def plain_orders(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The part of a symmetry without frames: orders carry the gains of their frames along.

    Every space that acts in frames keeps its permutations, with signs where its group has them;
    the scales of its gains become one scalar for each unit, or are held still where a tensor could
    not say whose unit a scalar belongs to. At any parameters θ with non-zero gains its elements
    move θ as elements of `symmetry` do, of which the scales are (Πγ)/γ and so differ from θ to θ.
    A space whose orders cannot be carried by its gains keeps its signs alone, with which any frame
    commutes; `why` of each changed space says what became of it. All other spaces stay.

    Args:
        symmetry: derived or written by hand.

    Returns:
        A symmetry without frames, the one given if it has none.
    """
    framed = {part.factors[0][0] for _, part in _parts(symmetry) if part.frame}
    if not framed:
        return symmetry
    plans: dict[str, _Plan] = {}
    refused: dict[str, str] = {}
    for basis in sorted(framed):
        try:
            plans[basis] = _planned(symmetry, basis)
        except _NoPlainOrder as why:
            refused[basis] = str(why)
    spaces = {name: _space(symmetry, name, plans, refused) for name in symmetry.spaces}
    writing = _Writing(symmetry, plans, spaces)
    return replace(
        symmetry,
        spaces=spaces,
        signature={
            name: tuple(writing.typed(name, axis) for axis in axes)
            for name, axes in symmetry.signature.items()
        },
        inputs=writing.features("input", symmetry.inputs),
        outputs=writing.features("output", symmetry.outputs),
    )


def _parts(symmetry: ParameterSymmetry) -> Iterator[tuple[str, Carried]]:
    """Everything that parameters, inputs and outputs carry, with the name of the tensor."""
    for name, axes in (*symmetry.signature.items(), *symmetry.interfaces.items()):
        for axis in axes:
            yield from ((name, part) for part in parts_of(axis))


# -- whether gains can carry an order --------------------------------------------------------------


def _planned(symmetry: ParameterSymmetry, basis: str) -> _Plan:
    """How the orders of a space are written without frames."""
    space = symmetry.spaces[basis]
    if space.over:
        raise _NoPlainOrder(f"each unit of {', '.join(space.over)} has an order of its own")
    beside = [{s for s, _ in p.factors} for _, p in _parts(symmetry) if p.factors[0][0] == basis]
    orders = [{s for s in names - {basis} if _permutes(symmetry.spaces[s])} for names in beside]
    if any(orders):
        if len(orders[0]) == 1 and all(found == orders[0] for found in orders):
            return _Plan(min(orders[0]), {}, frozenset({basis}))
        raise _NoPlainOrder(f"{min(set().union(*orders))} orders some of its axes and not all")
    if not _permutes(replace(space, group=space.group & SignedPermutation(space.size))):
        raise _NoPlainOrder("its group has no orders")
    gains = {item.parameter: _gain(symmetry, basis, item) for item in _frames(symmetry, basis)}
    _require_carried(symmetry, basis, gains)
    return _with_scales(symmetry, basis, gains)


def _permutes(space: Space) -> bool:
    return getattr(space.group, "permutes", False)


def _frames(symmetry: ParameterSymmetry, basis: str) -> list[Frame]:
    """The factors of the frames in which a space acts."""
    carrying = (part for _, part in _parts(symmetry) if part.factors[0][0] == basis)
    return sorted({item for part in carrying for item in part.frame}, key=str)


def _gain(symmetry: ParameterSymmetry, basis: str, item: Frame) -> Carried:
    """The one part of the type of a gain that has an entry for each coordinate."""
    name, size = item.parameter, symmetry.sizes[basis]
    if item.offset != symmetry.offsets.get(name, 0.0):
        raise _NoPlainOrder(f"the gain {name} is used with and without a constant")
    if item.exponent != int(item.exponent):
        raise _NoPlainOrder(f"a frame is a root of the gain {name}")
    axes = symmetry.signature.get(name, ())
    found = [p for axis in axes for p in parts_of(axis) if p.size(symmetry.sizes) == size]
    entries = math.prod(axis.size(symmetry.sizes) for axis in axes)
    if len(found) != 1 or entries != size or size == 1:
        raise _NoPlainOrder(f"the gain {name} has no scale of its own for each coordinate")
    return found[0]


def _require_carried(symmetry: ParameterSymmetry, basis: str, gains: Mapping[str, Carried]) -> None:
    """Refuse unless scales with powers of the Πγ/γ make up for what orders leave of the frames.

    On every axis the exponents that scales contribute must be, for each gain: 1 on the gain itself,
    that of the frame where the order acts (its opposite on dual axes), and 0 everywhere else. These
    are linear equations, over the rationals for |Πγ/γ| and modulo 2 for its signs.
    """
    space = symmetry.spaces[basis]
    for signs in (False, True):
        scales = {n for n, s in symmetry.spaces.items() if _scales(s, space.size, signs)}
        if signs and isinstance(space.group & Signs(space.size), Signs):
            scales.add(basis)  # its own signs commute with its frames
        equations = []
        for name, part in _parts(symmetry):
            equation = {(False, s): power for s, power in part.factors if s in scales}
            equation |= {(True, gain): e for gain, e in _wanted(name, part, basis, gains).items()}
            equations.append(_reduced(equation.items(), signs))
        if left := _unsolved(equations, signs):
            sign = "the sign of " if signs else ""
            raise _NoPlainOrder(f"no scales carry {sign}the gain {left} and make up for its frame")


def _scales(space: Space, size: int, signs: bool) -> bool:
    """Whether a space multiplies its coordinates, by positive numbers or by signs."""
    group = space.group
    if not isinstance(group, AbstractMonomial) or group.permutes:
        return False
    return (group.signs if signs else group.scales) and group.size == size and not space.over


def _wanted(
    name: str, part: Carried, basis: str, gains: Mapping[str, Carried]
) -> dict[str, Fraction]:
    """To which powers scales have to contain the Πγ/γ of gains, for an order to act plainly."""
    if part is gains.get(name):
        return {name: Fraction(1)}
    if part.factors[0][0] != basis:
        return {}
    sign = -1 if part.factors[0][1] < 0 else 1
    wanted: dict[str, Fraction] = {}
    for item in part.frame:
        own = sign * Fraction(item.exponent)
        wanted[item.parameter] = wanted.get(item.parameter, Fraction(0)) + own
    return wanted


def _reduced(terms: Iterable[tuple[tuple[bool, str], Fraction]], signs: bool) -> _Equation:
    """The sum of some terms, modulo 2 for signs."""
    found: _Equation = {}
    for key, value in terms:
        found[key] = found.get(key, Fraction(0)) + value
    if signs:
        found = {key: value % 2 for key, value in found.items()}
    return {key: value for key, value in found.items() if value}


def _unsolved(equations: Iterable[_Equation], signs: bool) -> str | None:
    """A gain for which the equations have no solution, by elimination."""
    pivots: dict[tuple[bool, str], _Equation] = {}
    for equation in equations:
        while equation:
            lead = min(equation)  # unknowns come before gains
            if lead[0]:
                return lead[1]
            if lead not in pivots:
                pivots[lead] = equation
                break
            pivot = pivots[lead]
            ratio = equation[lead] / pivot[lead]
            taken = ((key, -ratio * value) for key, value in pivot.items())
            equation = _reduced((*equation.items(), *taken), signs)
    return None


def _with_scales(symmetry: ParameterSymmetry, basis: str, gains: Mapping[str, Carried]) -> _Plan:
    """What becomes of the scales beside an order, or beside the order on the gains it carries."""
    beside: set[str] = set()
    elsewhere: set[str] = set()
    for name, part in _parts(symmetry):
        ordered = part.factors[0][0] == basis or part is gains.get(name)
        (beside if ordered else elsewhere).update({s for s, _ in part.factors} - {basis})
    counted = beside & {base for space in symmetry.spaces.values() for base in space.over}
    if counted:
        raise _NoPlainOrder(f"others have a copy for each unit of {min(counted)} beside it")
    alone = {name for name in beside - elsewhere if not symmetry.spaces[name].over}
    return _Plan(basis, gains, frozenset(alone), frozenset(beside - alone))


# -- spaces and types ------------------------------------------------------------------------------


def _space(
    symmetry: ParameterSymmetry, name: str, plans: Mapping[str, _Plan], refused: Mapping[str, str]
) -> Space:
    """What becomes of a space: an order, signs, one scalar per unit, or what it was."""
    space = symmetry.spaces[name]
    if name in refused:
        alone = not any(_permutes(symmetry.spaces[s]) for s in _neighbours(symmetry, name))
        group = space.group & (Signs if alone else Trivial)(space.size)
        why = f"restricted: no order without the frames of gains, {refused[name]}"
        return replace(space, group=group, why=why)
    for basis, plan in plans.items():
        why = f"restricted: {space.group} & {{}}, the gains of its frames are carried along"
        if name == plan.order == basis:
            larger = SignedPermutation(space.size)
            return replace(space, group=space.group & larger, why=why.format(larger))
        if name == basis:
            signed = isinstance(space.group & Signs(space.size), Signs)
            group = monomial(1, False, signed, False)
            return replace(space, group=group, over=(plan.order,), why=why.format("Signs"))
        if name in plan.scalars and isinstance(space.group, AbstractMonomial):
            group = monomial(1, False, space.group.signs, space.group.scales)
            return replace(space, group=group, over=(plan.order,))
        if name in plan.held:
            why = f"restricted: it acts on axes without the order of {plan.order} as well"
            return replace(space, group=Trivial(space.size), why=why)
    return space


def _neighbours(symmetry: ParameterSymmetry, basis: str) -> set[str]:
    """What stands on an axis together with a space."""
    carrying = (p for _, p in _parts(symmetry) if p.factors[0][0] == basis)
    return {space for part in carrying for space, _ in part.factors} - {basis}


@dataclass(frozen=True)
class _Writing:
    """Types without frames."""

    symmetry: ParameterSymmetry
    plans: Mapping[str, _Plan]
    spaces: Mapping[str, Space]

    def features(self, side: str, found: Features) -> Features:
        return {
            name: replace(feature, type=self.typed(f"{side} {name}", feature.type))
            for name, feature in found.items()
        }

    def typed(self, name: str, axis: AxisType) -> AxisType:
        """The type of one axis of a tensor."""
        if isinstance(axis, Carried):
            return self._part(name, axis)
        made = with_inside(axis, lambda part: self.typed(name, part))
        if isinstance(made, Product):
            flat = [f.factors if isinstance(f, Product) else (f,) for f in made.factors]
            return Product(tuple(factor for factors in flat for factor in factors))
        return made

    def _part(self, name: str, part: Carried) -> AxisType:
        """The order first, then what is left beside it; a gain gets the order of its readers."""
        carrying = [plan.order for plan in self.plans.values() if part is plan.gains.get(name)]
        plan = self.plans.get(part.factors[0][0])
        orders = {plan.order} if plan else set()
        first = [(order, Fraction(0)) for order in carrying]
        first += [pair for pair in part.factors if pair[0] in orders]
        left = [p for p in part.factors if p[0] not in orders and not self._is_held(p[0])]
        written = [Carried(tuple(pairs)) for pairs in (first, left) if pairs]
        if not written:
            return Fixed(part.size(self.symmetry.sizes))
        return written[0] if len(written) == 1 else Product(tuple(written))

    def _is_held(self, name: str) -> bool:
        """Whether a space is held still here, and so stands in no type."""
        space = self.spaces[name]
        return isinstance(space.group, Trivial) and space is not self.symmetry.spaces[name]
