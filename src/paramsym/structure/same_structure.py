"""Is one symmetry another with other sizes? Colour refinement on spaces, with names by role.

A model and a smaller one of the same architecture have other sizes and other numbers of layers, so
that neither names nor sizes can be compared. What can:

    role       the name of a parameter, with the indices of repeated layers left out
    colour     of a space: its group without sizes, exact or not, what it stands over and what
               stands over it; refined once by the set of (role, axis, type there, with powers,
               frames and the colours of the others) and by its shifts

Two symmetries have one structure if the sets of these agree: sets, so that it does not matter how
often a layer repeats. One refinement, because further ones would count the layers between a space
and the ends of the network (Weisfeiler and Leman, 1968, describe the iteration).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Piecewise,
    Product,
    inside,
    spaces_of,
)
from paramsym.structure.data import SymmetryData
from paramsym.structure.shift import Factor, Shift, Term, Window
from paramsym.structure.space import Space

_NUMBER = re.compile(r"(?<![:\w])\d+(?!\w)")  # an index or a size, and no line of a file
_FEW = 4


class Roles:
    """Names of parameters with the indices of repeated layers left out.

    An index is left out where the models have different ranges of it: `layers.0` and `layers.31` of
    a model with 32 layers and one with two. Where the ranges agree, as in the steps of a
    `Sequential`, it is part of the role.
    """

    def __init__(self, *models: Iterable[str]):
        split = [[name.split(".") for name in names] for names in models]
        self._left_out: set[tuple[str, ...]] = set()
        deepest = max((len(parts) for names in split for parts in names), default=0)
        for depth in range(deepest):
            found = [self._ranges(names, depth) for names in split]
            self._left_out |= {
                place for place in set().union(*found)
                if len({frozenset(ranges.get(place, ())) for ranges in found}) > 1
            }  # fmt: skip

    def _ranges(self, names: list[list[str]], depth: int) -> dict[tuple[str, ...], set[str]]:
        """The indices at one depth of the names, by the role of what stands before them."""
        found: dict[tuple[str, ...], set[str]] = {}
        for parts in names:
            if depth < len(parts) and parts[depth].isdigit():
                found.setdefault(self._role(parts[:depth]), set()).add(parts[depth])
        return found

    def __call__(self, name: str) -> str:
        """The role of a name."""
        return ".".join(self._role(name.split(".")))

    def _role(self, parts: list[str]) -> tuple[str, ...]:
        role: tuple[str, ...] = ()
        for part in parts:
            role += ("*" if part.isdigit() and role in self._left_out else part,)
        return role


@dataclass(frozen=True)
class _Coloured:
    """One symmetry with the colours of its spaces."""

    symmetry: SymmetryData
    role: Roles
    ranks: Mapping[str, int]
    numbers: dict[Hashable, int] = field(repr=False)  # colour → number, shared by both

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The first colour of each space, as text."""
        own = {name: _kind(space) for name, space in self.symmetry.spaces.items()}
        found: dict[str, str] = {}
        for name, space in self.symmetry.spaces.items():
            over = ", ".join(own[base] for base in space.over)
            above = sorted({own[s.name] for s in self.symmetry.spaces.values() if name in s.over})
            found[name] = own[name] + (f" over {over}" if over else "")
            found[name] += f" below {' and '.join(above)}" if above else ""
        return found

    @cached_property
    def colours(self) -> dict[str, int]:
        """The refined colour of each space."""
        seen: dict[str, set[Hashable]] = {name: set() for name in self.symmetry.spaces}
        for name, axes in self.symmetry.signature.items():
            for at, axis in enumerate(axes):
                for space in set(spaces_of(axis)):
                    marked = {**self.kinds, space: "itself"}
                    seen[space].add((self.role(name), at, self.skeleton(axis, marked.__getitem__)))
        for shift in self.symmetry.shifts:
            if shift.space:
                seen[shift.space].add(self.motion(shift))
        return {
            name: self.numbers.setdefault((self.kinds[name], frozenset(found)), len(self.numbers))
            for name, found in seen.items()
        }

    def skeleton(self, axis: AxisType, of_space: Callable[[str], Hashable]) -> Hashable:
        """A type without sizes; equal neighbours in a sum are one."""
        if isinstance(axis, Fixed):
            return "fixed"
        if isinstance(axis, Carried):
            frame = tuple((self.role(f.parameter), f.offset, f.exponent) for f in axis.frame)
            return (tuple((of_space(s), power) for s, power in axis.factors), frame)
        if isinstance(axis, Product):
            return ("product", *(self.skeleton(f, of_space) for f in axis.factors))
        terms = [self.skeleton(term, of_space) for term in inside(axis)]
        by = axis.by if isinstance(axis, Piecewise) else "sum"
        return (by, *(t for k, t in enumerate(terms) if not k or t != terms[k - 1]))

    def types(self) -> dict[str, set[Hashable]]:
        """The types of the parameters of each role."""
        return self._by_role(
            (name, tuple(self.skeleton(axis, self.colours.__getitem__) for axis in axes))
            for name, axes in self.symmetry.signature.items()
        )

    def readable_types(self) -> dict[str, set[str]]:
        """The same as text, with the first colours of spaces."""
        return self._by_role(
            (name, ", ".join(self._readable(axis) for axis in axes))
            for name, axes in self.symmetry.signature.items()
        )

    def _readable(self, axis: AxisType) -> str:
        if isinstance(axis, Fixed):
            return "fixed"
        if isinstance(axis, Carried):
            frame = "".join(f"[{self.role(f.parameter)}]" for f in axis.frame)
            return "⊙".join(
                f"{self.kinds[space]}{frame}{'' if power == 1 else f'^{power}'}"
                for space, power in axis.factors
            )
        if isinstance(axis, Product):
            return "(" + " ".join(map(self._readable, axis.factors)) + ")"
        terms = dict.fromkeys(map(self._readable, inside(axis)))
        by = axis.by if isinstance(axis, Piecewise) else None
        return " + ".join(terms) if by is None else f"{{{by}: {' | '.join(terms)}}}"

    def reasons(self) -> dict[str, set[tuple[str, ...]]]:
        """What holds the axes of the parameters of each role."""
        return self._by_role(
            (name, tuple(_NUMBER.sub("*", text) for text in texts))
            for name, texts in self.symmetry.reasons.items()
        )

    def motions(self) -> dict[str, set[Hashable]]:
        """The shifts, by the roles that they move."""
        found: dict[str, set[Hashable]] = {}
        for shift in self.symmetry.shifts:
            moved = ", ".join(dict.fromkeys(map(self.role, shift.parameters)))
            found.setdefault(moved, set()).add((self.motion(shift), self.kinds.get(shift.space)))
        return found

    def motion(self, shift: Shift) -> Hashable:
        """A shift without sizes."""
        words = tuple(w for w in shift.family.replace(",", " ").split() if "." not in w)
        terms = frozenset(self._term(shift, term) for term in shift.terms)
        divisor = shift.divisor and frozenset(self._factor(shift, f) for f in shift.divisor)
        return (words, shift.kind, terms, divisor)

    def _term(self, shift: Shift, term: Term) -> Hashable:
        factors = frozenset(self._factor(shift, factor) for factor in term.factors)
        return (self._window(shift, term.target), term.coefficient > 0, factors, term.divided)

    def _factor(self, shift: Shift, factor: Factor) -> Hashable:
        kernel = frozenset(self.role(window.parameter) for window in factor.kernel)
        read = None if kernel else self._window(shift, factor.window)
        return (read, factor.power, factor.offset, kernel, factor.flow)

    def _window(self, shift: Shift, window: Window) -> Hashable:
        free = tuple(letter in shift.letters for letter in window.letters)
        return (self.role(window.parameter), free)

    def _by_role(self, items: Iterable[tuple[str, Hashable]]) -> dict[str, set]:
        found: dict[str, set] = {}
        for name, value in items:
            found.setdefault(self.role(name), set()).add(value)
        return found


