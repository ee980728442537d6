"""Maps that a tool repeats in each decoder layer, by names relative to the layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from torch import nn

from paramsym.interop.maps import Refused, ScaleMap, ScaleMaps
from paramsym.interop.parts import module_names


def layered(found: ScaleMaps, model: nn.Module) -> tuple[str, ScaleMaps]:
    """The list of layers that holds most maps, and of the maps those that it can repeat.

    A map can be said if it lies in one layer, and if every layer that has modules of these names
    has the same map. Without a list of layers all maps keep their full names.
    """
    lists = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    inside = Counter(name for entry in found.entries for name in lists if _layer(entry, name))
    if not inside:
        return "", found
    layers = max(inside, key=lambda name: (inside[name], -len(name)))
    modules = {*module_names(model)}
    numbers = [n.removeprefix(f"{layers}.") for n in modules if n.rpartition(".")[0] == layers]
    known: dict[ScaleMap, set[str]] = defaultdict(set)
    for entry in found.entries:
        known[relative(entry, layers)].add(_layer(entry, layers))
    entries, refused = [], [*found.refused]
    for entry in found.entries:
        own = relative(entry, layers)
        if not _layer(entry, layers):
            refused.append(Refused(entry.smooth, "layer", f"it lies outside the layers {layers}"))
            continue
        named = {n for n in numbers if modules.issuperset(_names(own, f"{layers}.{n}."))}
        if others := sorted(named - known[own]):
            where = f"{layers}.{others[0]} has modules of these names, and another map"
            refused.append(Refused(entry.smooth, "layer", where))
        else:
            entries.append(entry)
    return layers, ScaleMaps(tuple(entries), tuple(refused))


def relative(entry: ScaleMap, layers: str) -> ScaleMap:
    """A map by names relative to its layer; the same one where it lies in none."""
    layer = _layer(entry, layers)
    start = len(f"{layers}.{layer}.") if layer else 0
    return ScaleMap(entry.smooth[start:], tuple(name[start:] for name in entry.balance))


def _layer(entry: ScaleMap, layers: str) -> str:
    """The number of the layer that holds all modules of a map; empty if none does."""
    numbers = {
        name.removeprefix(f"{layers}.").partition(".")[0] if name.startswith(f"{layers}.") else ""
        for name in (entry.smooth, *entry.balance)
    }
    return numbers.pop() if len(numbers) == 1 else ""


def _names(entry: ScaleMap, prefix: str) -> Iterable[str]:
    return (prefix + name for name in (entry.smooth, *entry.balance))
