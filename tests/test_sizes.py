"""Modules of the rooms that derive and measure have one idea each: at most 400 lines."""

from __future__ import annotations

from pathlib import Path

LIMIT = 400
SOURCE = Path(__file__).parents[1] / "src" / "paramsym"
ROOMS = (
    "recording",
    "primitives",
    "lowering",
    "tracing",
    "checking",
    "structure",
    "geometry",
    "quantize",
    "merging",
    "training",
    "discovery",
    "ensembles",
    "privacy",
    "artefacts",
)  # as far as they are built; fmt: skip


def too_long(folder: Path) -> dict[str, int]:
    """Modules below a folder with more lines than the limit."""
    sizes = {
        str(path.relative_to(folder)): len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.rglob("*.py")
    }
    return {name: lines for name, lines in sizes.items() if lines > LIMIT}


def test_no_module_is_too_long() -> None:
    found = {room: too_long(SOURCE / room) for room in ROOMS}
    assert not any(found.values()), found


def test_a_long_module_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "long.py").write_text("x = 1\n" * (LIMIT + 1))
    (tmp_path / "short.py").write_text("x = 1\n" * LIMIT)
    assert too_long(tmp_path) == {"inner/long.py": LIMIT + 1}
