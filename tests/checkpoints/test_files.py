"""Reading and writing of weights, apart from any model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paramsym.checkpoints import CheckpointError, read_tensors, write_tensors
from paramsym.checkpoints.tensors import check_finite, check_layout, names_of, shared_storage
from paramsym.checkpoints.writing import staged

INDEX = "model.safetensors.index.json"


@pytest.fixture
def tensors(generator: torch.Generator) -> dict[str, torch.Tensor]:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    made = {f"t{k}": torch.randn(3, 4, generator=generator).to(d) for k, d in enumerate(dtypes)}
    return {**made, "steps": torch.tensor(7), "empty": torch.zeros(0, 3)}


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.pth", "a.bin"])
def test_what_is_written_is_read_back(tmp_path: Path, tensors, name: str):
    path = tmp_path / name
    write_tensors(path, tensors)
    found = dict(read_tensors(path))
    assert set(found) == set(tensors) == set(names_of(path))
    for key, tensor in tensors.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor)


def test_shards_are_written_like_those_that_were_read(tmp_path: Path, generator):
    a, b = (torch.randn(4, generator=generator) for _ in range(2))
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    save_file({"a": a}, source / "1.safetensors")
    save_file({"b": b}, source / "2.safetensors")
    table = {"a": "1.safetensors", "b": "2.safetensors"}
    (source / INDEX).write_text(json.dumps({"weight_map": table}))
    assert set(dict(read_tensors(source / INDEX))) == {"a", "b"}
    write_tensors(target / INDEX, {"a": -a, "b": -b}, source / INDEX)
    assert torch.equal(load_file(target / "2.safetensors")["b"], -b)
    assert torch.equal(dict(read_tensors(target / INDEX))["a"], -a)
    with pytest.raises(CheckpointError, match="not sharded"):
        write_tensors(target / INDEX, {"a": a}, source / "1.safetensors")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"weight_map": {"a": "../1.safetensors"}}', "files in other folders"),
        ('{"weight_map": {"b": "1.safetensors"}}', "'b' not in it"),
        ('{"weight_map": {"a": "3.safetensors"}}', "no such file"),
        ("{}", "the index cannot be read"),
        ('{"weight_map": {}}', "names no tensor"),
        ("[", "the index cannot be read"),
    ],
)
def test_a_bad_index_is_refused(tmp_path: Path, content: str, says: str):
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=says):
        dict(read_tensors(tmp_path / INDEX))


def test_headers_that_lie_are_refused(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(5)}, path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="too long"):
        dict(read_tensors(path))
    path.write_bytes((9).to_bytes(8, "little") + b"not json!")
    with pytest.raises(CheckpointError, match="header cannot be read"):
        dict(read_tensors(path))


@pytest.mark.parametrize("length", [640, 1152])
def test_a_header_that_begins_like_a_pickle_is_read(tmp_path: Path, length: int):
    path, header = tmp_path / "a.safetensors", b""
    for filler in range(2000):
        save_file({"a": torch.ones(5)}, path, metadata={"filler": "x" * filler})
        header = path.read_bytes()[:8]
        if int.from_bytes(header, "little") == length:
            break
    assert header[:2] in (b"\x80\x02", b"\x80\x04")
    assert torch.equal(dict(read_tensors(path))["a"], torch.ones(5))


def test_shared_storage_is_found_where_tensors_overlap():
    base = torch.zeros(10)
    assert shared_storage({"a": base[:5], "b": base[5:]}) == []
    assert shared_storage({"a": base[:6], "b": base[5:], "c": base.clone()}) == [["a", "b"]]
    assert shared_storage({"a": base, "b": base}) == [["a", "b"]]
    check_layout({"a": base, "b": base}, "here")  # a tie: for the model to say
    with pytest.raises(CheckpointError, match="different parts"):
        check_layout({"a": base[:6], "b": base[5:]}, "here")


def test_infinities_may_stand_in_masks_and_nan_nowhere():
    mask = torch.full((3,), -float("inf"))
    check_finite({"mask": mask, "steps": torch.tensor(3)}, "here", {"mask"})
    with pytest.raises(CheckpointError, match="-inf at"):
        check_finite({"mask": mask}, "here", set())
    with pytest.raises(CheckpointError, match=r"'x' holds nan at \[\]"):
        check_finite({"x": torch.tensor(float("nan"))}, "here", {"x"})
    low = torch.ones(3).to(torch.float8_e5m2)
    check_finite({"low": low}, "here", set())


def test_an_error_leaves_nothing_and_the_old_file_stays(tmp_path: Path):
    out = tmp_path / "out.txt"
    out.write_text("old")
    with pytest.raises(RuntimeError), staged(out, force=True) as draft:
        draft.write_text("half")
        raise RuntimeError
    assert out.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["out.txt"]
    with staged(out, force=True) as draft:
        draft.write_text("new")
        assert out.read_text() == "old"
    assert out.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def test_folders_appear_at_once_and_replace_none(tmp_path: Path):
    out = tmp_path / "folder"
    with staged(out) as draft:
        draft.mkdir()
        (draft / "a").write_text("1")
        assert not out.exists()
    assert (out / "a").read_text() == "1"
    with pytest.raises(CheckpointError, match="not empty"), staged(out):
        pass


def test_the_error_has_four_parts():
    error = CheckpointError("a.pt", "a stone came", "bread", "Bake")
    assert str(error) == "a.pt: a stone came. Expected bread. Bake."
    assert error.lines().splitlines()[1:] == [
        "  came      a stone came", "  expected  bread", "  instead   Bake",
    ]  # fmt: skip
