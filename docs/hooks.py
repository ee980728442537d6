"""Formulas as MathML, which the browser draws by itself, the reference of the command, and what the
theme lacks for readers who use no mouse."""

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from paramsym.cli.reference import page as reference_of_the_command

# What pymdownx.arithmatex leaves behind in generic mode: \(…\) in a span, \[…\] in a div.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)

PALETTE = re.compile(r'<input class="md-option"[^>]*data-md-color-media[^>]*>')

SPEED = re.compile(r"\[speed: (?P<key>[^\]]+)\]")
HISTORY = Path(__file__).parents[1] / "benchmarks" / "history.json"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the page that is made from the commands themselves."""
    text = reference_of_the_command()
    files.append(File.generated(config, "reference/every-option.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in measured ratios: `[speed: equivariant]` is that of the last run of `make bench`."""
    claims = json.loads(HISTORY.read_text(encoding="utf-8"))[-1]["claims"]
    ratios = {claim["key"]: claim["ratio"] for claim in claims}
    return SPEED.sub(lambda match: f"{ratios[match['key']]:.2g}", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Replaces each formula of a rendered page."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["latex"]).strip(), display=display)

    return FORMULA.sub(formula, content)


def on_post_page(output: str, **_: Any) -> str:
    """Names the switch of colours, which the theme hides from readers and leaves in reach."""
    hidden, named = 'aria-hidden="true"', 'aria-label="Colours"'
    return PALETTE.sub(lambda match: match[0].replace(hidden, named), output)
