"""Which descriptions of nested inputs and outputs (tree specifications) may be read.

A tree specification is JSON inside a text. torch imports the module that an enumeration or a
`defaultdict` in it names, and writes the names of keyword inputs into the source of a function.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paramsym.formats.expressions import Untrusted, shown

_FACTORIES = frozenset("list dict int float set tuple str bool".split())
_EXPECTED = "a tree of tuples, lists and dictionaries, as torch.export writes it"


def check_tree(text: object) -> None:
    """Refuse a tree specification that imports something, or whose names are no plain text.

    Raises:
        Untrusted: with what was found.
    """
    if not isinstance(text, str):
        raise Untrusted(f"a {type(text).__name__}", _EXPECTED)
    found = _json(text)
    if not (isinstance(found, list) and len(found) == 2):
        raise Untrusted(shown(text), _EXPECTED)
    try:
        _check_node(found[1])
    except RecursionError:
        raise Untrusted("a tree that is nested too deeply", _EXPECTED) from None
    _check_keywords(found[1])


def _check_keywords(root: dict) -> None:
    """The keys of keyword inputs become the names of a function's arguments."""
    children = root["children_spec"]
    if len(children) == 2 and children[1]["type"] == "builtins.dict":
        context = children[1]["context"]
        for key in _json(context) or [] if isinstance(context, str) else [context]:
            if not (isinstance(key, str) and key.isidentifier()):
                raise Untrusted(f"the keyword {shown(str(key))}", "names of arguments")


def _json(text: str, hook: Callable[[dict], Any] | None = None) -> Any:
    try:
        return json.loads(text, object_hook=hook)
    except (ValueError, RecursionError):
        raise Untrusted(shown(text), _EXPECTED) from None


def _check_node(node: Any) -> None:
    if not isinstance(node, dict) or not {"type", "context", "children_spec"} <= set(node):
        raise Untrusted(shown(repr(node)), _EXPECTED)
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if not isinstance(children, list) or not (kind is None or isinstance(kind, str)):
        raise Untrusted(shown(repr(node)), _EXPECTED)
    if kind == "collections.defaultdict":
        _check_default(context)
    elif isinstance(context, str):
        # A named tuple's context is its name; all others are JSON. A name is not JSON.
        _check_leaves(context if kind == "collections.namedtuple" else _json(context, _no_enum))
    else:
        _check_leaves(context)
    for child in children:
        _check_node(child)


def _check_default(context: Any) -> None:
    module = context.get("default_factory_module") if isinstance(context, dict) else None
    name = context.get("default_factory_name") if isinstance(context, dict) else None
    if module != "builtins" or name not in _FACTORIES:
        raise Untrusted(
            f"a defaultdict of {shown(f'{module}.{name}')}", "one of list, dict, int or float"
        )
    _check_leaves(context.get("dict_context"))


def _no_enum(found: dict) -> dict:
    if "__enum__" in found:
        raise Untrusted(
            f"the enumeration {shown(str(found.get('fqn')))}, whose module would be imported",
            "keys that are texts or numbers",
        )
    return found


def _check_leaves(value: Any) -> None:
    """Keys are written into source code as they are, so they are plain."""
    if isinstance(value, dict):
        _no_enum(value)
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            _check_leaves(part)
    elif isinstance(value, str) and not plain(value):
        raise Untrusted(f"the key {shown(value)}", "keys without quotes, backslashes or newlines")


def plain(text: str) -> bool:
    """A text that cannot leave the quotes it is put between."""
    return text.isprintable() and not set(text) & set("\"'\\")
