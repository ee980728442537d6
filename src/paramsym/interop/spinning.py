"""Rotation maps as llm-compressor loads them, proved before they are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from paramsym.checking.trial import State
from paramsym.interop.exporting import proved
from paramsym.interop.maps import Dialect, Refused
from paramsym.interop.replay import Replay, replay_of
from paramsym.interop.rotations import Fold, Rotation, Rotations, drawn_rotation, turned
from paramsym.recording.record import Inputs
from paramsym.recording.running import uncollected
from paramsym.structure.symmetry import ParameterSymmetry

SPINQUANT = Dialect("llm-compressor's SpinQuant", partial=False)
_NOBODY = "re:(?!)"  # matches no module; an empty regex would match all of them
_ROLES = ("embedding", "attn", "attn_q", "attn_k", "attn_v", "attn_o", "lm_head")


@dataclass(frozen=True)
class RotationExport:
    """Rotation maps for SpinQuant.

    Attributes:
        rotations: what can be turned, by names of modules; the stream first.
        folds: norms whose gains are folded before that.
        refused: what cannot be turned, or cannot be said, and why.
        error: the largest relative change of the function when all rotations were replayed at
            random, at generic weights in float64; None where the model was on the meta device.
    """

    rotations: tuple[Rotation, ...]
    folds: tuple[Fold, ...]
    refused: tuple[Refused, ...]
    error: float | None
    note: str = ""
    tool: str = "spinquant"

    def recipe(self) -> dict[str, Any]:
        """A recipe of llm-compressor, which rotates by Hadamard matrices.

        Roles of its own mapping are left empty, so that no embedding is centred; which modules are
        turned stands in `transform_config`.
        """
        by_block: dict[int, list[Rotation]] = defaultdict(list)
        for rotation in self.rotations:
            by_block[block_of(rotation.size)].append(rotation)
        schemes = {f"R{k}": _scheme(*own) for k, own in enumerate(by_block.items(), start=1)}
        return {"rotation_stage": {"rotation_modifiers": {"SpinQuantModifier": {
            "mappings": {**dict.fromkeys(_ROLES, _NOBODY), "mlp_in": [_NOBODY],
                         "mlp_out": [_NOBODY]},
            "norm_mappings": [{"norm": f.norm, "linears": [*f.linears]} for f in self.folds],
            "transform_config": {"config_groups": schemes},
        }}}}  # fmt: skip

    def text(self) -> str:
        """The recipe as YAML."""
        import yaml

        return yaml.safe_dump(self.recipe(), sort_keys=False, width=10_000)

    def objects(self) -> Any:
        """The `SpinQuantModifier` of the recipe. Raises `ImportError` without llm-compressor."""
        from llmcompressor.modifiers.transform import (  # pyright: ignore
            SpinQuantModifier,
        )

        (stage,) = self.recipe().values()
        return SpinQuantModifier(**stage["rotation_modifiers"]["SpinQuantModifier"])


def block_of(size: int) -> int:
    """The largest power of two that divides a size: Hadamard matrices of these sizes are known."""
    return size & -size


def _scheme(block: int, rotations: list[Rotation]) -> dict[str, Any]:
    writers = dict.fromkeys(name for each in rotations for name in each.writers)
    readers = dict.fromkeys(name for each in rotations for name in each.readers)
    apply: list[dict[str, Any]] = [{"targets": [*writers], "location": "weight_output"}]
    if readers:
        apply.append({"targets": [*readers], "location": "weight_input", "inverse": True})
    return {"type": "hadamard", "head_dim": block, "apply": apply}


@uncollected()
def export_rotations(
    symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None
) -> RotationExport:
    """The rotation maps of a model; see `spinquant`."""
    made = RotationExport(*Rotations(symmetry, model, SPINQUANT).found(), error=None)
    replay, note = replay_of(model, symmetry, inputs, SPINQUANT)
    if replay is None:
        return replace(made, note=note)
    error, wrong = proved(
        made.rotations, lambda some: replayed(replay, some, made.folds), lambda each: each.space
    )
    return replace(
        made, error=error, refused=(*made.refused, *wrong.values()),
        rotations=tuple(each for each in made.rotations if each not in wrong),
    )  # fmt: skip


def replayed(replay: Replay, rotations: Iterable[Rotation], folds: Iterable[Fold]) -> float:
    """The largest relative change of an output after the tool's steps with random rotations."""

    def change(state: State) -> None:
        for fold in folds:
            gain = replay.layers[fold.norm].weight
            for name in fold.linears:
                weight = replay.layers[name].weight
                replay.write(weight, replay.read(weight, state) * replay.read(gain, state), state)
            replay.write(gain, torch.ones_like(replay.read(gain, state)), state)
        for each in rotations:
            _turn(each, drawn_rotation(each.size, replay.generator), replay, state)

    return replay.change(change)


def _turn(each: Rotation, rotation: torch.Tensor, replay: Replay, state: State) -> None:
    for name in each.readers:
        part = replay.layers[name].weight
        replay.write(part, turned(replay.read(part, state), rotation, rows=False), state)
    for name in each.writers:
        layer = replay.layers[name]
        weight = replay.read(layer.weight, state)
        value = turned(weight, rotation, rows=not layer.is_table)
        replay.write(layer.weight, value, state)
        if layer.bias is not None:
            bias = turned(replay.read(layer.bias, state), rotation, rows=False)
            replay.write(layer.bias, bias, state)
