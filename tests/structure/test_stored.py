"""Elements on file: every number comes back, as safetensors and as text, and nothing else does."""

from __future__ import annotations

import json
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from paramsym import AlgebraElement, GroupElement, ParameterSymmetry, Shift, Space, act
from paramsym.algebra import (
    ComplexScaling,
    Element,
    GeneralLinear,
    Monomial,
    Orthogonal,
    PositiveScaling,
    Tangent,
    Wreath,
)
from paramsym.formats.drafts import replacing
from paramsym.formats.errors import CheckpointError
from paramsym.formats.weights import metadata_of
from paramsym.structure import stored
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import Slide
from paramsym.structure.shift import Term, Window
from paramsym.structure.stored_text import LIMIT
from tests.elements import numbers, same

HALF = (torch.bfloat16, torch.float16)  # complex numbers have no such halves
SUFFIXES = ["json", "safetensors"]


def symmetry_by_hand() -> ParameterSymmetry:
    """Orders, scales, matrices, complex factors, copies, a base of its own, and a shift."""
    spaces = {
        "m": Space("m", Monomial(3)),
        "h": Space("h", PositiveScaling(3)),
        "v.basis": Space("v.basis", GeneralLinear(2)),
        "z": Space("z", ComplexScaling(2), over=("h",)),
        "w": Space("w", Wreath(Orthogonal(2), 2)),
    }
    types = {"a": "m, v.basis", "b": "v.basis*, 4", "q": "(h z), 5", "turn": "w, m*"}
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    shift = Shift("shift:b", "f", "a", (4,), (Term(Window("b", "ba", (2, 4), (4, 1))),))
    return ParameterSymmetry(spaces, signature, (shift,))


def drawn(dtype: torch.dtype = torch.float64, number: int = 0) -> GroupElement:
    return symmetry_by_hand().sample(torch.Generator().manual_seed(number), dtype=dtype)


