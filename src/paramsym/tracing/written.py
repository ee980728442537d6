"""Buffers that the forward pass writes: each moves as what is written into it moves.

In training mode a batch norm does not read its running statistics, so that the function says
nothing about them. What it leaves in them does: the mean of x moves as the features of x, the
variance as their squares. A network whose channels are moved without its statistics computes the
same function in training mode and another one as soon as it is evaluated.

The network is therefore derived a second time, with every written buffer tied to what it held
before: b and b' are one thing at two times. What that says of the buffers is taken over, and
nothing else: **a write restricts nothing**. Where the derivation with a write leaves less to the
parameters than the one without (a variance written by hand, of features that change basis), or
where no power of a space is a type of what is written, the buffer stays fixed, and its reasons say
so. It then stays behind when the network moves, as it would without this module.

Shifts are left as they were: those of biases that a batch norm absorbs do not move running means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paramsym.recording.graph import Graph
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Piecewise,
    inside,
    parts_of,
    with_inside,
)
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

UNTOLD = "the forward pass writes it, and what it writes has no type in these spaces"

Axes = tuple[AxisType, ...]
Derive = Callable[[Sequence[str]], ParameterSymmetry]


def with_written(symmetry: ParameterSymmetry, graph: Graph, derive: Derive) -> ParameterSymmetry:
    """The symmetry with the buffers that the forward pass writes typed as what is written.

    Args:
        symmetry: what was derived from the function alone.
        graph: what was recorded, which lists what was written.
        derive: the symmetry in which given buffers count as the same before and after the pass.

    Returns:
        The same spaces, shifts and types of parameters; buffers that were fixed may now move.
    """
    still = [n for n in graph.written if n in symmetry.signature and n not in graph.held
             and all(isinstance(axis, Fixed) for axis in symmetry.signature[n])]  # fmt: skip
    if not symmetry.spaces or not still:
        return symmetry
    kept, told = _settle(symmetry, still, derive)
    signature, reasons = dict(symmetry.signature), dict(symmetry.reasons)
    for name in still:
        axes = signature[name]
        if told is not None and name in kept:
            axes = told.axes(name)
            signature[name], reasons[name] = axes, told.symmetry.reasons.get(name, ())
        if all(isinstance(axis, Fixed) for axis in axes):
            reasons[name] = (UNTOLD,) * len(axes)
        elif not any(reasons[name]):
            del reasons[name]
    return replace(symmetry, signature=signature, reasons=reasons)


@dataclass(frozen=True)
class _Told:
    """A derivation with writes, and the names that its spaces have in the one without."""

    symmetry: ParameterSymmetry
    names: Mapping[str, str] = field(default_factory=dict)

    def axes(self, name: str) -> Axes:
        """The types of a written buffer in the spaces of the function."""
        sizes = {n: space.size for n, space in self.symmetry.spaces.items()}
        return tuple(self._named(axis, sizes) for axis in self.symmetry.signature[name])

    def _named(self, axis: AxisType, sizes: Mapping[str, int]) -> AxisType:
        """A type in the other names; what only written buffers carry does not move."""
        if not isinstance(axis, Carried):
            made = with_inside(axis, lambda part: self._named(part, sizes))
            return made if any(True for _ in parts_of(made)) else Fixed(made.size(sizes))
        known = tuple((self.names[n], power) for n, power in axis.factors if n in self.names)
        mixes = axis.factors[0][0] in self.names  # the frame is that of the first factor
        return Carried(known, axis.frame if mixes else ()) if known else Fixed(axis.size(sizes))


def _settle(
    symmetry: ParameterSymmetry, names: Sequence[str], derive: Derive, kept: Sequence[str] = ()
) -> tuple[Sequence[str], _Told | None]:
    """The most buffers, one half after the other, that can be kept without a loss elsewhere."""
    tried = derive([*kept, *names])
    found = _same_but(symmetry, tried, {*kept, *names})
    if found is not None:
        return [*kept, *names], _Told(tried, found)
    if len(names) == 1:
        return kept, None
    middle, told = len(names) // 2, None
    for half in (names[:middle], names[middle:]):
        kept, more = _settle(symmetry, half, derive, kept)
        told = more or told
    return kept, told


def _same_but(
    one: ParameterSymmetry, other: ParameterSymmetry, written: set[str]
) -> dict[str, str] | None:
    """The names of the spaces of `one` by those of `other`, if the two differ in written buffers
    alone; None otherwise.

    A dead parameter on which only a written buffer depends may be typed in `other`: it is skipped.
    """
    names = _renaming(_pairs(one, other, written))
    if names is None or sorted(names.values()) != sorted(one.spaces):
        return None
    same = (_is_same(one.spaces[x], other.spaces[y], names) for y, x in names.items())
    return names if all(same) else None


def _pairs(
    one: ParameterSymmetry, other: ParameterSymmetry, written: set[str]
) -> Iterator[tuple[AxisType, AxisType]]:
    """The types in one and the other of everything that is not written."""
    for name in one.signature:
        if name not in written and name not in one.dead:
            yield from zip(one.signature[name], other.signature[name], strict=True)
    for side, there in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
        yield from ((feature.type, there[name].type) for name, feature in side.items())


def _is_same(here: Space, there: Space, names: Mapping[str, str]) -> bool:
    over = tuple(names.get(base) for base in there.over)
    return (here.group, here.exact, here.over) == (there.group, there.exact, over)


def _renaming(pairs: Iterable[tuple[AxisType, AxisType]]) -> dict[str, str] | None:
    """What the spaces of the second types are called in the first, if that makes them equal."""
    carried = [found for a, b in pairs for found in _facing(a, b)]
    if None in carried:
        return None
    names: dict[str, str] = {}
    # axes that carry one space say which it is in the other; products may be in another order
    for a, b in sorted(filter(None, carried), key=lambda pair: len(pair[0].factors)):
        left = [item for item in a.factors if item[0] not in names.values()]
        new = [item for item in b.factors if item[0] not in names]
        names |= {y: x for (x, _), (y, _) in zip(left, new, strict=False)}
        renamed = {(names.get(y), power) for y, power in b.factors}
        if a.frame != b.frame or set(a.factors) != renamed:
            return None
        if a.frame and names[b.factors[0][0]] != a.factors[0][0]:
            return None
    return names


def _facing(a: AxisType, b: AxisType) -> Iterator[tuple[Carried, Carried] | None]:
    """What two types of one shape carry, place by place; None where they are of two shapes."""
    if isinstance(a, Carried) and isinstance(b, Carried):
        yield a, b
        return
    if _form(a) != _form(b):
        yield None
        return
    for x, y in zip(inside(a), inside(b), strict=True):
        yield from _facing(x, y)


def _form(axis: AxisType) -> tuple[Any, ...]:
    """What two types have in common that differ in what they are made of alone."""
    cuts = (axis.by, *(n for n, _ in axis.pieces)) if isinstance(axis, Piecewise) else ()
    return type(axis), len(inside(axis)), axis if isinstance(axis, Fixed) else cuts
