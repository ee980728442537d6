"""Parameters spread over four ranks move as those of one process do: one run, a row for each check.

`ranks` says what is checked, and by which layouts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .ranks import WORLD, Checks

ROOT = Path(__file__).parents[2]
CHECKS = sorted(n.removeprefix("check_") for n in dir(Checks) if n.startswith("check_"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What every rank says of every check."""
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-m", "tests.distributed.ranks", str(folder)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return [json.loads((folder / f"rank{n}.json").read_text()) for n in range(WORLD)]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_ranks_agree_with_one_process(
    name: str, check: str, found: list[dict[str, str]]
) -> None:  # fmt: skip
    said = [(n, rank[f"{name}: {check}"]) for n, rank in enumerate(found)]
    assert not any(words for _, words in said), next(f"{n}: {w}" for n, w in said if w)
