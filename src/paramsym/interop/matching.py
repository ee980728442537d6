"""How compressed-tensors resolves names and regexes to sets of modules.

A target is the name of a module, or `re:` and a regex that matches the beginning of it. The modules
are walked in order; once every target of an entry has a match, a further match that makes the
common ancestor of the set another one begins the next set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


class Unresolved(ValueError):
    """Targets that match nothing, too little, or twice."""


def common_ancestor(names: Sequence[str]) -> str:
    """The longest name that is an ancestor of all names, or the name itself of a single one."""
    parts = [name.split(".") for name in names]
    depth = 0
    while all(len(p) > depth for p in parts) and len({p[depth] for p in parts}) == 1:
        depth += 1
    return ".".join(parts[0][:depth])


def module_sets(modules: Iterable[str], targets: Sequence[str]) -> Iterator[list[list[str]]]:
    """Sets of names, each with the matches of every target.

    Args:
        modules: all names in the order of `named_modules`.
        targets: names or regexes.

    Raises `Unresolved` for a module that two targets match, and for a last set that is incomplete.
    """
    found: dict[str, list[str]] = {target: [] for target in targets}
    context: str | None = None
    for name, target in _matched(modules, list(found)):
        around = name if context is None else common_ancestor([name, context])
        if all(found.values()) and around != context:
            yield [found[each] for each in targets]
            found, around = {each: [] for each in targets}, name
        found[target].append(name)
        context = around
    if all(found.values()):
        yield [found[each] for each in targets]
    elif any(found.values()):
        missing = [target for target, names in found.items() if not names]
        raise Unresolved(f"nothing matches {', '.join(map(repr, missing))} in the last set")


def _matched(modules: Iterable[str], targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every module that a target matches, with that target."""
    for name in modules:
        matching = [target for target in targets if _matches(name, target)]
        if len(matching) > 1:
            raise Unresolved(f"{name} is matched by {' and by '.join(map(repr, matching))}")
        yield from ((name, target) for target in matching)


def _matches(name: str, target: str) -> bool:
    if target.startswith("re:"):
        try:
            return re.match(target[3:], name) is not None
        except re.error as error:
            raise Unresolved(f"{target!r} is no regex: {error}") from error
    return target == name
