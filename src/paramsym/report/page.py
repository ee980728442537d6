"""Findings as one HTML page that stands by itself: no font, nothing from elsewhere.

Its script adds a filter, buttons that copy a command, and links between table and drawing; all that
is said can be read without it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paramsym.checkpoints.writing import write_text
from paramsym.report import words
from paramsym.report.drawing import draw
from paramsym.report.findings import Findings
from paramsym.report.layers import layer_rows
from paramsym.report.spectrum import spectrum
from paramsym.report.tables import family_rows, frozen, proof_rows, space_rows


def render_page(findings: Findings) -> str:
    """The page as text. Every name is escaped."""
    environment = Environment(
        loader=PackageLoader("paramsym.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        breakable=breakable, error=words.error_text, percent=words.percent,
        count=lambda n: f"{n:,}", quoted=shlex.quote,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        findings=findings,
        symmetry=findings.symmetry,
        copies=words.power_of_ten(findings.copies),
        spaces=space_rows(findings),
        families=family_rows(findings),
        proofs=proof_rows(findings),
        frozen=frozen(findings),
        picture=draw(findings),
        spectrum=None if findings.audit is None else spectrum(findings.audit),
        plural=words.plural,
        signature=list(_signature(findings)),
        layers=layer_rows(findings),
        widest=max((row.share for row in layer_rows(findings)), default=0.0) or 1.0,
    )


def _signature(findings: Findings) -> Iterator[tuple[str, str, str]]:
    """Name, axis types and shape of each tensor."""
    for name, axes in findings.symmetry.signature.items():
        if name in findings.shapes:
            shape = " × ".join(map(str, findings.shapes[name]))
            yield name, ", ".join(map(str, axes)) or "scalar", shape


def breakable(name: str) -> Markup:
    """An escaped name that a line may break after each dot."""
    return Markup("<wbr>").join(f"{part}." for part in name.split("."))[:-1]


def write_page(findings: Findings, path: Path) -> None:
    """Write the page, completely or not at all.

    Raises:
        CheckpointError: nothing can be written there.
    """
    write_text(render_page(findings), path, "--html")
