"""What an encoded checkpoint says of its keys: a small JSON file in its folder, or beside the file.

    weights.safetensors   →   weights.safetensors.encoded.json
    folder/               →   folder/encoded.json

It names keys by their fingerprints, hashes from which no key can be computed. Whoever trains may
lose it; then nobody can tell by which key a checkpoint was encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.writing import check_place, staged

FORMAT = "paramsym-encoded/1"
_NAME = "encoded.json"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Imprint:
    """How one key encoded a checkpoint, as far as everybody may know.

    Attributes:
        key: the fingerprint.
        training: whether the symmetry of the training mode was taken.
        inputs: which inputs were freed, as the command takes them.
        outputs: likewise.
    """

    key: str
    training: bool
    inputs: str
    outputs: str


def place_of(path: Path) -> Path:
    """Where the imprints of a checkpoint stand: in its folder, or beside the file."""
    return path / _NAME if path.is_dir() else path.with_name(f"{path.name}.{_NAME}")


def read_imprints(checkpoint: Source) -> tuple[Imprint, ...]:
    """The keys by which a checkpoint says that it is encoded, the last one last; none if it has
    lost them, or is plain.

    Raises:
        CheckpointError: what stands there is no such file.
    """
    if not checkpoint.files:
        return ()
    found = [place for file in checkpoint.files if (place := place_of(file)).is_file()]
    return _read(found[0]) if found else ()


def _read(path: Path) -> tuple[Imprint, ...]:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise ValueError(f"its format is {said['format']!r:.40}")
        made = tuple(Imprint(**each) for each in said["keys"])
        if not all(type(x) is kind for each in made for x, kind in zip(
            (each.key, each.training, each.inputs, each.outputs), (str, bool, str, str), strict=True
        )):  # fmt: skip
            raise TypeError("a value is of another kind")
        return made
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            str(path), f"it cannot be read ({first_line(error)})",
            "what protect encode wrote beside the encoded weights",
            "Copy it again; or remove it, and it cannot be checked which key was used",
        ) from error  # fmt: skip


def check_imprint(out: Path, checkpoint: Source, force: bool) -> None:
    """Raise where the imprints of a file that is to be written would replace something."""
    if checkpoint.suffixes:
        check_place(place_of(out), force)


def put(folder: Path, imprints: Sequence[Imprint]) -> None:
    """Write the imprints of a folder into it, in the place of those that were copied along."""
    place = place_of(folder)
    if imprints:
        place.write_text(_text(imprints), encoding="utf-8")
    else:
        place.unlink(missing_ok=True)


@contextmanager
def put_beside(
    out: Path, checkpoint: Source, imprints: Sequence[Imprint], force: bool
) -> Iterator[None]:
    """Write the imprints of a file beside it; they get their name when the block ends well.

    Where there are none, those of a file that stood there before are removed.
    """
    if not checkpoint.suffixes:  # a folder, into which they are put
        yield
    elif imprints:
        with staged(place_of(out), force) as draft:
            draft.write_text(_text(imprints), encoding="utf-8")
            yield
    else:
        yield
        place_of(out).unlink(missing_ok=True)


def _text(imprints: Sequence[Imprint]) -> str:
    return json.dumps({"format": FORMAT, "keys": [asdict(i) for i in imprints]}, indent=1) + "\n"
