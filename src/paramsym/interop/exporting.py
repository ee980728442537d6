"""Scale maps in the forms that tools load, proved before they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from paramsym.interop.layered import layered, relative
from paramsym.interop.maps import Dialect, Refused, ScaleMap, Scales
from paramsym.interop.matching import common_ancestor
from paramsym.interop.replay import replay_of
from paramsym.recording.record import Inputs
from paramsym.recording.running import uncollected
from paramsym.structure.symmetry import ParameterSymmetry

# What llm-compressor 0.14 converts while it calibrates.
_CONVERTED = frozenset({
    "GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "MuseGlimmerTextCenteredRMSNorm",
    "Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm",
})  # fmt: skip
AWQ = Dialect("llm-compressor's AWQ", partial=True, offset_norms=_CONVERTED, head=False)
SMOOTHQUANT = Dialect("llm-compressor's SmoothQuant", partial=False, offset_norms=_CONVERTED)
QUARK = Dialect("Quark", partial=True)
DIALECTS = {"awq": AWQ, "smoothquant": SMOOTHQUANT, "quark": QUARK}
Item = TypeVar("Item")
TOLERANCE = 1e-8  # a relative change of the function in float64


class NotProved(RuntimeError):
    """Maps changed the function when they were replayed: a defect, and nothing is written."""


@dataclass(frozen=True)
class Export:
    """Scale maps for one tool.

    Attributes:
        tool: awq, smoothquant or quark.
        entries: the maps, by names of modules.
        refused: spaces with scales that the format cannot say, and why.
        error: the largest relative change of the function when all maps were replayed with random
            scales, at generic weights in float64; None where the model was on the meta device.
        parents: for each entry the module around its readers, which tools run by itself.
        layers: the list of layers in each of which Quark repeats its entries; else empty.
    """

    tool: str
    entries: tuple[ScaleMap, ...]
    refused: tuple[Refused, ...]
    error: float | None
    parents: tuple[str, ...]
    note: str = ""
    layers: str = ""

    @property
    def rounds(self) -> tuple[tuple[ScaleMap, ...], ...]:
        """The entries of each modifier: for AWQ in groups of which each has a parent of its own.

        Its modifier in llm-compressor 0.14 forgets what it kept of a parent after the first of its
        entries.
        """
        if self.tool != "awq":
            return (self.entries,)
        made: list[dict[str, ScaleMap]] = [{}]
        for entry, parent in zip(self.entries, self.parents, strict=True):
            free = next((group for group in made if parent not in group), None)
            if free is None:
                made.append(free := {})
            free[parent] = entry
        return tuple(tuple(group.values()) for group in made)

    def objects(self) -> list[list[Any]]:
        """What tools take as `mappings`, a list for each modifier, see `rounds`.

        `AWQMapping`s, pairs (balance layers, smooth layer) of SmoothQuant, or the dictionaries of
        AutoAWQ and Quark. Raises `ImportError` for AWQ without llm-compressor.
        """
        if self.tool == "awq":
            from llmcompressor.modifiers.transform.awq import (  # pyright: ignore
                AWQMapping,
            )

            return [[AWQMapping(e.smooth, list(e.balance)) for e in own] for own in self.rounds]
        if self.tool == "smoothquant":
            return [[(list(e.balance), e.smooth) for e in self.entries]]
        return [self._layers()]

    def recipe(self) -> dict[str, Any]:
        """The same as a document: a recipe of llm-compressor, or a file of Quark."""
        if self.tool == "quark":
            return {
                "name": "awq",
                "scaling_layers": self._layers(),
                "model_decoder_layers": self.layers,
            }
        if self.tool == "smoothquant":
            mappings: list[Any] = [[list(e.balance), e.smooth] for e in self.entries]
            return {"smooth_stage": {"smooth_modifiers": {"SmoothQuantModifier": {
                "smoothing_strength": 0.5, "mappings": mappings}}}}  # fmt: skip
        stages = {}
        for number, group in enumerate(self.rounds):
            mappings = [{"smooth_layer": e.smooth, "balance_layers": list(e.balance)}
                        for e in group]  # fmt: skip
            stages[f"awq_{number}_stage"] = {
                "awq_modifiers": {"AWQModifier": {"mappings": mappings}}
            }
        return stages

    def text(self) -> str:
        """The document as text: YAML for llm-compressor, JSON for Quark."""
        if self.tool == "quark":
            return json.dumps(self.recipe(), indent=2) + "\n"
        import yaml

        return yaml.safe_dump(self.recipe(), sort_keys=False, width=10_000)

    def _layers(self) -> list[dict[str, Any]]:
        """The entries as AutoAWQ and Quark write them, each once for all layers."""
        said: dict[ScaleMap, str] = {}
        for entry, parent in zip(self.entries, self.parents, strict=True):
            own = relative(entry, self.layers)
            said.setdefault(own, parent[len(entry.smooth) - len(own.smooth) :])
        return [
            {"prev_op": own.smooth, "layers": list(own.balance), "inp": own.balance[0],
             "module2inspect": parent}
            for own, parent in said.items()
        ]  # fmt: skip


@uncollected()
def export_scales(
    tool: str, symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None
) -> Export:
    """The scale maps of a model in the dialect of a tool; see `awq`."""
    dialect = DIALECTS[tool]
    layers, found = "", Scales(symmetry, model, dialect).maps()
    if dialect is QUARK:
        layers, found = layered(found, model)
    parents = parents_of(found.entries, model)
    made = Export(tool, found.entries, found.refused, None, parents, layers=layers)
    replay, note = replay_of(model, symmetry, inputs, dialect)
    if replay is None:
        return replace(made, note=note)
    error, wrong = proved(found.entries, replay.error, lambda entry: entry.smooth)
    kept = [k for k, entry in enumerate(found.entries) if entry not in wrong]
    return replace(
        made, error=error, refused=(*found.refused, *wrong.values()),
        entries=tuple(found.entries[k] for k in kept), parents=tuple(parents[k] for k in kept),
    )  # fmt: skip


def proved(
    parts: Sequence[Item], error_of: Callable[[Sequence[Item]], float], named: Callable[[Item], str]
) -> tuple[float, dict[Item, Refused]]:
    """The error of an export when it is replayed, and the parts that are left out for theirs.

    A part that changes the function by itself is a defect here, and no reason to lose the others.

    Raises:
        NotProved: without these, too, the function changes.
    """
    error = error_of(parts)
    if error <= TOLERANCE:
        return error, {}
    alone = {part: error_of([part]) for part in parts}
    wrong = {part: error for part, error in alone.items() if not error <= TOLERANCE}
    rest = error_of([part for part in parts if part not in wrong])
    if not rest <= TOLERANCE:
        raise NotProved(
            f"export: several together change the function by {rest:.1e} when they are replayed, "
            f"and each alone keeps it. Expected at most {TOLERANCE:.0e}. Nothing was written; this "
            "is a defect of paramsym that you should report."
        )
    reason = "it changed the function by {:.1e} when it was replayed: a defect, please report it"
    refused = {p: Refused(named(p), "not proved", reason.format(e)) for p, e in wrong.items()}
    return rest, refused


def parents_of(entries: Iterable[ScaleMap], model: nn.Module) -> tuple[str, ...]:
    """For each map the module around its readers that has a forward pass, as lists have not."""
    lists = {name for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}

    def parent(entry: ScaleMap) -> str:
        name = common_ancestor(entry.balance)
        while name in lists:
            name = name.rpartition(".")[0]
        return name

    return tuple(map(parent, entries))
