"""Repeated layers written once: `h.0.mlp`, `h.1.mlp`, … `h.11.mlp` as `h.{0..11}.mlp`.

A record is a string or a nested list of strings and other JSON values. Numbers that stand between
dots of a string may run. A stretch of records that repeats a shorter stretch with one number that
runs by ones becomes a `Repeat`; whatever else differs ends it. `unfold(fold(records)) == records`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MARK = "{}"
_NUMBER = re.compile(r"(?<![\w-])\d+(?=\.)|(?<=\.)\d+(?!\w)")
_TRIES = 16  # periods that are tried at each record, shortest first


@dataclass(frozen=True)
class Repeat:
    """Records that repeat with a running number, which `MARK` stands for in them."""

    start: int
    count: int
    records: tuple[Any, ...]

    @property
    def range(self) -> str:
        """`{0..11}`"""
        return f"{{{self.start}..{self.start + self.count - 1}}}"


def fold(records: Sequence[Any]) -> list[Any]:
    """Records in their order, stretches that repeat as one `Repeat` each."""
    read = [_read(record) for record in records]
    places: dict[Any, list[int]] = {}
    for k, (skeleton, _) in enumerate(read):
        places.setdefault(skeleton, []).append(k)
    folded: list[Any] = []
    position = 0
    while position < len(records):
        later = places[read[position][0]]
        later = later[bisect.bisect(later, position) :][:_TRIES]
        tried = [(_repeats(read, position, k - position), k - position) for k in later]
        best = max(
            ((found, period) for found, period in tried if found),
            key=lambda item: item[0][1] * item[1],
            default=None,
        )
        if best is None:
            folded.append(records[position])
            position += 1
            continue
        (start, count), period = best
        marked = [
            _marked(records[k], _running(read[k][1], read[k + period][1]))
            for k in range(position, position + period)
        ]
        folded.append(Repeat(start, count, tuple(marked)))
        position += count * period
    return folded


def unfold(folded: Iterable[Any]) -> list[Any]:
    """The records that `fold` was given."""
    return [record for item in folded for record in _unfolded(item)]


def _unfolded(item: Any) -> Iterator[Any]:
    if not isinstance(item, Repeat):
        yield item
        return
    for number in range(item.start, item.start + item.count):
        for record in item.records:
            yield filled(record, str(number))


def filled(record: Any, text: str) -> Any:
    """A record of a `Repeat` with a text in place of the running number."""
    return _mapped(record, lambda string: string.replace(MARK, text))


def _mapped(record: Any, change: Callable[[str], str]) -> Any:
    if isinstance(record, str):
        return change(record)
    if isinstance(record, (list, tuple)):
        return type(record)(_mapped(item, change) for item in record)
    return record


def _read(record: Any) -> tuple[Any, tuple[int, ...]]:
    """A record without its numbers, which is like no other where it has the mark already; and
    the numbers."""
    numbers: list[int] = []
    taken = False

    def walk(item: Any) -> Any:
        nonlocal taken
        if isinstance(item, str):
            taken = taken or MARK in item
            found = [m[0] for m in _NUMBER.finditer(item)]
            if all(str(int(n)) == n for n in found):
                numbers.extend(map(int, found))
                return _NUMBER.sub(MARK, item)
            return item
        if isinstance(item, (list, tuple)):
            return (type(item).__name__, *map(walk, item))
        return type(item).__name__, item

    skeleton = walk(record)
    return (object() if taken else skeleton), tuple(numbers)


def _running(a: Sequence[int], b: Sequence[int]) -> tuple[bool, ...]:
    """Which numbers differ between two records."""
    return tuple(x != y for x, y in zip(a, b, strict=True))


def _repeats(read: list, position: int, period: int) -> tuple[int, int] | None:
    """(first value, how often) a stretch repeats with a number that runs by ones."""
    pattern: list[tuple[bool, ...]] = []
    start = None
    for k in range(position, position + period):
        if k + period >= len(read) or read[k][0] != read[k + period][0]:
            return None
        a, b = read[k][1], read[k + period][1]
        runs = _running(a, b)
        for x, y, moves in zip(a, b, runs, strict=True):
            if moves:
                start = x if start is None else start
                if x != start or y != start + 1:
                    return None
        pattern.append(runs)
    if start is None:
        return None
    count = 2
    while _continues(read, position, period, count, start, pattern):
        count += 1
    return start, count


def _continues(
    read: list, position: int, period: int, count: int, start: int, pattern: list
) -> bool:
    for offset, runs in enumerate(pattern):
        first, at = position + offset, position + count * period + offset
        if at >= len(read) or read[at][0] != read[first][0]:
            return False
        for x, y, moves in zip(read[first][1], read[at][1], runs, strict=True):
            if y != (start + count if moves else x):
                return False
    return True


def _marked(record: Any, runs: tuple[bool, ...]) -> Any:
    """A record with the mark in place of the numbers that run."""
    remaining = iter(runs)

    def change(string: str) -> str:
        if any(str(int(m[0])) != m[0] for m in _NUMBER.finditer(string)):
            return string
        return _NUMBER.sub(lambda m: MARK if next(remaining) else m[0], string)

    return _mapped(record, change)
