"""Repeated layers as one row: `layers.0.mlp … layers.31.mlp` becomes `layers.{0..31}.mlp` ×32.

Two rows are one where their names differ only in whole numbers between dots, and everything that
is said about them agrees up to such numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

Item = TypeVar("Item")
_NUMBER = re.compile(r"(?<=\.)\d+(?!\w)|^\d+(?=\.)")
_DIGITS = re.compile(r"\d+")
ENOUGH = 18  # rows up to this number are shown as they are


@dataclass(frozen=True)
class Group(Generic[Item]):
    """Rows that are shown as one."""

    label: str
    items: tuple[Item, ...]

    @property
    def first(self) -> Item:
        return self.items[0]

    @property
    def count(self) -> int:
        return len(self.items)


def template(text: str) -> str:
    """A text with every whole number between dots replaced by a star."""
    return _NUMBER.sub("*", text)


def collapse(
    items: Iterable[Item],
    name: Callable[[Item], str],
    says: Callable[[Item], str],
    enough: int = ENOUGH,
) -> list[Group[Item]]:
    """Group rows in the order of their first members; few rows stay as they are."""
    items = list(items)
    if len(items) <= enough:
        return [Group(name(item), (item,)) for item in items]
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((template(name(item)), template(says(item))), []).append(item)
    return [Group(common([name(i) for i in found]), tuple(found)) for found in groups.values()]


def common(names: list[str]) -> str:
    """The common form of texts with one template, with the range of each number that varies."""
    if len(set(map(template, names))) > 1:
        return template(names[0])
    if len(names) == 1:
        return names[0]
    columns = zip(*([int(n) for n in _NUMBER.findall(name)] for name in names), strict=True)
    ranges = iter([_range(sorted(set(column))) for column in columns])
    return _NUMBER.sub(lambda _: next(ranges), names[0])


def spread(texts: list[str]) -> str:
    """Texts that differ in numbers alone as one, with the ends of what varies: `(8…32)`."""
    if len(set(map(sizeless, texts))) > 1:
        return " or ".join(dict.fromkeys(texts))
    columns = zip(*([int(n) for n in _DIGITS.findall(text)] for text in texts), strict=True)
    ends = ((min(column), max(column)) for column in columns)
    made = iter([f"{low}…{high}" if low < high else str(low) for low, high in ends])
    return _DIGITS.sub(lambda _: next(made), texts[0])


def sizeless(text: str) -> str:
    """A text with every number replaced by a star: what `spread` takes for alike."""
    return _DIGITS.sub("*", text)


def _range(values: list[int]) -> str:
    """Ascending numbers in braces, as patterns of names are spelled."""
    if len(values) == 1:
        return str(values[0])
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 4 and len(steps) == 1 and steps != {1}:
        return f"{{{values[0]}..{values[-1]}..{steps.pop()}}}"
    return "{" + ",".join(_runs(values)) + "}"


def _runs(values: list[int]) -> Iterator[str]:
    """Numbers one by one, and runs of three and more by their ends."""
    start = 0
    for k, value in enumerate(values):
        if k + 1 == len(values) or values[k + 1] != value + 1:
            if k - start > 1:
                yield f"{values[start]}..{value}"
            else:
                yield from map(str, values[start : k + 1])
            start = k + 1
