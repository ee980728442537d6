"""Whether what a command prints with --json is what the reference says."""

import json
from typing import Any

from paramsym.cli.answers import Key, keys

KINDS = {"text": str, "whole": int, "number": (int, float), "truth": bool, "object": dict}


def unlike(value: Any, said: list[Key], path: str = "") -> list[str]:
    """Where a value is not what keys say."""
    here = {key.path.removesuffix("?"): key for key in said}
    start = f"{path}." if path else ""
    inside = {p for p in here if p.startswith(start)}
    if not isinstance(value, dict):
        return [] if not inside else [f"{path} is no object"]
    names = {p.removeprefix(start).split(".")[0].rstrip("[]{}") for p in inside}
    needed = {
        name for name in names
        if f"{start}{name}" not in here or not here[f"{start}{name}"].path.endswith("?")
    }  # fmt: skip
    found = [f"{start}{name} is not told" for name in value if name not in names]
    found += [f"{start}{name} is missing" for name in needed if name not in value]
    for name, item in value.items():
        at = f"{start}{name}"
        if at in here:
            found += _unlike_kind(item, here[at].kind, said, at)
        elif name in names:
            found += unlike(item, said, at)
    return found


def _unlike_kind(value: Any, kind: str, said: list[Key], path: str) -> list[str]:
    if value is None:
        return [] if kind.endswith("?") else [f"{path} is null"]
    kind = kind.removesuffix("?")
    if kind.startswith(("[]", "{}")):
        if not isinstance(value, list if kind.startswith("[]") else dict):
            return [f"{path} is no {kind}"]
        items = value if isinstance(value, list) else value.values()
        return [w for item in items for w in _unlike_kind(item, kind[2:], said, path + kind[:2])]
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "truth"):
        return [f"{path} is {value!r}, no {kind}"]
    inside = [key for key in said if key.path.startswith(f"{path}.")]
    return unlike(value, inside, path) if kind == "object" and inside else []


ANSWERS = keys()


def told(run: Any, name: str, *call: object, code: int = 0) -> dict[str, Any]:
    """What a command prints, once it is what its keys say."""
    printed = json.loads(run(*call, code=code).stdout)
    assert unlike(printed, ANSWERS[name]) == []
    return printed
