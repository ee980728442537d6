"""What is known of a move before anything is written: of what, by what, to where."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.aside import left_out
from paramsym.checkpoints.checkpoint import Checkpoint, Opened
from paramsym.checkpoints.elements import check_element, place_beside
from paramsym.checkpoints.equivalent import Transformed, movable
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.folder import FolderSource
from paramsym.checkpoints.source import Source, Weights
from paramsym.checkpoints.sources import open_movable
from paramsym.checkpoints.streaming.job import Job, require_fitting
from paramsym.checkpoints.streaming.journal import Journal, folder_of
from paramsym.checkpoints.streaming.layout import Layout, layout_like, layout_of_size
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.checkpoints.streaming.sayable import stored_moves
from paramsym.checkpoints.streaming.spelling import spelling
from paramsym.checkpoints.tensors import INDEX
from paramsym.checkpoints.writing import check_name, check_place, refuse_source
from paramsym.structure.agreed import digest
from paramsym.structure.element import GroupElement
from paramsym.structure.scale import to_scale
from paramsym.structure.symmetry import ParameterSymmetry

FORMAT = "paramsym/record/1"
Params = Mapping[str, torch.Tensor]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pass:
    """One pass from files to files.

    `request` is what makes the bytes that are written, by which a run is known when it is resumed.
    """

    job: Job
    layout: Layout
    request: Mapping[str, Any]


@dataclass
class Moving:
    """A move that can begin.

    Attributes:
        target: what is written.
        symmetry: of the model.
        element_for: the element, given the weights: shifts of a random one are scaled to them.
        source: the model; None where there are weights alone.
        weights: its files, with the model's names; None where they have to be loaded.
        through: what is done from files to files; None likewise.
        drawn: how a random element was drawn.
        ours: whether what stands beside the target is of the same request.
        finished: what an earlier run of the same request wrote, if it is to be resumed.
        notes: what should be known of how the files were read.
    """

    target: Path
    symmetry: ParameterSymmetry
    element_for: Callable[[Params], GroupElement]
    source: Source | None = None
    weights: Weights | None = None
    through: Pass | None = None
    drawn: Mapping[str, Any] | None = None
    ours: bool = False
    finished: Transformed | None = None
    notes: tuple[str, ...] = ()

    @property
    def element_file(self) -> Path:
        """Where the element is written."""
        return place_beside(self.target)

    @property
    def record_file(self) -> Path:
        """Where the record is written."""
        return place_beside(self.target, "record.json")

    def record(
        self, hashes: Mapping[str, str], written: Mapping[str, str], made: Transformed
    ) -> str:
        """What was done, as JSON: the request, hashes of what was read and written, the result."""
        whole = hashlib.sha256("".join(f"{n}:{hashes[n]}\n" for n in sorted(hashes)).encode())
        told = json.loads(made.to_json())
        return json.dumps({
            "format": FORMAT, "operation": "transform",
            "request": self.through and self.through.request,
            "drawn": self.drawn, "input": whole.hexdigest(), "result": told,
            "xxh3_128": {name: [hashes[name], written[name]] for name in sorted(hashes)},
        }, indent=1) + "\n"  # fmt: skip


def moving(
    source: str | Path | Checkpoint | Source, target: Path,
    element: GroupElement | torch.Generator | str | Path, strength: float, only: list[str] | None,
    resume: bool, force: bool, shard_size: int | None, progress: Progress,
) -> Moving:  # fmt: skip
    """Open what is moved, derive its symmetry, draw or read the element, and look at the target.

    Arguments and errors are those of `transform`.
    """
    _require_name(target)
    opened, weights = _opened(source, element)
    found = _looked_up(opened, weights, target, element, strength, only, resume, force, progress)
    if weights is None:
        found.notes += _loaded(opened)
        _require_loaded(opened, resume, shard_size)
        check_element(found.element_file, target, _files(opened), force)
        return found
    progress("drawing the element")
    lazy = _ByModelName(weights, found.symmetry)
    with refused(_label(opened), "an element of this model"):
        drawn = found.element_for(lazy)
    found.weights = weights
    job = Job(weights.checkpoint, found.symmetry, drawn, weights.names, weights.windows)
    layout = _layout(weights.checkpoint, target, shard_size)
    found.through = Pass(job, layout, _request(job, layout))
    found.notes += _strangers(weights, job.storage.beside) + left_out(weights.checkpoint)
    require_fitting(job)
    _look_beside(found, opened, resume, force)
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


def _opened(
    source: str | Path | Checkpoint | Source, element: Any
) -> tuple[Source | Checkpoint, Weights | None]:
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


def _looked_up(
    opened: Source | Checkpoint, weights: Weights | None, target: Path,
    element: GroupElement | torch.Generator | str | Path, strength: float, only: list[str] | None,
    resume: bool, force: bool, progress: Progress,
) -> Moving:  # fmt: skip
    """The symmetry and the element, once the target is known to be a place for it."""
    if weights is not None:
        _check_target(opened, weights.checkpoint, target)
    if isinstance(opened, Checkpoint):
        assert isinstance(element, GroupElement)
        symmetry = element.symmetry
        assert isinstance(symmetry, ParameterSymmetry)
        return Moving(target, symmetry, lambda _: element)
    again = force or (resume and weights is not None)
    symmetry = movable(opened, target, "--only", only, again, progress)
    notes = tuple(opened.notes)
    if isinstance(element, torch.Generator):
        names = None if only is None else list(only)
        drawn = {"seed": element.initial_seed(), "strength": strength, "only": names}

        def sampled(params: Params) -> GroupElement:
            drawn = symmetry.sample(element, strength, only)
            if weights is not None:  # codes are no numbers to which shifts could be scaled
                stored_moves(Storage(weights.checkpoint, symmetry, weights.names), drawn)
            return to_scale(drawn, params)

        return Moving(target, symmetry, sampled, opened, drawn=drawn, notes=notes)
    given = element if isinstance(element, GroupElement) else _read(Path(element), symmetry)
    return Moving(target, symmetry, lambda _: given, opened, notes=notes)


def _read(path: Path, symmetry: ParameterSymmetry) -> GroupElement:
    with refused(str(path), "an element of this model", "Give the file that was written for it"):
        return GroupElement.load(path, symmetry)


def _check_target(opened: Source | Checkpoint, checkpoint: Checkpoint, target: Path) -> None:
    """Raise where the target has the wrong kind of name, or is the source."""
    refuse_source(target, _files(opened))
    alone = isinstance(opened, Checkpoint) and _is_file(checkpoint)
    check_name(target, (".safetensors",) if alone else ())


def _is_file(checkpoint: Checkpoint) -> bool:
    return checkpoint.index is None and checkpoint.place.name.endswith(".safetensors")


def _files(opened: Source | Checkpoint) -> list[Path]:
    if isinstance(opened, Source):
        return opened.files
    return [] if opened.place.is_remote else [opened.place.path]


def _label(opened: Source | Checkpoint) -> str:
    return opened.label if isinstance(opened, Source) else opened.place.address


def _require_loaded(opened: Source | Checkpoint, resume: bool, shard_size: int | None) -> None:
    """Options of moves from files to files, for a source whose weights have to be loaded."""
    given = [*["--resume"] * resume, *["--shard-size"] * (shard_size is not None)]
    if given:
        raise CheckpointError(
            f"{given[0]} for {_label(opened)}", "a source whose weights have to be loaded",
            "a Hugging Face folder, or safetensors, whose tensors are those of the model or parts",
            f"Leave {given[0]} out",
        )  # fmt: skip


def _loaded(opened: Source | Checkpoint) -> tuple[str, ...]:
    """Why a folder is loaded as a whole, which needs memory for several copies."""
    if not isinstance(opened, FolderSource):
        return ()
    return (
        "the tensors in the files are not those of the model, nor parts of them (divided, computed "
        "or quantised): all weights are loaded",
    )


def _layout(checkpoint: Checkpoint, target: Path, shard_size: int | None) -> Layout:
    if shard_size is not None and (type(shard_size) is not int or shard_size < 1):
        raise CheckpointError(
            "shard_size",
            f"{shard_size!r}",
            "a number of bytes, at least 1",
            "Say 5 * 10**9 for 5 GB",
        )
    if shard_size is None:
        return layout_like(checkpoint, target.name if _is_file(checkpoint) else None)
    if _is_file(checkpoint):
        raise CheckpointError(
            "--shard-size", "a source that is a file alone", "a folder, which shards lie in",
            "Leave it out, or name the folder",
        )  # fmt: skip
    return layout_of_size(checkpoint, shard_size)


def _strangers(weights: Weights, beside: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Tensors that no model reads would not fit the others where these move."""
    known = {part for parts in beside.values() for part in parts} | {*weights.names}
    left = [name for name in weights.checkpoint if name not in known]
    if not left:
        return ()
    return (f"{few(left)} of the files are no tensors of the model: copied as they are",)


