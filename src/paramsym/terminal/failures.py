"""A failure that nobody foresaw, as a message of four parts and an exit code."""

from __future__ import annotations

import errno
import re
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from paramsym.terminal.exits import ExitCode

PACKAGE = Path(__file__).parents[1]
SHOW = "PARAMSYM_TRACEBACK"  # an environment variable: print tracebacks of defects

# Package → the extra that brings it, and what to call it.
EXTRAS = {
    "flint": ("relu", "python-flint"),
    "onnx": ("onnx", "onnx"),
    "transformers": ("hf", "transformers"),
    "sklearn": ("demo", "scikit-learn"),
    "matplotlib": ("demo", "matplotlib"),
    "ray": ("ray", "ray"),
}

# What a machine refuses whatever the program does.
_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EIO,
    errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ENOMEM, errno.ESTALE, errno.ENOTDIR,
}  # fmt: skip
_NO_MEMORY = re.compile(r"DefaultCPUAllocator|CUDA out of memory|can't allocate memory")


@dataclass(frozen=True)
class Failure:
    """An exit code, and the four parts for the error stream."""

    code: ExitCode
    text: str


def four_parts(where: str, came: str, expected: str, instead: str) -> str:
    """The four parts of an error one below the other, for a terminal."""
    return (
        f"Error in {where}\n  came      {came}\n  expected  {expected}\n  instead   {instead}"
    )  # fmt: skip


def failure_of(error: BaseException, show_traceback: bool = False) -> Failure:
    """What to say of an exception that no command translates, and how to end.

    Missing packages, a machine that refuses, and foreign code that ends the process are the
    input's (2); everything else is a defect of paramsym (4), whose traceback is written to a file
    of the temporary folder, or shown.
    """
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("paramsym"):
        return Failure(ExitCode.BAD_INPUT, _missing(error.name or str(error)))
    if isinstance(error, SystemExit):
        return Failure(ExitCode.BAD_INPUT, four_parts(
            "code that the command runs for you", f"it called sys.exit({error.code!r})",
            "a factory that returns a model", "Take the call out of the module, or guard it by "
            "if __name__ == '__main__'",
        ))  # fmt: skip
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return Failure(ExitCode.BAD_INPUT, four_parts(
            "this machine", "its memory is not enough", "room for a few copies of the weights",
            "Close other programs, take a larger machine, or see --dry-run",
        ))  # fmt: skip
    if isinstance(error, OSError) and error.errno in _MACHINE:
        return Failure(ExitCode.BAD_INPUT, four_parts(
            str(error.filename or "this machine"), str(error.strerror),
            "a file system that lets the command read and write",
            "Make room, ask for permission, or choose another place",
        ))  # fmt: skip
    return Failure(ExitCode.DEFECT, _defect(error, show_traceback))


def _missing(name: str) -> str:
    root = name.split(".")[0]
    if root in EXTRAS:
        extra, package = EXTRAS[root]
        return four_parts(
            "this installation", f"{package} is not installed",
            f"the extra [{extra}] of paramsym, which brings it",
            f"Install it: pip install 'paramsym[{extra}]'",
        )  # fmt: skip
    return four_parts(
        "this installation", f"the package {root!r} is missing",
        "paramsym with everything that it depends on",
        f"Install it: pip install {root}, or install paramsym anew",
    )  # fmt: skip


def _defect(error: BaseException, show_traceback: bool) -> str:
    full = "".join(traceback.format_exception(error))
    line = str(error).strip().splitlines()[0][:200] if str(error).strip() else "no message"
    return four_parts(
        "paramsym itself: this is a defect, not an answer",
        f"{type(error).__name__}: {line}{_place(error)}", "a result, or an error about the input",
        f"Please report it, with {_shown(full, show_traceback)}",
    )  # fmt: skip


def _shown(full: str, show_traceback: bool) -> str:
    """Where the reader finds the traceback."""
    if show_traceback:
        return f"this traceback:\n\n{full.rstrip()}"
    again = f"the traceback that {SHOW}=1 shows"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="paramsym-traceback-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(full)
    except OSError:
        return again
    return f"the traceback in {file.name} ({SHOW}=1 or --traceback shows it)"


def _place(error: BaseException) -> str:
    """The innermost line of this package."""
    place, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if PACKAGE in path.parents:
            place = f", at {path.relative_to(PACKAGE.parent)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
