"""`make demo`: every command ends as it says, and its page links files that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "demo"


def test_the_demo_leaves_one_page_that_links_what_it_wrote(tmp_path: Path) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(DEMO, copy, ignore=shutil.ignore_patterns("output", "__pycache__"))
    ran = subprocess.run([sys.executable, copy / "run.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "Traceback" not in ran.stderr
    page = (copy / "output" / "index.html").read_text()
    linked = re.findall(r'(?:href|src)="([^#"][^"]*)"', page)
    assert {"report.html", "ledger.html"} <= set(linked)
    assert [f for f in linked if not (copy / "output" / f).is_file()] == []
    outside = {p.relative_to(copy).parts[0] for p in copy.rglob("*")}
    assert outside - {p.name for p in DEMO.iterdir()} <= {"output", "__pycache__"}
