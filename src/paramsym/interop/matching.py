"""How compressed-tensors resolves names and regexes to sets of modules.

A target is the name of a module, or `re:` and a regex that matches the beginning of it. The modules
are walked in order; once every target of an entry has a match, a further match that makes the
common ancestor of the set another one begins the next set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache


class Unresolved(ValueError):
    """Targets that match nothing, too little, or twice."""


def common_ancestor(names: Sequence[str]) -> str:
    """The longest name that is an ancestor of all names, or the name itself of a single one."""
    parts = [name.split(".") for name in names]
    depth = 0
    while all(len(p) > depth for p in parts) and len({p[depth] for p in parts}) == 1:
        depth += 1
    return ".".join(parts[0][:depth])


def module_sets(modules: Sequence[str], targets: Sequence[str]) -> Iterator[list[list[str]]]:
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


def _matched(modules: Sequence[str], targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every module that a target matches in order, with that target."""
    exact = {target for target in targets if not target.startswith("re:")}
    regexes = [target for target in targets if target not in exact]
    if not regexes:  # thousands of entries by name would each walk thousands of modules
        order = _order(tuple(modules))
        found = sorted((order[name], name) for name in exact if name in order)
        yield from ((name, name) for _, name in found)
        return
    for name in modules:
        matching = [*([name] if name in exact else []), *(t for t in regexes if _matches(name, t))]
        if len(matching) > 1:
            raise Unresolved(f"{name} is matched by {' and by '.join(map(repr, matching))}")
        yield from ((name, target) for target in matching)


@lru_cache(maxsize=4)
def _order(modules: tuple[str, ...]) -> dict[str, int]:
    return {name: k for k, name in enumerate(modules)}


def _matches(name: str, regex: str) -> bool:
    try:
        return re.match(regex[3:], name) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise Unresolved(f"{regex!r} is no regex: {error}") from error
