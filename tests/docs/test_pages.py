"""What holds of every page: pictures have words, pages are in the navigation, figures are drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MARKDOWN = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)")
HTML = re.compile(r"<img\b[^>]*>")
ALT = re.compile(r'\balt="([^"]*)"')


def pictures(text: str) -> list[tuple[str, str]]:
    """(words, target) of every picture of a page, in Markdown or in HTML."""
    found = [(m["alt"], m["target"]) for m in MARKDOWN.finditer(text)]
    for tag in HTML.findall(text):
        alt, source = ALT.search(tag), re.search(r'\bsrc="([^"]*)"', tag)
        found.append((alt[1] if alt else "", source[1] if source else ""))
    return found


def wordless(text: str) -> list[str]:
    """The pictures without words that say what is seen: fewer than three words."""
    return [target for alt, target in pictures(text) if len(alt.split()) < 3]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_every_picture_of_a_page_has_words_and_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert wordless(text) == []
    missing = [target for _, target in pictures(text) if not (page.parent / target).is_file()]
    assert missing == []


def test_a_picture_without_words_would_be_seen() -> None:
    page = '![](a.png) ![two words](b.png) ![three words here](c.png) <img src="d.png"> '
    assert wordless(page) == ["a.png", "b.png", "d.png"]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert sorted({str(p.relative_to(DOCS)) for p in PAGES} ^ named) == []


def test_every_drawn_figure_is_shown_in_the_gallery() -> None:
    shown = {target for _, target in pictures((DOCS / "gallery.md").read_text(encoding="utf-8"))}
    assert {f"figures/{path.name}" for path in (DOCS / "figures").glob("*.png")} <= shown


def test_pictures_of_the_glossary_are_those_that_the_script_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import glossary_figures

    committed = glossary_figures.FOLDER
    monkeypatch.setattr(glossary_figures, "FOLDER", tmp_path)
    glossary_figures.main()
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert {p.name: p.read_text(encoding="utf-8") for p in committed.iterdir()} == drawn
    for svg in drawn.values():
        ET.fromstring(svg)
        assert "prefers-color-scheme: dark" in svg
