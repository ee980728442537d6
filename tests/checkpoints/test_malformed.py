"""Whatever is wrong with an input: no traceback, no hang, no large memory, nothing left behind."""

import json
import logging
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from paramsym.cli import app
from tests.archives import edited, entries, write
from tests.checkpoints.malformed import SMALL, Seeds, cases, safetensors, split
from tests.folders import write_llama
from tests.models import Small

pytestmark = pytest.mark.filterwarnings("ignore")
SECONDS, BYTES = 10, 1 << 30  # of one case
WEIGHTS_TABLE = "data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    folder = tmp_path_factory.mktemp("seeds")
    return Seeds(folder, write_llama(folder / "llama"))


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def run(folder: Path, *arguments: object) -> Result:
    """One command, whose time, memory, output and leavings are looked at."""
    before, start = listing(folder), time.monotonic()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    shown = f"{arguments}\n{result.output[-3000:]}\n{result.exception!r}"
    assert time.monotonic() - start < SECONDS, shown
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown * 1024 < BYTES, shown
    assert result.exception is None or isinstance(result.exception, SystemExit), shown
    assert result.exit_code in (0, 2), shown
    assert "Traceback" not in result.output, shown
    if result.exit_code == 2:
        assert explained(result), shown
        assert listing(folder) == before, shown
    return result


def explained(result: Result) -> bool:
    """The four parts; or, where a model was traced or an option parsed, one clear line."""
    parts = [line.strip().split("  ")[0] for line in result.stderr.splitlines()]
    four = [p for p in parts if p in ("came", "expected", "instead")]
    if four == ["came", "expected", "instead"] and result.stderr.startswith("Error in "):
        return True
    return result.stderr.startswith(("Error: ", "error: ", "Usage: "))


def refuse(folder: Path, *arguments: object, says: str = "") -> str:
    result = run(folder, *arguments)
    assert result.exit_code == 2, result.output
    flat = " ".join(result.stderr.split())
    assert says in flat, flat
    return flat


def test_valid_files_are_read(seeds: Seeds, tmp_path: Path):
    """The control of all that follows."""
    for arguments in (
        [SMALL, "--weights", seeds.weights], [SMALL, "--weights", seeds.archive],
        [SMALL, "--weights", seeds.index], [seeds.program], [seeds.llama],
        [SMALL, "--inputs", "4x5"],
    ):  # fmt: skip
        assert run(tmp_path, "inspect", *arguments, "--no-verify").exit_code == 0, arguments


def test_random_changes(seeds: Seeds, tmp_path: Path):
    codes: dict[int, int] = {}
    for case in cases(seeds, tmp_path, count=320, seed=20261121):
        code = run(tmp_path / case.name.split(":")[0], *case.arguments).exit_code
        codes[code] = codes.get(code, 0) + 1
    assert sum(codes.values()) == 320 and codes[2] > 200, codes
