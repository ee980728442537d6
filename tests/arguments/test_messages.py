"""Messages are whole sentences: no stray comma, no doubled stop, no blank place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym import find_symmetry

SOURCE = Path(__file__).parents[2] / "src" / "paramsym"
MALFORMED = re.compile(r", (was|were) expected|[,;] ?[,;.] |[^.]\.\. | [,;.] |  +[a-z(]")


def messages(text: str) -> Iterator[str]:
    """The strings that are raised with an expectation, values written as {}."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def malformed(text: str) -> list[str]:
    told = (each for each in messages(text) if re.search(r"(was|were) expected", each))
    return [each for each in told if "\n" not in each and MALFORMED.search(each)]


def test_no_message_is_malformed() -> None:
    found = {str(path): malformed(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    assert not any(found.values()), {path: all_ for path, all_ in found.items() if all_}


@pytest.mark.parametrize(
    "text", ["f'{x} came, and one, or two, was expected'", "'a was expected.. Pass b'",
             "'it stopped at  (1). A number was expected'", "'a was expected,. Pass'"]
)  # fmt: skip
def test_a_malformed_one_would_be_seen(text: str) -> None:
    assert malformed(text)


def test_a_place_in_a_bare_sequential_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    symmetry = find_symmetry(model, (torch.randn(3, 4),))
    assert symmetry.spaces["mlp"].why == "relu acts on each coordinate at module 1"
    with pytest.raises(RuntimeError, match=r"4, 6\]\. .*stopped at module 0\.") as raised:
        find_symmetry(model, (torch.randn(3, 5),))
    assert not MALFORMED.search(str(raised.value))
    with pytest.raises(
        RuntimeError, match="the model has no parameters with entries, but at least one was"
    ):
        find_symmetry(nn.Sequential(), (torch.randn(3, 4),))
