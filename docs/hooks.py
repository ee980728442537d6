"""Formulas as MathML: drawn by the browser itself, with no script and no remote font."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves behind in generic mode: \(…\) in a span, \[…\] in a div.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """Replaces each formula of a rendered page."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["latex"]).strip(), display=display)

    return FORMULA.sub(formula, content)
