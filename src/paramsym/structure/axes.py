"""Axis types: how one axis of one tensor carries the spaces of a network.

    784                     fixed: 784 entries that stay where they are
    h1                      covariant: transforms like the space h1
    h1*                     dual: transforms like the inverse transpose
    c1^2   h^0              entrywise power; 0 keeps the order alone
    b⊙s^-1                  entrywise product: a change of basis, then scales in place
    (c2 16)*                product, row-major: 16 entries for each unit of c2
    (h1 s*)                 one scalar of s, a space of size 1 over h1, for each unit of h1
    h1 + 3                  direct sum: the units of h1, then three fixed entries
    residual[ln.weight]*    in the frame of a gain γ: γ is folded in, the space acts, γ comes out
    {0: qk* | qk | 2 × vo}  piecewise: one type for each piece of axis 0, here of 1, 1 and 2 entries

A type is an immutable value without data, and what it prints parses back. The same spelling is
used in code, errors, files and on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

Sizes = Mapping[str, int]


class TypeSyntaxError(ValueError):
    """A text that is no axis type."""


@dataclass(frozen=True)
class Frame:
    """One factor of a frame: the diagonal matrix diag(parameter + offset)^exponent."""

    parameter: str
    offset: float = 0.0
    exponent: float = 1.0

    def __str__(self) -> str:
        text = self.parameter if not self.offset else f"{self.parameter} + {self.offset:g}"
        return text if self.exponent == 1 else f"{text} ^ {self.exponent:g}"


@dataclass(frozen=True)
class Fixed:
    """`size` entries that no group element moves."""

    count: int

    def size(self, sizes: Sizes) -> int:
        return self.count

    @property
    def T(self) -> AxisType:
        return self

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True)
class Carried:
    """Entrywise product of powers of spaces of one size; most often a single space.

    `factors` are pairs (space, power); the power −1 is the dual. `frame` is not empty where the
    first factor, a space with a change of basis, acts between a gain and its inverse.
    """

    factors: tuple[tuple[str, Fraction], ...]
    frame: tuple[Frame, ...] = ()

    def size(self, sizes: Sizes) -> int:
        return sizes[self.factors[0][0]]

    @property
    def T(self) -> AxisType:
        return Carried(tuple((s, -p) for s, p in self.factors), self.frame)

    def __str__(self) -> str:
        frame = "[" + ", ".join(map(str, self.frame)) + "]" if self.frame else ""
        parts = []
        for k, (space, power) in enumerate(self.factors):
            name = space + (frame if k == 0 else "")
            parts.append(name if power == 1 else f"{name}*" if power == -1 else f"{name}^{power}")
        return "⊙".join(parts)


@dataclass(frozen=True)
class Product:
    """Row-major product of factors, outermost first."""

    factors: tuple[AxisType, ...]

    def size(self, sizes: Sizes) -> int:
        return math.prod(factor.size(sizes) for factor in self.factors)

    @property
    def T(self) -> AxisType:
        return Product(tuple(factor.T for factor in self.factors))

    def __str__(self) -> str:
        if _all_dual(self):
            return f"{self.T}*"
        inner = [
            f"({f})" if isinstance(f, Sum) and not _all_dual(f) else str(f) for f in self.factors
        ]
        return "(" + " ".join(inner) + ")"


@dataclass(frozen=True)
class Sum:
    """Direct sum (concatenation)."""

    terms: tuple[AxisType, ...]

    def size(self, sizes: Sizes) -> int:
        return sum(term.size(sizes) for term in self.terms)

    @property
    def T(self) -> AxisType:
        return Sum(tuple(term.T for term in self.terms))

    def __str__(self) -> str:
        if _all_dual(self):
            return f"({self.T})*"
        return " + ".join(map(str, self.terms))


@dataclass(frozen=True)
class Piecewise:
    """One type for each piece of another axis: queries, keys and values of one w[3, head, d, e].

    `by` is the other axis, which is no piecewise one; `pieces` are the entries of that axis and
    the type here, in order, all of one size. In a product `by` is another factor: keys and values
    that alternate along one axis are `({1: qk | vo} 2)`. It stands for a whole axis or factor, or
    in a piece of one.
    """

    by: int
    pieces: tuple[tuple[int, AxisType], ...]

    def size(self, sizes: Sizes) -> int:
        return self.pieces[0][1].size(sizes)

    @property
    def T(self) -> AxisType:
        return Piecewise(self.by, tuple((n, axis.T) for n, axis in self.pieces))

    def __str__(self) -> str:
        texts = [f"{n} × {axis}" if n != 1 else str(axis) for n, axis in self.pieces]
        return f"{{{self.by}: " + " | ".join(texts) + "}"


AxisType = Fixed | Carried | Product | Sum | Piecewise


def piecewise(by: int, pieces: Iterable[tuple[int, AxisType]]) -> AxisType:
    """One type for each piece of another axis, neighbours of one type joined; that type alone
    where all have it."""
    found: list[tuple[int, AxisType]] = []
    for count, axis in pieces:
        if found and found[-1][1] == axis:
            found[-1] = (found[-1][0] + count, axis)
        else:
            found.append((count, axis))
    return found[0][1] if len(found) == 1 else Piecewise(by, tuple(found))


def whole_of(axis: AxisType) -> Iterator[AxisType]:
    """An axis, and the types that stand for it piece by piece."""
    yield axis
    if isinstance(axis, Piecewise):
        for _, part in axis.pieces:
            yield from whole_of(part)


def inside(axis: AxisType) -> tuple[AxisType, ...]:
    """What an axis is made of: its factors, its terms, or its types piece by piece."""
    if isinstance(axis, Product):
        return axis.factors
    if isinstance(axis, Sum):
        return axis.terms
    return tuple(t for _, t in axis.pieces) if isinstance(axis, Piecewise) else ()


def with_inside(axis: AxisType, change: Callable[[AxisType], AxisType]) -> AxisType:
    """An axis with everything that it is made of changed; `Fixed` and `Carried` stay."""
    made = tuple(map(change, inside(axis)))
    if isinstance(axis, Piecewise):
        return piecewise(axis.by, zip((n for n, _ in axis.pieces), made, strict=True))
    return type(axis)(made) if isinstance(axis, Product | Sum) else axis


def _all_dual(axis: AxisType) -> bool:
    """Whether everything that an axis carries is a dual, which prints once for the whole."""
    powers = [power for _, power in powers_of(axis)]
    return bool(powers) and all(power == -1 for power in powers)


def nodes_of(axis: AxisType) -> Iterator[AxisType]:
    """An axis and everything that it is made of, from the outside."""
    yield axis
    for part in inside(axis):
        yield from nodes_of(part)


def parts_of(axis: AxisType) -> Iterator[Carried]:
    """Everything that an axis carries, piece by piece."""
    return (part for part in nodes_of(axis) if isinstance(part, Carried))


def with_parts(axis: AxisType, change: Callable[[Carried], AxisType]) -> AxisType:
    """An axis with everything that it carries changed, piece by piece; what is fixed stays."""
    if isinstance(axis, Carried):
        return change(axis)
    return with_inside(axis, lambda part: with_parts(part, change))


def powers_of(axis: AxisType) -> Iterator[tuple[str, Fraction]]:
    """Every space that an axis carries with its power."""
    for part in parts_of(axis):
        yield from part.factors


def carried(space: str, power: Fraction | int = 1) -> Carried:
    """The type of an axis that carries one space to a power."""
    return Carried(((space, Fraction(power)),))


def spaces_of(axis: AxisType) -> Iterator[str]:
    """The spaces that an axis carries, with repetition."""
    yield from (space for space, _ in powers_of(axis))


def frames_of(axis: AxisType) -> Iterator[Frame]:
    """The frames that occur in an axis."""
    for part in parts_of(axis):
        yield from part.frame


_TOKEN = re.compile(
    r"\s*(?:(?P<frame>\[[^\]]*\])|(?P<number>\d+(?![\w.]))|(?P<name>[A-Za-z_][\w.\-]*)"
    r"|(?P<power>\^-?\d+(?:/\d+)?)|(?P<mark>[()+*⊙{}|:×]))"
)


def _tokens(text: str) -> list[tuple[str, str]]:
    position, found = 0, []
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise TypeSyntaxError(
                f"parse_axis({text!r}): cannot read {text[position:]!r}. Expected names, sizes, "
                "'(a b)', 'a + b', 'a*', 'a^2', 'a⊙b', 'a[gain]' or '{0: a | b}'; for example "
                "'(c2 16)*'."
            )
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        position = match.end()
    return found


def parse_axis(text: str) -> AxisType:
    """The axis type that prints as `text`.

    Raises `TypeSyntaxError` with the place that cannot be read.
    """
    tokens = _tokens(text)
    axis, rest = _parse_sum(tokens, text)
    if rest:
        raise TypeSyntaxError(
            f"parse_axis({text!r}): {rest[0][1]!r} comes after a complete type. Expected one "
            "type per axis; write products in brackets, for example '(head 4)'."
        )
    return axis


def _parse_sum(tokens: list, text: str) -> tuple[AxisType, list]:
    terms = []
    while True:
        item, tokens = _parse_factor(tokens, text)
        terms.append(item)
        if not tokens or tokens[0][1] != "+":
            return (terms[0] if len(terms) == 1 else Sum(tuple(terms))), tokens
        tokens = tokens[1:]


def _parse_factor(tokens: list, text: str) -> tuple[AxisType, list]:
    kind, token = tokens[0] if tokens else ("", "the end")
    if kind == "number":
        item, tokens = Fixed(int(token)), tokens[1:]
    elif kind == "name":
        return _parse_carried(tokens, text)
    elif token == "{":
        return _parse_pieces(tokens[1:], text)
    elif token == "(":
        first, tokens = _parse_sum(tokens[1:], text)
        factors = [first]
        while tokens and tokens[0][1] != ")":
            following, tokens = _parse_sum(tokens, text)
            factors.append(following)
        if not tokens:
            raise TypeSyntaxError(f"parse_axis({text!r}): a bracket is not closed. Add ')'.")
        tokens = tokens[1:]
        item = factors[0] if len(factors) == 1 else Product(tuple(factors))
    else:
        raise TypeSyntaxError(
            f"parse_axis({text!r}): found {token!r} where a name, a size or '(' was expected."
        )
    if tokens and tokens[0][1] == "*":
        item, tokens = item.T, tokens[1:]
    return item, tokens


def _parse_pieces(tokens: list, text: str) -> tuple[AxisType, list]:
    """`{by: type | count × type}` behind its first bracket."""
    kinds = [kind for kind, _ in tokens[:2]]
    if kinds != ["number", "mark"] or tokens[1][1] != ":":
        raise TypeSyntaxError(
            f"parse_axis({text!r}): '{{' is not followed by the number of an axis and ':'. Write "
            "one type for each piece of axis 0 as '{0: a | b}'."
        )
    by, pieces, mark = int(tokens[0][1]), [], "|"
    tokens = tokens[1:]
    while mark == "|":
        tokens, count = tokens[1:], 1
        if tokens[1:2] == [("mark", "×")] and tokens[0][0] == "number":
            count, tokens = int(tokens[0][1]), tokens[2:]
        axis, tokens = _parse_sum(tokens, text)
        pieces.append((count, axis))
        mark = tokens[0][1] if tokens else "the end"
    if mark != "}":
        raise TypeSyntaxError(
            f"parse_axis({text!r}): found {mark!r} where '|' or '}}' was expected."
        )
    return Piecewise(by, tuple(pieces)), tokens[1:]


def _parse_carried(tokens: list, text: str) -> tuple[AxisType, list]:
    factors: list[tuple[str, Fraction]] = []
    frame: tuple[Frame, ...] = ()
    while True:
        if not tokens or tokens[0][0] != "name":
            raise TypeSyntaxError(f"parse_axis({text!r}): '⊙' must join two names.")
        name, tokens = tokens[0][1], tokens[1:]
        if tokens and tokens[0][0] == "frame":
            frame, tokens = _parse_frame(tokens[0][1][1:-1]), tokens[1:]
        power = Fraction(1)
        if tokens and tokens[0][1] == "*":
            power, tokens = Fraction(-1), tokens[1:]
        elif tokens and tokens[0][0] == "power":
            power, tokens = Fraction(tokens[0][1][1:]), tokens[1:]
        factors.append((name, power))
        if not tokens or tokens[0][1] != "⊙":
            return Carried(tuple(factors), frame), tokens
        tokens = tokens[1:]


def _parse_frame(text: str) -> tuple[Frame, ...]:
    frames = []
    for item in text.split(","):
        body, _, exponent = item.partition(" ^ ")
        name, _, offset = body.partition(" + ")
        frames.append(Frame(name.strip(), float(offset or 0), float(exponent or 1)))
    return tuple(frames)
