"""`paramsym balance`: the equivalent checkpoint of least norm, with its certificate."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import Small

SMALL = "tests.models:Small"


def squares(state: dict[str, torch.Tensor]) -> float:
    named = {n for n, _ in Small().named_parameters()}
    return sum(float(state[n].double().square().sum()) for n in named)


def test_a_file_is_balanced_and_computes_the_same(run, weights: Path, tmp_path: Path):
    out = tmp_path / "balanced.safetensors"
    found = json.loads(run("balance", SMALL, out, "--weights", weights, "--json").stdout)
    old, new = load_file(weights), load_file(out)
    assert found["before"] == pytest.approx(squares(old), rel=1e-6)
    assert found["after"] == pytest.approx(squares(new), rel=1e-6)
    assert squares(new) < 0.99 * squares(old)
    model, x = Small().eval(), torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = torch.func.functional_call(model, old, x)
        after = torch.func.functional_call(model, new, x)
    assert float((before - after).abs().max() / before.abs().max()) < 1e-5
    total = sum(pair["after"] for pair in found["parameters"].values())
    assert total == pytest.approx(found["after"], rel=1e-6)


def test_the_terminal_shows_the_certificate_bars_and_what_was_held(
    run, weights: Path, tmp_path: Path
):
    out = tmp_path / "balanced.safetensors"
    found = json.loads(run("inspect", SMALL, "--no-verify", "--json").stdout)
    name = next(s["name"] for s in found["spaces"] if s["dimension"])
    said = run("balance", SMALL, out, "--weights", weights, "--objective", "l1").stdout
    assert "Σ |w| from" in said and "OPTIMAL" in said and "█" in said
    said = run("balance", SMALL, out, "--weights", weights, "--force", "--hold", name).stdout
    assert f"held {name}: it was asked for" in said


def test_bad_input_writes_nothing(run, weights: Path, tmp_path: Path):
    out = tmp_path / "balanced.safetensors"
    said = run("balance", SMALL, out, "--weights", weights, "--hold", "nowhere", code=2).stderr
    assert "--hold nowhere" in said and "no space or shift" in said
    state = load_file(weights)
    state["first.weight"][0, 0] = torch.nan
    broken = tmp_path / "broken.safetensors"
    save_file(state, broken)
    said = run("balance", SMALL, out, "--weights", broken, code=2).stderr
    assert "finite weights" in said
    run("balance", SMALL, weights, "--weights", weights, code=2)
    assert not out.exists()
