"""Checkpoints are opened without being read, and what is wrong with them is said at once."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from paramsym.checkpoints import Checkpoint, CheckpointError
from tests.checkpoints.streaming.conftest import Saved, contents

INDEX = "model.safetensors.index.json"


def opened(path: Path | str, says: str) -> None:
    with pytest.raises(CheckpointError) as error:
        Checkpoint.open(path)
    assert says in str(error.value), str(error.value)


def reindexed(saved: Saved, change) -> None:
    path = saved.path / INDEX
    said = json.loads(path.read_text())
    change(said["weight_map"])
    path.write_text(json.dumps(said))


def test_a_folder_its_index_and_a_file_are_the_tensors_in_them(saved: Saved) -> None:
    state = saved.state()
    for source in (saved.path, saved.path / INDEX):
        checkpoint = Checkpoint.open(source)
        assert set(checkpoint) == set(state) and len(checkpoint) == len(state)
        assert all(torch.equal(checkpoint[name], state[name]) for name in state)
        assert len(checkpoint.files) > 2 and "tensors" in repr(checkpoint)
    shard = sorted(saved.path.glob("*.safetensors"))[0]
    alone = Checkpoint.open(shard)
    assert all(torch.equal(alone[name], t) for name, t in load_file(shard).items())


@pytest.mark.parametrize("dtype", [
    torch.bool, torch.int8, torch.uint16, torch.int64, torch.float8_e4m3fn, torch.bfloat16,
    torch.float64, torch.complex64,
])  # fmt: skip
def test_every_kind_of_number(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.arange(12).view(3, 4).to(dtype)
    tensors = {"x": x, "scalar": x[0, 1].clone(), "none": x[:0].clone()}
    save_file(tensors, tmp_path / "x.safetensors")
    checkpoint = Checkpoint.open(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        found = checkpoint[name]
        assert found.dtype == dtype and found.shape == tensor.shape
        assert torch.equal(found.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


def test_a_url_is_read_as_a_folder_is(saved: Saved) -> None:
    memory = fsspec.filesystem("memory")
    for name, data in contents(saved.path).items():
        memory.pipe(f"/bucket/model/{name}", data)
    checkpoint = Checkpoint.open("memory://bucket/model")
    assert all(torch.equal(checkpoint[name], t) for name, t in saved.state().items())
    memory.rm("/bucket", recursive=True)
    opened("memory://bucket/model", "there is no such file or folder")
    opened("nowhere://bucket/model", "it cannot be read")


def test_a_missing_shard(saved: Saved) -> None:
    first = sorted(saved.path.glob("*.safetensors"))[0]
    first.unlink()
    opened(saved.path, f"it names {first.name!r}: there is no such file")
    (saved.path / INDEX).unlink()
    opened(saved.path, "and no index")
    alone = saved.path.parent / "alone"
    alone.mkdir()
    sorted(saved.path.glob("*.safetensors"))[0].rename(alone / "model-00001-of-00002.safetensors")
    opened(alone, "1 shards")


def test_a_tensor_in_two_shards(saved: Saved) -> None:
    one, two, *_ = sorted(saved.path.glob("*.safetensors"))
    extra = dict(list(load_file(one).items())[:1])
    save_file({**load_file(two), **extra}, two, metadata={"format": "pt"})
    opened(saved.path, "stands in")


def test_an_index_that_lies(saved: Saved) -> None:
    names = sorted(p.name for p in saved.path.glob("*.safetensors"))

    def elsewhere(table: dict[str, str]) -> None:
        files = [*table.values()]
        name = next(n for n, file in table.items() if files.count(file) > 1)
        table[name] = next(n for n in names if n != table[name])

    original = (saved.path / INDEX).read_text()
    reindexed(saved, elsewhere)
    opened(saved.path, "which has it not, but")
    (saved.path / INDEX).write_text(original)
    reindexed(saved, lambda table: table.pop(next(
        n for n, file in table.items() if [*table.values()].count(file) > 1
    )))  # fmt: skip
    opened(saved.path, "it does not name")
    (saved.path / INDEX).write_text(original)
    reindexed(saved, lambda table: table.update(ghost=names[0]))
    opened(saved.path, "which has it not")
    doubled = original.replace('"weight_map": {', '"weight_map": {"lm_head.weight": "x",', 1)
    (saved.path / INDEX).write_text(doubled)
    opened(saved.path, "a name stands in it twice")
    (saved.path / INDEX).write_text("{")
    opened(saved.path, "the index cannot be read")


def test_a_shard_that_was_cut_short(saved: Saved) -> None:
    shard = sorted(saved.path.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-3])
    opened(saved.path, "cut short")
    opened(saved.path.parent / "nothing", "there is no such file or folder")
