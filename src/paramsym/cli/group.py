"""What is around every command: exit codes in its help, one handler of errors, late imports."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from paramsym.terminal import EPILOG, guarded, unbroken_pipes

# What the parser of the command line raises on purpose: an end, or an error of usage (code 2).
_PARSER: tuple[type[BaseException], ...] = (
    typer.Exit,
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


class _Later(TyperCommand):
    """A command of an application, imported when it is called, so that help stays fast."""

    def __init__(self, name: str, module: str, function: str, text: str):
        super().__init__(name=name, callback=None, help=text)
        self.module, self.function = module, function

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        function = getattr(import_module(self.module), self.function)
        own.command(self.name, epilog=EPILOG)(function)
        return typer.main.get_command(own).make_context(info_name, args, parent=parent, **extra)


_LATER = {
    later.name: later
    for later in (
        _Later(
            "equivariant",
            "paramsym.equivariant.command",
            "equivariant",
            "Linear autoencoders that commute with image shifts: count them, find the best.",
        ),
        _Later(
            "relu-equal",
            "paramsym.relu.command",
            "relu_equal",
            "Are two ReLU networks the same function?",
        ),
        _Later(
            "relu-verify",
            "paramsym.relu.command",
            "relu_verify",
            "Check a verdict that relu-equal wrote. Exit code 0 proved, 1 not proved.",
        ),
    )
}


class Commands(TyperGroup):
    """Every command: the table of exit codes in its help, and one handler around it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _LATER if name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = _LATER.get(cmd_name) or super().get_command(ctx, cmd_name)
        if command is not None:
            command.epilog = EPILOG
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with unbroken_pipes(), guarded(message_of, (*_PARSER, SystemExit)):
            return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with guarded(message_of, _PARSER, ctx.params.get("traceback", False)):
            return super().invoke(ctx)


# Errors that a room words itself; one that can be raised is in a module that has been imported.
_WORDED = {
    "paramsym.checkpoints.errors": "CheckpointError",
    "paramsym.dynamics.descent": "LedgerError",
    "paramsym.equivariant.errors": "EquivariantError",
    "paramsym.recording.refusals": "TraceError",
    "paramsym.relu.errors": "ReLUError",
}


def message_of(error: Exception) -> str | None:
    """The text of an error that is about the input; None for a fault of this program."""
    for module, name in _WORDED.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            lines = getattr(error, "lines", None)
            return f"Error: {error}" if lines is None else lines()
    return None
