"""The documentation as a site: built strictly, and within reach of everybody."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsing import barriers, browser

__all__ = ["browser"]
ROOT = Path(__file__).parents[2]
PAGES = (
    "index.html",
    "findings-relu.html",
    "reference/structure.html",
)
NARROW = ("index.html", "mathematics.html", "how-to/balance.html", "reference/every-option.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


@pytest.mark.parametrize(
    ("pages", "width", "dark"), [(PAGES, 1440, False), (NARROW, 380, True)], ids=["wide", "narrow"]
)
def test_nothing_keeps_a_reader_out(
    site: Path, browser, pages: tuple[str, ...], width: int, dark: bool
) -> None:
    found = {page: barriers(browser, site / page, width, dark) for page in pages}
    assert {page: what for page, what in found.items() if what} == {}
