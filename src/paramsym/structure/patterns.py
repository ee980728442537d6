"""Names by pattern, spelled as `print(symmetry)` shows them.

residual               the name itself
h.{0..11}.mlp          a range of numbers, both ends included
h.{0,3}.attn.{qk,vo}   any of these
*.attn.head            `*` is any text, dots included; `?` is any one character
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator

from paramsym.structure.folding import Repeat, filled, fold

Patterns = str | Iterable[str]

_SPECIAL = re.compile(r"[{}*?]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.([1-9]\d*))?")
_NEAR = 6  # names that an error shows
_ANY = 12  # where none is near


class UnknownName(KeyError):
    """A pattern that matches no name.

    `pattern` is what came, and `near` lists names that are spelled alike, or the first ones where
    none is.
    """

    def __init__(self, pattern: str, near: tuple[str, ...], where: str):
        super().__init__(pattern)
        self.pattern, self.near, self.where = pattern, near, where

    def __str__(self) -> str:
        """The four parts as plain text, which `KeyError` would quote."""
        found = ", ".join(self.near) or "nothing, because nothing moves"
        return (
            f"{self.where}: {self.pattern!r} matches no space and no shift. Expected a name or a "
            f"pattern of some of: {found}. Spell it as print(symmetry) shows it, for example "
            "'h.{0..11}.mlp' or '*.attn.head'; symmetry.table() lists all names."
        )


def matching(patterns: Patterns, names: Iterable[str], where: str) -> set[str]:
    """The names that match at least one of some patterns.

    Args:
        patterns: one pattern or several; each must match something.
        names: all names that there are.
        where: the call that is to be corrected, for the error.

    Raises:
        UnknownName: a pattern matches nothing.
    """
    known = dict.fromkeys(names)
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matched = set(_matched(pattern, known))
        if not matched:
            raise UnknownName(pattern, _near(pattern, [*known]), where)
        found |= matched
    return found


def split_patterns(text: str) -> list[str]:
    """Patterns that stand in one text with commas between them; commas in braces part nothing."""
    return re.split(r",(?![^{]*\})", text)


def _matched(pattern: str, names: Collection[str]) -> Iterator[str]:
    """The names that are the pattern, or that it describes."""
    if not _SPECIAL.search(pattern):
        yield from [pattern] if pattern in names else ()
        return
    globs = set(_expanded(pattern))
    # a bracket stands for itself, whereas fnmatch would read it as a set of characters
    rules = [re.compile(fnmatch.translate(g.replace("[", "[[]"))) for g in globs if {*g} & {*"*?"}]
    for name in names:
        if name == pattern or name in globs or any(rule.match(name) for rule in rules):
            yield name


def _expanded(pattern: str) -> Iterator[str]:
    """A pattern for every choice in its braces, innermost braces first."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for item in braces[1].split(","):
        for text in _counted(item):
            yield from _expanded(pattern[: braces.start()] + text + pattern[braces.end() :])


def _counted(item: str) -> Iterable[str]:
    """The numbers of a range; a text that is none by itself."""
    ends = _RANGE.fullmatch(item)
    if ends is None:
        return (item,)
    return map(str, range(int(ends[1]), int(ends[2]) + 1, int(ends[3] or 1)))


def _near(pattern: str, names: list[str]) -> tuple[str, ...]:
    """Names spelled like a pattern, repeated layers as one, or the first names."""
    shown: list[str] = []
    for item in fold(names):
        if isinstance(item, Repeat):
            shown += [filled(record, item.range) for record in item.records]
        else:
            shown.append(item)
    return tuple(difflib.get_close_matches(pattern, shown, _NEAR, 0.5) or shown[:_ANY])
