"""The page of the atlas, a line of it, and the difference of two runs."""

from __future__ import annotations

from typing import Any

Run = dict[str, dict[str, Any]]


def line(name: str, result: dict[str, Any]) -> str:
    """One class in one line, for the progress."""
    state = f"{result.get('parameters', '-'):>7} {result.get('seconds', '-'):>6}s"
    parts = [
        f"UNSOUND {result.get('error')}" if result.get("unsound") else "",
        f"unknown {[*result.get('unknown', ())]}" if result.get("unknown") else "",
        f"unexplained {result['unexplained']}" if result.get("unexplained") else "",
        result.get("why", "")[:150], result.get("ended", ""), result.get("audit", "")[:100],
    ]  # fmt: skip
    return f"{name:45} {state} {'; '.join(p for p in parts if p) or 'fine'}"
