"""What holds of every page: pictures have words, pages are in the navigation, figures are drawn."""

from __future__ import annotations

import colorsys
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
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
    missing = [
        target
        for _, target in pictures(text)
        if not (page.parent / target.partition("#")[0]).is_file()
    ]
    assert missing == []


def test_a_picture_without_words_would_be_seen() -> None:
    page = '![](a.png) ![two words](b.png) ![three words here](c.png) <img src="d.png"> '
    assert wordless(page) == ["a.png", "b.png", "d.png"]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    named.remove("reference/every-option.md")  # which is made when the site is
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


BEHIND = {"default": (245, 245, 245), "slate": (39, 42, 53)}  # the theme's, behind code
COLOUR = re.compile(r"--md-[a-z-]+color[a-z-]*: (#\w{6}|(?:rgba|hsla)\([^)]*\));")


def _rgb(text: str, behind: tuple[int, ...]) -> list[float]:
    """A colour as it is seen on another one."""
    if text.startswith("#"):
        return [int(text[i : i + 2], 16) for i in (1, 3, 5)]
    *numbers, alpha = (float(n) for n in re.findall(r"[\d.]+", text))
    if text.startswith("hsla"):
        hue, saturation, lightness = numbers[0] / 360, numbers[1] / 100, numbers[2] / 100
        numbers = [255 * c for c in colorsys.hls_to_rgb(hue, lightness, saturation)]
    return [alpha * c + (1 - alpha) * b for c, b in zip(numbers, behind, strict=True)]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: Sequence[float]) -> float:
        parts = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_of_text_stand_out_from_what_is_behind_them() -> None:
    sheet = (DOCS / "stylesheets" / "extra.css").read_text(encoding="utf-8")
    for scheme, behind in BEHIND.items():
        (block,) = re.findall(rf'{scheme}"\](?:\[[a-z-]+\])? {{(.*?)}}', sheet, re.S)
        colours = COLOUR.findall(block)
        assert colours
        for colour in colours:
            assert contrast(_rgb(colour, behind), behind) >= 4.5, (scheme, colour)
    assert contrast(_rgb("rgba(0, 0, 0, 0.54)", BEHIND["default"]), BEHIND["default"]) < 4.5
