"""What `transform` is asked for: the source opened, the symmetry derived, the element named."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.elements import place_beside
from paramsym.checkpoints.equivalent import movable
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.folder import FolderSource
from paramsym.checkpoints.moving import Moving, Writing
from paramsym.checkpoints.source import Source, Weights
from paramsym.checkpoints.sources import open_movable
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.checkpoints.streaming.sayable import stored_moves
from paramsym.checkpoints.streaming.spelling import spelling
from paramsym.checkpoints.tensors import INDEX
from paramsym.checkpoints.writing import check_name, refuse_source
from paramsym.structure.element import GroupElement, Rotations
from paramsym.structure.scale import slides_first, to_scale
from paramsym.structure.symmetry import ParameterSymmetry

Given = str | Path | Checkpoint | Source
Moves = GroupElement | torch.Generator | str | Path
Params = Mapping[str, torch.Tensor]


class Draw(NamedTuple):
    """How a random element is drawn, see `transform`."""

    strength: float
    only: list[str] | None
    rotations: Rotations


def asked(source: Given, target: Path, element: Moves, draw: Draw, how: Writing) -> Moving:
    """Open what is moved, derive its symmetry, read or draw the element, and look at the target.

    Arguments and errors are those of `transform`.
    """
    _require_name(target)
    opened, weights = _opened(source, element)
    if weights is not None:
        _check_target(opened, weights.checkpoint, target)
    found = _moving(opened, weights, target, element, draw, how)
    if weights is None:
        found.notes += _loaded(opened)
    return found


def _require_name(target: Path) -> None:
    """Raise where a target has no name of its own, or one that the system does not take."""
    if target.name in ("", ".."):
        raise CheckpointError(
            f"OUT {str(target)!r}", "a folder by its place, without a name",
            "a name, beside which the element and the record are written",
            "Name the folder as its parent does",
        )  # fmt: skip
    for path in (target, place_beside(target)):
        try:
            os.lstat(path)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
                continue  # what reads or writes there says what is wrong
            said = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(
                f"OUT {str(target)[:100]!r}", f"the system does not take this name ({said})",
                "a name, beside which the element and the record can be written",
                "Choose a shorter name, of characters that names may have",
            ) from error  # fmt: skip


# -- opening -----------------------------------------------------------------------------------


def _opened(source: Given, element: Moves) -> tuple[Source | Checkpoint, Weights | None]:
    if isinstance(source, (str, Path)):
        source = _door(str(source))
    if isinstance(source, Source):
        return source, source.streamable()
    if not isinstance(element, GroupElement):
        raise CheckpointError(
            source.place.address, "weights alone, which do not say what is computed with them",
            "a Hugging Face folder or a factory; or an element of the model, symmetry and all",
            "Load the element with GroupElement.load(path, symmetry), or name the model",
        )  # fmt: skip
    symmetry = element.symmetry
    names = spelling(source, {*symmetry.signature, *symmetry.ties})
    if not names:
        raise CheckpointError(
            source.place.address, f"none of its names ({few([*source])}) is one of the element's",
            f"weights of the model that the element moves: {few([*symmetry.signature])}",
            "Give the weights of that model, or an element of these weights",
        )  # fmt: skip
    return source, Weights(source, names)


def _is_weights(path: Path) -> bool:
    """Whether a path names weights alone: a folder is one whatever its name."""
    return path.name.endswith((".safetensors", INDEX, ".gguf")) and not path.is_dir()


def _door(source: str) -> Source | Checkpoint:
    """A model where there is one, else weights alone."""
    path = Path(source).expanduser()
    if "://" in source or _is_weights(path):
        return Checkpoint.open(source)
    if path.is_dir() and not (path / "config.json").is_file():
        return Checkpoint.open(path)
    return open_movable(source)


def _moving(
    opened: Source | Checkpoint, weights: Weights | None, target: Path, element: Moves,
    draw: Draw, how: Writing,
) -> Moving:  # fmt: skip
    """The symmetry and what finds the element."""
    if isinstance(opened, Checkpoint):
        assert isinstance(element, GroupElement)
        symmetry = element.symmetry
        assert isinstance(symmetry, ParameterSymmetry)
        find = partial(_given, element)
        return Moving(target, symmetry, find, None, weights, _files(opened))
    symmetry = movable(opened, target, "--only", draw.only, how.again, how.progress)
    said: dict[str, Any] = {}
    if isinstance(element, torch.Generator):
        said = {"seed": element.initial_seed(), **draw._asdict()}
        find = partial(_drawn, symmetry, weights, element, draw, how)
    else:
        given = element if isinstance(element, GroupElement) else _read(Path(element), symmetry)
        find = partial(_given, given)
    return Moving(
        target, symmetry, find, opened, weights, opened.files, how=said, notes=tuple(opened.notes)
    )


def _given(element: GroupElement, _: Params) -> GroupElement:
    return element


def _drawn(
    symmetry: ParameterSymmetry, weights: Weights | None, generator: torch.Generator,
    draw: Draw, how: Writing, params: Params,
) -> GroupElement:  # fmt: skip
    """A random element, its shifts scaled to the weights."""
    how.progress("drawing the element")
    found = slides_first(
        symmetry.sample(generator, draw.strength, draw.only, rotations=draw.rotations)
    )
    if weights is not None:  # codes are no numbers to which shifts could be scaled
        stored_moves(Storage(weights.checkpoint, symmetry, weights.names), found)
    made = to_scale(found, params)
    if left := [name for name in found.places if name not in made.places]:
        how.progress(f"{few(left)} cannot move next to a gain of zero, and stay still")
    return made


def _read(path: Path, symmetry: ParameterSymmetry) -> GroupElement:
    with refused(str(path), "an element of this model", "Give the file that was written for it"):
        return GroupElement.load(path, symmetry)


def _check_target(opened: Source | Checkpoint, checkpoint: Checkpoint, target: Path) -> None:
    """Raise where the target has the wrong kind of name, or is the source."""
    refuse_source(target, _files(opened))
    alone = isinstance(opened, Checkpoint) and checkpoint.is_file
    check_name(target, (".safetensors",) if alone else ())


def _files(opened: Source | Checkpoint) -> list[Path]:
    if isinstance(opened, Source):
        return opened.files
    return [] if opened.place.is_remote else [opened.place.path]


def _loaded(opened: Source | Checkpoint) -> tuple[str, ...]:
    """Why a folder is loaded as a whole, which needs memory for several copies."""
    if not isinstance(opened, FolderSource):
        return ()
    return (
        "the tensors in the files are not those of the model, nor parts of them (divided, computed "
        "or quantised): all weights are loaded",
    )
