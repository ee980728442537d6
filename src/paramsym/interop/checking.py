"""Is a mapping right? Each entry judged by the symmetry, and measured by doing what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from paramsym.checking.trial import Unusable
from paramsym.interop.entries import Entry, read_mapping, resolved
from paramsym.interop.exporting import DIALECTS
from paramsym.interop.maps import ScaleMap, Scales, Verdict
from paramsym.interop.matching import Unresolved
from paramsym.interop.replay import Replay
from paramsym.recording.record import Inputs
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True)
class Checked:
    """One map of a mapping, and what became of it.

    Attributes:
        entry: as it was written.
        map: the modules that it means; None where it means none.
        verdict: sound, or what is wrong.
        change: the relative change of the function when it is replayed with random scales, at
            generic weights in float64; infinite where shapes do not allow it, None where it was
            not replayed.
        corrected: the right map of the same module, where there is one.
    """

    entry: str
    map: ScaleMap | None
    verdict: Verdict
    change: float | None
    corrected: ScaleMap | None

    @property
    def sound(self) -> bool:
        """Whether the map keeps the function, whatever the scales."""
        return self.verdict.kind == "sound"


@dataclass(frozen=True)
class MappingCheck:
    """What `check` found, map by map."""

    tool: str
    maps: tuple[Checked, ...]
    note: str = ""

    @property
    def sound(self) -> bool:
        """Whether every map keeps the function."""
        return all(each.sound for each in self.maps)

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps({"sound": self.sound, **asdict(self)}, indent=2)


def check(
    symmetry: ParameterSymmetry, model: nn.Module, mapping: Any, inputs: Inputs | None = None,
    tool: str = "awq",
) -> MappingCheck:  # fmt: skip
    """Judge a mapping of scales that somebody has.

    A map that divides what a module writes by s, and multiplies by s the columns of those that it
    names, keeps the function for every s if and only if it is an element of the symmetry.

    Args:
        symmetry: of the model.
        model: whose modules the mapping names; on the meta device only the verdict is given.
        mapping: a recipe of llm-compressor, a file of Quark, or what they hold; see `read_mapping`.
        inputs: example inputs, for measuring what each map does.
        tool: awq, smoothquant or quark, where the mapping does not say.

    Returns:
        A verdict for each map, with the change measured and the right map beside a wrong one.

    Raises `MappingError` for a mapping that cannot be read.
    """
    given = read_mapping(mapping, tool)
    scales = Scales(symmetry, model, DIALECTS[given.tool])
    right = {entry.smooth: entry for entry in scales.maps().entries}
    replay, note = None, "not replayed: that needs inputs, and a model with weights"
    meta = any(p.device.type == "meta" for p in model.parameters())
    if inputs is not None and not meta:
        try:
            replay, note = Replay(model, symmetry, inputs, DIALECTS[given.tool]), ""
        except Unusable as error:
            note = f"not replayed: {error}"
    found = []
    for entry, one in _all(given.entries, model):
        if isinstance(one, Verdict):
            found.append(Checked(str(entry), None, one, None, None))
            continue
        verdict = scales.verdict(one)
        change = None if replay is None or verdict.kind == "unknown module" else replay.error([one])
        corrected = right.get(one.smooth) if verdict.kind != "sound" else None
        found.append(Checked(str(entry), one, verdict, change, corrected))
    return MappingCheck(given.tool, tuple(found), note)


def _all(
    entries: tuple[Entry, ...], model: nn.Module
) -> Iterator[tuple[Entry, ScaleMap | Verdict]]:
    """Every map that the entries mean, or why one means none."""
    for entry in entries:
        try:
            for one in resolved(entry, model):
                yield entry, one
        except Unresolved as error:
            yield entry, Verdict("unknown module", str(error))
