"""The documentation as a site: built strictly, and within reach of everybody."""

import subprocess
import sys
from pathlib import Path

from tests.browsing import barriers, browser

__all__ = ["browser"]
ROOT = Path(__file__).parents[2]
PAGES = (
    "index.html",
    "findings-relu.html",
    "reference/structure.html",
)
NARROW = ("index.html", "mathematics.html", "how-to/balance.html", "reference/every-option.html")


def test_nothing_keeps_a_reader_out(tmp_path: Path, browser) -> None:
    """One test, as the site is built for it: in wide windows and on a telephone at night."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    views = [(page, 1440, False) for page in PAGES] + [(page, 380, True) for page in NARROW]
    found = {view: barriers(browser, tmp_path / view[0], *view[1:]) for view in views}
    assert {view: what for view, what in found.items() if what} == {}
