"""Every command ends with a code of the table, whatever happens inside of it."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from paramsym import find_symmetry
from paramsym.cli import app
from paramsym.relu.deciding import decide
from paramsym.relu.documents import write_verdict
from paramsym.relu.files import read_network
from paramsym.terminal import MEANINGS, ExitCode
from paramsym.terminal.failures import EXTRAS, SHOW
from tests.cli.test_watch import training_script
from tests.models import Small
from tests.processes import ROOT, fork

SMALL = "tests.models:Small"
MAIN = "from paramsym.cli import main\nmain()\n"
NETWORK = [{"W": [[1], [-1]], "b": [0, 0]}, {"W": [[1, 1]], "b": [0]}]


@pytest.fixture(autouse=True)
def traceback_folder(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tracebacks")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv(SHOW, raising=False)
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the calls below read, made once: a model is derived for it."""
    folder = tmp_path_factory.mktemp("inputs")
    network = folder / "network.json"
    mapping = {"scaling_layers": [{"prev_op": "norm", "layers": ["last"]}]}
    (folder / "mapping.json").write_text(json.dumps(mapping))
    network.write_text(json.dumps(NETWORK))
    write_verdict(decide(read_network(network), read_network(network)), folder / "verdict.json")
    save_file({"probe.weight": torch.ones(2, 7)}, folder / "probe.safetensors")
    (folder / "types.json").write_text(json.dumps({"probe.weight": "2, (mlp mlp.scale)*"}))
    model = Small()
    symmetry = find_symmetry(model, model.example_inputs())
    element = symmetry.sample(torch.Generator().manual_seed(0), only=[*symmetry.spaces])
    element.save(folder / "along.safetensors")
    return folder


@pytest.fixture
def arguments(inputs: Path, tmp_path: Path) -> dict[str, list[str]]:
    """A call of each command that succeeds."""
    network, verdict = inputs / "network.json", inputs / "verdict.json"
    mapping, types = inputs / "mapping.json", inputs / "types.json"
    artefact, along = inputs / "probe.safetensors", inputs / "along.safetensors"
    moving = ["--along", str(along), "--of", SMALL, "--types", str(types)]
    return {
        "inspect": ["inspect", SMALL, "--no-verify"],
        "discover": ["discover", "tests.models:TwoLinear", "--no-compare"],
        "transform": ["transform", SMALL, str(tmp_path / "out.safetensors")],
        "balance": ["balance", SMALL, str(tmp_path / "balanced.safetensors")],
        "quantize-prep": ["quantize-prep", SMALL, str(tmp_path / "prepared.safetensors")],
        "compare": ["compare", SMALL, SMALL],
        "align": ["align", SMALL, SMALL, str(tmp_path / "aligned.safetensors")],
        "merge": ["merge", SMALL, SMALL, str(tmp_path / "merged.safetensors")],
        "export": ["export", SMALL, "--for", "awq"],
        "check-mapping": ["check-mapping", SMALL, str(mapping)],
        "equivariant": ["equivariant", "--shift", "2x2", "--rank", "1"],
        "relu-equal": ["relu-equal", str(network), str(network)],
        "relu-verify": ["relu-verify", str(verdict), str(network), str(network)],
        "protect": [
            "protect",
            "encode",
            SMALL,
            str(tmp_path / "encoded.safetensors"),
            "--key",
            str(tmp_path / "key.safetensors"),
        ],
        "transport": ["transport", str(artefact), str(tmp_path / "p.safetensors"), *moving],
        "watch": ["watch", str(training_script(tmp_path))],
    }


# A function inside of each command.
INNER = {
    "inspect": "paramsym.report.examine",
    "discover": "paramsym.report.discovered.discover",
    "transform": "paramsym.checkpoints.transform",
    "balance": "paramsym.checkpoints.write_balanced",
    "quantize-prep": "paramsym.checkpoints.write_prepared",
    "compare": "paramsym.checkpoints.compare_checkpoints",
    "align": "paramsym.checkpoints.write_aligned",
    "merge": "paramsym.checkpoints.write_merged",
    "export": "paramsym.checkpoints.export_maps",
    "check-mapping": "paramsym.checkpoints.check_mapping",
    "equivariant": "paramsym.cli.counting._size",
    "relu-equal": "paramsym.relu.deciding.decide",
    "relu-verify": "paramsym.relu.documents.read_verdict",
    "protect": "paramsym.checkpoints.write_encoded",
    "transport": "paramsym.checkpoints.write_transported",
    "watch": "paramsym.dynamics.watching.watched",
}
COMMANDS = sorted(typer.main.get_command(app).list_commands(None))  # type: ignore[attr-defined]