def _kind(space: Space) -> str:
    """The group of a space without its size; whether it is one scalar, and whether exact."""
    kind = re.sub(r"\d+", "n", str(space.group))
    kind = kind.replace("(n)", "(1)") if space.size == 1 else kind
    return kind if space.exact else f"{kind}, not exact"


def differences(
    one: SymmetryData,
    other: SymmetryData,
    ranks: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {}),
    called: tuple[str, str] = ("the model", "the twin"),
) -> tuple[str, ...]:
    """What keeps one symmetry from being another with other sizes; nothing if it is.

    Args:
        one, other: two derived symmetries.
        ranks: the number of axes of every parameter of either model, where parameters that no
            symmetry moves are to be compared as well.
        called: how the two are spoken of.

    Returns:
        One sentence for each difference by name, the most elementary first: parameters, ties, what
        is dead or unknown, types, shifts, reasons.
    """
    names = [{*s.signature, *s.ties, *s.dead, *s.reasons, *rank}
             for s, rank in zip((one, other), ranks, strict=True)]  # fmt: skip
    role, numbers = Roles(*names), {}
    pair = [_Coloured(s, role, rank, numbers)
            for s, rank in zip((one, other), ranks, strict=True)]  # fmt: skip
    return tuple(_differences(pair[0], pair[1], called))


