"""What lies beside the weights of a folder: copied, or left out and named."""

from __future__ import annotations

from pathlib import Path

from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.errors import few
from paramsym.checkpoints.layout import WEIGHTS, others_in
from paramsym.checkpoints.streaming.layout import Layout


def aside_of(checkpoint: Checkpoint) -> list[str]:
    """What lies beside the weights of a folder and below: configuration, tokenizer, texts."""
    if checkpoint.place.is_remote:
        return [name for name in checkpoint.aside if not name.endswith(WEIGHTS)]
    return others_in(checkpoint.place.path)


def left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What has the name of weights, and is none of those that move: they may be the old ones."""
    if checkpoint.place.is_remote or not checkpoint.place.path.is_dir():
        return ()
    source = checkpoint.place.path
    own = {file.name for file in checkpoint.files}
    own |= {checkpoint.index[0]} if checkpoint.index else set()
    found = sorted(p for p in source.rglob("*") if p.is_file() and p.name.endswith(WEIGHTS))
    left = [name for p in found if (name := str(p.relative_to(source))) not in own]
    return (f"{few(left)} not copied: such files may hold the old weights",) if left else ()


def copy_aside(checkpoint: Checkpoint, draft: Path, layout: Layout) -> None:
    """Copy what lies beside the weights of a folder; what else an earlier run left there goes."""
    own = {file.name for file in layout.files} | ({layout.index[0]} if layout.index else set())
    for path in draft.rglob("*"):
        if path.is_file() and str(path.relative_to(draft)) not in own:
            path.unlink()
    for name in aside_of(checkpoint):
        to = draft / name
        to.parent.mkdir(parents=True, exist_ok=True)
        (checkpoint.place / name).fetch(to)
