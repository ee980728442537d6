"""The one door for programs written by `torch.export.save` (`.pt2`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paramsym.formats.archive import NoArchive, check_archive
from paramsym.formats.errors import CheckpointError, first_line
from paramsym.formats.schema import Field


def load_program(path: Path) -> Any:
    """`torch.export.load`, once the archive is known to hold nothing that would run.

    Reading a `.pt2` file evaluates texts in it, resolves functions by name, imports modules, writes
    names into the source of a function that it compiles, and unpickles objects. All of this is
    looked at beforehand, see `paramsym.formats`; what is of no known kind is refused by its name.

    Args:
        path: of a file whose existence was checked.

    Returns:
        The `torch.export.ExportedProgram`.

    Raises:
        CheckpointError: the file is no program, is cut short, or holds more than a graph of known
            operators, sizes and tensors.
    """
    _check(path)
    try:
        # torch.export.load itself, in case of an error, tries an older format that is pickled.
        from torch.export.pt2_archive._package import load_pt2

        return load_pt2(str(path)).exported_programs["model"]
    except Exception as error:
        raise CheckpointError(
            str(path), f"torch.export.load stopped with {first_line(_cause(error))}",
            f"a program that torch.export.save of this torch ({torch.__version__}) can read",
            "Export the model again with this version of torch",
        ) from error  # fmt: skip


def _check(path: Path) -> None:
    try:
        check_archive(path)
    except NoArchive as error:
        raise CheckpointError(
            str(path), f"the file is cut short or no archive ({error})",
            "a .pt2 file that torch.export.save wrote", "Copy the file again, or export it anew",
        ) from error  # fmt: skip
    except Field as error:
        unpickled = "pickled" in error.found
        why = (
            "Unpickling runs code of whoever wrote the file, so it is never done here. Export the "
            "model again, with tensors as its only inputs"
            if unpickled
            else "Reading it as it is could run code of whoever wrote the file. Export the model "
            "again; or, where you trust the file, load it in a factory of your own: "
            "package.module:factory"
        )
        raise CheckpointError(
            f"{path}, {error.path}", f"the program holds {error.found}", error.expected, why
        ) from error


def _cause(error: BaseException) -> BaseException:
    """The error that torch wraps, whose own text repeats the whole node."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
