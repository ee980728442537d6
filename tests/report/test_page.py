"""Text, page and JSON, apart from a browser."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console

from paramsym import audit
from paramsym.algebra import GeneralLinear
from paramsym.checkpoints import CheckpointError
from paramsym.report import Findings, print_findings, render_page, to_json, write_page
from paramsym.report.collapse import collapse, common, template
from paramsym.report.drawing import draw
from paramsym.report.spectrum import spectrum
from paramsym.report.words import error_text, percent, plural, power_of_ten
from tests.models import Small

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}


class Balance(HTMLParser):
    """Checks that every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(findings, width: int = 80) -> str:
    stream = io.StringIO()
    print_findings(findings, Console(file=stream, width=width, highlight=False))
    return stream.getvalue()


@pytest.mark.parametrize("name", ["small", "hostile", "deep"])
def test_the_page_is_well_formed_and_asks_for_nothing(name, request):
    page = render_page(request.getfixturevalue(name))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    assert "@import" not in page and "url(" not in page and "http" not in page


def test_writing_is_atomic_and_its_errors_are_ours(small, tmp_path: Path):
    page = tmp_path / "page.html"
    write_page(small, page)
    write_page(small, page)
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(CheckpointError, match="nothing can be written"):
        write_page(small, tmp_path / "none" / "page.html")
    with pytest.raises(CheckpointError, match="nothing can be written there \\(Is a dir"):
        (tmp_path / "taken").mkdir()
        write_page(small, tmp_path / "taken")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "taken"]


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("name", ["small", "hostile", "deep"])
def test_the_terminal_shows_every_part(name, width, request):
    findings = request.getfixturevalue(name)
    shown = text_of(findings, width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert "parameters in" in shown and "Spaces" in shown and "Proof" in shown
    if name == "hostile":
        assert "Unknown operators" in shown and "pinv" in shown
    if name == "small":
        assert "unexplained" in shown


def test_an_audit_that_was_refused_says_why(small):
    refused = replace(small, audit=None, audit_refused="It would need 4 TB.")
    assert "It would need 4 TB." in text_of(refused)
    assert "It would need 4 TB." in render_page(refused)


def test_json_has_no_numbers_that_json_lacks(deep):
    assert json.loads(to_json(deep))["verification"]["rows"]


def test_repeated_layers_are_one_row(deep):
    names = list(deep.symmetry.signature)
    groups = collapse(names, str, lambda name: "")
    assert [g.label for g in groups if g.count == 12][0] == "layers.{0..11}.up.weight"
    assert sum(group.count for group in groups) == len(names)
    assert [g.label for g in collapse(names[:5], str, lambda name: "")] == names[:5]


def test_only_numbers_between_dots_repeat():
    assert template("layers.3.up.12.bias in GeneralLinear(64)") == (
        "layers.*.up.*.bias in GeneralLinear(64)"
    )
    assert common(["a.0.b", "a.1.b", "a.2.b"]) == "a.{0..2}.b"
    assert common(["a.0.b", "a.4.b"]) == "a.{0,4}.b"
    assert common(["a.0.b.1", "a.1.b.1"]) == "a.{0,1}.b.1"
    assert common([f"a.{n}" for n in (0, 1, 2, 5, 7, 8)]) == "a.{0..2,5,7,8}"
    assert common([f"a.{n}" for n in range(3, 80, 4)]) == "a.{3..79..4}"


@pytest.mark.parametrize("name", ["small", "deep"])
def test_lanes_do_not_overlap_and_marks_lie_on_them(name, request):
    picture = draw(request.getfixturevalue(name))
    for lane in picture.lanes:
        assert 0 < lane.x < picture.width and lane.top <= lane.bottom < picture.height
        for other in picture.lanes:
            if other is not lane and other.x == lane.x:
                assert other.bottom < lane.top or other.top > lane.bottom
    places = {lane.x for lane in picture.lanes}
    assert picture.marks and all(mark.x in places for mark in picture.marks)
    labels = sorted(lane.label_y for lane in picture.lanes)
    assert all(b - a >= 15 for a, b in zip(labels, labels[1:], strict=False))
    rows = [row.y for row in picture.rows]
    assert rows == sorted(rows)
    if name == "deep":
        assert picture.blocks[0].label == "layers.{0..11}" and picture.blocks[0].count == 12


@pytest.fixture(scope="session")
def doubtful(small) -> Findings:
    """The same network, audited with a symmetry that lacks its shifts and makes a false claim."""
    model, inputs = Small(), (torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),)
    name, space = next(iter(small.symmetry.spaces.items()))
    wrong = replace(small.symmetry, shifts=(), spaces={
        **small.symmetry.spaces, name: replace(space, group=GeneralLinear(space.size)),
    })  # fmt: skip
    return replace(small, audit=audit(model, inputs, symmetry=wrong))


def test_a_doubtful_audit_says_what_and_where(small, doubtful):
    for shown in (text_of(doubtful), render_page(doubtful), to_json(doubtful)):
        assert "is refuted: a unit direction" in " ".join(shown.split())
        assert "ertified complete" not in shown
    assert "certified complete" in text_of(small) and "Certified complete" in render_page(small)
    assert json.loads(to_json(doubtful))["audit"]["refuted"]


def test_values_that_were_not_computed_leave_a_gap(small):
    values = small.audit.singular_values.clone()
    values[2:9] = float("nan")
    found = spectrum(replace(small.audit, singular_values=values))
    assert found is not None and found.known == found.count - 7 == len(found.points)
    assert "was not computed" in render_page(
        replace(small, audit=replace(small.audit, singular_values=values))
    )


def test_the_spectrum_shows_the_gap(small):
    found = spectrum(small.audit)
    assert found is not None and found.gap is not None and found.zeros == small.audit.nullity
    assert [zero for *_, zero in found.points].count(True) == found.zeros
    assert all(0 < x < 640 and 0 < y < 250 for x, y, _ in found.points)


def test_numbers_are_written_for_readers():
    assert power_of_ten(0) == "1" and power_of_ten(2.0) == "100" and power_of_ten(37.2) == "10^37"
    assert error_text(4.2e-16) == "4.2e-16" and error_text(1.44) == "1.4" and error_text(0) == "0"
    assert error_text(None) == "–" and error_text(float("inf")) == "∞"
    assert (
        percent(0.0123) == "1.23 %" and percent(0.995) == "99.5 %" and percent(1e-6) == "< 0.01 %"
    )
    assert plural(1, "tensor") == "1 tensor" and plural(2000, "tensor") == "2,000 tensors"
