"""`paramsym quantize-prep`: what wins on held-out inputs is written, or the weights as they are."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from paramsym.quantize.grids import Grid
from tests.cli.told import told
from tests.folders import write_llama
from tests.models import Small

SMALL = "tests.models:Small"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "x.npz"
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    np.savez(path, x=x.numpy())
    return path


@pytest.fixture
def outliers(tmp_path: Path) -> Path:
    """Weights of `Small` with one unit 1000 times as large, which the reader undoes."""
    state = Small().state_dict()
    for name in ("norm.weight", "norm.bias"):
        state[name][2] *= 1e-3
    state["last.weight"][:, 2] *= 1e3
    path = tmp_path / "outliers.safetensors"
    save_file(state, path)
    return path


def rounded_change(state: dict[str, torch.Tensor], x: torch.Tensor, grid: Grid) -> float:
    model = Small().eval()
    coarse = {n: grid.rounded(p) if p.ndim > 1 else p for n, p in state.items()}
    with torch.no_grad():
        apart = torch.func.functional_call(model, coarse, x) - torch.func.functional_call(
            model, state, x
        )
    return float(apart.square().mean())


def nothing_new(tmp_path: Path, *given: Path) -> bool:
    return sorted(tmp_path.iterdir()) == sorted(given)


def test_what_wins_is_written_and_not_rounded(run, inputs: Path, outliers: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    arguments = ("--weights", outliers, "--data", inputs, "--json", "--bits", 5)
    found = told(run, "quantize-prep", "quantize-prep", SMALL, out, *arguments)
    old, new = load_file(outliers), load_file(out)
    rows, grid = found["candidates"], Grid(5)
    assert [*rows] == ["untouched", "equalised", "range", "l2", "error"]
    assert found["chosen"] != "untouched" and rows[found["chosen"]]["verdict"] == ""
    x = torch.from_numpy(np.load(inputs)["x"])
    held_out = torch.cat([*x.split(32)][1::2])
    assert rows["untouched"]["change"] == pytest.approx(
        rounded_change(old, held_out, grid), rel=1e-4
    )
    chosen = rows[found["chosen"]]["change"]
    assert chosen == pytest.approx(rounded_change(new, held_out, grid), rel=1e-4)
    assert chosen < 0.1 * rows["untouched"]["change"]
    assert found["grid"] == {"bits": 5, "groups": "tensor", "symmetric": True}
    assert found["error"] <= found["tolerance"] and found["changed"] > 0
    assert any(not torch.equal(new[n], grid.rounded(new[n])) for n in new if new[n].ndim > 1)


def test_the_weights_are_written_as_they_are_where_none_is_better(
    run, inputs: Path, weights: Path, tmp_path: Path
):
    out = tmp_path / "out.safetensors"
    arguments = ("--weights", weights, "--data", inputs, "--hold", "*")
    said = run("quantize-prep", SMALL, out, *arguments).stdout
    assert "none is better" in said and "no better than untouched" in said.replace("\n", " ")
    old, new = load_file(weights), load_file(out)
    assert all(torch.equal(new[n], old[n]) for n in old)


def test_the_table_says_why_a_candidate_was_rejected(
    run, inputs: Path, outliers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "160")
    state, out = load_file(outliers), tmp_path / "out.safetensors"
    for name in ("norm.weight", "norm.bias"):
        state[name] *= 1e-3
    state["last.weight"] *= 1e3
    small = tmp_path / "small.safetensors"
    save_file(state, small)
    arguments = ("--weights", small, "--data", inputs)
    said = run("quantize-prep", SMALL, out, *arguments).stdout
    assert "none is better" in said
    assert "rejected: what meets last.weight grows from" in said and "by more than 10 ×" in said
    assert "--activations FACTOR allows more" in said
    allowed = run("quantize-prep", SMALL, out, *arguments, "--activations", "1e9", "--force").stdout
    assert "rejected" not in allowed and "none is better" not in allowed
    for factor in ("nan", "0.5"):
        run("quantize-prep", SMALL, tmp_path / "o", "--activations", factor, code=2)


def test_an_exported_program_is_prepared_with_the_batches_that_it_takes(
    run, program: Path, inputs: Path, tmp_path: Path
):
    out = tmp_path / "out.pt2"
    found = json.loads(run("quantize-prep", program, out, "--data", inputs, "--json").stdout)
    assert all(row["where"] for row in found["candidates"].values())  # what weights meet was seen
    again = json.loads(run("quantize-prep", SMALL, tmp_path / "o.safetensors",
                           "--data", inputs, "--json").stdout)  # fmt: skip
    first, other = (f["candidates"]["untouched"]["change"] for f in (found, again))
    assert first == pytest.approx(other, rel=0.2)  # other batches are held out


def test_noise_takes_the_place_of_inputs_and_is_told(run, weights: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    done = run("quantize-prep", SMALL, out, "--weights", weights, "--groups", "channel")
    assert "noise" in done.stderr and "int4 per channel" in done.stdout and out.exists()


def test_a_language_model_has_a_divergence(run, tmp_path: Path):
    folder = write_llama(tmp_path / "llama")
    data = tmp_path / "tokens.safetensors"
    generator = torch.Generator().manual_seed(0)
    save_file({"input_ids": torch.randint(0, 11, (32, 9), generator=generator)}, data)
    arguments = ("--data", data, "--groups", "4", "--asymmetric", "--json")
    found = json.loads(run("quantize-prep", folder, tmp_path / "out", *arguments).stdout)
    assert all(row["divergence"] > 0 for row in found["candidates"].values())
    assert found["grid"] == {"bits": 4, "groups": 4, "symmetric": False}
    assert (tmp_path / "out" / "model.safetensors").is_file()


# -- bad input ---------------------------------------------------------------------------------

ARRAYS = {
    "another shape": ({"x": np.zeros((9, 6), np.float32)}, "'x' has shape (9, 6)"),
    "empty": ({"x": np.zeros((0, 5), np.float32)}, "it is empty"),
    "one sample": ({"x": np.zeros((1, 5), np.float32)}, "cannot be split"),
    "not finite": ({"x": np.full((9, 5), np.inf, np.float32)}, "finite inputs"),
    "whole numbers": ({"x": np.zeros((9, 5), np.int64)}, "whole numbers (int64)"),
}


def refused(run, *arguments: object) -> str:
    """The message, which has four parts, on one line."""
    said = run(*arguments, code=2).stderr
    parts = [line.strip().split("  ")[0] for line in said.strip().splitlines()]
    assert parts[0].startswith("Error in ") and parts[-3:] == ["came", "expected", "instead"]
    return re.sub(r"\s+", " ", said)


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_data_writes_nothing(run, weights: Path, tmp_path: Path, case: str):
    arrays, says = ARRAYS[case]
    data, out = tmp_path / "x.npz", tmp_path / "out.safetensors"
    np.savez(data, **arrays)
    arguments = ("--weights", weights, "--data", data)
    assert says in refused(run, "quantize-prep", SMALL, out, *arguments)
    if case != "one sample":  # which is enough to calibrate on
        error = ("--objective", "error")
        assert says in refused(run, "balance", SMALL, out, *arguments, *error)
    assert nothing_new(tmp_path, weights, data)


def test_no_data_file_broken_weights_and_unknown_names_write_nothing(
    run, weights: Path, inputs: Path, tmp_path: Path
):
    call = ("quantize-prep", SMALL, tmp_path / "out.safetensors", "--weights", weights)
    assert "there is no such file" in refused(run, *call, "--data", tmp_path / "no.npz")
    assert "no space or shift" in refused(run, *call, "--data", inputs, "--hold", "nowhere")
    state = load_file(weights)
    state["first.weight"][0, 0] = torch.nan
    broken = tmp_path / "broken.safetensors"
    save_file(state, broken)
    assert "finite weights" in refused(run, *call[:3], "--weights", broken, "--data", inputs)
    run(*call, "--groups", "0", code=2)
    run(*call, "--bits", "1", code=2)
    assert nothing_new(tmp_path, weights, inputs, broken)


def whole() -> nn.Module:
    """A network all of whose parameters are whole numbers."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 5, dtype=torch.int64), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.T.to(x.dtype)

    return Whole()


def test_without_real_parameters_there_is_nothing_to_round(run, inputs: Path, tmp_path: Path):
    source, out = f"{__name__}:whole", tmp_path / "out.safetensors"
    arguments = ("--inputs", "4x5", "--data", inputs)
    said = refused(run, "quantize-prep", source, out, *arguments)
    assert "none of the 0 parameters of real numbers" in said
    said = refused(run, "balance", source, out, *arguments, "--objective", "error")
    assert "none of the 0 parameters of real numbers" in said
    assert nothing_new(tmp_path, inputs)
