"""`paramsym balance`: the equivalent checkpoint of least norm, with its certificate."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

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
    total = sum(pair["after"] for pair in found["tensors"].values())
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


def bars(found: dict, when: str) -> dict[str, float]:
    return {name: pair[when] for name, pair in found["tensors"].items()}


@pytest.mark.parametrize("objective", ["range", "error"])
def test_other_objectives_have_bars_of_their_own(
    run, weights: Path, tmp_path: Path, objective: str
):
    out = tmp_path / "balanced.safetensors"
    call = ("balance", SMALL, out, "--weights", weights, "--objective", objective)
    found = json.loads(run(*call, "--json").stdout)
    assert found["status"] == "OPTIMAL" and found["after"] < 0.9 * found["before"]
    combined = max if objective == "range" else sum
    for when in ("before", "after"):
        assert combined(bars(found, when).values()) == pytest.approx(found[when], rel=1e-4)
    new = load_file(out)["first.weight"]
    if objective == "range":
        spread = float(new.clamp(min=0).max() + (-new).clamp(min=0).max())
        assert bars(found, "after")["first.weight"] == pytest.approx(spread, rel=1e-6)
    else:
        assert {*bars(found, "after")} == {"first.weight", "last.weight"}
    said = run(*call, "--force").stdout
    assert {"range": "R⁺ + R⁻", "error": "share of the error"}[objective] in said


def test_bits_and_groups_belong_to_the_error(run, weights: Path, tmp_path: Path):
    out = tmp_path / "balanced.safetensors"
    call = ("balance", SMALL, out, "--weights", weights)
    for option in (("--bits", "3"), ("--groups", "channel"), ("--asymmetric",), ("--data", "x")):
        said = run(*call, *option, code=2).stderr
        assert "--objective l2" in said and "only beside --objective error" in said
    assert not out.exists()
    error = (*call, "--objective", "error", "--json", "--force")
    coarse, fine = (json.loads(run(*error, "--bits", bits).stdout)["before"] for bits in "38")
    assert coarse == pytest.approx(fine * (127 / 3) ** 2, rel=1e-9)


class Shifted(nn.Module):
    """A gain that is stored as γ − 1 between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.gain = nn.Parameter(torch.zeros(6))
        with torch.no_grad():
            for k, tensor in enumerate(self.parameters()):
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(k)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.last(h * (1 + self.gain))


def test_bars_count_effective_gains(run, tmp_path: Path):
    out = tmp_path / "balanced.safetensors"
    call = ("balance", f"{__name__}:Shifted", out, "--inputs", "4x5", "--json", "--force")
    for objective, combined in (("l2", sum), ("l1", sum), ("range", max)):
        found = json.loads(run(*call, "--objective", objective).stdout)
        for when in ("before", "after"):
            assert combined(bars(found, when).values()) == pytest.approx(found[when], rel=1e-4)
        if objective == "l2":
            stored, shown = load_file(out)["gain"], bars(found, "after")["gain"]
            assert shown == pytest.approx(float((1 + stored).square().sum()), rel=1e-5)
            assert shown != pytest.approx(float(stored.square().sum()), rel=1e-2)
