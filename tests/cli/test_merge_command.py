"""`paramsym merge`: several checkpoints aligned and averaged, or refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.pairs import SMALL, WIDE, four, moved, outputs, state_of, write
from tests.models import Small, Wide


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three equivalent networks, the later ones with noise of five per cent."""
    states = [state_of(Wide()), *(moved(Wide(), seed, 0.05) for seed in (1, 2))]
    return [write(tmp_path / f"{k}.safetensors", state) for k, state in enumerate(states)]


def far(state: dict[str, torch.Tensor], like: dict[str, torch.Tensor]) -> float:
    """The relative change of the outputs."""
    one, other = outputs(Wide(), state), outputs(Wide(), like)
    return float((one - other).norm() / other.norm())


def test_the_mean_of_aligned_networks_is_one_of_them(run, files, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    contents = [path.read_bytes() for path in files]
    found = json.loads(run("merge", *files, out, "--model", WIDE, "--json").stdout)
    states = [load_file(path) for path in files]
    naive = {n: torch.stack([s[n] for s in states]).mean(0) for n in states[0]}
    assert far(load_file(out), states[0]) < 0.1 < 0.5 < far(naive, states[0])
    rows = found["checkpoints"]
    assert [row["source"] for row in rows] == [str(path) for path in files]
    assert [row["share"] for row in rows] == pytest.approx([1 / 3] * 3)
    assert rows[0]["after"] == 0 and not rows[0]["moved"]
    assert all(row["after"] < 0.1 < 0.9 < row["before"] for row in rows[1:])
    assert all("order" in row["moved"]["mlp"] for row in rows[1:])
    assert found["objective"] == sorted(found["objective"], reverse=True)
    assert contents == [path.read_bytes() for path in files]


def test_weights_shift_the_mean(run, files, tmp_path: Path):
    out, (a, b, _) = tmp_path / "out.safetensors", files
    call = ("merge", a, b, out, "--model", WIDE, "--force")
    aligned = tmp_path / "aligned.safetensors"
    run("align", a, b, aligned, "--model", WIDE)
    first, second = load_file(a)["0.weight"], load_file(aligned)["0.weight"]
    for shares in ((1, 1), (3, 1)):
        run(*call, *(part for share in shares for part in ("--weight", share)))
        wanted = (shares[0] * first + shares[1] * second) / sum(shares)
        assert torch.allclose(load_file(out)["0.weight"], wanted, atol=1e-5)
    shown = run(*call, "--weight", "1", code=2).stderr
    assert "1 weights for 2 checkpoints" in shown and four(shown) == ["came", "expected", "instead"]
    for wrong in ("0", "-1", "nan", "inf"):
        assert "positive" in run(*call, "--weight", "1", "--weight", wrong, code=2).stderr


def test_great_circles_keep_norms(run, files, tmp_path: Path):
    a = files[0]
    other = write(tmp_path / "other.safetensors", state_of(Wide(5)))
    out = tmp_path / "out.safetensors"
    call = ("merge", a, other, out, "--model", WIDE, "--permutations", "--force")
    norms = {}
    for options in ((), ("--spherical",)):
        run(*call, *options)
        norms[options] = float(load_file(out)["0.weight"].norm())
    ends = [float(load_file(path)["0.weight"].norm()) for path in (a, other)]
    assert norms[("--spherical",)] == pytest.approx(sum(ends) / 2, rel=1e-4)
    assert norms[()] < 0.9 * norms[("--spherical",)]
    assert "great circle" in run("merge", *files, out, "--spherical", code=2).stderr


def test_the_hopeless_is_refused_unless_forced(run, files, tmp_path: Path):
    state = {n: -t for n, t in state_of(Wide(9)).items()}
    other, out = write(tmp_path / "o.safetensors", state), tmp_path / "out.safetensors"
    call = ("merge", files[0], other, out, "--model", WIDE, "--threshold", "0.3")
    shown = run(*call, code=2).stderr
    assert four(shown) == ["came", "expected", "instead"] and "--force" in shown
    assert "farthest in" in shown and "weight'" in shown and not out.exists()
    run(*call, "--force")
    assert out.exists()
    out.unlink()
    (tmp_path / "out.record.json").unlink()
    run(*call[:-1], "1.5")
    assert out.exists()


def test_the_terminal_names_shares_distances_and_moves(run, files, tmp_path: Path):
    said = run("merge", *files, tmp_path / "out.safetensors", "--model", WIDE).stdout
    assert "distance from the first" in said and said.count("moved of") == 2
    assert "order" in said and "0.333" in said


def test_activations_merge_as_well(run, files, tmp_path: Path):
    data = tmp_path / "inputs.safetensors"
    write(data, {"x": torch.randn(200, 20, generator=torch.Generator().manual_seed(0))})
    call = ("merge", *files, tmp_path / "out.safetensors", "--model", WIDE, "--data", data)
    assert "200 of 200 samples" in run(*call).stderr
    assert far(load_file(tmp_path / "out.safetensors"), load_file(files[0])) < 0.1


def test_running_statistics_are_told(run, tmp_path: Path):
    b = write(tmp_path / "b.safetensors", moved(Small(), noise=0.02))
    done = run("merge", SMALL, b, tmp_path / "out.safetensors")
    assert "running statistics of batch norms were averaged" in done.stderr
    assert load_file(tmp_path / "out.safetensors")["norm.running_var"].dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_folders_are_merged_into_a_folder(run, folder, tmp_path: Path):
    b, out = tmp_path / "moved", tmp_path / "merged"
    run("transform", folder, b)
    run("merge", folder, b, out)
    first, mean = (load_file(p / "model.safetensors") for p in (folder, out))
    assert all(torch.allclose(mean[n], t, atol=1e-3) for n, t in first.items())
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in folder.iterdir())


def test_what_is_there_stays_and_sources_are_never_touched(run, files, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    call = ("merge", *files[:2], out, "--model", WIDE)
    assert "there is such a file already" in run(*call, code=2).stderr
    assert out.read_text() == "precious"
    run("merge", *files[:2], files[1], "--model", WIDE, "--force", code=2)
    run("merge", *files[:2], "--model", WIDE, code=2)
    run(*call, "--force")
    assert load_file(out)


def test_a_merge_is_planned_and_resumed(run, folder, tmp_path: Path):
    out, there = tmp_path / "merged", {"llama", "moved"}
    run("transform", folder, tmp_path / "moved", "--seed", "1")
    for path in tmp_path.glob("moved.*"):
        path.unlink()
    call = ("merge", folder, tmp_path / "moved", out, "--permutations", "--force", "--no-verify")
    assert "bytes in sum" in run(*call, "--dry-run").stdout
    assert {path.name for path in tmp_path.iterdir()} == there
    assert json.loads(run(*call, "--dry-run", "--json").stdout)["tensors"]
    run(*call, "--resume", "--shard-size", "2KB")
    said = json.loads((tmp_path / "merged.record.json").read_text())
    assert said["operation"] == "merge" and len(said["request"]["checkpoints"]) == 2
    assert len([*out.glob("*.safetensors")]) > 1
    assert {path.name for path in tmp_path.iterdir()} == there | {"merged", "merged.record.json"}


def test_weights_that_are_loaded_have_no_journal(run, files, tmp_path: Path):
    call = ("merge", *files[:2], tmp_path / "out.safetensors", "--model", WIDE)
    assert "--resume" in run(*call, "--resume", code=2).stderr
    plan = json.loads(run(*call, "--dry-run", "--json").stdout)
    assert plan["seconds"] is None and not (tmp_path / "out.safetensors").exists()