class _ByModelName(Mapping[str, torch.Tensor]):
    """The tensors of files by the names of the model, read when they are asked for."""

    def __init__(self, weights: Weights, symmetry: ParameterSymmetry):
        self.weights, self.names = weights, weights.joins.spelled(symmetry.ties)

    def __getitem__(self, name: str) -> torch.Tensor:
        with Opened(self.weights.checkpoint) as opened:
            return self.weights.joins.of(opened)[self.names[name]][:]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


# -- the request -------------------------------------------------------------------------------


def _request(job: Job, layout: Layout) -> dict[str, Any]:
    """What makes the bytes that are written, in plain values."""
    try:
        own = version("paramsym")
    except PackageNotFoundError:
        own = "not installed"
    files = [[file.name, *file.stamp] for file in job.checkpoint.files]
    heads = hashlib.sha256(b"".join(file.head for file in layout.files)).hexdigest()
    return {
        "paramsym": own, "torch": str(torch.__version__), "symmetry": job.symmetry.fingerprint,
        "element": digest(job.element).hex(), "source": files,
        "layout": [heads, [[file.name, file.bytes] for file in layout.files]],
    }  # fmt: skip


def _look_beside(found: Moving, opened: Source | Checkpoint, resume: bool, force: bool) -> None:
    """What stands at the target, and beside it, from an earlier run of the same request."""
    said = _record_at(found.record_file)
    assert found.through is not None
    found.ours = said is not None and said.get("request") == found.through.request
    if said and resume and found.ours and _is_written(found.target, found.through.layout, said):
        result = said["result"]
        found.finished = Transformed(
            found.target, found.symmetry, result["error"], result["tolerance"], result["changed"],
            result["parameters"], found.element_file, found.record_file, tuple(result["notes"]),
        )  # fmt: skip
        return
    check_place(found.target, force)
    for file in (found.element_file, found.record_file):
        check_element(file, found.target, _files(opened), force or found.ours)


def _is_written(target: Path, layout: Layout, said: Mapping[str, Any]) -> bool:
    """Whether a target has what its record says, and no run is left that was to give it its name.

    The numbers are read, all of them, and their hashes compared.
    """
    waiting = Journal(folder_of(target)).made / target.name
    folder = target if layout.in_folder else target.parent
    sizes = {folder / file.name: file.bytes for file in layout.files}
    if layout.index is not None:
        sizes[folder / layout.index[0]] = len(layout.index[1].encode())
    there = all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())
    if waiting.exists() or not there:
        return False
    hashes = {name: both[1] for name, both in said["xxh3_128"].items()}
    with Opened(Checkpoint.open(target)) as opened:
        return all(opened.hash(name) == found for name, found in hashes.items())


def _record_at(path: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and said.get("format") == FORMAT else None
