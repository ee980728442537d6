"""Listings, tables and JSON: short, complete, and read back exactly."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from paramsym import ParameterSymmetry, Shift, Space, find_symmetry
from paramsym.algebra import GeneralLinear, Permutation, PositiveScaling, Scaling, Signs
from paramsym.structure.axes import parse_axis
from paramsym.structure.data import SymmetryData
from paramsym.structure.shift import Factor, Term, Window
from paramsym.structure.text import WIDTH, directions, notes_of
from tests.tracing.random_networks import RandomNetwork
from tests.tracing.zoo import ZOO, build, derived

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "first.md"


@pytest.fixture(scope="module")
def gpt2() -> ParameterSymmetry:
    import transformers

    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        inputs = (torch.zeros(1, 7, dtype=torch.long),)
    return find_symmetry(model.eval(), inputs)


def test_gpt2_fits_a_screen_as_the_tutorial_shows_it(gpt2: ParameterSymmetry) -> None:
    lines = str(gpt2).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= WIDTH == 120
    shown = "\n".join(lines[:7])
    assert shown in TUTORIAL.read_text(encoding="utf-8")
    assert "residual             Permutation(768)                  1 direction unread" in lines


def test_gpt2_is_a_small_file_and_comes_back(gpt2: ParameterSymmetry) -> None:
    text = gpt2.to_json()
    assert len(text.encode()) <= 40_000
    assert ParameterSymmetry.from_json(text) == gpt2
    assert list(ParameterSymmetry.from_json(text).signature) == list(gpt2.signature)
    assert ParameterSymmetry.from_json(text.replace("GeneralLinear", "Orthogonal")) != gpt2


def test_what_is_copied_or_changed_is_a_symmetry_again(gpt2: ParameterSymmetry) -> None:
    copied = pickle.loads(pickle.dumps(gpt2))
    assert type(copied) is ParameterSymmetry and copied == gpt2
    changed = replace(gpt2, dead=("made up",))
    assert type(changed) is ParameterSymmetry and changed != gpt2
    said = SymmetryData(**{f.name: getattr(gpt2, f.name) for f in fields(gpt2)})
    assert said != gpt2  # what it says is no symmetry that can be moved along


def test_the_table_has_every_tensor_and_every_reason(gpt2: ParameterSymmetry) -> None:
    table = gpt2.table()
    names = {line.split(" ")[0] for line in table.splitlines()}
    assert names >= {*gpt2.signature, *gpt2.spaces, *(s.name for s in gpt2.shifts)}
    assert "tanh acts on each coordinate at" in gpt2.spaces["h.3.mlp"].why
    assert gpt2.spaces["h.3.mlp"].why in table


def test_names_say_what_a_space_is_between(gpt2: ParameterSymmetry) -> None:
    layer = ["ln_1", "ln_2", "attn.head", "attn.qk", "attn.vo", "mlp"]
    assert {*gpt2.spaces} == {"residual", *(f"h.{n}.{x}" for n in range(12) for x in layer)}
    assert gpt2.spaces["h.0.ln_1"].over == ("residual",)
    assert gpt2.spaces["h.0.attn.qk"].over == ("h.0.attn.head",)
    assert gpt2.dimension("h.0.ln_1") == 768 and str(gpt2.group("h.0.ln_1")) == "Scaling(768)"
    kinds = {s.kind for s in gpt2.translations("h.0.ln_1")}
    assert kinds == {"origin", "absent"}
    assert {s.kind for s in gpt2.translations("residual")} == {"unread"}


@pytest.mark.parametrize("name", ZOO)
def test_every_structure_comes_back_from_its_json(name: str) -> None:
    model, _ = build(name)
    symmetry = derived(name)
    assert ParameterSymmetry.from_json(symmetry.to_json()) == symmetry
    assert max(map(len, str(symmetry).splitlines()), default=0) <= WIDTH


def everything() -> ParameterSymmetry:
    """A structure by hand in which no field is empty."""
    window = Window("w", "ab", (3, 2), (1, 3), 0)
    kernel = Factor(window, kernel=(Window("v", "xc", (3, 2), (2, 1)),))
    shift = Shift("s", "family", "a", (3,), (Term(window, 2.0, (Factor(window, -1.0, 0.5),), True),
                                             Term(window, -1.0, (kernel,))),
                  (Factor(window),), "unit", "origin")  # fmt: skip
    return ParameterSymmetry(
        {"unit": Space("unit", Permutation(3), why="gelu at model.py:3"),
         "sign": Space("sign", Signs(1), ("unit",), exact=False),
         "basis": Space("basis", GeneralLinear(2), ("unit",))},
        {"w": (parse_axis("(unit sign)"), parse_axis("basis[v + 1]*")), "v": (parse_axis("unit^2"),
         parse_axis("2")), "scalar": ()},
        (shift, Shift("t", "plain", "", (), (Term(window),))),
        ("dead",), {"alias": "w"}, {"w": 1.0}, ("v",), {"w": ("", "given")}, {"op": "model.py:9"},
        {"v": (0, 2)},
    )  # fmt: skip


def test_every_field_comes_back() -> None:
    symmetry = everything()
    assert ParameterSymmetry.from_json(symmetry.to_json()) == symmetry
    assert symmetry.signature["v"][0].factors == (("unit", Fraction(2)),)
    assert len(symmetry.table().splitlines()) > len(str(symmetry).splitlines())


def test_another_format_is_refused_and_says_what_to_do() -> None:
    data = json.loads(everything().to_json())
    for broken, said in [
        ({**data, "format": "paramsym/1"}, "format 'paramsym/1'.*Derive the symmetry anew"),
        ({k: v for k, v in data.items() if k != "format"}, "lacks or misspells 'format'"),
        ({**data, "spaces": [["unit"]]}, "lacks or misspells"),
        ([], "lacks or misspells"),
    ]:
        with pytest.raises(ValueError, match=said):
            ParameterSymmetry.from_json(json.dumps(broken))
    with pytest.raises(ValueError, match="from_json"):
        ParameterSymmetry.from_json("no json")


def test_an_order_carries_no_scales_of_its_own_size() -> None:
    spaces = {"a": Space("a", Permutation(3)), "b": Space("b", Scaling(3))}
    with pytest.raises(ValueError, match=r"One scalar per unit.*write '\(a b\)'"):
        ParameterSymmetry(spaces, {"w": (parse_axis("a⊙b"),)})
    scalars = {**spaces, "b": Space("b", PositiveScaling(1), ("a",))}
    right = ParameterSymmetry(scalars, {"w": (parse_axis("(a b)"),)})
    assert right.shape("w") == (3,) and right.dimension("b") == 3
    assert right.log_order() == pytest.approx(0.7781512503836436)  # 3! orders


def _unread(target: Window, letters: str, *kernel: Window, name: str = "s") -> Shift:
    """A change of `target` that nobody reads: behind a projector, or constant."""
    sizes = dict(zip(target.letters, target.shape, strict=True))
    sizes["i"] = target.shape[0]
    before = Window("v", "ai", (sizes["a"], sizes["i"]), (1, 1))
    factors = (Factor(before, kernel=kernel),) if kernel else ()
    shape = tuple(sizes[x] for x in letters)
    return Shift(name, "f", letters, shape, (Term(target, factors=factors),), None, "x", "unread")


def test_directions_of_a_projector_are_what_its_columns_leave() -> None:
    target = Window("w", "ab", (5, 2), (2, 1))
    kernel = _unread(target, "ib", Window("v", "xc", (5, 2), (2, 1)))
    plain = _unread(target, "b")
    assert kernel.dimension == 3 * 2 and plain.dimension == 2
    assert directions([kernel]) == (3, True) and directions([plain]) == (1, True)
    assert directions([kernel, plain]) == (4, True)
    assert directions([plain, plain]) == (1, True)  # once, however often it is said
    elsewhere = _unread(Window("u", "ab", (5, 2), (2, 1)), "b")
    assert directions([plain, elsewhere]) == (1, True)  # two tensors show the same direction


def test_directions_fill_an_axis_at_most() -> None:
    target = Window("w", "ab", (5, 2), (2, 1))
    one = _unread(target, "ib", Window("v", "xc", (5, 2), (2, 1)))
    other = _unread(target, "ib", Window("u", "xc", (5, 1), (1, 1)))
    assert directions([one, other]) == (5, True)
    none = _unread(target, "ib", Window("v", "xc", (5, 7), (7, 1)))
    assert directions([none]) == (0, True) and none.dimension == 0 and none.is_counted


def test_copies_of_a_kernel_are_no_columns() -> None:
    """One kernel for each of four heads: the columns of one head bound its kernel."""
    target = Window("w", "ab", (5, 4), (4, 1))
    heads = _unread(target, "ib", Window("v", "xcA", (5, 2, 4), (8, 4, 1)))
    assert directions([heads]) == (3, True) and heads.dimension == 3 * 4


def test_dependent_columns_are_counted_as_at_most() -> None:
    target = Window("w", "ab", (5, 2), (2, 1))
    twice = Window("v", "xc", (5, 2), (4, 1)), Window("v", "xc", (5, 2), (4, 1), 1)
    shift = _unread(target, "ib", *twice)  # the windows share a column
    assert not shift.is_counted and shift.dimension == 10  # all of δ
    assert notes_of([shift]) == ["at most 5 directions unread"]
    assert notes_of([_unread(target, "ib", twice[0])]) == ["3 directions unread"]


def test_reasons_name_the_function_that_was_written() -> None:
    network = RandomNetwork("v", [])
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.GELU(), torch.nn.Linear(4, 3))
    found = find_symmetry(model, (network.inputs.float(),))
    assert found.spaces["mlp"].why.startswith("gelu acts on each coordinate")
    plain = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    assert find_symmetry(plain, (network.inputs.float(),)).spaces["mlp"].why == ""
