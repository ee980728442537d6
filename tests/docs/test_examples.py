"""Every Python block of the README and of the documentation runs, and prints what the page says.

The blocks of one page share their names and run from top to bottom. A block of text directly after
a block of Python is its output: `...` stands for anything, spaces do not count, and numbers in
scientific notation agree if both are rounding errors, or within a factor of three.
"""

import contextlib
import doctest
import io
import logging
import math
import re
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

import paramsym
from paramsym.lowering import registry

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text()
]
BLOCK = re.compile(r"^```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SCIENTIFIC = re.compile(r"-?\d+(?:\.\d+)?e[-+]?\d+")
ROUNDING = 1e-10  # numbers below it count as equal


def _blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """(first line, code, expected output) of every Python block."""
    text = page.read_text()
    found, blocks = list(BLOCK.finditer(text)), []
    for block, after in zip_longest(found, found[1:]):
        if block["kind"] != "python":
            continue
        follows = after is not None and after["kind"] == "text"
        adjacent = follows and not text[block.end() : after.start()].strip()
        line = text[: block.start()].count("\n") + 2
        blocks.append((line, block["text"], after["text"] if adjacent else None))
    return blocks


def _agree(expected: str, printed: str) -> bool:
    numbers = [[float(n) for n in SCIENTIFIC.findall(text)] for text in (expected, printed)]
    if "..." not in expected:
        if len(numbers[0]) != len(numbers[1]):
            return False
        for a, b in zip(*numbers, strict=True):
            if max(abs(a), abs(b)) > ROUNDING and not math.isclose(a, b, rel_tol=0.67):
                return False
    plain = [re.sub(r"\s+", " ", SCIENTIFIC.sub("#", text)).strip() for text in (expected, printed)]
    return doctest.OutputChecker().check_output(*plain, doctest.ELLIPSIS)


@pytest.fixture
def undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pages may register rules and write files; both are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    rules = dict(registry.RULES)
    state = torch.get_rng_state()
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
    torch.set_rng_state(state)
    registry.RULES.clear()
    registry.RULES.update(rules)


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs_and_prints_what_it_says(page: Path, undisturbed: None) -> None:
    names: dict[str, object] = {"__name__": "__page__"}
    for line, code, expected in _blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, page.name, "exec"), names)
        if expected is not None:
            assert _agree(expected, printed.getvalue()), (
                f"{page.relative_to(ROOT)}, line {line}: the page says\n{expected}\n"
                f"and the code prints\n{printed.getvalue()}"
            )


def test_readme_needs_eight_lines() -> None:
    (_, code, _), *_ = _blocks(ROOT / "README.md")
    assert len([line for line in code.splitlines() if line.strip()]) == 8


def test_files_that_the_mathematics_names_exist() -> None:
    text = (ROOT / "docs" / "mathematics.md").read_text()
    named = re.findall(r"`([a-z]+/[a-z_]+\.py)`", text)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "paramsym" / name).is_file()] == []


def _reference() -> tuple[str, str]:
    """The reference pages together, and the table of the four facts."""
    pages = ROOT / "docs" / "reference"
    return "\n".join(p.read_text() for p in pages.glob("*.md")), (pages / "index.md").read_text()


def _undocumented(names: list[str], entries: str, facts: str) -> list[str]:
    """Names without an entry of their own, or without a row of four facts that say something."""
    known = set(re.findall(r"^::: paramsym\.(\w+)$", entries, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \|" + r"[^|\n]*[^|\s][^|\n]*\|" * 4 + "$", facts, re.MULTILINE)
    return [name for name in names if name not in known or name not in rows]


def test_every_public_name_is_in_the_reference_with_its_four_facts() -> None:
    entries, facts = _reference()
    assert _undocumented(paramsym.__all__, entries, facts) == []
    assert _undocumented(["no_such_name"], entries, facts) == ["no_such_name"]
    assert _undocumented(["act"], entries, re.sub(r"(?m)^\| `act`.*$", "| `act` | | | | |", facts))


def test_comparison_can_fail() -> None:
    assert _agree("error 1.0e-16, dim 3", "error  4.2e-15, dim 3\n")
    assert not _agree("error 1.0e-16, dim 3", "error 1.0e-02, dim 3")
    assert not _agree("error 1.0e-16, dim 3", "error 1.0e-16, dim 4")
    assert _agree("h0 ... 6\n...", "h0 and more 6\nwhatever")
