"""How transformers reads a folder: it is asked, with tensors that have no numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.quieting import quiet
from paramsym.checkpoints.streaming.traced import traced


def loaded_without_numbers(
    model: torch.nn.Module, checkpoint: Checkpoint
) -> Mapping[str, torch.Tensor] | None:
    """The state dict of a model to which from_pretrained gave `Traced` tensors of some files.

    Args:
        model: of transformers; its class and configuration are asked for.
        checkpoint: the files.

    Returns:
        `Traced` tensors by the names of the model. None where the loader does with them what boxes
        of entries do not say, or lacks some, or knows not all of them, or stops: loading the
        numbers says why.
    """
    entries = checkpoint.entries
    wanted = {id(t): t.numel() for t in model.state_dict(keep_vars=True).values()}
    if sum(e.numel for e in entries.values()) < sum(wanted.values()):
        return None  # what is lacking would be made up, in memory
    given = {name: traced(name, entry.shape, entry.dtype) for name, entry in entries.items()}
    try:
        with quiet(), torch.no_grad():
            found, info = type(model).from_pretrained(  # type: ignore[attr-defined]
                None, config=model.config, state_dict=given, output_loading_info=True, dtype="auto",
                ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception:  # whatever stops it, it is no way from files to files
        return None
    wrong = ("missing_keys", "unexpected_keys", "mismatched_keys", "conversion_errors")
    if any(info.get(each) for each in wrong):
        return None
    return found.state_dict(keep_vars=True)
