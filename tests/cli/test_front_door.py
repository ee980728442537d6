"""Help, examples, --quiet and misspelled calls of every command, none of which waits for torch."""

import re
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paramsym.cli import app
from paramsym.cli.contents import CONTENTS, commands
from paramsym.cli.group import command_of
from paramsym.cli.usage import as_called

SMALL = "tests.models:Small"
NAMES = [name for _, name, _ in commands()]
ENTRIES = {name: entry for _, name, entry in commands()}
EXAMPLES = [call for _, _, entry in commands() for call in entry.examples]

# Asks every command for help where torch, numpy and what needs them cannot be imported.
HELP = """
import sys
from importlib.abc import MetaPathFinder
from typer.testing import CliRunner

class Refused(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {"torch", "numpy", "scipy", "transformers", "flint"}:
            raise AssertionError(f"help imported {name}")

sys.meta_path.insert(0, Refused())
from paramsym.cli import app
from paramsym.cli.contents import commands

for name in ["", "protect", *(name for _, name, _ in commands())]:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, (name, shown.output, shown.exception)
    print(name, "Exit codes:" in shown.output, "Examples:" in shown.output)
import numpy
"""


def test_no_help_imports_torch_or_numpy():
    run = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert lines == [" True False", "protect True False", *(f"{n} True True" for n in NAMES)]
    assert "help imported numpy" in run.stderr  # the hook would have said so


def test_help_is_a_table_of_contents(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--help").output
    at = [shown.index(f" {chapter.question} ") for chapter in CONTENTS]
    assert at == sorted(at)
    for chapter in CONTENTS:
        for entry in chapter.entries:  # one line each
            assert re.search(rf"^│ {entry.name} +{re.escape(entry.line)} +│$", shown, re.MULTILINE)


@pytest.mark.parametrize("call", EXAMPLES)
def test_every_example_is_read_by_its_command(call):
    program, *words = shlex.split(call, comments=True)
    name = max((n for n in NAMES if words[: len(n.split())] == n.split()), key=len)
    rest = words[len(name.split()) :]
    assert program == "paramsym" and call in ENTRIES[name].examples
    context = command_of(ENTRIES[name]).make_context(name, rest)
    assert context.params


def test_an_example_with_an_option_that_is_gone_would_be_seen():
    with pytest.raises(Exception, match="No such option: --gone"):
        command_of(ENTRIES["inspect"]).make_context("inspect", ["model.pt2", "--gone"])


def test_quiet_prints_nothing_but_json_and_errors(run, tmp_path):
    call = ("equivariant", "--shift", "2x2", "--rank", "1")
    assert run(*call).stdout
    silent = run(*call, "--quiet")
    assert silent.stdout == silent.stderr == ""
    assert run(*call, "--quiet", "--json").stdout == run(*call, "--json").stdout
    assert "--shift" in run("equivariant", "--shift", "2", "--quiet", code=2).stderr
    out = tmp_path / "out.safetensors"
    merged = run("merge", SMALL, SMALL, out, "--quiet")
    assert out.is_file() and merged.stdout == merged.stderr == ""
    assert "Note: " in run("merge", SMALL, SMALL, out, "--force").stderr


def instead(shown: str) -> str:
    """The last part of a message: what to do instead."""
    assert [line.split()[0] for line in shown.splitlines()] == [
        "Error",
        "came",
        "expected",
        "instead",
    ]
    return shown.splitlines()[-1].removeprefix("  instead   ")


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelled_command_comes_back_spelled_rightly(run, name):
    *group, own = name.split()
    wrong = own[:2] + own[3:]
    shown = run(*group, wrong, "--json", "a file", code=2).stderr
    assert (
        f"the command {wrong!r}" in shown and instead(shown) == f"paramsym {name} --json 'a file'"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelled_option_comes_back_spelled_rightly(run, name):
    command = command_of(ENTRIES[name])
    long = max((p.opts[0] for p in command.params if p.param_type_name == "option"), key=len)
    wrong = long[:3] + long[4:]
    shown = run(*name.split(), wrong, "x", code=2).stderr
    assert f"the option {wrong}" in shown and instead(shown) == f"paramsym {name} {long} x"
    shown = run(*name.split(), f"{wrong}=3", code=2).stderr
    assert instead(shown) == f"paramsym {name} {long}=3"
    assert instead(run(*name.split(), "--xyzzy", code=2).stderr).startswith(f"paramsym {name} ")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "equivariant"])
def test_a_missing_argument_is_answered_by_a_call(run, name):
    shown = run(*name.split(), code=2).stderr
    assert "Missing" in shown and f"paramsym {name} " in shown.splitlines()[2]
    call = instead(shown)
    assert call in {example.partition("  #")[0] for example in ENTRIES[name].examples}


