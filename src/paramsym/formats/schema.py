"""Every field of an exported program's JSON, walked as torch's own schema reads it.

The dataclasses of `torch._export.serde.schema` say which fields there are and of which type; torch
itself does not compare what it reads with these types. Every leaf is compared here, and every text
is of a kind: an expression, a guard, an operator, a tree, an identifier (which is written into the
source of a function), a path of attributes, free text that nothing evaluates, or a plain word. A
text of a field that is not known here has to be a plain word.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

from paramsym.formats.expressions import Untrusted, check_expression, shown
from paramsym.formats.guards import check_guard
from paramsym.formats.operators import check_operator
from paramsym.formats.trees import check_tree, plain

MANY_SYMBOLS = 1_000_000  # torch counts up to the number of the last one
_INFINITE = frozenset(["Infinity", "-Infinity", "NaN"])


class Field(ValueError):
    """A field that may not be read: its path, what was found, and what was expected."""

    def __init__(self, path: str, error: Untrusted):
        self.path, self.found, self.expected = path, error.found, error.expected
        super().__init__(f"{path}: {error}")


def check(kind: str, data: Any, path: str) -> None:
    """Compare JSON with a dataclass of torch's schema, `ExportedProgram` or `PayloadConfig`.

    Raises:
        Field: the first field that is of another type, or whose text is of no known kind.
    """
    from torch._export.serde import schema

    try:
        _walk(getattr(schema, kind), data, path, _word)
    except RecursionError:
        raise Field(path, Untrusted("tables that are nested too deeply", kind)) from None


_Text = Callable[[Any], None]


def _walk(kind: Any, data: Any, path: str, text: _Text) -> None:
    """Check one value against its type; `text` is the rule for texts in it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        _walk(inner[0], data, path, text)
    elif origin in (typing.Union, types.UnionType):
        if data is not None:
            _walk(next(part for part in inner if part is not types.NoneType), data, path, text)
    elif origin is list:
        for k, part in enumerate(_of(list, data, path)):
            _walk(inner[0], part, f"{path}[{k}]", text)
    elif origin is dict:
        for key, part in _of(dict, data, path).items():
            _apply(_KEYS.get(path.rpartition(".")[2], _path), key, f"{path}, key {shown(key)}")
            _walk(inner[1], part, f"{path}[{shown(key)}]", text)
    elif dataclasses.is_dataclass(kind):
        _walk_class(typing.cast(type, kind), data, path)
    else:
        _leaf(kind, data, path, text)