def velocity() -> AlgebraElement:
    symmetry, draw = symmetry_by_hand(), torch.Generator().manual_seed(0)
    values = {
        n: s.group.random_algebra(draw, tuple(symmetry.spaces[b].size for b in s.over))
        for n, s in symmetry.spaces.items()
    }
    return AlgebraElement(symmetry, values, {"shift:b": torch.randn(4, generator=draw)})


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_every_dtype_comes_back_exactly(dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    symmetry = symmetry_by_hand()
    g, h = (drawn(number=k) for k in range(2))
    word = g @ ~h @ g
    parts = [
        Slide(p.shift, p.offset.to(dtype), p.inverse) if isinstance(p, Slide)
        else {n: v.to(dtype) for n, v in p.items() if n != "z" or dtype not in HALF}
        for p in word.parts
    ]  # fmt: skip
    narrow = GroupElement(symmetry, tuple(parts))
    kinds = {x.dtype for _, x in numbers(narrow)}
    assert kinds == {dtype, torch.long} | ({dtype.to_complex()} if dtype not in HALF else set())
    path = tmp_path / f"element.{suffix}"
    narrow.save(path)
    back = GroupElement.load(path, symmetry)
    assert same(numbers(back), numbers(narrow))
    assert not same(numbers(back), numbers(word)) or dtype == torch.float64
    assert any("base/" in name for name, _ in numbers(back))  # of the wreath product


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_velocities_come_back_exactly(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"velocity.{suffix}"
    velocity().save(path)
    back = AlgebraElement.load(path, symmetry_by_hand())
    assert same(numbers(back), numbers(velocity()))
    assert not same(numbers(back), numbers(AlgebraElement(back.symmetry, back.values, {})))


def test_text_can_be_read_and_written_by_hand(tmp_path: Path) -> None:
    symmetry = symmetry_by_hand()
    path = tmp_path / "element.json"
    symmetry.element(m=([2, 0, 1], [0.1, 1.0, 1e-300])).save(path)
    text = path.read_text()
    assert text.splitlines() == [
        "{",
        '"format": "paramsym-element/1",',
        '"kind": "GroupElement",',
        f'"fingerprint": "{symmetry.fingerprint}",',
        '"parts": [{"spaces": ["m"]}],',
        '"tensors": {',
        ' "0.order.m": {"dtype": "int64", "shape": [3], "values": [2, 0, 1]},',
        ' "0.diagonal.m": {"dtype": "float64", "shape": [3], "values": [0.1, 1.0, 1e-300]}',
        "}",
        "}",
    ]
    path.write_text(text.replace("1e-300", "7"))
    value = GroupElement.load(path, symmetry)["m"]
    assert isinstance(value, Element) and value.diagonal is not None
    assert value.diagonal.tolist() == [0.1, 1.0, 7.0]
    (tmp_path / "renamed").write_bytes(path.read_bytes())  # what a file is, its contents say
    assert GroupElement.load(tmp_path / "renamed", symmetry)["m"] is not None
    symmetry.identity().save(path)
    assert GroupElement.load(path, symmetry).parts == ()


def test_what_is_large_or_too_narrow_is_no_text(tmp_path: Path) -> None:
    n = LIMIT + 1
    symmetry = ParameterSymmetry({"m": Space("m", Monomial(n))}, {"a": (parse_axis("m"),)})
    large = symmetry.element(m=torch.ones(n))
    said = r"save\('.*json'\): 100,001 numbers came, most.*'0.diagonal.m'.*100,000.*\.safetensors"
    with pytest.raises(ValueError, match=said):
        large.save(tmp_path / "element.json")
    assert not [*tmp_path.iterdir()]
    large.save(tmp_path / "element.safetensors")
    tiny = torch.ones(3).to(torch.float8_e4m3fn)
    three = ParameterSymmetry({"m": Space("m", Monomial(3))}, {"a": (parse_axis("m"),)})
    with pytest.raises(ValueError, match=r"'0.diagonal.m' has dtype float8_e4m3fn, .*int64.*Conv"):
        GroupElement(three, ({"m": Element(diagonal=tiny)},)).save(tmp_path / "element.json")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_could_not_be_read_back_is_not_written(suffix: str, tmp_path: Path) -> None:
    symmetry, path = symmetry_by_hand(), tmp_path / f"element.{suffix}"
    symmetry.element(m=torch.ones(3)).save(path)
    before = path.read_bytes()
    nan = Slide("shift:b", torch.tensor([1.0, 2.0, 3.0, float("nan")]))
    for part, says in (
        (nan, "finite real numbers"),
        ({"m": Element(diagonal=torch.ones(64, 4))}, r"shape \(64, 4\)"),
        ({"m": Element(diagonal=-torch.ones(3))}, "outside the group Monomial"),
        ({"nobody": Element()}, "nobody"),
    ):
        with pytest.raises(ValueError, match=rf"save\('.*\): what came .*{says}.*leading"):
            GroupElement(symmetry, (part,)).save(path)
    turned = Tangent(matrix=torch.eye(2))
    with pytest.raises(ValueError, match=r"AlgebraElement.save\(.*'matrix', which Wreath"):
        AlgebraElement(symmetry, {"w": turned}, {}).save(path)
    assert path.read_bytes() == before


# -- what others write -----------------------------------------------------------------------------


def refused(path: Path, symmetry: ParameterSymmetry, kind: type = GroupElement) -> str:
    """The four parts of a refusal: where, what came, what was expected, what to do."""
    with pytest.raises(ValueError) as error:
        kind.load(path, symmetry)
    said = str(error.value)
    assert said.startswith(f"{kind.__name__}.load('{path}'): the file "), said
    assert "xpected" in said or "was given" in said, said
    assert said.rstrip(".").split(". ")[-1].startswith(("Check the path", "Pass a file", "An el"))
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("whole") / "element.json"
    drawn().save(path)
    return path.read_text()


ONES = {"dtype": "float64", "shape": [3], "values": [1.0, 1.0, 1.0]}
DIAGONAL = "0.diagonal.m"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "paramsym/2"}, "format 'paramsym/2'"),
        ({"format": ["x"]}, "format 'list'"),
        ({"kind": "AlgebraElement"}, "kind 'AlgebraElement'"),
        ({"fingerprint": 5}, "the symmetry int"),
        ({"fingerprint": "0" * 64}, "the symmetry 000000000000"),
        ({"parts": 5}, "TypeError"),
        ({"parts": [5]}, "TypeError"),
        ({"parts": []}, "IndexError"),
        ({"parts": [{"spaces": ["nobody"]}]}, "nobody"),
        ({"parts": [{"shift": "shift:b", "inverse": 1}]}, "'inverse'"),
        ({"tensors": []}, "AttributeError"),
        ({"tensors": {"0": ONES}}, "unpack"),
        ({"tensors": {"0.color.m": ONES}}, "color"),
        ({"tensors": {"0.matrix.m": ONES}}, "'matrix', which Monomial"),
        ({"tensors": {DIAGONAL: {**ONES, "values": [1.0, 1.0]}}}, r"the shape \[3\]"),
        ({"tensors": {DIAGONAL: {**ONES, "shape": [2], "values": [1.0, 1.0]}}}, r"\(2,\)"),
        ({"tensors": {DIAGONAL: {**ONES, "values": [1.0, 1.0, -1.0]}}}, "outside the group"),
        ({"tensors": {DIAGONAL: {**ONES, "values": [1.0, 1.0, 10**400]}}}, "Overflow"),
        ({"tensors": {DIAGONAL: {**ONES, "values": [1.0, 1.0, True]}}}, "finite numbers"),
        ({"tensors": {DIAGONAL: {**ONES, "values": [1.0, 1.0, "1.0"]}}}, "finite numbers"),
        ({"tensors": {DIAGONAL: {**ONES, "dtype": "float16", "values": [1, 1, 1e9]}}}, "range of"),
        ({"tensors": {DIAGONAL: {**ONES, "dtype": "object"}}}, "KeyError"),
        ({"tensors": {DIAGONAL: {**ONES, "shape": [0, 10**30], "values": []}}}, "Error"),
        ({"tensors": {DIAGONAL: {**ONES, "dtype": "int64", "values": [1, 1, 1]}}}, "torch.int64"),
        ({"tensors": {"0.order.m": {**ONES, "dtype": "int64", "values": [0, 0, 1]}}}, "outside"),
        ({"tensors": {"0.order.m": {**ONES, "dtype": "int64", "values": [0, 1, 9]}}}, "outside"),
        ({"tensors": {"0.order.m": {**ONES, "dtype": "int64", "values": [0, 1, 2**70]}}}, "Error"),
        ({"tensors": {"0.order.m": ONES}}, "torch.float64"),
    ],
)
def test_malformed_text_is_told(change: dict, says: str, whole: str, tmp_path: Path) -> None:
    data = {**json.loads(whole), "parts": [{"spaces": ["m"]}], "tensors": {DIAGONAL: ONES}}
    path = tmp_path / "element.json"
    path.write_text(json.dumps(data))
    assert GroupElement.load(path, symmetry_by_hand()).parts  # the negative control
    path.write_text(json.dumps({**data, **change}))
    assert re.search(says, refused(path, symmetry_by_hand()))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", "no json", "\ufeff{}", "{}", "[" * 200_000, '{"a":' * 200_000,
     '{"format": NaN}', "{\x00}", "9" * 10_000],
)  # fmt: skip
def test_text_that_is_no_element_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "element.json"
    path.write_text(text)
    refused(path, symmetry_by_hand())
    path.write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    refused(path, symmetry_by_hand())
    with pytest.raises(FileNotFoundError):  # what is no file is the system's to tell
        GroupElement.load(tmp_path / "none.json", symmetry_by_hand())


