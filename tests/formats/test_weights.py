"""The one door to safetensors tells what the system refuses in four parts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paramsym.formats.errors import CheckpointError
from paramsym.formats.weights import metadata_of, read_safetensors, read_tensor, tensor_names

READERS: dict[str, Callable[[Path], object]] = {
    "names": tensor_names,
    "metadata": metadata_of,
    "tensors": lambda path: dict(read_safetensors(path)),
    "one tensor": lambda path: read_tensor(path, "w"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_file({"w": torch.arange(3.0)}, path, {"told": "yes"})
    return path


def _folder(good: Path) -> Path:
    return good.parent


def _below_a_file(good: Path) -> Path:
    return good / "below.safetensors"


def _loop(good: Path) -> Path:
    path = good.with_name("loop.safetensors")
    path.symlink_to(path)
    return path


PLACES = {
    "missing": lambda good: good.with_name("none.safetensors"),
    "folder": _folder,
    "below a file": _below_a_file,
    "loop": _loop,
    "long name": lambda good: good.with_name("n" * 300),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_told_in_four_parts(reader: str, place: str, good: Path) -> None:
    path = PLACES[place](good)
    READERS[reader](good)  # the negative control
    with pytest.raises(CheckpointError) as caught:
        READERS[reader](path)
    error = caught.value
    assert error.where == str(path) and error.came.startswith("it cannot be read (")
    assert error.expected == "a complete safetensors file" and "Check the path" in error.instead
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("reader", ["names", "metadata", "tensors"])
def test_what_may_not_be_read_is_told(reader: str, good: Path, monkeypatch) -> None:
    """By a refusal in the system's place: whoever runs the tests may be allowed to read all."""

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"it cannot be read \(Permission denied\)"):
        READERS[reader](good)


def test_what_is_read_is_what_was_written(good: Path) -> None:
    assert tensor_names(good) == ["w"] and metadata_of(good)["told"] == "yes"
    assert torch.equal(read_tensor(good, "w"), torch.arange(3.0))


def test_an_error_of_whoever_reads_is_not_the_files(good: Path) -> None:
    with pytest.raises(OSError, match="elsewhere"):
        for _ in read_safetensors(good):
            raise OSError("elsewhere")


def test_complex_numbers_start_where_they_may(tmp_path: Path) -> None:
    """Mapped from a file they may not, and PyTorch then ends the process."""
    path = tmp_path / "complex.safetensors"
    odd = {f"a{k}": torch.arange(k, dtype=torch.float64) for k in range(1, 6)}
    numbers = {f"z{k}": torch.randn(k, dtype=torch.complex128) for k in range(1, 6)}
    save_file({**odd, **numbers}, path)
    with safe_open(path, framework="pt") as file:  # the control: some of them do not
        assert any(file.get_tensor(n).data_ptr() % 16 for n in numbers)
    for name, tensor in read_safetensors(path):
        assert tensor.data_ptr() % tensor.element_size() == 0
        assert torch.equal(tensor, {**odd, **numbers}[name])
    for name in numbers:
        assert torch.equal(read_tensor(path, name).reciprocal(), numbers[name].reciprocal())
