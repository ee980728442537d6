"""The exit codes of every command; a verdict and a failure never share one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command answers to the shell."""

    YES = 0
    NO = 1
    BAD_INPUT = 2
    UNDECIDED = 3
    DEFECT = 4
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.YES: "done, or yes: the answer of a command that decides",
    ExitCode.NO: "no: decided, and no command ends so for another reason",
    ExitCode.BAD_INPUT: "bad input, a missing package, or no room: the message says what to do",
    ExitCode.UNDECIDED: "undecided within the budget",
    ExitCode.DEFECT: "a defect of paramsym; the message says where the traceback is",
    ExitCode.INTERRUPTED: "interrupted; nothing half-written is left",
}

EPILOG = "\n".join(
    ["Exit codes:", *(f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())]
)
