"""Formulas as MathML, which the browser draws by itself, and the reference of the command."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from paramsym.cli.reference import page as reference_of_the_command

# What pymdownx.arithmatex leaves behind in generic mode: \(…\) in a span, \[…\] in a div.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the page that is made from the commands themselves."""
    text = reference_of_the_command()
    files.append(File.generated(config, "reference/every-option.md", content=text))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Replaces each formula of a rendered page."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["latex"]).strip(), display=display)

    return FORMULA.sub(formula, content)