def _differences(a: _Coloured, b: _Coloured, called: tuple[str, str]) -> Iterator[str]:
    for what, of in _SETS.items():
        yield from difference_of_sets(what, of(a), of(b), called)
    yield from _of_types(a, b, called)
    yield from _of_maps("is moved by other shifts", a.motions(), b.motions())
    yield from _of_maps("is held for other reasons", a.reasons(), b.reasons())
    known = {*a.colours.values()} & {*b.colours.values()}
    alone = [{n for n, colour in x.colours.items() if colour not in known} for x in (a, b)]
    yield from difference_of_sets("spaces in these relations", alone[0], alone[1], called)


def difference_of_sets(
    what: str, one: set[str], other: set[str], called: tuple[str, str]
) -> Iterator[str]:
    """A sentence on what only one of two sets has, if anything."""
    parts = [
        f"{name} alone has {_listed(left)}"
        for name, left in zip(called, (one - other, other - one), strict=True)
        if left
    ]
    if parts:
        yield f"{what}: " + ", and ".join(parts)


def _listed(names: set[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:_FEW]))
    return shown + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _ranked(x: _Coloured) -> set[str]:
    """Every role of the model with the number of axes, which is no size."""
    own = {name: len(axes) for name, axes in x.symmetry.signature.items()}
    return {
        f"{x.role(name)} ({rank} {'axis' if rank == 1 else 'axes'})"
        for name, rank in {**own, **x.ranks}.items()
    }


_SETS: dict[str, Callable[[_Coloured], set[str]]] = {
    "parameters": _ranked,
    "tied parameters": lambda x: {
        f"{x.role(name)} = {x.role(first)}" for name, first in x.symmetry.ties.items()
    },
    "dead parameters": lambda x: {*map(x.role, x.symmetry.dead)},
    "unknown operators": lambda x: {*x.symmetry.unknown},
    "operators that draw numbers": lambda x: {*x.symmetry.random},
    "operators that were probed": lambda x: {*x.symmetry.probed},
    "buffers that move": lambda x: {*map(x.role, x.symmetry.buffers)},
    "offsets": lambda x: {f"{x.role(n)} + {origin}" for n, origin in x.symmetry.offsets.items()},
}


def _of_types(a: _Coloured, b: _Coloured, called: tuple[str, str]) -> Iterator[str]:
    """Types are compared by refined colours, and shown by first ones."""
    types, shown = (a.types(), b.types()), (a.readable_types(), b.readable_types())
    for name in sorted(types[0].keys() | types[1].keys()):
        if types[0].get(name) == types[1].get(name):
            continue
        texts = [found.get(name, {"nothing"}) for found in shown]
        if texts[0] == texts[1]:
            yield f"types of {name!r}: the spaces that it carries stand in other relations"
        else:
            yield f"types of {name!r}: " + ", and ".join(
                f"{who} has ({') and ('.join(sorted(text))})"
                for who, text in zip(called, texts, strict=True)
            )


def _of_maps(what: str, one: Mapping[str, set], other: Mapping[str, set]) -> Iterator[str]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield f"{name!r} {what}"