def _walk_class(kind: type, data: Any, path: str) -> None:
    data = _of(dict, data, path)
    hints = _hints(kind)
    if _is_union(kind):
        if len(data) != 1 or not set(data) <= set(hints):
            found = shown(", ".join(data)) if data else "an empty table"
            raise Field(path, Untrusted(found, f"one field of {kind.__name__}"))
    for name, hint in hints.items():
        if name in data:
            _walk(hint, data[name], f"{path}.{name}", _TEXTS.get((kind.__name__, name), _word))
        elif not _is_union(kind) and _required(kind, name):
            raise Field(f"{path}.{name}", Untrusted("nothing", f"a field of {kind.__name__}"))
    if kind.__name__ == "Graph":
        for k, given in enumerate(data["inputs"]):
            _apply(_constant_text, given.get("as_string"), f"{path}.inputs[{k}].as_string")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    from torch._export.serde import schema

    hints = typing.get_type_hints(kind, globalns=dict(vars(schema)), include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _is_union(kind: type) -> bool:
    from torch._export.serde.union import _Union

    return issubclass(kind, _Union)


@functools.cache
def _required(kind: type, name: str) -> bool:
    field = next(f for f in dataclasses.fields(kind) if f.name == name)
    nothing = dataclasses.MISSING
    return field.default is nothing and field.default_factory is nothing


def _of(kind: type, data: Any, path: str) -> Any:
    if not isinstance(data, kind):
        names = {list: "a list", dict: "a table"}
        raise Field(path, Untrusted(f"{shown(repr(data))}", names[kind]))
    return data


def _leaf(kind: Any, data: Any, path: str, text: _Text) -> None:
    if kind is str:
        if not isinstance(data, str):
            raise Field(path, Untrusted(shown(repr(data)), "a text"))
        _apply(text, data, path)
    elif kind is bool:
        good, expected = type(data) is bool, "true or false"
        _require(good, data, path, expected)
    elif kind is float:
        good = type(data) in (int, float) or (type(data) is str and data in _INFINITE)
        _require(good, data, path, "a number")
    elif isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        known = {int(member) for member in kind}
        _require(type(data) is int and data in known, data, path, f"a {kind.__name__}")
    else:
        good = kind is int and type(data) is int and abs(data) < 1 << 63
        _require(good, data, path, "an integer of 64 bits")


def _require(good: bool, data: Any, path: str, expected: str) -> None:
    if not good:
        raise Field(path, Untrusted(shown(repr(data)), expected))


def _apply(rule: _Text, data: Any, path: str) -> None:
    try:
        rule(data)
    except Untrusted as error:
        raise Field(path, error) from None


# -- the kinds of texts ------------------------------------------------------------------------


def _word(text: str) -> None:
    if not all(c.isalnum() or c in "_.+-<=>:*" for c in text):
        raise Untrusted(shown(text), "a plain word")


def _free(text: str) -> None:
    """Nothing evaluates it, and where it is printed it is printed as a literal."""


def _identifier(text: str) -> None:
    # It is written into the source of a function.
    if text and not text.isidentifier():
        raise Untrusted(shown(text), "a name: letters, digits and underscores")


def _path(text: str) -> None:
    # It is written between quotes, or split at its points and looked up in a module.
    if not plain(text):
        raise Untrusted(shown(text), "a name without quotes, backslashes or newlines")


def _constant_text(text: str | None) -> None:
    if text is not None and not plain(text):
        raise Untrusted(shown(text), "an input without quotes, backslashes or newlines")


def _symbol(text: str) -> None:
    _path(text)
    for prefix in ("zuf", "u"):  # torch reads what follows with `int`, and counts up to it
        if text.startswith(prefix) and _number(text.removeprefix(prefix)) > MANY_SYMBOLS:
            raise Untrusted(shown(text), f"at most {MANY_SYMBOLS} symbols")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


_NAMES = [
    ("TensorArgument", "name"), ("TokenArgument", "name"), ("GraphArgument", "name"),
    ("CustomObjArgument", "name"), ("NamedArgument", "name"), ("Node", "name"),
    ("InputToConstantInputSpec", "name"), ("SymIntArgument", "as_name"),
    ("SymFloatArgument", "as_name"), ("SymBoolArgument", "as_name"),
    ("ModuleCallSignature", "forward_arg_names"),
]  # fmt: skip
_PATHS = [
    ("InputToParameterSpec", "parameter_name"), ("InputToBufferSpec", "buffer_name"),
    ("InputToTensorConstantSpec", "tensor_constant_name"),
    ("InputToCustomObjSpec", "custom_obj_name"), ("BufferMutationSpec", "buffer_name"),
    ("ParameterMutationSpec", "parameter_name"), ("GradientToParameterSpec", "parameter_name"),
    ("GradientToUserInputSpec", "user_input_name"), ("UserInputMutationSpec", "user_input_name"),
    ("CustomObjArgument", "class_fqn"), ("ModuleCallEntry", "fqn"),
    ("ConstantValue", "as_string"), ("NamedTupleDef", "field_names"),
]  # fmt: skip
_TEXTS: dict[tuple[str, str], _Text] = {
    ("SymExpr", "expr_str"): check_expression,
    ("ExportedProgram", "guards_code"): check_guard,
    ("Node", "target"): check_operator,
    ("Argument", "as_operator"): check_operator,
    ("ModuleCallSignature", "in_spec"): check_tree,
    ("ModuleCallSignature", "out_spec"): check_tree,
    ("Node", "metadata"): _free,
    ("GraphModule", "metadata"): _free,
    ("Argument", "as_string"): _free,
    ("Argument", "as_strings"): _free,
    **dict.fromkeys(_NAMES, _identifier),
    **dict.fromkeys(_PATHS, _path),
}
_KEYS: dict[str, _Text] = {
    "tensor_values": _identifier,
    "sym_int_values": _identifier,
    "sym_bool_values": _identifier,
    "sym_float_values": _identifier,
    "custom_obj_values": _identifier,
    "range_constraints": _symbol,
    "config": _path,
}
