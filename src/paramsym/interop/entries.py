"""Mappings as people have them: recipes, objects, lists; and entries of modules from these."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from paramsym.formats.errors import CheckpointError, few, reading
from paramsym.interop.exporting import DIALECTS
from paramsym.interop.maps import ScaleMap
from paramsym.interop.matching import Unresolved, module_sets


class MappingError(CheckpointError):
    """A mapping that cannot be read, in four parts."""


@dataclass(frozen=True)
class Entry:
    """One entry of a mapping, as it is written: names or regexes.

    `layers` is what the names are relative to, where a tool repeats an entry for each layer, and
    `modifier` counts the lists of entries of a document.
    """

    smooth: str
    balance: tuple[str, ...]
    layers: str = ""
    modifier: int = 0

    def __str__(self) -> str:
        return f"{self.smooth} -> {', '.join(self.balance)}"


@dataclass(frozen=True)
class Given:
    """A mapping with the tool that it is for: awq, smoothquant or quark."""

    tool: str
    entries: tuple[Entry, ...]


def read_mapping(source: Any, tool: str = "awq") -> Given:
    """A mapping from a file, from what such a file holds, or from the objects of a tool.

    Args:
        source: the path of a recipe of llm-compressor (YAML) or of a Quark file (JSON); what they
            hold, as dictionaries and lists; lists of `AWQMapping`s, of `LayerMap`s or pairs
            (balance, smooth), or of the dictionaries of AutoAWQ with `prev_op` and `layers`. What
            was read already is returned.
        tool: whose it is, where the source does not say.

    Raises `MappingError` for what is none of these, for one without entries, and for what is not
    known (keys of an entry, versions); `CheckpointError`, of which that is one, for a file that
    cannot be read.
    """
    if isinstance(source, Given):
        return source
    where = "read_mapping"
    if tool not in DIALECTS:
        raise MappingError(
            where, f"tool={tool!r}", f"one of {', '.join(DIALECTS)}", "Say whose mapping it is"
        )
    if isinstance(source, (str, Path)):
        where, source = str(source), _loaded(Path(source))
    if isinstance(source, Mapping):
        found = list(_in_document(source, tool, where))
        if not found:
            raise MappingError(
                where, f"a document with the keys {few([*map(str, source)])} and no mappings",
                _DOCUMENT, "Write the mappings out: those that a tool infers from the name of a "
                "model stand in no recipe",
            )  # fmt: skip
        tools = {given.tool for given in found}
        if len(tools) > 1:
            raise MappingError(
                where, f"mappings for {' and '.join(sorted(tools))} in one document",
                "those of one tool", "Check them one after the other",
            )  # fmt: skip
        lists = (replace(e, modifier=k) for k, given in enumerate(found) for e in given.entries)
        given = Given(tools.pop(), tuple(lists))
    elif _is_list(source):
        given = Given(tool, tuple(_entry(each, where) for each in source))
    else:
        raise MappingError(
            where, f"a {type(source).__name__}", f"{_DOCUMENT}, or a list of entries",
            "Give the path of a recipe or of a JSON file, a dictionary, or a list",
        )  # fmt: skip
    if not given.entries:
        raise MappingError(
            where, "a mapping without entries", "at least one",
            "Leave the mapping out where there is nothing to scale; paramsym export writes one",
        )  # fmt: skip
    return given


_DOCUMENT = "AWQModifier or SmoothQuantModifier with mappings, or scaling_layers"


def _loaded(path: Path) -> Any:
    import yaml

    with reading(path, "a recipe in YAML or a mapping in JSON"):
        content = path.read_bytes()
    try:
        text = content.decode("utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:200]
        raise MappingError(
            str(path), f"neither YAML nor JSON ({said})", _DOCUMENT, "Check what the file is"
        ) from error


_MODIFIERS = {"AWQModifier": "awq", "SmoothQuantModifier": "smoothquant"}


_MOST = 1_000_000  # values of a document: aliases of YAML make few lines as many as they like
_VERSIONS = ("version", "format_version")


def _in_document(document: Any, tool: str, where: str) -> Iterator[Given]:
    """Every list of mappings at any depth, in order."""
    waiting = [(document, tool, "")]
    for _ in range(_MOST):
        if not waiting:
            return
        value, own, layers = waiting.pop()
        if isinstance(value, Mapping):
            _require_known_version(value, where)
            layers = str(value.get("model_decoder_layers") or layers)
            for key in _LISTS:
                if _is_list(part := value.get(key)):
                    of = "quark" if key == "scaling_layers" else own
                    yield Given(of, tuple(_entry(each, where, layers) for each in part))
            _require_written_out(value, where)
            waiting.extend(
                (part, _MODIFIERS.get(str(key), own), layers)
                for key, part in reversed([*value.items()])
                if key not in _LISTS
            )
        elif _is_list(value):
            waiting.extend((part, own, layers) for part in reversed(value))
    raise MappingError(
        where, f"more than {_MOST:,} values", "a document as people write it",
        "Take out what is nested or repeated without end",
    )  # fmt: skip


_LISTS = ("mappings", "scaling_layers")


def _require_written_out(document: Mapping[Any, Any], where: str) -> None:
    """A modifier without mappings infers them from the class of a model."""
    for name in _MODIFIERS:
        given = document.get(name)
        written = isinstance(given, Mapping) and _is_list(given.get("mappings"))
        if name in document and not written:
            raise MappingError(
                where, f"{name} without a list of maps", "all mappings written out",
                "Write out those that the tool infers from the name of a model, or take it out",
            )  # fmt: skip


def _require_known_version(document: Mapping[Any, Any], where: str) -> None:
    """A version is a number; AutoAWQ calls the layout of its kernels a version, too."""
    for key in _VERSIONS:
        said = str(document.get(key, "1")).lower()
        if said.removeprefix("v") not in ("1", "1.0", "1.0.0") and not said.isalpha():
            raise MappingError(
                where, f"{key} {said[:40]}", "version 1, or none: no format has had another",
                "Look up what has changed, and write the mapping in the form of version 1",
            )  # fmt: skip


def _entry(given: Any, where: str, layers: str = "") -> Entry:
    smooth, balance = _said(given)
    if _is_list(smooth) and len(smooth) == 1:
        smooth = smooth[0]
    balance = [balance] if isinstance(balance, str) else balance
    unknown = [*map(str, given.keys() - _KEYS)] if isinstance(given, Mapping) else []
    if unknown or not _is_name(smooth) or not _are_names(balance):
        what = f"with {few(sorted(unknown))}" if unknown else "without a writer or its readers"
        raise MappingError(
            where, f"the entry {reprlib.repr(given)[:120]} {what}",
            "smooth_layer and balance_layers, prev_op and layers, or a pair (balance_layers, "
            "smooth_layer), each a name or 're:' and a regex",
            "Correct the spelling, and leave out what says something else",
        )  # fmt: skip
    return Entry(smooth, tuple(balance), layers)


def _said(given: Any) -> tuple[Any, Any]:
    """What an entry has in the place of the writer and of the readers."""
    if _is_list(given) and len(given) == 2:
        named = hasattr(given, "balance_layers")  # a tuple with names, in whatever order
        if not named:
            return given[1], given[0]
    get = given.get if isinstance(given, Mapping) else partial(getattr, given)
    smooth = next((x for name in _WRITER if (x := get(name, None)) is not None), None)
    balance = next((x for name in _READERS if (x := get(name, None)) is not None), None)
    return smooth, balance


_WRITER = ("smooth_layer", "smooth_layers", "prev_op")
_READERS = ("balance_layers", "layers")
# Where activations are looked at and what is run to compare: neither says what is scaled.
_KEYS = {*_WRITER, *_READERS, "activation_hook_target", "inp", "module2inspect", "kwargs"}


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _are_names(names: Any) -> bool:
    return _is_list(names) and all(map(_is_name, names))


def _is_name(name: Any) -> TypeGuard[str]:
    """Text that can be written: JSON has halves of characters, which no file takes."""
    return isinstance(name, str) and not any("\ud800" <= c <= "\udfff" for c in name)


def resolved(entry: Entry, names: Sequence[str]) -> list[ScaleMap]:
    """The maps of modules that an entry means, by the names of all modules in order.

    Raises `Unresolved` for regexes that match nothing, or one module twice.
    """
    if entry.layers:
        return _in_layers(entry, names)
    found = []
    for smooth, *balance in module_sets(names, (entry.smooth, *entry.balance)):
        if len(smooth) > 1:
            raise Unresolved(f"{entry.smooth!r} matches {' and '.join(smooth[:3])} in one set")
        found.append(ScaleMap(smooth[0], tuple(name for part in balance for name in part)))
    if not found:
        raise Unresolved(f"no module is called {entry.smooth!r} or {', '.join(entry.balance)}")
    return found


def _in_layers(entry: Entry, names: Sequence[str]) -> list[ScaleMap]:
    """The same modules in each layer that has them all."""
    known = set(names)
    inside = [n for n in names if n.rpartition(".")[0] == entry.layers]
    found = []
    for layer in inside:
        parts = [f"{layer}.{name}" for name in (entry.smooth, *entry.balance)]
        if known.issuperset(parts):
            found.append(ScaleMap(parts[0], tuple(parts[1:])))
    if not found:
        raise Unresolved(f"no layer of {entry.layers!r} has all of {entry}")
    return found
