"""Compare checkpoints: one network, one up to symmetry, of one origin, or unrelated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.alike import Alike
from paramsym.checkpoints.elements import check_element, written_element
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.streaming.comparing import compare_files
from paramsym.checkpoints.told import Told
from paramsym.engines import Engine, engine_of
from paramsym.origin.comparing import compare
from paramsym.origin.comparison import Comparison, Kind
from paramsym.terminal import silent

IN_MEMORY = 1 << 32  # bytes of checkpoints that are loaded to be compared
SAME = (Kind.IDENTICAL, Kind.SAME)
_COMPARABLE = "two checkpoints that can be compared"


@dataclass(frozen=True)
class Compared(Told):
    """What two checkpoints are to each other.

    `element` is where the element that carries the second to the first was written.
    """

    comparison: Comparison
    element: Path | None
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the two are one network, up to symmetry."""
        return self.comparison.kind in SAME

    def numbers(self) -> dict[str, Any]:
        """The verdict and what it rests on."""
        found = self.comparison
        orbit = found.orbit and {
            "kind": str(found.orbit.kind), "residual": found.orbit.residual,
            "where": found.orbit.where, "reason": found.orbit.reason,
        }  # fmt: skip
        return {
            "kind": str(found.kind), "reason": found.reason, "distance": found.distance,
            "null": found.null and list(found.null.all),
            "tensors": {name: asdict(each) for name, each in found.tensors.items()},
            "spaces": {name: asdict(each) for name, each in found.units.items()},
            "element": self.element and str(self.element), "held": found.held, "orbit": orbit,
            "notes": list(self.notes),
        }  # fmt: skip


def compare_checkpoints(
    several: Alike,
    null: int = 4,
    tol: float | None = None,
    element: Path | None = None,
    generator: torch.Generator | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
    engine: str | Engine | None = None,
) -> Compared:
    """Whether the first two of some checkpoints are one network, or have one origin.

    Folders that are together larger than `IN_MEMORY` bytes are held against each other in their
    files: an element is read off samples and tried on all numbers (`compare_files`).

    Args:
        several: from `open_alike`; those after the first two are known to be independent.
        null: as for `compare`.
        tol: as for `compare`.
        element: where the element is written if the two are one up to symmetry.
        generator: as for `compare`.
        force: replace what stands at `element`.
        progress: is told each step when it begins.
        engine: who holds files against each other, see `engine_of`.

    Raises:
        CheckpointError: as `Alike.symmetry`; the weights cannot be compared because they are not
            finite; the element cannot be written.
    """
    if element is not None:
        check_element(element, None, several.files(), force)
    files = several.streamable()
    if files is not None and len({frozenset(each.checkpoint) for each in files}) > 1:
        files = None  # two spellings of one model, or two models: loading says which
    if files is not None and sum(each.checkpoint.bytes for each in files) > IN_MEMORY:
        symmetry = several.symmetry(progress)
        with engine_of(engine) as chosen, refused(several.names[1], _COMPARABLE):
            found = compare_files(symmetry, files[0], files[1], tol, chosen, progress)
    else:
        several.load()
        symmetry = several.symmetry(progress)
        a, b, *independent = several.states()
        progress("comparing")
        with refused(several.names[1], _COMPARABLE):
            found = compare(symmetry, a, b, independent, null, generator, progress, tol)
    written = element if found.kind in SAME else None
    with nullcontext() if written is None else written_element(found.element, written, force):
        pass
    return Compared(found, written, tuple(several.notes()))
