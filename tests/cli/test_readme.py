"""The questions of the README, answered by its commands as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.folders import write_llama

README = Path(__file__).parents[2] / "README.md"


def questions() -> dict[str, list[list[str]]]:
    """Each question of the README, and the commands under it."""
    text = README.read_text().partition("## Questions")[2]
    found = re.findall(
        r"\*\*([^*]+)\*\*[^`]*?(?:`[^`]+`[^`]*?)*```console\n(.*?)```", text, re.DOTALL
    )
    return {
        question: [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]
        for question, block in found
    }


def test_there_are_five_at_least_and_none_takes_more_than_three_commands() -> None:
    asked = questions()
    assert len(asked) >= 5 and all(1 <= len(commands) <= 3 for commands in asked.values())
    assert all(command[0] == "paramsym" for commands in asked.values() for command in commands)


@pytest.mark.parametrize("question", questions())
def test_a_question_is_answered(
    run, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    if any("other" in command for command in questions()[question]):
        run("transform", "llama", "other", "--seed", "1")
    before = {p: p.read_bytes() for p in sorted((tmp_path / "llama").iterdir())}
    for _, *command in questions()[question]:
        shown = run(*command).output
        assert shown.strip()
    assert {p: p.read_bytes() for p in sorted((tmp_path / "llama").iterdir())} == before
