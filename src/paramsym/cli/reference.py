"""The reference of the command as Markdown, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paramsym.cli.answers import Key, keys
from paramsym.cli.contents import Entry, commands
from paramsym.cli.group import command_of, function_of
from paramsym.cli.usage import plain, usage
from paramsym.terminal import MEANINGS

_HEAD = """\
# Every option { #options }

Made from the commands themselves. What a command does, and what it writes, is told in
[Commands](commands.md); `paramsym COMMAND --help` shows the same options. All take `--quiet`, which
prints nothing but errors (and the JSON, with `--json`), and end with one of these codes:

"""

_KINDS = """\
What `--json` prints is one object. `a.b` is a key of an object, `a[].b` one of each object in a
list, `a{}.b` one of each in a table by names; a type with `?` may be null, and a key with `?` may
be missing.
"""


def page() -> str:
    """All commands, by question."""
    codes = _table(("code", "meaning"), ((str(int(code)), said) for code, said in MEANINGS.items()))
    parts, asked, answers = [_HEAD, codes, "\n", _KINDS], "", keys()
    for question, name, entry in commands():
        if question != asked:
            parts.append(f"\n## {question}\n")
            asked = question
        parts.append(_section(name, entry, answers))
    return "".join(parts)


def _section(name: str, entry: Entry, answers: dict[str, list[Key]]) -> str:
    """One command: what it does, its call, examples, arguments and options, and its JSON."""
    command = command_of(entry)
    types = get_type_hints(function_of(entry))
    rows = (_row(parameter, types.get(parameter.name)) for parameter in command.params)
    parts = [
        f"\n### `paramsym {name}` {{ #all-{name.replace(' ', '-')} }}\n\n",
        f"{_said(command.help or entry.line)} [More](commands.md#{commands_anchor(name)}).\n\n",
        f"```text\nparamsym {name} {usage(command)} [OPTIONS]\n```\n\n" if not entry.foreign
        else f"```text\nparamsym {name} [OPTIONS] {usage(command)}\n```\n\n",
        "```bash\n", *(f"{call}\n" for call in entry.examples), "```\n\n",
        _table(("argument or option", "default", "meaning"), rows),
    ]  # fmt: skip
    for said in (name, f"{name} --dry-run"):
        if said in answers:
            shown = ((f"`{key.path}`", f"`{key.kind}`", key.meaning) for key in answers[said])
            title = "`--json`" if said == name else "`--dry-run --json`"
            parts += ["\n", _table((title, "type", "meaning"), shown)]
    return "".join(parts)


def commands_anchor(name: str) -> str:
    """The heading of a command on the page that tells of it."""
    return "protect" if name == "protect encode" else name.replace(" ", "-")


def _row(parameter: Any, kind: Any) -> tuple[str, str, str]:
    """A parameter: its spellings, its default, and what it is."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), "", _said(parameter.help or "")
    value = "" if parameter.is_flag else f" {parameter.metavar or _value(kind)}"
    spelled = ", ".join(f"`{o}{value}`" for o in (*parameter.opts, *parameter.secondary_opts))
    return spelled, _default(parameter), _said(parameter.help or "")


def _value(kind: Any) -> str:
    """What an option takes that gives no word for it: one of some words, or the name of a type."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    inner = [part for part in get_args(kind) if part is not type(None)] or [kind]
    return {int: "N", float: "X", str: "TEXT"}.get(inner[0], "FILE")


def _default(parameter: Any) -> str:
    """What holds without the option."""
    if parameter.required:
        return "needed"
    if isinstance(parameter.show_default, str):
        return f"`{parameter.show_default}`"
    if parameter.default is None or parameter.default is False:
        return ""
    if parameter.is_flag:
        return f"`{parameter.opts[0]}`"
    return f"`{parameter.default}`"


def _said(text: str) -> str:
    """Help as it is read in one paragraph."""
    return re.sub(r"\s+", " ", plain(inspect.cleandoc(text)))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines
    )
