"""Elements beside checkpoints: the file that says how weights were moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.writing import check_name, check_place, refuse_source, staged
from paramsym.structure.element import GroupElement

_SUFFIXES = (".safetensors", ".json")
_ENDINGS = (".safetensors.index.json", ".safetensors", ".pt2", ".pt", ".pth", ".bin")


def place_beside(out: Path, name: str = "element.safetensors") -> Path:
    """Where what belongs to `out` is written: moved.pt2 → moved.element.safetensors."""
    ending = next((end for end in _ENDINGS if out.name.endswith(end)), "")
    return out.with_name(f"{out.name.removesuffix(ending)}.{name}")


def check_element(
    path: Path, out: Path | None = None, sources: list[Path] | None = None, force: bool = False
) -> None:
    """Raise where an element cannot be written, or would replace something.

    Args:
        path: `.safetensors` or `.json`.
        out: what else is written.
        sources: what was read.
        force: replace what stands there; see `staged`.
    """
    check_name(path, _SUFFIXES)
    refuse_source(path, sources or [])
    if out is not None and path.absolute() == out.absolute():
        raise CheckpointError(
            f"--element {path}", "this is OUT, too", "another place", "Choose another name"
        )
    check_place(path, force)


@contextmanager
def written_element(element: GroupElement, path: Path, force: bool = False) -> Iterator[None]:
    """Write an element, with the fingerprint of its symmetry, for its owner alone to read.

    It gets its name when the block ends without an error.
    """
    with staged(path, force) as draft:
        try:
            element.save(draft)
        except ValueError as error:
            raise CheckpointError(
                str(path), str(error).replace(str(draft), str(path)).rstrip("."),
                "an element that can be written",
                "Choose a name that ends in .safetensors",
            ) from error  # fmt: skip
        yield
