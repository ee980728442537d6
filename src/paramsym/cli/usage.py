"""A call that cannot be read: what came, what was expected, and the call that is right."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import typer

from paramsym.cli.contents import CONTENTS, Entry
from paramsym.terminal import ExitCode, four_parts

# What a message tells to give: an option and a value, which is no placeholder.
_GIVE = re.compile(r"\b(?:[Gg]ive|Pass|Write) (--[a-z-]+) ([^\sA-Z,]+)(?=$| \(|,)")

# A factory that its module does not have.
_ABSENT = re.compile(r"'([\w.]+)' has no '(\w+)'")

# Every error of the parser; its package is private to typer.
_USAGE: type[BaseException] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)


@contextmanager
def corrected(given: Sequence[str]) -> Iterator[None]:
    """Inside, a call that cannot be read ends with a message of four parts."""
    try:
        yield
    except _USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # nothing was given: help is the answer
            raise
        typer.echo(explained(error, given), err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from None


def explained(error: Any, given: Sequence[str]) -> str:
    """The four parts of an error of the parser, the last one a call that would be read."""
    place, entry, among, wrong = _found(given)
    came = error.format_message().rstrip(".")
    if wrong is not None:
        near = _nearest(wrong, among)
        call = _respelled(given, wrong, near) if near else f"{place} --help"
        came = f"the command {wrong!r}"
        return four_parts(place, came, f"one of {', '.join(among)}", call)
    context = error.ctx
    expected = "the call below, or what --help shows" if context is None else usage(context.command)
    expected = f"{place} {expected}".strip()
    call = example(entry, given) or f"{place} --help"
    option, parameter = getattr(error, "option_name", None), getattr(error, "param", None)
    if option is not None and context is not None and option not in _options(context.command):
        options = _options(context.command)
        expected = f"an option of {place}: {', '.join(options)}"
        near = _nearest(option, options, 0.6)
        call = _respelled(given, option, near) if near else call
        came = f"the option {option}"
    elif parameter is not None:
        value, *choices = re.findall(r"'([^']*)'", str(error.message)) or [""]
        near = _nearest(value, choices)
        call = _respelled(given, value, near) if near and value in given else call
        if type(error).__name__ == "BadParameter" and getattr(parameter, "help", None):
            expected = plain(parameter.help).rstrip(".")
    return four_parts(place, came, expected, call)


def as_called(text: str, given: Sequence[str], error: BaseException | None = None) -> str:
    """A message about the input that ends in a call, the given one mended where that can be."""
    start, line, last = text.rpartition("\n")
    if line and "paramsym " in last:
        return text
    last = last.rstrip(".")
    (wrong, near), told = _misnamed(text, error), _GIVE.search(last)
    if near:
        return f"{start}{line}{last}: {_respelled(given, wrong, near)}"
    if told is not None:
        return f"{start}{line}{last}: {_with_option(given, told[1], told[2])}"
    call = example(_found(given)[1], [*given, *re.findall("--[a-z-]+", last)])
    return f"{start}{line}{last}; a right call: {call}" if call else text


def example(entry: Entry | None, given: Sequence[str]) -> str:
    """The example of a command that has most in common with a call."""
    if entry is None or not entry.examples:
        return ""
    options = {word.partition("=")[0] for word in given if word.startswith("--")}
    calls = [call.partition("  #")[0] for call in entry.examples]
    return max(calls, key=lambda call: len(options & {*shlex.split(call)}))


def usage(command: Any) -> str:
    """The arguments of a command and the options that it asks for, as they are written."""
    words = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            words.append(name if parameter.required else f"[{name.strip('[]')}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}")
    return " ".join(words)


def plain(text: str) -> str:
    """Help without its markup."""
    return re.sub(r"\[/?[a-z]\]", "", text)


def _found(given: Sequence[str]) -> tuple[str, Entry | None, dict[str, Entry], str | None]:
    """Where a call leads: the command, its entry, what may follow, and what follows wrongly."""
    place, entry = "paramsym", None
    among = {entry.name: entry for chapter in CONTENTS for entry in chapter.entries}
    for word in given:
        if word.startswith("-") or not among:
            continue
        if word not in among:
            return place, entry, among, word
        place, entry = f"{place} {word}", among[word]
        among = {inner.name: inner for inner in entry.inner}
    return place, entry, among, None


def _options(command: Any) -> list[str]:
    """Every spelling of the options of a command."""
    known = [
        spelling for parameter in command.params if parameter.param_type_name == "option"
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    ]  # fmt: skip
    return [*known, "--help"]


def _respelled(given: Sequence[str], wrong: str, right: str) -> str:
    """The call with one word spelled rightly, which may stand in a list or before a value."""
    whole = re.compile(rf"(?<![^,=:]){re.escape(wrong)}(?![^,=])")
    return shlex.join(["paramsym", *(whole.sub(lambda _: right, word) for word in given)])


def _with_option(given: Sequence[str], option: str, value: str) -> str:
    """The call with an option in it, in the place of another value of that."""
    words = [word for word in given if not word.startswith(f"{option}=")]
    if option in words[:-1]:
        words[words.index(option) + 1] = value
    else:
        words += [option, value]
    return shlex.join(["paramsym", *words])


def _misnamed(text: str, error: BaseException | None) -> tuple[str, str]:
    """A name of the model, or of its module, that does not exist, and the nearest one."""
    absent = _ABSENT.search(text)
    if absent is not None:
        return absent[2], _nearest(absent[2], dir(sys.modules.get(absent[1])))
    for cause in _causes(error):
        wrong, near = getattr(cause, "pattern", None), getattr(cause, "near", None)
        if isinstance(wrong, str) and near:
            return wrong, _nearest(wrong, near)
    return "", ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it, once each: a cause may have been raised from its effect."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _nearest(wrong: str, names: Iterable[str], least: float = 0.5) -> str:
    """The name that is spelled most like a wrong one, if one is."""
    return "".join(get_close_matches(wrong, [*names], 1, least))