def test_values_that_cannot_be_read(run):
    shown = run("export", "folder", "--for", "smothquant", code=2).stderr
    assert instead(shown) == "paramsym export folder --for smoothquant"
    shown = run("transform", "a", "b", "--seed", "one", code=2).stderr
    assert "--seed" in shown and "--seed 1" in instead(shown)
    shown = run("transform", "a", "b", "c", code=2).stderr
    assert "paramsym transform SOURCE OUT" in shown
    assert instead(run("--nothing", code=2).stderr) == "paramsym --help"
    assert "paramsym --version" == instead(run("--verson", code=2).stderr)
    assert instead(run("xyzzy", code=2).stderr) == "paramsym --help"


# A path that leads nowhere, for each command.
NOWHERE = {
    "inspect": "inspect none.pt2",
    "discover": "discover none.pt2",
    "transform": "transform none.pt2 out.pt2",
    "balance": "balance none.pt2 out.pt2",
    "quantize-prep": "quantize-prep none.pt2 out.pt2",
    "compare": "compare none.pt2 none.pt2",
    "align": "align none.pt2 none.pt2 out.pt2",
    "merge": "merge none.pt2 none.pt2 out.pt2",
    "export": "export none --for awq",
    "check-mapping": "check-mapping none none.yaml",
    "transport": "transport none out --along none.safetensors --of none",
    "watch": "watch none.py",
    "protect encode": "protect encode none.pt2 out.pt2 --key none.safetensors",
    "protect decode": "protect decode none.pt2 out.pt2 --key none.safetensors",
    "protect serve": "protect serve none.pt2",
    "protect query": "protect query http://127.0.0.1:1 none.pt2 --data none.npz --out out.npz",
    "equivariant": "equivariant --shift 2x2 --rank 1 --data none.npz",
    "relu-equal": "relu-equal none.json none.json",
    "relu-verify": "relu-verify none.json none.json none.json",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_path_is_answered_by_a_call(run, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run(*NOWHERE[name].split(), code=2).stderr
    assert "none" in shown and f"paramsym {name} " in shown.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["inspect", "discover", "transform", "balance", "export"])
def test_a_wrong_shape_is_answered_by_the_same_call_with_the_right_one(run, tmp_path, command):
    more = {"inspect": [], "discover": [], "export": ["--for", "awq"]}
    out = more.get(command, [str(tmp_path / "o.safetensors")])
    shown = run(command, SMALL, *out, "--inputs", "2x9", code=2).stderr
    call = shlex.join([command, SMALL, *out, "--inputs", "2x5"])
    assert shown.splitlines()[-1].endswith(f"paramsym {call}")


@pytest.mark.parametrize(
    ("command", "option"), [("transform", "--only"), ("balance", "--hold"), ("align", "--spaces")]
)
def test_a_misspelled_space_comes_back_spelled_rightly(run, tmp_path, command, option):
    sources = [SMALL, SMALL] if command == "align" else [SMALL]
    out = str(tmp_path / "o.safetensors")
    shown = run(command, *sources, out, option, "mlp.scale,mpl", code=2).stderr
    call = shlex.join(["paramsym", command, *sources, out, option, "mlp.scale,mlp"])
    assert shown.splitlines()[-1].endswith(call) and not list(tmp_path.iterdir())


def test_a_misspelled_factory_comes_back_spelled_rightly(run):
    shown = run("inspect", "tests.models:Smal", "--audit", code=2).stderr
    assert shown.splitlines()[-1].endswith(f": paramsym inspect {SMALL} --audit")
    shown = run("inspect", "tests.models:xyzzy", code=2).stderr
    assert "; a right call: paramsym inspect " in shown.splitlines()[-1]


def test_errors_that_are_causes_of_each_other_come_to_an_end():
    error, cause = ValueError("one"), ValueError("two")
    error.__cause__, cause.__cause__ = cause, error
    said = as_called("Error in a file\n  instead   Give --inputs 2x5.", ["inspect", "a"], error)
    assert said.endswith("  instead   Give --inputs 2x5: paramsym inspect a --inputs 2x5")
    cause.pattern, cause.near = "mpl", ("mlp", "head")
    said = as_called("Error: no name", ["transform", "a", "b", "--only=x,mpl"], error)
    assert said == "Error: no name: paramsym transform a b --only=x,mlp"


def test_completion_knows_commands_and_options():
    def completed(typed: str) -> list[str]:
        words = {"COMP_WORDS": f"paramsym {typed}", "COMP_CWORD": str(len(typed.split(" ")))}
        how = {"_PARAMSYM_COMPLETE": "complete_bash", **words}
        return CliRunner().invoke(app, [], env=how, prog_name="paramsym").output.split()

    assert completed("relu-") == ["relu-equal", "relu-verify"]
    assert completed("protect en") == ["encode"]
    assert completed("inspect model.pt2 --au") == ["--audit"]