def test_numbers_that_json_does_not_have_are_told(whole: str, tmp_path: Path) -> None:
    path = tmp_path / "element.json"
    number = str(json.loads(whole)["tensors"][DIAGONAL]["values"][0])
    for odd in ("NaN", "Infinity", "-Infinity", "1e999"):
        path.write_text(whole.replace(number, odd))
        assert odd in refused(path, symmetry_by_hand()) or odd == "1e999"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_ends_early_is_told(suffix: str, tmp_path: Path) -> None:
    symmetry, path = symmetry_by_hand(), tmp_path / f"element.{suffix}"
    drawn().save(path)
    content = path.read_bytes().rstrip()
    for end in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:end])
        refused(path, symmetry)


def reheaded(path: Path, change: dict[str, Any]) -> None:
    """The same file with another header over its numbers."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps({**json.loads(content[8 : 8 + length]), **change}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"more": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}, "begin at"),
        ({"__metadata__": {"format": 3}}, "no table of texts"),
        ({"0.scale.h": {"dtype": "F64", "shape": [2]}}, "no table of dtype"),
    ],
)
def test_the_header_of_a_file_is_compared_with_it(change, says: str, tmp_path: Path) -> None:
    path = tmp_path / "element.safetensors"
    drawn().save(path)
    reheaded(path, change)
    if change:
        assert says in refused(path, symmetry_by_hand())
        with pytest.raises(CheckpointError, match=says):
            metadata_of(path)
    else:
        assert same(numbers(GroupElement.load(path, symmetry_by_hand())), numbers(drawn()))


def test_what_is_no_element_is_told_before_its_tensors_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "element.safetensors"
    save_file({"weight": torch.ones(3)}, path)
    monkeypatch.setattr(stored, "read_safetensors", lambda path: pytest.fail("it was read"))
    assert "the file says format None" in refused(path, symmetry_by_hand())


POOL: list[Any] = [None, True, -1, 2, 1.5, 10**40, "x", "", [], {}, [[]], [1.0], {"spaces": ["m"]}]


def places(node: Any, path: tuple = ()) -> Iterator[tuple]:
    """Every place in a JSON value."""
    yield path
    items = {dict: lambda: node.items(), list: lambda: enumerate(node)}.get(type(node), tuple)
    for key, value in items():
        yield from places(value, (*path, key))


@seed(20261121)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(POOL), st.sampled_from(SUFFIXES))
def test_whatever_stands_in_a_file_it_is_an_element_or_told(
    tmp_path: Path, whole: str, number: int, other: Any, suffix: str
) -> None:
    """A value anywhere is replaced by another one; as safetensors, in the header."""
    data, symmetry, path = json.loads(whole), symmetry_by_hand(), tmp_path / f"element.{suffix}"
    found = [p for p in places(data if suffix == "json" else data["parts"]) if p]
    place = found[number % len(found)]
    node = data if suffix == "json" else data["parts"]
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = other
    if suffix == "json":
        path.write_text(json.dumps(data))
    else:
        drawn().save(path)
        with safe_open(path, framework="pt") as file:
            held = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
            save_file(held, path, {**file.metadata(), "parts": json.dumps(data["parts"])})
    try:
        element = GroupElement.load(path, symmetry)
    except ValueError:
        refused(path, symmetry)
        return
    state = {n: torch.ones(symmetry.shape(n), dtype=torch.float64) for n in symmetry.signature}
    assert all(x.isfinite().all() for x in act(symmetry, element, state).values())


def test_velocities_outside_the_algebra_are_told(tmp_path: Path) -> None:
    symmetry, path = symmetry_by_hand(), tmp_path / "velocity.json"
    skew = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).expand(2, 2, 2)
    AlgebraElement(symmetry, {"w": Tangent(base=Tangent(matrix=skew))}, {}).save(path)
    assert AlgebraElement.load(path, symmetry).values.keys() == {"w"}
    path.write_text(path.read_text().replace("-1.0", "-2.0"))
    assert "outside the Lie algebra" in refused(path, symmetry, AlgebraElement)
    path.write_text(path.read_text().replace("base/matrix", "order"))
    refused(path, symmetry, AlgebraElement)
    assert "kind 'AlgebraElement'" in refused(path, symmetry)


def test_a_long_product_that_has_lost_digits_is_still_an_element(tmp_path: Path) -> None:
    symmetry = ParameterSymmetry({"r": Space("r", Orthogonal(5))}, {"a": (parse_axis("r"),)})
    draw = torch.Generator().manual_seed(0)
    word = symmetry.identity()
    for _ in range(1000):
        word = symmetry.sample(draw, dtype=torch.float32) @ word
    value = word["r"]
    assert isinstance(value, Element) and value.matrix is not None
    assert (value.matrix.mT @ value.matrix - torch.eye(5)).abs().max() > 1e-6
    word.save(tmp_path / "element.json")
    assert same(numbers(GroupElement.load(tmp_path / "element.json", symmetry)), numbers(word))


# -- replacing -------------------------------------------------------------------------------------


def test_files_and_folders_take_their_place_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    with pytest.raises(RuntimeError), replacing(out) as draft:
        draft.write_text("half")
        raise RuntimeError
    assert out.read_text() == "old" and [*tmp_path.iterdir()] == [out]
    with replacing(out, 0o640) as draft:
        draft.write_text("new")
        assert out.read_text() == "old"
    assert out.read_text() == "new" and [*tmp_path.iterdir()] == [out]
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    with replacing(tmp_path / "folder") as draft:
        draft.mkdir()
        (draft / "a").write_text("1")
    assert (tmp_path / "folder" / "a").read_text() == "1"
    with pytest.raises(OSError), replacing(tmp_path / "none" / "out"):
        raise AssertionError("the block is not entered")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_element_is_for_its_owner_alone(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"element.{suffix}"
    drawn().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_loaded_element_moves_to_the_same_bits(suffix: str, tmp_path: Path) -> None:
    """A sampled rotation does not lie row by row; products round by how numbers lie."""
    space = Space("h", Orthogonal(6))
    symmetry = ParameterSymmetry({"h": space}, {"w": (parse_axis("h"), parse_axis("5"))})
    state = {"w": torch.randn(6, 5, generator=torch.Generator().manual_seed(0))}
    for number in range(5):
        g = symmetry.sample(torch.Generator().manual_seed(number))
        for element in (g, ~g):
            element.save(tmp_path / f"g.{suffix}")
            back = GroupElement.load(tmp_path / f"g.{suffix}", symmetry)
            assert torch.equal(act(symmetry, back, state)["w"], act(symmetry, element, state)["w"])
