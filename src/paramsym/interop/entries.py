"""Mappings as people have them: recipes, objects, lists; and entries of modules from these."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paramsym.interop.maps import ScaleMap
from paramsym.interop.matching import Unresolved, module_sets


class MappingError(ValueError):
    """A mapping that cannot be read."""


@dataclass(frozen=True)
class Entry:
    """One entry of a mapping, as it is written: names or regexes.

    `layers` is what the names are relative to, where a tool repeats an entry for each layer.
    """

    smooth: str
    balance: tuple[str, ...]
    layers: str = ""

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
            (balance, smooth), or of the dictionaries of AutoAWQ with `prev_op` and `layers`.
        tool: whose it is, where the source does not say.

    Raises `MappingError` for what is none of these.
    """
    if isinstance(source, (str, Path)):
        source = _loaded(Path(source))
    if isinstance(source, Mapping):
        found = list(_in_document(source, tool))
        if not found:
            raise MappingError(
                f"read_mapping: a document with the keys {sorted(map(str, source))[:6]} has no "
                "mappings. Expected AWQModifier or SmoothQuantModifier with mappings, or "
                "scaling_layers. Write the mappings out: those that a tool infers from the name of "
                "a model stand in no recipe."
            )
        tools = {given.tool for given in found}
        if len(tools) > 1:
            raise MappingError(
                f"read_mapping: mappings for {' and '.join(sorted(tools))} in one document. "
                "Expected those of one tool; check them one after the other."
            )
        return Given(tools.pop(), tuple(e for given in found for e in given.entries))
    if isinstance(source, Sequence):
        return Given(tool, tuple(_entry(each) for each in source))
    raise MappingError(
        f"read_mapping: a {type(source).__name__} came. Expected the path of a recipe or a JSON "
        "file, a dictionary, or a list of entries."
    )


def _loaded(path: Path) -> Any:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MappingError(
            f"read_mapping: {path} cannot be read ({error}). Expected a recipe in YAML or a "
            "mapping in JSON. Give the path of one, for example recipe.yaml."
        ) from error
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        where = " ".join(str(error).split())[:200]
        raise MappingError(
            f"read_mapping: {path} is neither YAML nor JSON: {where}. Expected a recipe with "
            "AWQModifier or SmoothQuantModifier, or a JSON file with scaling_layers."
        ) from error


_MODIFIERS = {"AWQModifier": "awq", "SmoothQuantModifier": "smoothquant"}


def _in_document(document: Any, tool: str, layers: str = "") -> Iterator[Given]:
    """Every list of mappings at any depth."""
    if isinstance(document, Mapping):
        layers = str(document.get("model_decoder_layers") or layers)
        for key, value in document.items():
            own = _MODIFIERS.get(str(key), tool)
            if key in ("mappings", "scaling_layers") and isinstance(value, Sequence):
                own = "quark" if key == "scaling_layers" else own
                yield Given(own, tuple(_entry(each, layers) for each in value))
            else:
                yield from _in_document(value, own, layers)
    elif isinstance(document, Sequence) and not isinstance(document, str):
        for value in document:
            yield from _in_document(value, tool, layers)


def _entry(given: Any, layers: str = "") -> Entry:
    smooth, balance = _said(given)
    if isinstance(smooth, Sequence) and not isinstance(smooth, str) and len(smooth) == 1:
        smooth = smooth[0]
    balance = [balance] if isinstance(balance, str) else balance
    if not isinstance(smooth, str) or not _are_names(balance):
        raise MappingError(
            f"read_mapping: the entry {str(given)[:120]!r} does not say one module and those that "
            "read it. Expected smooth_layer and balance_layers, prev_op and layers, or a pair "
            "(balance_layers, smooth_layer), each a name or 're:' and a regex."
        )
    return Entry(smooth, tuple(balance), layers)


def _said(given: Any) -> tuple[Any, Any]:
    """What an entry has in the place of the writer and of the readers."""
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        named = hasattr(given, "balance_layers")  # a tuple with names, in whatever order
        if not named:
            return given[1], given[0]
    get = given.get if isinstance(given, Mapping) else partial(getattr, given)
    smooth = next((x for name in _WRITER if (x := get(name, None)) is not None), None)
    balance = next((x for name in _READERS if (x := get(name, None)) is not None), None)
    return smooth, balance


_WRITER = ("smooth_layer", "smooth_layers", "prev_op")
_READERS = ("balance_layers", "layers")


def _are_names(names: Any) -> bool:
    return isinstance(names, Sequence) and all(isinstance(name, str) for name in names)


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
