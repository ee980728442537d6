"""A move of a checkpoint before anything is written: of what, by what, to where, and what stands
there already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.aside import left_out
from paramsym.checkpoints.checkpoint import Checkpoint, Opened
from paramsym.checkpoints.elements import check_element, place_beside, written_element
from paramsym.checkpoints.equivalent import Transformed
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.source import ByModelName, Source, Weights
from paramsym.checkpoints.streaming.job import Job, require_fitting
from paramsym.checkpoints.streaming.journal import Journal, folder_of
from paramsym.checkpoints.streaming.layout import Layout, layout_like, layout_of_size
from paramsym.checkpoints.writing import check_place, write_text
from paramsym.engines import Engine
from paramsym.structure.agreed import digest
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

FORMAT = "paramsym/record/1"
Params = Mapping[str, torch.Tensor]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Writing:
    """How moved weights are written.

    Attributes:
        engine: where the pieces are moved, see `engine_of`.
        resume: go on with a run for this target that was interrupted.
        force: replace what stands at the target; see `staged`.
        shard_size: the largest size of a shard in bytes; by default the shards of the source.
        verify: run the model before and after.
        dry: say what would be written, and write nothing.
        progress: is told each step when it begins, with rate and remaining time.
    """

    engine: str | Engine | None = None
    resume: bool = False
    force: bool = False
    shard_size: int | None = None
    verify: bool = True
    dry: bool = False
    progress: Progress = silent

    @property
    def again(self) -> bool:
        """Whether something may stand at the target."""
        return self.force or self.resume


AS_USUAL = Writing()


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
    """A move that can begin once its element is found.

    Attributes:
        target: what is written.
        symmetry: of the model.
        find: the element, given the weights by the names of the model.
        source: the model; None where there are weights alone.
        weights: its files, with the model's names; None where they have to be loaded.
        files: what must never be overwritten.
        operation: what it is called in the record.
        how: what the element was found by, in plain values.
        element_file: where the element is written; by default beside the target. None: nowhere.
        secret: the element is a key: neither it nor a record is written.
        check: given the model with the weights that were written, how much it differs from what it
            should compute, if that can be said; by default the model is run before and after.
        finish: puts something beside the weights that were written.
        notes: what should be known of how the files were read.
        besides: what makes the bytes besides the element and the files, in plain values.
        job: what is done from files to files; by default the element moves them.
        moved: the same to weights that are loaded.
    """

    target: Path
    symmetry: ParameterSymmetry
    find: Callable[[Params], GroupElement]
    source: Source | None
    weights: Weights | None
    files: list[Path]
    operation: str = "transform"
    how: Mapping[str, Any] = field(default_factory=dict)
    element_file: Path | None = Path()
    secret: bool = False
    check: Callable[[torch.nn.Module], float | None] | None = None
    finish: Callable[[Path], None] | None = None
    notes: tuple[str, ...] = ()
    besides: Mapping[str, Any] = field(default_factory=dict)
    job: Callable[[Job], Job] | None = None
    moved: Callable[[GroupElement, Params], Params] | None = None

    def __post_init__(self) -> None:
        if self.element_file == Path():
            self.element_file = place_beside(self.target)

    @classmethod
    def of(
        cls, source: Source, target: Path, symmetry: ParameterSymmetry,
        find: Callable[[Params], GroupElement], operation: str, how: Mapping[str, Any],
    ) -> Moving:  # fmt: skip
        """The move of a model whose element is found by its weights."""
        return cls(
            target, symmetry, find, source, source.streamable(), source.files, operation, how,
            notes=tuple(source.notes),
        )  # fmt: skip

    @property
    def label(self) -> str:
        """What the source is called in an error."""
        if self.source is not None:
            return self.source.label
        assert self.weights is not None
        return self.weights.checkpoint.place.address

    @property
    def record_file(self) -> Path:
        """Where the record is written."""
        return place_beside(self.target, "record.json")

    def keep(
        self, made: Transformed, element: GroupElement, request: Mapping[str, Any],
        hashes: Mapping[str, str], written: Mapping[str, str], force: bool,
    ) -> None:  # fmt: skip
        """Write the element and the record beside the target, unless they are to stay secret."""
        if self.secret:
            return
        file = self.element_file
        with nullcontext() if file is None else written_element(element, file, force):
            said = self.record(made, request, hashes, written)
            # for its owner alone to read, as the element is: a seed says all of that
            write_text(said, self.record_file, "the record", 0o600)

    def record(
        self, made: Transformed, request: Mapping[str, Any], hashes: Mapping[str, str],
        written: Mapping[str, str],
    ) -> str:  # fmt: skip
        """What was done, as JSON: the request, hashes of what was read and written, the result."""
        whole = hashlib.sha256("".join(f"{n}:{hashes[n]}\n" for n in sorted(hashes)).encode())
        told = json.loads(made.to_json())
        return json.dumps({
            "format": FORMAT, "operation": self.operation, "how": self.how,
            "request": request, "input": whole.hexdigest(), "result": told,
            "xxh3_128": {name: [hashes[name], written[name]] for name in sorted(hashes)},
        }, indent=1) + "\n"  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """A move from files to files that can begin.

    `ours` says whether what stands beside the target is of the same request, and `finished` what an
    earlier run of that request wrote, if it is to be resumed.
    """

    through: Pass
    notes: tuple[str, ...]
    ours: bool
    finished: Transformed | None


def ready(found: Moving, how: Writing) -> Ready:
    """Find the element, and look at the target and at all that can be refused.

    Raises:
        CheckpointError: something stands where something is to be written; the weights do not fit
            the element; `resume` for another run than this one.
    """
    weights = found.weights
    assert weights is not None
    layout = _layout(weights.checkpoint, found.target, how.shard_size)
    with refused(found.label, "an element of this model"):
        element = found.find(ByModelName(weights, found.symmetry.ties))
    job = Job(weights.checkpoint, found.symmetry, element, weights.names, weights.windows)
    if found.job is not None:
        job = found.job(job)
    through = Pass(job, layout, {**_request(job, layout), **found.besides})
    notes = _strangers(weights, job.storage.beside) + left_out(weights.checkpoint)
    require_fitting(job)
    return Ready(through, (*found.notes, *notes), *_look_beside(found, through, how))


def require_room_beside(found: Moving, force: bool) -> None:
    """Raise where something stands in the place of what is written beside the target."""
    for file in () if found.secret else (found.element_file, found.record_file):
        if file is not None:
            check_element(file, found.target, found.files, force)


def _layout(checkpoint: Checkpoint, target: Path, shard_size: int | None) -> Layout:
    if shard_size is not None and (type(shard_size) is not int or shard_size < 1):
        raise CheckpointError(
            "shard_size",
            f"{shard_size!r}",
            "a number of bytes, at least 1",
            "Say 5 * 10**9 for 5 GB",
        )
    if shard_size is None:
        return layout_like(checkpoint, target.name if checkpoint.is_file else None)
    if checkpoint.is_file:
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


# -- the request -------------------------------------------------------------------------------


def request_of(symmetry: ParameterSymmetry, element: GroupElement) -> dict[str, Any]:
    """What makes the numbers that are written, in plain values."""
    try:
        own = version("paramsym")
    except PackageNotFoundError:
        own = "not installed"
    return {
        "paramsym": own, "torch": str(torch.__version__), "symmetry": symmetry.fingerprint,
        "element": digest(element).hex(),
    }  # fmt: skip


def _request(job: Job, layout: Layout) -> dict[str, Any]:
    """What makes the bytes that are written, in plain values."""
    files = [[file.name, *file.stamp] for file in job.checkpoint.files]
    heads = hashlib.sha256(b"".join(file.head for file in layout.files)).hexdigest()
    return {
        **request_of(job.symmetry, job.element), "source": files,
        "layout": [heads, [[file.name, file.bytes] for file in layout.files]],
    }  # fmt: skip


def _look_beside(found: Moving, through: Pass, how: Writing) -> tuple[bool, Transformed | None]:
    """What stands at the target, and beside it, from an earlier run of the same request."""
    said = None if found.secret else _record_at(found.record_file)
    ours = said is not None and said.get("request") == through.request
    if said and how.resume and ours and _is_written(found.target, through.layout, said):
        result = said["result"]
        return True, Transformed(
            found.target, found.symmetry, result["error"], result["tolerance"], result["changed"],
            result["parameters"], found.element_file, found.record_file, tuple(result["notes"]),
        )  # fmt: skip
    check_place(found.target, how.force)
    require_room_beside(found, how.force or ours)
    return ours, None


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
