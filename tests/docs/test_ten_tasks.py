"""Ten tasks are answered in at most four lines each, where docs/how-to/index.md says.

An answer is the block of Python after `<!-- answer -->`; `test_examples` runs it with its page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
ROW = re.compile(
    r"^\|[^|\n]+\| \[[^]\n]+\]\((?P<page>[a-z-]+\.md)#(?P<anchor>[a-z0-9-]+)\) \|$", re.M
)
ANSWER = re.compile(r"^<!-- answer -->\n```python\n(?P<code>.*?)^```$", re.M | re.S)
LINES = 4


def tasks() -> list[tuple[str, str]]:
    """The page and the section of every answer that the index names."""
    return ROW.findall((PAGES / "index.md").read_text(encoding="utf-8"))


def answers(text: str, anchor: str) -> list[str]:
    """The answers in the section of a page whose heading has an anchor."""
    sections = re.split(r"^#+ (.+)$", text, flags=re.M)[1:]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        if re.sub(r"[\s-]+", "-", plain) == anchor:
            return ANSWER.findall(body)
    return []


def length(code: str) -> int:
    """Lines or statements, whichever are more, but for imports."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
    imports = [node for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = [line for line in code.splitlines() if line.strip()]
    return max(len(found), len(lines)) - len(imports)


def test_there_are_ten_tasks_and_ten_answers() -> None:
    assert len(set(tasks())) == 10
    marked = [page for page in PAGES.glob("*.md") for _ in ANSWER.findall(page.read_text())]
    assert len(marked) == 10


@pytest.mark.parametrize(("page", "anchor"), tasks())
def test_an_answer_has_four_lines(page: str, anchor: str) -> None:
    (code,) = answers((PAGES / page).read_text(encoding="utf-8"), anchor)
    assert 1 <= length(code) <= LINES, code


def test_an_answer_that_is_long_or_gone_would_be_seen() -> None:
    text = (
        "## A task, of 5\n<!-- answer -->\n```python\nimport x\na = 1; b = 2\nc = d = e = 3\n```\n"
    )
    (code,) = answers(text, "a-task-of-5")
    assert length(code) == 3
    assert length("for x in y:\n    a\n    b\n    c\n    d\n") == 5
    assert length("f(\n1,\n2,\n3,\n)\n") == 5
    assert (
        answers(text, "another")
        == []
        == answers(text.replace("<!-- answer -->", ""), "a-task-of-5")
    )
