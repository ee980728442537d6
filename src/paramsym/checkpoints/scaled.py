"""Moves by scales of the spaces that no format of a tool can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from paramsym.algebra import GeneralLinear
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.formats.weights import read_safetensors
from paramsym.geometry.balance import balance
from paramsym.interop import Export
from paramsym.interop.exporting import DIALECTS
from paramsym.structure.element import GroupElement
from paramsym.structure.scale import to_scale
from paramsym.structure.symmetry import ParameterSymmetry

State = Mapping[str, torch.Tensor]
Find = Callable[[State], GroupElement]


@dataclass(frozen=True)
class Scales:
    """What `--apply` moves by: the scales of a file by the names of spaces, or nothing given."""

    file: Path | None
    values: Mapping[str, torch.Tensor]


def read_scales(tool: str, file: Path | None) -> Scales:
    """Scales to apply. Raises for a tool that moves none, or a file that holds none."""
    if tool not in DIALECTS:
        raise CheckpointError(
            f"--apply with --for {tool}", "a tool that is told of no scales",
            f"--for {' or '.join(DIALECTS)}",
            "Use transform or balance to write an equivalent checkpoint",
        )  # fmt: skip
    return Scales(file, {} if file is None else _read(file))


def scaled(made: Export, scales: Scales, symmetry: ParameterSymmetry, label: str) -> Find:
    """What finds the element of the spaces that were refused, of given scales or the least norm.

    Raises:
        CheckpointError: scales that are no element of the symmetry, or nothing was refused.
    """
    if scales.file is not None:
        element = _element(symmetry, scales)
        return lambda params: to_scale(element, params)

    def least(params: State) -> GroupElement:
        wanted = {refusal.space.partition(" of expert ")[0] for refusal in made.refused}
        others = [n for n in (*symmetry.spaces, *symmetry.shift_of) if n not in wanted]
        with refused(label, "weights that can be balanced"):
            return balance(symmetry, params, hold=others).element

    if not made.refused:
        raise CheckpointError(
            f"--apply for {label}", "no space that the format cannot say", "one that it refuses",
            "Use balance to move all spaces, or --scales FILE to move some",
        )  # fmt: skip
    return least


def _element(symmetry: ParameterSymmetry, scales: Scales) -> GroupElement:
    """The element with given scales: on a diagonal where a group has all matrices."""
    values = {}
    for name, own in scales.values.items():
        space = symmetry.spaces.get(name)
        if space is None:
            raise CheckpointError(
                f"--scales {scales.file}", f"scales for {name!r}, which is no space",
                f"names of spaces, such as {few([*symmetry.spaces])}", "inspect lists them all",
            )  # fmt: skip
        if own.shape[-1] != space.size:
            raise CheckpointError(
                f"--scales {scales.file}", f"{name!r} has scales of shape {tuple(own.shape)}",
                f"a vector of {space.size}, or one for each copy",
                "inspect says how large spaces are",
            )  # fmt: skip
        full = isinstance(space.group, GeneralLinear)
        values[name] = torch.diag_embed(own) if full else own
    with refused(f"--scales {scales.file}", "positive scales of spaces that have some"):
        return symmetry.element(values)


def _read(path: Path) -> dict[str, torch.Tensor]:
    found = {name: scales.double() for name, scales in read_safetensors(path)}
    wrong = next((name for name, s in found.items() if not _are_scales(s)), None)
    if wrong is not None:
        raise CheckpointError(
            f"--scales {path}", f"{wrong!r} has scales not positive, not finite or no vector",
            "positive numbers", "Take absolute values, and leave out what has none",
        )  # fmt: skip
    return found


def _are_scales(values: torch.Tensor) -> bool:
    return values.ndim > 0 and bool((values > 0).all() & values.isfinite().all())
