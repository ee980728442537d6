"""Scale maps: who writes a feature space, and all who read it.

SmoothQuant and AWQ divide what one module writes by a vector s > 0, and multiply the columns of
those that read it by s. The function stays if and only if that is an element of the symmetry: if
there are scales t whose move is

    −log s on the rows (the gain, the bias) of `smooth`,   +log s on the columns of each `balance`,

and nothing on any other parameter. A map that leaves a reader out changes the function silently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np
from torch import nn

from paramsym.formats.errors import few
from paramsym.interop.parts import BY_COLUMNS, NONE, Layer, Part, layers_of
from paramsym.interop.torus import Logs, Place, Site, Torus
from paramsym.structure.symmetry import ParameterSymmetry

Kind = Literal[
    "sound", "missing reader", "reads another space", "layout", "no symmetry", "offset",
    "unknown module",
]  # fmt: skip
_EQUAL = 1e-9


@dataclass(frozen=True)
class ScaleMap:
    """A module that absorbs the inverse of a scale, and all whose input carries it, by name."""

    smooth: str
    balance: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.smooth} -> {', '.join(self.balance)}"


@dataclass(frozen=True)
class Verdict:
    """What a map is, and why; `parameters` are those for which it goes wrong."""

    kind: Kind
    reason: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


@dataclass(frozen=True)
class Refused:
    """A space with scales that a format cannot say, and why."""

    space: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ScaleMaps:
    """All maps of a model that a tool can be given, and what it cannot."""

    entries: tuple[ScaleMap, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True)
class Dialect:
    """What a tool does with a map.

    Attributes:
        name: of the tool.
        partial: whether it scales the last rows of a writer that has more rows than there are
            scales, as a fused projection of queries, keys and values has.
        offset_norms: class names of norms that store their gain less a constant, and that the tool
            converts before it divides it.
        head: whether it runs the output head of a language model while it looks for scales.
    """

    name: str
    partial: bool = True
    offset_norms: frozenset[str] = frozenset()
    head: bool = True


class Scales:
    """The scales of a model, as a tool may move them."""

    def __init__(self, symmetry: ParameterSymmetry, model: nn.Module, dialect: Dialect) -> None:
        self.symmetry, self.model, self.dialect = symmetry, model, dialect
        self.layers = layers_of(model, symmetry)
        self._order = {name: k for k, name in enumerate(self.layers)}
        self._modules = dict(model.named_modules())
        self._named = {
            part: name
            for name, layer in self.layers.items()
            for part in (layer.weight, layer.bias)
            if part
        }
        self.torus = Torus(symmetry, self._named)

    # -- one map -------------------------------------------------------------------------------
    def verdict(self, entry: ScaleMap) -> Verdict:
        """Whether a map is an element of the symmetry, whatever the scales are."""
        for name in (entry.smooth, *entry.balance):
            layer = self.layers.get(name)
            if layer is None or layer.weight.parameter not in self.symmetry.signature:
                return Verdict("unknown module", f"{name} has no weight that the function uses")
        if not entry.balance:
            return Verdict("layout", f"nothing reads {entry.smooth}")
        if (refusal := self._offset(entry)) is not None:
            return refusal
        columns = {self._length(self.layers[n].weight, -1) for n in entry.balance}
        if len(columns) > 1:
            return Verdict("layout", f"its readers have {sorted(columns)} columns")
        logs = _drawn(columns.pop())
        asked = self._asked(entry, logs)
        if isinstance(asked, Verdict):
            return asked
        if self.layers[entry.smooth].weight.parameter in self.symmetry.dead:
            return self._compared(asked, Logs(np.zeros(0, int), np.zeros(0)))
        t = self._solved(entry, logs)
        return t if isinstance(t, Verdict) else self._compared(asked, t)

    def _sides(self, part: Part) -> int:
        return len(self.symmetry.signature[part.parameter]) - (part.expert != NONE)

    def _length(self, part: Part, side: int) -> int:
        """The number of entries along a side; −1 is the last."""
        side = self._sides(part) - 1 if side < 0 else side
        whole = self.symmetry.shape(part.parameter)[part.axis(side)]
        return len(range(whole)[slice(*part.rows)]) if side == 0 else whole

    def _offset(self, entry: ScaleMap) -> Verdict | None:
        """What acts as its value plus a constant: gains less one, and layers inside a skip.

        Of y + W y it is W + 1 that reads and writes. Some tools convert the norms that store their
        gain less one; nobody converts a linear layer.
        """
        writer = self.layers[entry.smooth]
        converted = writer.kind in self.dialect.offset_norms
        parts = [(entry.smooth, "bias", writer.bias), (entry.smooth, "weight", writer.weight)]
        parts += [(name, "weight", self.layers[name].weight) for name in entry.balance]
        for name, leaf, part in parts:
            offset = self.symmetry.offsets.get(part.parameter) if part else None
            first = part is writer.weight
            if not offset or (first and offset == 1.0 and converted):
                continue
            return Verdict(
                "offset",
                f"{name} ({self.layers[name].kind}) acts by its {leaf} plus a constant, and "
                f"{self.dialect.name} scales the {leaf} alone",
                (f"{name}.{leaf}",),
            )
        return None

    def _asked(self, entry: ScaleMap, logs: np.ndarray) -> dict[Place, np.ndarray] | Verdict:
        """By how much the formula of the tool multiplies each side of each part."""
        found: dict[Place, np.ndarray] = defaultdict(lambda: np.zeros(()))
        for name in entry.balance:
            part = self.layers[name].weight
            place = part, self._sides(part) - 1
            found[place] = found[place] + logs
        layer = self.layers[entry.smooth]
        for leaf, part in (("weight", layer.weight), ("bias", layer.bias)):
            if part is None or part.parameter not in self.symmetry.signature:
                continue
            rows = self._length(part, 0)
            if rows < len(logs) or (rows > len(logs) and not self._takes_part(leaf)):
                return Verdict(
                    "layout",
                    f"{entry.smooth}.{leaf} has {rows} rows, and its readers have {len(logs)} "
                    "columns",
                    (f"{entry.smooth}.{leaf}",),
                )
            found[part, 0] = found[part, 0] - np.pad(logs, (rows - len(logs), 0))
        return dict(found)

    def _takes_part(self, leaf: str) -> bool:
        """Whether the tool scales the last rows alone; a bias is always divided as a whole."""
        return self.dialect.partial and leaf == "weight"

    def _solved(self, entry: ScaleMap, logs: np.ndarray) -> Logs | Verdict:
        """The scales that the writer asks for, of those that the readers carry."""
        weight = self.layers[entry.smooth].weight
        parts = [self.layers[name].weight for name in entry.balance]
        read = {id(x): x for x in (self.torus.lines((p, self._sides(p) - 1)) for p in parts)}
        wanted = [line.at for lines in read.values() for line in lines]
        chosen, power = self._chosen(weight, wanted, len(logs))
        if (chosen < 0).any():
            what = "no scale" if (chosen < 0).all() else "a part of its rows has no scale"
            axis = self.symmetry.signature[weight.parameter][weight.axis(0)]
            return Verdict("no symmetry", f"{entry.smooth} writes {axis}: {what}")
        t = Logs.of(chosen, -logs / power)
        if np.abs(t.get(chosen) * power + logs).max() > _EQUAL:
            spaces = sorted({line.space for line in self.torus.lines((weight, 0))})
            return Verdict(
                "layout",
                f"several rows of {entry.smooth} or columns of its readers have one scale "
                f"({', '.join(spaces)}): grouped heads, or pairs that turn",
            )
        return t

    def _chosen(
        self, weight: Part, wanted: list[np.ndarray], count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each of the last rows of a writer the coordinate that moves it, and its power."""
        chosen, power = np.full(count, -1), np.ones(count)
        for first in (True, False):  # what a reader carries, before what none does
            for line in self.torus.lines((weight, 0)):
                at = line.at[-count:]
                meant = at >= 0
                if first:
                    meant = meant & np.logical_or.reduce([_within(at, one) for one in wanted])
                here = (chosen < 0) & meant
                chosen = np.where(here, at, chosen)
                power = np.where(here, line.power, power)
        return chosen, power

    def _compared(self, asked: dict[Place, np.ndarray], t: Logs) -> Verdict:
        """What the tool multiplies against what the symmetry does."""
        has = self.torus.moved(t)
        has = {place: x for place, x in has.items() if np.abs(x).max(initial=0.0) > _EQUAL}
        none = np.zeros(())
        apart: dict[Part, list[np.ndarray]] = defaultdict(list)
        for place in {**has, **asked}:
            apart[place[0]].append(has.get(place, none) - asked.get(place, none))
        moves, scaled = {part for part, _ in has}, {part for part, _ in asked}
        wrong: dict[str, Kind] = {}
        for part, sides in apart.items():
            if part.parameter not in self.symmetry.dead and not _is_none(sides):
                wrong[self._name(part)] = (
                    "missing reader" if part not in scaled else
                    "reads another space" if part not in moves else "layout"
                )  # fmt: skip
        for kind in ("reads another space", "missing reader", "layout"):
            names = tuple(sorted(name for name, found in wrong.items() if found == kind))
            if names:
                otherwise = " would have to be scaled otherwise" * (kind == "layout")
                return Verdict(kind, few(names, show=str) + otherwise, names)
        return Verdict("sound")

    def _name(self, part: Part) -> str:
        """The parameter as a tool would call it."""
        if part.expert == NONE:
            return part.parameter
        module = self._named[part]
        return f"{module}.{'bias' if self.layers[module].bias == part else 'weight'}"

    # -- all maps ------------------------------------------------------------------------------
    def maps(self) -> ScaleMaps:
        """All maps that hold, and every space with scales that the format cannot say."""
        entries: dict[ScaleMap, None] = {}
        refused = [
            Refused(space, "format", "some parameter carries it for pieces of another axis")
            for space in sorted(self.torus.by_pieces)
        ]
        for site, places in self.torus.places.items():
            found = self._map_of(site, places)
            if isinstance(found, ScaleMap):
                entries[found] = None
            else:
                refused.append(found)
        return ScaleMaps(tuple(entries), tuple(refused))

    def _map_of(self, site: Site, places: Iterable[Place]) -> ScaleMap | Refused:
        space = site[0] if site[1] == NONE else f"{site[0]} of expert {site[1]}"
        writers: dict[str, None] = {}
        readers: dict[str, None] = {}
        for part, side in places:
            name = self._named.get(part, "")
            role = self._role(self.layers.get(name), part, side)
            if role is None or site[0] in self.torus.across[part]:
                kind = self.layers[name].kind if name else "parameter of its own"
                return Refused(space, "format", f"side {side} of {part.parameter} in a {kind}")
            (readers if role == "reads" else writers)[name] = None
        if not readers:
            return Refused(space, "two writers", f"nothing reads it: {few([*writers], show=str)}")
        if len(writers) != 1:
            kind = "no writer" if not writers else "writers"
            detail = f"{len(writers)} modules write it: {few(tuple(writers), show=str)}"
            return Refused(space, kind, detail)
        if not self.dialect.head and (head := self._head) in readers:
            return Refused(space, "head", f"{self.dialect.name} does not run {head}")
        entry = ScaleMap(next(iter(writers)), tuple(sorted(readers, key=self._late)))
        verdict = self.verdict(entry)
        if verdict.kind != "sound":
            return Refused(space, verdict.kind, verdict.reason)
        return entry

    def _role(self, layer: Layer | None, part: Part, side: int) -> str | None:
        """What a module does along a side of its parameter; None where no format can say it."""
        if layer is None or layer.is_table or layer.kind == BY_COLUMNS:
            return None
        if side == 2 or self._sides(part) > 2:
            return None
        return "reads" if side == 1 else "writes"

    @cached_property
    def _head(self) -> str:
        """The output head of a model of transformers."""
        found = getattr(self.model, "get_output_embeddings", lambda: None)()
        return next((n for n, m in self._modules.items() if m is found), "")

    def _late(self, name: str) -> tuple[bool, int]:
        """Experts come last: a tool takes the input of the first reader, and they see a part."""
        inside = any(
            isinstance(self._modules.get(around), nn.ModuleList) and "expert" in around
            for around in _above(name)
        )
        return inside or self.layers[name].weight.expert != NONE, self._order[name]


@cache
def _drawn(count: int) -> np.ndarray:
    """Logarithms of scales of which no two are alike."""
    return np.random.default_rng(5).normal(0.0, 0.3, count)


def _within(at: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which entries are among others; where both are one array it need not be sorted."""
    same = at.shape == others.shape and bool((at == others).all())
    return np.ones(at.shape, bool) if same else np.isin(at, others)


def _above(module: str) -> Iterator[str]:
    """The modules around a module, from the outermost."""
    parts = module.split(".")
    return (".".join(parts[:k]) for k in range(1, len(parts)))


def _is_none(parts: list[np.ndarray]) -> bool:
    """Whether the axes of one parameter are moved by nothing: a constant may stand on any."""
    uneven = max((float(np.ptp(x)) for x in parts), default=0.0)
    return uneven <= _EQUAL and abs(sum(float(x.mean()) for x in parts)) <= _EQUAL
