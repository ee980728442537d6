"""The tutorial runs, and the notes' numerical claims hold."""

import re
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parents[2] / "docs"


def test_figures_of_the_tutorial_exist():
    text = (DOCS / "tutorials" / "relu.md").read_text(encoding="utf-8")
    for name in re.findall(r"\]\(\.\./(figures/[^)]+)\)", text):
        assert (DOCS / name).is_file()


def test_four_eps_do_not_bound_an_inner_product():
    terms = [1.0] + [2.0**-53] * 1000
    total = 0.0
    for t in terms:
        total += t
    exact = 1 + 1000 * 2.0**-53
    assert abs(exact - total) > 4 * np.finfo(float).eps * sum(abs(t) for t in terms) * 100


def test_api_page_names_exist():
    import importlib

    text = (DOCS / "reference" / "relu.md").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (\S+)", text, flags=re.M):
        head, _, tail = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(head), tail), name
