"""Weights in the format of a checkpoint: written, read back, and only then under their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.writing import staged
from paramsym.terminal import silent


@contextmanager
def stored(
    checkpoint: Source,
    out: Path,
    params: Mapping[str, torch.Tensor],
    force: bool = False,
    progress: Callable[[str], None] = silent,
    finish: Callable[[Path], None] | None = None,
) -> Iterator[torch.nn.Module]:
    """Write weights; inside the block stands the model that was read back from the files.

    The files get their name when the block ends without an error.

    Args:
        checkpoint: from `open_checkpoint`, in whose format is written; its model is used up.
        out: a file or folder of the same format as the source.
        params: the complete state dict to be written.
        force: replace what stands at `out`; see `staged`.
        progress: is told each step when it begins.
        finish: is given what was written, to put something beside the weights in a folder.

    Raises:
        CheckpointError: the system does not let it be written, or other numbers are read back.
    """
    with staged(out, force, sum(checkpoint.planned(out).values())) as draft:
        progress(f"writing {out.name}")
        checkpoint.save(draft, params)
        if finish is not None:
            finish(draft)
        progress(f"reading {out.name} back, to compare")
        model = checkpoint.reload(draft)
        _check_written(out, params, model)
        yield model


def _check_written(out: Path, params: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """What was read back is what was meant, to the last bit."""
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor.detach(), params[name]):
            raise CheckpointError(
                str(out), f"{name!r} was read back with other numbers than were written",
                "the same numbers", "Nothing is kept. Check the disk, then try again",
            )  # fmt: skip
