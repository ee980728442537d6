"""The tutorial runs: its Python blocks, in order, in one namespace."""

import re
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "equivariant.md"


def test_the_tutorial_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.M | re.S)
    assert len(blocks) > 10
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{TUTORIAL.name}, block {number}", "exec"), namespace)
    assert (tmp_path / "weight_sharing.png").stat().st_size > 10_000
