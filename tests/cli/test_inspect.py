"""`paramsym inspect`, on what it prints."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paramsym import ParameterSymmetry
from paramsym.report import findings
from paramsym.structure import counting
from tests.models import Small

SMALL = "tests.models:Small"


def test_the_summary_and_the_spaces_are_printed(run):
    output = run("inspect", SMALL).output
    assert "80  parameters in 9 tensors" in output
    assert "mlp" in output and "Permutation(7" in output and "Scaling(7" in output
    assert "relu acts on each coordinate" in output and "models.py:" in output
    assert "worst relative error" in output


def test_without_verify_nothing_is_measured(run):
    output = run("inspect", SMALL, "--no-verify").output
    assert "Proof" not in output and "Spaces" in output


def test_the_audit_compares_measured_and_explained(run):
    output = run("inspect", SMALL, "--audit", "--no-verify").output
    lines = [line.split() for line in output.splitlines()]
    figures = {" ".join(words[1:]): words[0] for words in lines if len(words) > 1}
    assert figures["unexplained"] == "0"
    assert figures["directions leave the function unchanged (measured)"] == "21"


def test_an_audit_above_the_limit_says_how_to_go_on(run):
    output = run("inspect", SMALL, "--audit", "--no-verify", "--limit", "79").output
    assert "--limit 80" in " ".join(output.split()) and "certified" not in output
    output = run("inspect", SMALL, "--audit", "--no-verify", "--limit", "80").output
    assert "certified complete at these weights and inputs" in output


def test_json_holds_the_whole_structure(run):
    found = json.loads(run("inspect", SMALL, "--json", "--audit").output)
    assert found["parameters"] == 80 and found["redundant"] == 21
    assert found["verification"]["error"] < 1e-12 < 1e-3 < found["verification"]["control"]
    assert found["audit"]["nullity"] == 21 and found["audit"]["complete"]
    assert found["audit"]["suspects"] == [] and found["audit"]["refuted"] == {}
    symmetry = ParameterSymmetry.from_json(json.dumps(found["symmetry"]))
    assert symmetry.shape("first.weight") == (7, 5)
    assert {s["name"] for s in found["spaces"]} == set(symmetry.spaces)


def test_counts_without_weights_are_those_with_weights(run, monkeypatch):
    """No sum of dimensions: 84 for these two linear layers, which have 44 parameters."""
    with_weights = json.loads(run("inspect", "tests.models:TwoLinear", "--json").output)
    monkeypatch.setattr(findings, "COUNT_LIMIT", -1)  # as for a large model
    found = json.loads(run("inspect", "tests.models:TwoLinear", "--json", "--no-verify").output)
    assert with_weights["redundant_counted"] == "at these weights"
    assert found["redundant_counted"] == "at generic weights of these shapes"
    assert found["redundant"] == with_weights["redundant"] <= found["parameters"] == 44
    assert found["redundant_exact"] and found["redundant_at_most_because"] is None
    total = sum(s["dimension"] for s in found["spaces"] + found["shifts"])
    assert total > 44  # the negative control: families overlap


def test_a_bound_is_called_at_most(run, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(findings, "COUNT_LIMIT", -1)
    monkeypatch.setattr(counting, "_WORK", 0)
    page = tmp_path / "page.html"
    args = ("inspect", "tests.models:TwoLinear", "--no-verify")
    output = " ".join(run(*args, "--html", page).output.split())
    assert "at most" in output and "may overlap" in output
    assert "at most" in page.read_text(encoding="utf-8")
    found = json.loads(run(*args, "--json").output)
    assert not found["redundant_exact"] and found["redundant"] <= 44
    assert "may overlap" in found["redundant_at_most_because"]


def test_weights_and_inputs_can_be_given(run, weights: Path):
    output = run("inspect", SMALL, "--weights", weights, "--inputs", "3x5").output
    assert "worst relative error" in output


def test_keyword_inputs_can_be_given(run):
    output = run("inspect", "tests.models:two_inputs", "--inputs", "x=2x4,y=2x3").output
    assert "Permutation(5)" in output


def test_a_program_is_read(run, program: Path):
    found = json.loads(run("inspect", program, "--json").output)
    assert found["redundant"] == 21 and not found["unknown"]
    assert found["verification"]["error"] < 1e-12


def test_the_page_is_written(run, tmp_path: Path):
    page = tmp_path / "page.html"
    run("inspect", SMALL, "--html", page)
    assert page.read_text(encoding="utf-8").startswith("\n<!doctype html>") or page.stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_training_mode_frees_what_batch_statistics_absorb(run):
    found = json.loads(run("inspect", SMALL, "--training", "--json").output)
    assert found["training"] and found["verification"]["error"] < 1e-9


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_read(run, folder: Path):
    found = json.loads(run("inspect", folder, "--json").output)
    assert found["model"] == "LlamaForCausalLM"
    assert found["verification"]["error"] < 1e-9 and not found["unknown"]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_verify_reads_no_weights(run, folder: Path):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert "parameters" in run("inspect", folder, "--no-verify").output


def test_help_is_quick_and_names_the_commands():
    program = "from paramsym.cli import main; main()"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    assert "inspect" in done.stdout and "transform" in done.stdout
    assert time.perf_counter() - start < 5.0  # about 0.3 s where nothing else runs
    loaded = "import sys, paramsym.cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "False"


def test_the_version_is_shown(run):
    assert run("--version").output.startswith("paramsym")


def test_the_model_keeps_its_mode_and_numbers(run):
    model = Small()
    assert model.training and torch.equal(model.first.weight, Small().first.weight)


def test_every_public_name_can_be_imported():
    """The package imports lazily: what its table promises is there, and the types agree."""
    import paramsym

    source = Path(paramsym.__file__).read_text(encoding="utf-8")
    words = " ".join(source.replace("(", " ").replace(",", " ").replace(")", " ").split())
    for name in paramsym.__all__:
        assert getattr(paramsym, name) is not None
        assert f" import {name} as {name} " in words
