"""Which guards of an exported program may be compiled: comparisons of sizes of its inputs.

`ExportedProgram.module()` writes the guards into the source of a function, both as code and as a
message between double quotes. Strings in a guard are therefore names, without quotes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramsym.formats.expressions import (
    EXPRESSION,
    Rules,
    Size,
    call,
    constant,
    integer,
    measure,
    name_of,
    parse,
    product,
    refuse,
    total,
)

_SIZES = frozenset("size stride storage_offset dim numel shape ndim".split())


def check_guard(text: object) -> None:
    """Refuse a guard that does more than compare sizes of the inputs, `L['x'].size()[0] == 3`.

    Guards are compiled and run by `ExportedProgram.module()`, which also copies their text into a
    string between double quotes: strings in them are names.
    """
    measure(parse(text, "sizes of the inputs, L['x'].size()[0]"), _GUARD)


def _guard_name(node: ast.Name, inner: object) -> Size:
    return Size(1, 1) if node.id in ("L", "inf") else name_of(node, inner)


def _subscript(node: ast.Subscript, inner: Callable[[ast.expr], Size]) -> Size:
    key = node.slice
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        if not all(c.isalnum() or c in "_.- " for c in key.value):
            raise refuse(node)
    elif integer(key) is None:
        raise refuse(node)
    return inner(node.value)


def _attribute(node: ast.Attribute, inner: Callable[[ast.expr], Size]) -> Size:
    if isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr == "inf":
        return Size(1, 1)
    if node.attr not in _SIZES:
        raise refuse(node)
    return inner(node.value)


def _guard_call(node: ast.Call, inner: Callable[[ast.expr], Size]) -> Size:
    if isinstance(node.func, ast.Attribute) and not node.keywords:
        mathematical = isinstance(node.func.value, ast.Name) and node.func.value.id == "math"
        if mathematical:
            if node.func.attr not in ("isnan", "trunc", "floor", "ceil", "sqrt"):
                raise refuse(node)
            return product([inner(part) for part in node.args])
        return total([inner(node.func), *(inner(part) for part in node.args)])
    if isinstance(node.func, ast.Name) and node.func.id in ("max", "min", "abs", "round"):
        return product([inner(part) for part in node.args])
    return call(node, inner)


def _guard_constant(node: ast.Constant, inner: object) -> Size:
    if isinstance(node.value, str) and all(c.isalnum() or c in "_.- " for c in node.value):
        return Size(1, 1)
    return Size(1, 1) if node.value is None else constant(node, inner)


_GUARD: Rules = {
    **EXPRESSION,
    ast.Constant: _guard_constant,
    ast.Name: _guard_name,
    ast.Subscript: _subscript,
    ast.Attribute: _attribute,
    ast.Call: _guard_call,
}