def broken(monkeypatch: pytest.MonkeyPatch, command: str, error: BaseException) -> None:
    """Let the function inside a command raise."""

    def stop(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(INNER[command], stop)


def four(text: str) -> list[str]:
    return [line.strip().split("  ")[0] for line in text.strip().splitlines()]


def test_every_command_is_broken_below():
    assert sorted(INNER) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_failure_the_answer_is_yes(run, arguments, command):
    run(*arguments[command], code=ExitCode.YES)


@pytest.mark.parametrize("error", [KeyError("surprise"), RuntimeError("surprise\nmore")])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_defect_has_a_code_of_its_own(
    run, arguments, command, error, monkeypatch, traceback_folder
):
    broken(monkeypatch, command, error)
    shown = run(*arguments[command], code=ExitCode.DEFECT).stderr
    assert four(shown)[-3:] == ["came", "expected", "instead"] and "Traceback" not in shown
    assert "surprise" in shown and "more" not in shown.replace("more\n", "")
    (file,) = traceback_folder.iterdir()
    assert str(file) in shown.replace("\n", "")
    assert "Traceback" in file.read_text() and "in stop" in file.read_text()


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_traceback_of_a_defect_is_shown_on_demand(
    run, arguments, monkeypatch, traceback_folder, how
):
    broken(monkeypatch, "inspect", KeyError("surprise"))
    given = ["--traceback"] if how == "option" else []
    if how == "variable":
        monkeypatch.setenv(SHOW, "1")
    shown = run(*given, *arguments["inspect"], code=ExitCode.DEFECT).stderr
    assert "Traceback (most recent call last)" in shown and not list(traceback_folder.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_says_one_line(run, arguments, command, monkeypatch):
    broken(monkeypatch, command, KeyboardInterrupt())
    shown = run(*arguments[command], code=ExitCode.INTERRUPTED).stderr
    assert len(shown.strip().splitlines()) == 1 and "Interrupted" in shown


@pytest.mark.parametrize("module", [*EXTRAS, "somewhere.else"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_package_says_what_to_install(run, arguments, command, module, monkeypatch):
    broken(monkeypatch, command, ModuleNotFoundError(f"No module named {module!r}", name=module))
    shown = run(*arguments[command], code=ExitCode.BAD_INPUT).stderr
    extra = EXTRAS.get(module)
    assert (f"pip install 'paramsym[{extra[0]}]'" if extra else "pip install somewhere") in shown
    assert four(shown) == [four(shown)[0], "came", "expected", "instead"]


def test_a_module_of_our_own_that_is_missing_is_a_defect(run, arguments, monkeypatch):
    error = ModuleNotFoundError("No module named 'paramsym.gone'", name="paramsym.gone")
    broken(monkeypatch, "inspect", error)
    run(*arguments["inspect"], code=ExitCode.DEFECT)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "memory is not enough"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), "memory is not"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/here"), "No space left"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/here"), "Permission denied"),
        (SystemExit(1), "sys.exit(1)"),
    ],
)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "equivariant"])
def test_what_the_machine_refuses_is_no_defect(run, arguments, command, error, says, monkeypatch):
    broken(monkeypatch, command, error)
    shown = run(*arguments[command], code=ExitCode.BAD_INPUT).stderr
    assert says in shown and four(shown)[-3:] == ["came", "expected", "instead"]


def test_without_the_handler_a_crash_would_mean_no():
    plain = typer.Typer()
    plain.command()(lambda: {}["surprise"])
    assert CliRunner().invoke(plain, []).exit_code == ExitCode.NO


