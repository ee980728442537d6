"""Public functions whose raw errors over arguments of a wrong kind are told in words.

A door costs nothing while all goes well. Only when an error of Python or of torch leaves the
function are its arguments held against its annotations, and the first that does not fit is named
in place of that error. What an annotation does not say counts as fitting: then the error stays.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, ParamSpec, TypeVar

from .kinds import Misfit, hint_of, misfit
from .words import a, instead, words

P = ParamSpec("P")
T = TypeVar("T")
_EMPTY = inspect.Parameter.empty
# How our messages begin or go on, and those of torch do not.
_OURS = re.compile(r"^[\"']?[\w.]+\([^)]|(was|were) expected|[.,;:] Expected ")


class WrongKind(TypeError, ValueError):
    """An argument of a kind that a function does not take: a model for a state dict, say."""


def door(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, whose raw errors over arguments of a wrong kind become a `WrongKind`."""

    @functools.wraps(function)
    def entered(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            found = None if _is_ours(error) else _refusal(function, args, kwargs)
            if found is None:
                raise
            raise found from error

    return entered


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, which asks for the kinds of its arguments before it begins.

    It is for those that would give something for anything, such as what fails only when it is used.
    """

    @functools.wraps(function)
    def entered(*args: P.args, **kwargs: P.kwargs) -> T:
        found = _refusal(function, args, kwargs)
        if found is not None:
            raise found
        return function(*args, **kwargs)

    return entered


def behind_doors(names: MutableMapping[str, Any]) -> None:
    """Put a door before each function that a package exports; its modules keep them without."""
    package = names["__name__"]
    for name, value in list(names.items()):
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("paramsym."):
            names[name] = at(package, name, value)


def at(package: str, name: str, value: Any) -> Any:
    """A function behind a door of a package, where it is pickled; anything else as it is."""
    if not isinstance(value, types.FunctionType) or value.__module__ == package:
        return value
    found = door(value)
    found.__module__, found.__qualname__ = package, name
    return found


def _is_ours(error: Exception) -> bool:
    """Whether an error says already what came and what was expected."""
    return type(error).__module__.startswith("paramsym.") or bool(_OURS.search(str(error)))


def _refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> WrongKind | None:
    """The error that names the first argument that is missing or of a wrong kind; None if none."""
    signature, hints = _read(function)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return None  # too many, or of unknown names: Python says which
    named = {n: signature.parameters[n] for n in hints}
    call = function.__qualname__.removesuffix(".__init__")
    missing = next((n for n, p in named.items() if n not in given and p.default is _EMPTY), None)
    if missing is not None:
        hint = hints[missing]
        return WrongKind(
            f"{call}({missing}=…): nothing came, and {words(hint)} was expected. "
            f"{instead(hint, None)}"
        )
    wrong = {n: m for n in named if n in given and (m := misfit(given[n], hints[n])) is not None}
    if not wrong:
        return None
    name, found = next(iter(wrong.items()))
    needed = ", ".join(n for n, p in named.items() if p.default is _EMPTY)
    way = instead(found.hint, found.value, "" if named[name].default is _EMPTY else name)
    if other := _exchanged(name, wrong, given, hints):
        way = f"{name} and {other} are exchanged: the order is {call}({needed})."
    return WrongKind(
        f"{call}({name}{found.path}=…): {a(type(found.value).__name__)} came, and "
        f"{words(found.hint)} was expected. {way}"
    )


@functools.cache
def _read(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature of a function, and the annotations of what has a name as types."""
    signature = inspect.signature(function)
    return signature, {
        n: hint_of(function, p.annotation) for n, p in signature.parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }  # fmt: skip


def _exchanged(
    name: str, wrong: Mapping[str, Misfit], given: Mapping[str, Any], hints: Mapping[str, Any]
) -> str:
    """The argument that stands in the place of one, and the one in its; empty if none does."""
    for other in wrong:
        fits = misfit(given[other], hints[name]) is None is misfit(given[name], hints[other])
        if other != name and fits:
            return other
    return ""
