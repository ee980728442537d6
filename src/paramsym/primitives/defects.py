"""Internal inconsistencies freeze their place and are reported; they never abort a derivation.

A rule that raises, or that returns a tensor of the wrong shape, is a defect of this library (or of
a rule that its user taught). What the operator touches is held, which is always sound, and the
operator appears among the unknown ones with a text that says whose mistake it is. In our own tests
`raising` is set, so that no defect can hide behind this.
"""

from __future__ import annotations

from typing import Protocol

raising = False  # set by tests: let the exception through


class Lowering(Protocol):
    """What a report needs of the lowering in progress: its place, and where unknowns are kept."""

    where: str
    unknown: dict[str, str]


def report(build: Lowering, operator: str, error: Exception) -> str:
    """Note a defect met at the current place; the reason for freezing what it touches.

    Args:
        build: the lowering in progress.
        operator: the canonical name of the operator being lowered.
        error: what was raised.

    Returns:
        The reason, in the words of the report.

    Raises:
        The error itself if `raising` is set.
    """
    if raising:
        raise error
    place = build.where or "an unknown place"
    text = (str(error).strip().splitlines() or [""])[0][:200]
    build.unknown.setdefault(
        operator,
        f"{place}: held because of a defect of paramsym, please report it "
        f"({type(error).__name__}: {text})",
    )
    return f"a defect of paramsym in {operator} at {place}"