def test_an_unknown_command_or_option_is_bad_input(run):
    run("nothing", code=ExitCode.BAD_INPUT)
    run("inspect", SMALL, "--nothing", code=ExitCode.BAD_INPUT)
    run("relu-equal", "--nothing", code=ExitCode.BAD_INPUT)


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=str)
def test_help_shows_the_table(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = run(*command, "--help").output
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^\s*{int(code)}  {re.escape(meaning)}", shown, re.MULTILINE)


def test_the_reference_shows_the_same_table():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]
    named = re.findall(r"^## `paramsym ([\w-]+)", page, re.MULTILINE)
    assert sorted({*named}) == COMMANDS  # one that groups others has a heading for each of them


# -- in a process of its own -------------------------------------------------------------------


WITHOUT_FLINT = "import sys\nsys.modules['flint'] = None\n"


def test_exact_mode_alone_needs_flint(arguments):
    call = arguments["relu-equal"]
    shown = fork(WITHOUT_FLINT + MAIN, "relu-equal", "--help")
    assert "Exit codes" in shown.communicate()[0] and shown.returncode == ExitCode.YES
    exact = fork(WITHOUT_FLINT + MAIN, *call, "--exact")
    assert "pip install 'paramsym[relu]'" in exact.communicate()[1]
    assert exact.returncode == ExitCode.BAD_INPUT
    rounded = fork(WITHOUT_FLINT + MAIN, *call)
    assert rounded.communicate()[0].startswith("EQUAL") and rounded.returncode == ExitCode.YES


NO_GUARD_OF_PIPES = (
    "import contextlib, paramsym.cli, paramsym.cli.group\n"
    "paramsym.cli.group.unbroken_pipes = contextlib.nullcontext\n"
    "paramsym.cli.main()\n"
)


@pytest.mark.parametrize(
    ("program", "command", "fine"),
    [(MAIN, "inspect", True), (MAIN, "relu-equal", True), (NO_GUARD_OF_PIPES, "inspect", False)],
    ids=["report", "verdict", "unguarded"],
)
def test_a_closed_pipe_is_no_error(arguments, program, command, fine):
    process = fork(program, *arguments[command])
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait() == ExitCode.YES) is fine
    assert not fine or not re.search("Error|Traceback|Exception", said)


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from paramsym.checkpoints.factory import FactorySource
def save(self, draft, state):
    draft.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
FactorySource.save = save
"""


def test_an_interrupt_while_writing_leaves_nothing(tmp_path: Path):
    process = fork(SLOW + MAIN, "transform", SMALL, tmp_path / "out.safetensors")
    assert process.stdout.readline() == "writing\n"
    assert list(tmp_path.iterdir())  # the draft
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == ExitCode.INTERRUPTED and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_goes_with_the_next_and_no_other(run, tmp_path: Path):
    killed = fork(SLOW + MAIN, "transform", SMALL, tmp_path / "killed.safetensors")
    living = fork(SLOW + MAIN, "transform", SMALL, tmp_path / "living.safetensors")
    try:
        for process in (killed, living):
            assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 2
        killed.kill()
        killed.communicate()
        assert len(list(tmp_path.iterdir())) == 2  # a kill leaves its draft
        run("transform", SMALL, tmp_path / "out.safetensors")
        draft, *made = sorted(p.name for p in tmp_path.iterdir())
        assert draft.startswith(".living.")
        assert made == ["out.element.safetensors", "out.record.json", "out.safetensors"]
    finally:
        living.kill()
        living.communicate()
    run("transform", SMALL, tmp_path / "out.safetensors", "--force")
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == made


def test_help_comes_before_torch(arguments):
    program = "import sys\nsys.modules['torch'] = None\n" + MAIN
    began = time.perf_counter()
    shown = subprocess.run(
        [sys.executable, "-c", program, "transform", "--help"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}, cwd=ROOT,
    )  # fmt: skip
    assert "Exit codes" in shown.stdout and shown.returncode == ExitCode.YES
    assert time.perf_counter() - began < 10.0


def test_the_package_is_the_command_too() -> None:
    ran = [subprocess.run([sys.executable, "-m", *how, "--version"], capture_output=True, text=True)
           for how in (("paramsym",), ("paramsym.nothing",))]  # fmt: skip
    assert ran[0].returncode == 0 and ran[0].stdout.startswith("paramsym ")
    assert ran[1].returncode != 0
