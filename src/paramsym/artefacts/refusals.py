"""The error of this room: where, what came, what was expected, what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from paramsym.formats.errors import CheckpointError, few


def refused(where: str, came: str, expected: str, instead: str) -> CheckpointError:
    """An error in four parts, whether the artefact came as tensors or as files."""
    return CheckpointError(f"transport({where})", came, expected, instead)


def listed(names: Sequence[str]) -> str:
    """The first few of many names, or that there are none."""
    return few(list(names)) or "none"
