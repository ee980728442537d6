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

from paramsym.formats.errors import CheckpointError
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


MAP = {"smooth_layer": "a", "balance_layers": ["b"]}
REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ({"a": 1}, "no mappings"),
    "no readers": ([{"smooth_layer": "x"}], "without a writer or its readers"),
    "three": ([("a", "b", "c")], "without a writer"),
    "a number": (3, "a int"),
    "two tools": ({**FORMS["AWQ"], **FORMS["Quark"]}, "awq and quark"),
    "no entries": ({"AWQModifier": {"mappings": []}}, "without entries"),
    "an empty list": ([], "without entries"),
    "another version": ({"version": 2, "scaling_layers": [MAP]}, "version 2"),
    "a version of its own": ({"x": {"format_version": "3.1", "mappings": [MAP]}}, "version 3.1"),
    "a misspelt key": ([{**MAP, "ballance_layers": ["c"]}], "with 'ballance_layers'"),
    "a table to be inferred": (
        {"a": FORMS["AWQ"], "b": {"AWQModifier": {"mappings": None}}},
        "without a list of maps",
    ),
    "a modifier that is a list": ({"AWQModifier": [[MAP]]}, "without a list of maps"),
    "a modifier that is a word": ({"SmoothQuantModifier": "all"}, "without a list of maps"),
    "an empty modifier": ({"AWQModifier": None}, "without a list of maps"),
    "versions that are no numbers": ({"version": "-1", "mappings": [MAP]}, "version -1"),
    "a later version": ({"version": "v2", "mappings": [MAP]}, "version v2"),
    "half a character": ([{"smooth_layer": "\ud800", "balance_layers": ["b"]}], "without a writer"),
    "numbers": ([{"smooth_layer": 1, "balance_layers": [2]}], "without a writer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mapping_is_refused_in_four_parts(name: str) -> None:
    given, came = REFUSED[name]
    with pytest.raises(MappingError) as caught:
        read_mapping(given)
    error = caught.value
    assert error.where == "read_mapping" and came in error.came
    assert all(part and not part.endswith(".") for part in (error.expected, error.instead))


def test_keys_that_say_nothing_about_scales_are_read() -> None:
    known = {"activation_hook_target": "mlp", "inp": "b", "module2inspect": "m", "kwargs": {}}
    document = {"version": "1.0", "quant_config": {"version": "GEMM"}, "mappings": [MAP | known]}
    assert read_mapping(document).entries == (Entry("a", ("b",)),)


def test_a_tool_that_nobody_knows_is_refused() -> None:
    with pytest.raises(MappingError, match="tool='zip'"):
        read_mapping([MAP], "zip")


def test_an_entry_that_is_large_is_shown_in_part() -> None:
    large: Any = ["x"]
    for _ in range(40):  # as many entries as nobody can print
        large = [large] * 10
    with pytest.raises(MappingError, match="without a writer") as caught:
        read_mapping([{"smooth_layer": "a", "balance_layers": large}])
    assert len(str(caught.value)) < 600


def test_what_was_read_is_returned_and_lists_are_counted() -> None:
    twice = {f"stage_{k}": {"AWQModifier": {"mappings": [MAP, MAP]}} for k in range(2)}
    given = read_mapping(twice)
    assert [entry.modifier for entry in given.entries] == [0, 0, 1, 1]
    assert read_mapping(given) is given


def test_documents_without_end_are_refused(tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(MappingError, match="more than"):
        read_mapping({"a": ring})
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(MappingError, match="neither YAML nor JSON"):
        read_mapping(deep)
    laughs = tmp_path / "laughs.yaml"
    rows = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    laughs.write_text("a0: &a0 [x]\n" + "\n".join(rows))
    with pytest.raises(MappingError, match="more than"):
        read_mapping(laughs)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "a: [1"), ("a.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(MappingError, match=name):
            read_mapping(tmp_path / name)
    with pytest.raises(CheckpointError, match="missing"):
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
    for regex in ("(", "a{99999999999}", "(" * 3000 + "a" + ")" * 3000):
        with pytest.raises(Unresolved, match="no regex"):
            list(module_sets(NAMES, [f"re:{regex}", "re:.*up$"]))
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
