"""Is a mapping right? Each entry judged by the symmetry, and measured by doing what it says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from paramsym.formats.errors import few
from paramsym.interop.entries import Entry, read_mapping, resolved
from paramsym.interop.exporting import DIALECTS, TOLERANCE, parents_of
from paramsym.interop.maps import ScaleMap, Scales, Verdict
from paramsym.interop.matching import Unresolved
from paramsym.interop.parts import module_names
from paramsym.interop.replay import replay_of
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

    Raises `MappingError` for a mapping that cannot be read, as `read_mapping`.
    """
    given = read_mapping(mapping, tool)
    dialect = DIALECTS[given.tool]
    scales = Scales(symmetry, model, dialect)
    replay, note = replay_of(model, symmetry, inputs, dialect)
    found: list[Checked] = []
    lists: dict[int, list[ScaleMap]] = defaultdict(list)
    for entry, one in _all(given.entries, module_names(model)):
        if isinstance(one, Verdict):
            found.append(Checked(str(entry), None, one, None, None))
            continue
        verdict = scales.verdict(one)
        runs = replay is not None and one.balance and verdict.kind != "unknown module"
        change = replay.error([one]) if replay is not None and runs else None
        if verdict.kind == "sound" and change is not None and not change <= TOLERANCE:
            verdict = Verdict(
                "no symmetry",
                "it was derived, and the replay denies it: a defect, please report it",
            )
        found.append(Checked(str(entry), one, verdict, change, None))
        lists[entry.modifier].append(one)
    if given.tool == "awq":
        note = ". ".join(filter(None, (note, *_collisions(lists.values(), model))))
    return MappingCheck(given.tool, tuple(_corrected(found, scales)), note)


def _collisions(lists: Iterable[list[ScaleMap]], model: nn.Module) -> Iterator[str]:
    """What stops llm-compressor: maps of one modifier whose readers lie in one module."""
    for maps in lists:
        read = [one for one in maps if one.balance]
        counts = Counter(parents_of(read, model))
        twice = [name for name, count in counts.items() if name and count > 1]
        if twice:
            yield (
                f"several maps of one modifier have their readers in {few(twice)}: llm-compressor "
                "0.14 stops there with a KeyError. Give each an AWQModifier of its own"
            )


def _corrected(found: list[Checked], scales: Scales) -> Iterator[Checked]:
    """The same with the right map beside each that is wrong, where there is one."""
    wrong = any(each.map is not None and not each.sound for each in found)
    right = {entry.smooth: entry for entry in scales.maps().entries} if wrong else {}
    for each in found:
        known = None if each.sound or each.map is None else right.get(each.map.smooth)
        yield replace(each, corrected=known)


def _all(
    entries: tuple[Entry, ...], modules: Sequence[str]
) -> Iterator[tuple[Entry, ScaleMap | Verdict]]:
    """Every map that the entries mean, or why one means none."""
    for entry in entries:
        try:
            for one in resolved(entry, modules):
                yield entry, one
        except Unresolved as error:
            yield entry, Verdict("unknown module", str(error))
