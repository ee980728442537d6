"""Reading mappings as people have them, and resolving them as compressed-tensors does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paramsym.interop.entries import Entry, MappingError, read_mapping, resolved
from paramsym.interop.maps import ScaleMap
from paramsym.interop.matching import Unresolved, common_ancestor, module_sets
from paramsym.interop.parts import module_names

NAMES = [
    f"layers.{k}.{name}"
    for k in range(2)
    for name in ("self_attn", "self_attn.q_proj", "self_attn.k_proj", "mlp", "mlp.experts",
                 "mlp.experts.0", "mlp.experts.0.up", "mlp.experts.1", "mlp.experts.1.up", "norm")
]  # fmt: skip
ENTRY = Entry("re:.*norm$", ("re:.*q_proj$",))
FORMS: dict[str, Any] = {
    "AWQ": {"s": {"m": {"AWQModifier": {"mappings": [
        {"smooth_layer": "re:.*norm$", "balance_layers": ["re:.*q_proj$"]}]}}}},
    "SmoothQuant": {"s": {"m": {"SmoothQuantModifier": {"mappings": [
        [["re:.*q_proj$"], "re:.*norm$"]]}}}},
    "objects": [SimpleNamespace(smooth_layer="re:.*norm$", balance_layers=["re:.*q_proj$"])],
    "layer maps": [SimpleNamespace(smooth_layers="re:.*norm$", balance_layers=["re:.*q_proj$"])],
    "AutoAWQ": [{"prev_op": "re:.*norm$", "layers": ["re:.*q_proj$"], "inp": "x"}],
    "Quark": {"name": "awq", "scaling_layers": [
        {"prev_op": "re:.*norm$", "layers": ["re:.*q_proj$"]}]},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    assert read_mapping(FORMS[form]).entries == (ENTRY,)


def test_files_are_read_by_what_they_hold(tmp_path: Path) -> None:
    for name, text in (("a.yaml", yaml.safe_dump(FORMS["SmoothQuant"])),
                       ("a.json", json.dumps(FORMS["Quark"]))):  # fmt: skip
        (tmp_path / name).write_text(text)
    assert read_mapping(tmp_path / "a.yaml").tool == "smoothquant"
    assert read_mapping(str(tmp_path / "a.json")).tool == "quark"


@pytest.mark.parametrize(
    "given",
    [{"a": 1}, [{"smooth_layer": "x"}], [("a", "b", "c")], 3, {**FORMS["AWQ"], **FORMS["Quark"]}],
    ids=["nothing", "no readers", "three", "a number", "two tools"],
)
def test_what_is_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(MappingError, match=r"(?s)read_mapping: .*Expected"):
        read_mapping(given)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "a: [1"), ("a.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(MappingError, match=name):
            read_mapping(tmp_path / name)
    with pytest.raises(MappingError, match="missing"):
        read_mapping(tmp_path / "missing.yaml")


def test_sets_are_grouped_by_their_common_ancestor() -> None:
    found = list(module_sets(NAMES, ["re:.*q_proj$", "re:.*up$"]))
    assert found == [
        [[f"layers.{k}.self_attn.q_proj"], [f"layers.{k}.mlp.experts.{e}.up" for e in range(2)]]
        for k in range(2)
    ]


def test_a_set_that_is_incomplete_or_matched_twice_is_refused() -> None:
    with pytest.raises(Unresolved, match="nothing matches 're:nowhere'"):
        list(module_sets(NAMES, ["re:.*q_proj$", "re:nowhere"]))
    with pytest.raises(Unresolved, match="is matched by"):
        list(module_sets(NAMES, ["re:.*q_proj$", "re:.*_proj$"]))
    with pytest.raises(Unresolved, match="no regex"):
        list(module_sets(NAMES, ["re:(", "re:.*up$"]))
    assert list(module_sets(NAMES, ["re:x", "re:y"])) == []


@given(st.lists(st.sampled_from([*NAMES, "nowhere"]), min_size=1, max_size=5, unique=True))
def test_exact_names_mean_what_their_regexes_mean(targets: list[str]) -> None:
    def sets(targets: list[str]) -> Any:
        try:
            return [*module_sets(NAMES, targets)]
        except Unresolved:
            return "unresolved"

    assert sets(targets) == sets([f"re:{re.escape(name)}$" for name in targets])


def test_ancestors() -> None:
    assert common_ancestor(["a.b.c", "a.b.d"]) == "a.b"
    assert common_ancestor(["a.b.c"]) == "a.b.c"
    assert common_ancestor(["a.bc", "a.b"]) == "a"
    assert common_ancestor(["a", "b"]) == ""


def test_names_inside_layers_are_repeated() -> None:
    layers = nn.ModuleList(
        nn.ModuleDict({"norm": nn.LayerNorm(3), "q": nn.Linear(3, 3)}) for _ in range(2)
    )
    model = nn.ModuleDict({"layers": layers})
    found = resolved(Entry("norm", ("q",), "layers"), module_names(model))
    assert found == [ScaleMap(f"layers.{k}.norm", (f"layers.{k}.q",)) for k in range(2)]
    with pytest.raises(Unresolved, match="no layer"):
        resolved(Entry("norm", ("k",), "layers"), module_names(model))
