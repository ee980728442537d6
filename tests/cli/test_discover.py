"""`paramsym discover`, on what it prints, in JSON, and at the door."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym.checkpoints import open_checkpoint
from paramsym.report import discovered
from tests.cli.conftest import Command
from tests.cli.told import told

HERE = "tests.cli.test_discover"
KEYS = {
    "source", "model", "level", "affine", "searched", "unknowns", "samples", "dimension",
    "residual", "next", "dead", "generators", "algebra", "algebra_missing_because", "comparison",
    "comparison_missing_because",
}  # fmt: skip


class Relu(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False)
        )  # fmt: skip

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(2, 2),)


class Branches(nn.Module):
    """A derivation by operators does not see that the two branches are one."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.v1 = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        self.w2, self.v2 = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(self.w1(x)) + self.v2(self.v1(x))

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(2, 2),)


class Steps(Relu):
    """No derivative reaches the first layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](torch.sign(self[0](x)))


def test_the_algebra_the_generators_and_the_comparison_are_printed(run: Command):
    output = run("discover", f"{HERE}:Relu").output
    assert "3  linear vector fields leave the function unchanged" in output
    assert "R^3, of rank 3, with a centre of dimension 3" in output
    assert "0.weight[1, :] grows, 2.weight[:, 1] shrinks" in output
    assert "level full: every entry of every tensor" in " ".join(output.split())
    assert "found 3, derived 3, both 3" in output
    assert "Nothing moves that was not derived, and every linear direction was found." in output


def test_what_was_not_derived_is_said(run: Command):
    output = run("discover", f"{HERE}:Branches").output
    assert "gl_2" in output and "found but not derived: 2" in output
    assert "directions were not derived: the derivation is not complete." in output


def test_json_has_a_stable_schema(run: Command):
    found = told(run, "discover", "discover", f"{HERE}:Branches", "--json")
    assert found.keys() == KEYS
    assert found["dimension"] == 4 == len(found["generators"])
    assert found["residual"] < 1e-12 < 1e-4 < found["next"]
    assert found["generators"][0].keys() == {"moves", "tensors"}
    assert found["algebra"]["name"] == "gl_2" and found["algebra"]["closed"]
    assert found["algebra"]["killing_signature"] == [2, 1, 1]
    assert found["comparison"]["beyond"] == 2 and not found["comparison"]["agrees"]
    assert [s["found"] for s in found["comparison"]["spaces"]] == [1, 1]


def test_a_level_and_constants_can_be_asked_for(run: Command):
    found = json.loads(
        run("discover", f"{HERE}:Branches", "--level", "sides", "--affine", "--json").output
    )
    assert found["level"] == "sides" and found["affine"] and found["dimension"] == 2
    assert found["comparison"]["agrees"]
    found = told(run, "discover", "discover", f"{HERE}:Relu", "--no-compare", "--json")
    assert found["comparison"] is None and found["comparison_missing_because"] == "not asked for"


def test_some_parameters_alone_may_move(run: Command):
    args = ("discover", f"{HERE}:Branches", "--names", "w1.weight,w2.weight", "--json")
    found = json.loads(run(*args).output)
    assert found["dimension"] == 1 and found["comparison"]["agrees"]
    shown = run("discover", f"{HERE}:Branches", "--names", "u.*", code=2).stderr
    assert "matches no" in " ".join(shown.split())


def test_the_seed_decides_the_samples(run: Command):
    def residual(seed: int) -> float:
        args = ("discover", f"{HERE}:Relu", "--no-compare", "--json", "--seed", seed)
        return json.loads(run(*args).output)["residual"]

    assert residual(1) == residual(1) != residual(2)


def test_an_algebra_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("paramsym.discovery.algebras.vector_fields.WORK", 1)
    monkeypatch.setattr("paramsym.discovery.linear.found.WORK", 1)
    result = discovered.discover(open_checkpoint(f"{HERE}:Relu"))
    assert result.algebra is None and "submodule" in result.without_algebra
    assert result.comparison is not None and result.comparison.agrees
    assert json.loads(discovered.discovered_json(result))["generators"] is None


def test_a_model_without_derivatives_is_bad_input(run: Command):
    shown = run("discover", f"{HERE}:Steps", code=2).stderr
    assert "derivative" in shown and "Replace sign" in " ".join(shown.split())


def test_an_unknown_level_and_too_many_unknowns_are_bad_input(run: Command):
    assert "'auto'" in run("discover", f"{HERE}:Relu", "--level", "half", code=2).stderr
    shown = run("discover", f"{HERE}:Relu", "--level", "full", "--limit", "100", code=2).stderr
    assert "level='tensors'" in " ".join(shown.split())


def test_the_mode_of_a_program_is_fixed(run: Command, program: Path):
    shown = run("discover", program, "--training", code=2).stderr
    assert "mode was fixed by its export" in " ".join(shown.split())
