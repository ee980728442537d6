"""What is around every command: late imports, help, exit codes, one handler of errors, silence."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from paramsym.cli.contents import CONTENTS, Entry
from paramsym.cli.usage import as_called, corrected
from paramsym.terminal import EPILOG, guarded, unbroken_pipes

# What the parser of the command line raises on purpose: an end, or help in the place of arguments.
_PARSER: tuple[type[BaseException], ...] = (
    typer.Exit,
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)

Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Print nothing but errors, and the JSON if that is asked for."),
]


def epilog(entry: Entry) -> str:
    """What stands below the options: calls to begin with, and the exit codes."""
    calls = "\n".join(f"  {call}" for call in entry.examples)
    return f"Examples:\n{calls}\n\n{EPILOG}" if calls else EPILOG


def function_of(entry: Entry) -> Callable[..., None]:
    """The function of an entry, for which its module is imported."""
    module = import_module(f"paramsym.cli.{entry.module}")
    return getattr(module, entry.name.replace("-", "_"))


def command_of(entry: Entry) -> TyperCommand:
    """The command of an entry, as the parser takes it."""
    own = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    settings = {"allow_interspersed_args": not entry.foreign}
    own.command(entry.name, epilog=epilog(entry), context_settings=settings)(
        _hushable(function_of(entry))
    )
    return typer.main.get_command(own)  # type: ignore[return-value]


def _hushable(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the option --quiet."""

    @wraps(function)
    def command(*, quiet: bool, **options: Any) -> None:
        with _hushed(options.get("as_json", False)) if quiet else nullcontext():
            function(**options)

    of = inspect.signature(function, eval_str=True)
    last = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet
    )
    signature = of.replace(parameters=[*of.parameters.values(), last])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return command


@contextmanager
def _hushed(as_json: bool) -> Iterator[None]:
    """Inside, what is printed goes nowhere; errors are raised, and told outside."""
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stderr(nowhere))
        if not as_json:
            stack.enter_context(redirect_stdout(nowhere))
        yield


class Later(TyperCommand):
    """A command that is imported when it is called, so that the help of all is fast."""

    def __init__(self, entry: Entry, question: str | None = None):
        super().__init__(name=entry.name, callback=None, help=entry.line, rich_help_panel=question)
        self.entry = entry

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return command_of(self.entry).make_context(info_name, args, parent=parent, **extra)


class Inner(TyperGroup):
    """Commands under one name."""

    def __init__(self, entry: Entry, question: str | None = None):
        super().__init__(
            name=entry.name, help=entry.line, epilog=epilog(entry), rich_help_panel=question,
            no_args_is_help=True, commands={own.name: Later(own) for own in entry.inner},
        )  # fmt: skip


class Commands(TyperGroup):
    """Every command under its question, and one handler around them."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        for chapter in CONTENTS:
            for entry in chapter.entries:
                kind = Inner if entry.inner else Later
                self.commands[entry.name] = kind(entry, chapter.question)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with unbroken_pipes(), guarded(message_of, (*_PARSER, SystemExit)):
            return super().main(*args, **kwargs)

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        given = [*args]
        with corrected(given):
            context = super().make_context(info_name, args, parent=parent, **extra)
        context.meta[__name__] = given
        return context

    def invoke(self, ctx: Any) -> Any:
        given = ctx.meta[__name__]

        def message(error: Exception) -> str | None:
            text = message_of(error)
            return text and as_called(text, given, error)

        with guarded(message, _PARSER, ctx.params.get("traceback", False)), corrected(given):
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
