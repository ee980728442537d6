"""Inputs from files: every format, batches that fit the model, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from paramsym.checkpoints import CheckpointError, Source, open_checkpoint
from paramsym.checkpoints.data import SAMPLES, open_data

SMALL = "tests.models:Small"
BOTH = "tests.models:two_inputs"
TOKENS = "tests.models:Tied"


def small() -> Source:
    return open_checkpoint(SMALL)


def both() -> Source:
    return open_checkpoint(BOTH, inputs="x=2x4,y=2x3")


def together(batches: list, key: object = 0) -> torch.Tensor:
    return torch.cat([batch[key] for batch in batches])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize("name", ["x", "images", "arr_0"])
def test_every_format_gives_the_samples_of_one_input(
    tmp_path: Path, suffix: str, name: str
) -> None:
    x, path = torch.randn(70, 5, dtype=torch.float64), tmp_path / f"data{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, **{name: x.numpy()})
    elif suffix == ".pt":
        torch.save({name: x}, path)
    else:
        save_file({name: x}, path)
    data = open_data(small(), path)
    assert torch.equal(together(data.batches), x.float())
    assert [len(b[0]) for b in data.batches] == [32, 32, 6]
    assert data.notes == (f"{path.name}: 70 of 70 samples are used",)
    calibration, held_out = data.halves("--data")
    assert [len(calibration), len(held_out)] == [2, 1]
    assert torch.equal(held_out[0][0], x[32:64].float())


def test_a_tensor_alone_and_a_tuple_are_inputs_in_order(tmp_path: Path) -> None:
    x, path = torch.randn(4, 5), tmp_path / "x.pt"
    torch.save(x, path)
    assert torch.equal(together(open_data(small(), path).batches), x)
    torch.save((torch.randn(4, 4), torch.randn(4, 3)), path)
    found = open_data(both(), path)
    assert together(found.batches, "x").shape == (4, 4)
    assert together(found.batches, "y").shape == (4, 3)


def test_several_inputs_go_by_name_and_others_are_not_used(tmp_path: Path) -> None:
    x, y, path = torch.randn(6, 4), torch.randn(6, 3), tmp_path / "data.npz"
    np.savez(path, y=y, labels=np.arange(6), x=x)
    data = open_data(both(), path)
    assert torch.equal(together(data.batches, "x"), x)
    assert torch.equal(together(data.batches, "y"), y)
    assert any("'labels' not used" in note for note in data.notes)


def test_large_files_are_thinned_evenly(tmp_path: Path) -> None:
    x, path = torch.arange(3 * SAMPLES).float()[:, None].repeat(1, 5), tmp_path / "x.npz"
    np.savez(path, x=x)
    data = open_data(small(), path)
    assert torch.equal(together(data.batches)[:, 0], 3.0 * torch.arange(SAMPLES))


def test_tokens_may_have_another_length_but_no_other_numbers(tmp_path: Path) -> None:
    tied = open_checkpoint(TOKENS, inputs="2x7:int64<11")
    path = tmp_path / "tokens.npz"
    np.savez(path, tokens=np.arange(44, dtype=np.int32).reshape(4, 11) % 11)
    found = together(open_data(tied, path).batches)
    assert found.shape == (4, 11) and found.dtype == torch.int64
    np.savez(path, tokens=np.full((4, 7), 11))
    with pytest.raises(CheckpointError, match="the model stopped on the first samples"):
        open_data(tied, path)


def test_a_program_gets_batches_of_its_own_size(tmp_path: Path) -> None:
    path, program = tmp_path / "x.npz", tmp_path / "small.pt2"
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.export.save(torch.export.export(model, (torch.randn(4, 5),)), program)
    np.savez(path, np.zeros((11, 5), dtype=np.float32))
    data = open_data(open_checkpoint(str(program)), path)
    assert [len(batch[0]) for batch in data.batches] == [4, 4]
    np.savez(path, np.zeros((3, 5), dtype=np.float32))
    with pytest.raises(CheckpointError, match="fewer samples than the 4 of one batch"):
        open_data(open_checkpoint(str(program)), path)


def test_without_a_file_there_is_noise_and_a_note() -> None:
    checkpoint = small()
    data = open_data(checkpoint, None)
    (example,) = checkpoint.inputs
    assert all(batch[0].shape == example.shape for batch in data.batches)
    assert not torch.equal(data.batches[0][0], data.batches[1][0])
    assert float(together(data.batches).std()) == pytest.approx(float(example.std()), rel=0.2)
    assert "noise" in data.notes[0]
    tied = open_checkpoint(TOKENS, inputs="2x7:int64<11")
    drawn = together(open_data(tied, None).batches)
    assert set(drawn.reshape(-1).tolist()) <= set(tied.inputs[0].reshape(-1).tolist())


def test_one_batch_cannot_be_split(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((1, 5), dtype=np.float32))
    with pytest.raises(CheckpointError, match="cannot be split.*two samples at least"):
        open_data(small(), path).halves("--data x.npz")
    np.savez(path, x=np.zeros((2, 5), dtype=np.float32))
    assert [len(half) for half in open_data(small(), path).halves("--data x.npz")] == [1, 1]


BAD = {
    "empty": ({"x": np.zeros((0, 5), dtype=np.float32)}, "it is empty"),
    "features": ({"x": np.zeros((4, 6), dtype=np.float32)}, r"shape \(4, 6\).*\(samples, 5\)"),
    "axes": ({"x": np.zeros((4, 5, 1), dtype=np.float32)}, r"shape \(4, 5, 1\)"),
    "whole": ({"x": np.zeros((4, 5), dtype=np.uint8)}, "whole numbers .uint8.*real numbers"),
    "broken": ({"x": np.full((4, 5), np.nan, dtype=np.float32)}, "not finite"),
    "names": ({"a": np.zeros(4), "b": np.zeros(4)}, "no input 'x'.*numpy.savez"),
    "nothing": ({}, "holds nothing"),
    "objects": ({"x": np.array([{}, {}], dtype=object)}, "cannot be read"),
    "text": ({"x": np.array(["a", "b"])}, "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_input_is_refused_in_four_parts(tmp_path: Path, case: str) -> None:
    arrays, says = BAD[case]
    path = tmp_path / "x.npz"
    np.savez(path, **arrays, allow_pickle=True) if case == "objects" else np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match=says) as caught:
        open_data(small(), path)
    error = caught.value
    assert str(path) in error.where
    assert error.came and error.expected and error.instead


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file.*a file of inputs"):
        open_data(small(), tmp_path / "x.npz")
    path = tmp_path / "x.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_data(small(), path)
    path = tmp_path / "x.csv"
    path.write_text("1,2")
    with pytest.raises(CheckpointError, match="the suffix is '.csv'"):
        open_data(small(), path)
    path = tmp_path / "x.pt"
    path.write_bytes(pickle.dumps(Path("x")))
    with pytest.raises(CheckpointError, match="pickle"):
        open_data(small(), path)
    torch.save({"x": "text"}, path)
    with pytest.raises(CheckpointError, match="other things in it than tensors"):
        open_data(small(), path)


def test_inputs_need_as_many_samples_as_each_other(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((4, 4), np.float32), y=np.zeros((5, 3), np.float32))
    with pytest.raises(CheckpointError, match="'x' has 4 samples, 'y' has 5 samples"):
        open_data(both(), path)
