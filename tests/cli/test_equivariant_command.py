"""What `paramsym equivariant` is given is the input's fault or its own, and the code says whose."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from paramsym.terminal import ExitCode


def _written(path: Path, kind: str) -> Path:
    if kind == "text":
        path.write_text("no images")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "objects":
        np.savez(path, x_train=np.array([{}, None], dtype=object))
    elif kind == "archive":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x_train.npy", "no array")
    elif kind == "another size":
        np.savez(path, x_train=np.zeros((4, 3, 3)))
    elif kind == "nan":
        np.savez(path, x_train=np.full((14, 2, 2), np.nan))
    return path


@pytest.mark.parametrize(
    "kind, says",
    [
        ("missing", "cannot be read as images"),
        ("text", "cannot be read as images"),
        ("empty", "cannot be read as images"),
        ("objects", "cannot be read as images"),
        ("archive", "expected three axes of numbers"),
        ("another size", "Pass --shift 3x3"),
        ("nan", "NaN or infinite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_data_that_are_no_images_are_bad_input(run, tmp_path, kind, says):
    data = _written(tmp_path / "images.npz", kind)
    call = ("equivariant", "--shift", "2x2", "--rank", "1", "--data", str(data))
    shown = run(*call, code=ExitCode.BAD_INPUT)
    assert says in shown.stderr and "Traceback" not in shown.stderr


def test_an_error_of_our_own_is_no_bad_input(run, monkeypatch, tmp_path):
    """The library's own errors are about the input; a bare ValueError inside of it is a defect."""

    def stop(*args: object) -> None:
        raise ValueError("surprise")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("paramsym.cli.counting._size", stop)
    run("equivariant", "--shift", "2x2", "--rank", "1", code=ExitCode.DEFECT)
