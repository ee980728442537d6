"""Parameters spread over four ranks move as those of one process do: one run, a row for each check.

`ranks` says what is checked, and by which layouts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORLD = 4
CHECKS = [
    "a_ledger_sees_what_one_rank_writes",
    "act_on_a_mesh_of_two_dimensions", "act_under_fsdp", "act_under_tensor_parallel",
    "another_element_differs", "balance", "distributed_checkpoints", "gradients", "ledger",
    "models_are_traced_before_they_are_spread",
    "moments", "one_tensor_alone", "ranks_with_different_elements_are_refused",
    "slices_are_refused",
    "slices_move_by_themselves_along_other_axes", "state_of_adamw",
    "velocities",
]  # fmt: skip


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
    found = [json.loads((folder / f"rank{n}.json").read_text()) for n in range(WORLD)]
    assert {key.split(": ")[1] for rank in found for key in rank} == {*CHECKS}
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_ranks_agree_with_one_process(name: str, check: str, found: list[dict[str, str]]) -> None:
    said = [(n, rank[f"{name}: {check}"]) for n, rank in enumerate(found)]
    assert not any(words for _, words in said), next(f"{n}: {w}" for n, w in said if w)
