"""Whether a value is what an annotation says, as far as that can be asked."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, unwrap
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin


class Misfit(NamedTuple):
    """A value within an argument, by its path from there, and the annotation that it misses."""

    path: str
    value: Any
    hint: Any


def hint_of(function: Callable[..., Any], annotation: Any) -> Any:
    """An annotation as a type; `Any` where names of it exist for the type checker alone."""
    if not isinstance(annotation, str):
        return Any if annotation is Parameter.empty else annotation
    try:
        hint = eval(annotation, unwrap(function).__globals__)
    except Exception:
        return Any
    return (hint.__bound__ or Any) if isinstance(hint, TypeVar) else hint


def misfit(value: Any, hint: Any) -> Misfit | None:
    """Where a value, or an entry of it, is not what a type says; None if it fits."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = [misfit(value, each) for each in inner]
        deeper = [m for m in found if m is not None and m.path]
        return None if None in found else [*deeper, Misfit("", value, hint)][0]
    if isinstance(origin, type) and origin not in (Callable, type):
        return _entry(value, origin, inner, hint)
    if hint is None:
        fits = value is None
    elif origin is Literal:
        fits = value in inner
    else:
        fits = callable(value) if origin in (Callable, type) else _is(value, hint)
    return None if fits else Misfit("", value, hint)


def _entry(value: Any, origin: type, inner: tuple[Any, ...], hint: Any) -> Misfit | None:
    """The same for a container, all of whose entries are asked, if they are to be of a kind."""
    if not _is(value, origin) or isinstance(value, (str, bytes)):
        return Misfit("", value, hint)
    entries: Iterable[tuple[Any, Any, Any]] = ()
    if inner[-1] is Any:
        return None
    if isinstance(value, Mapping):
        entries = ((key, each, inner[-1]) for key, each in value.items())
    elif isinstance(value, tuple) and origin is tuple and inner[1:] != (...,):
        entries = zip(range(len(value)), value, inner, strict=False)
    elif not isinstance(value, Iterator):  # which would be spent
        entries = ((k, each, inner[0]) for k, each in enumerate(value))
    for key, each, own in entries:
        if (found := misfit(each, own)) is not None:
            return Misfit(f"[{key!r}]{found.path}", found.value, found.hint)
    return None


def _is(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real)
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "__module__", "").startswith(
        ("typing", "collections")
    ):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    try:
        return isinstance(value, kind)
    except TypeError:  # a type variable, `Any`
        return True
