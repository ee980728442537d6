"""`paramsym compare`: one network, one up to symmetry, derived, or unrelated."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from paramsym import GroupElement, act, find_symmetry
from tests.cli.pairs import WIDE, four, moved, state_of, write
from tests.cli.told import told
from tests.models import Wide


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A network, a moved copy of it, a moved copy that was trained on, and another network."""
    states = {
        "a": state_of(Wide()), "moved": moved(Wide()), "tuned": moved(Wide(), noise=0.1),
        "other": state_of(Wide(7)),
    }  # fmt: skip
    return {name: write(tmp_path / f"{name}.safetensors", s) for name, s in states.items()}


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("a", "identical", 0),
        ("moved", "same up to symmetry", 0),
        ("tuned", "derived", 1),
        ("other", "unrelated", 1),
    ],
)
def test_each_verdict_has_its_code(run, files, name: str, kind: str, code: int):
    call = ("compare", files["a"], files[name], "--model", WIDE)
    found = json.loads(run(*call, "--json", code=code).stdout)
    assert found["kind"] == kind
    assert {*found["tensors"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    if code:
        assert len(found["null"]) == 4
        taken = found["tensors"]["0.weight"]["taken"]
        assert taken is (kind == "derived")
    else:
        assert found["null"] is None and found["distance"] < 1e-5


def test_the_terminal_shows_verdict_distance_null_and_tensors(run, files):
    call = ("compare", files["a"], files["tuned"], "--model", WIDE)
    said = run(*call, code=1).stdout
    assert said.startswith("derived: ") and "unrelated" in said and "taken over" in said
    assert re.search(r"^distance +0\.\d+ ", said, re.MULTILINE) and "0.weight" in said
    said = run(*call[:2], files["other"], *call[3:], code=1).stdout
    assert said.startswith("unrelated: ") and "taken over" not in said


def test_the_element_is_written_where_they_are_the_same_alone(run, files, tmp_path: Path):
    model, out = Wide(), tmp_path / "element.json"
    call = ("compare", files["a"], files["moved"], "--model", WIDE, "--element", out)
    assert str(out) in run(*call).stdout
    symmetry = find_symmetry(model, model.example_inputs())
    element = GroupElement.load(out, symmetry)
    back = act(symmetry, element, load_file(files["moved"]))
    assert all(torch.allclose(back[n], t, atol=1e-5) for n, t in load_file(files["a"]).items())
    assert four(run(*call, code=2).stderr) == ["came", "expected", "instead"]
    run(*call, "--force")
    out.unlink()
    run("compare", files["a"], files["tuned"], "--model", WIDE, "--element", out, code=1)
    assert not out.exists()


def test_a_tolerance_widens_equality_and_names_the_first_difference(run, files, tmp_path: Path):
    state = moved(Wide())
    state["0.weight"][5, 4] *= 1.05
    changed = write(tmp_path / "changed.safetensors", state)
    call = ("compare", files["a"], changed, "--model", WIDE, "--tol")
    found = json.loads(run(*call, "1e-3", "--json", code=1).stdout)
    assert found["orbit"]["kind"] == "DIFFERENT"
    assert re.fullmatch(r"0\.weight\[\d+, 4\]", found["orbit"]["where"])
    said = run(*call, "1e-3", code=1).stdout
    assert f"one orbit: DIFFERENT, first at {found['orbit']['where']}" in said
    found = json.loads(run(*call, "0.5", "--json").stdout)
    assert found["kind"] == "same up to symmetry" and found["orbit"]["kind"] == "EQUAL"
    run(*call, "0", code=2)
    run(*call, "nan", code=2)


class Bottleneck(nn.Sequential):
    """Linear layers: what stands between them has a basis, and no units."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(nn.Linear(9, 4), nn.Linear(4, 8))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.normal_(generator=generator)

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.randn(4, 9, generator=torch.Generator().manual_seed(1)),)


def test_without_units_it_is_undecided_and_independent_ones_decide(run, tmp_path: Path):
    states = {
        "a": state_of(Bottleneck()), "tuned": moved(Bottleneck(), noise=0.05),
        "other": state_of(Bottleneck(1)), "third": state_of(Bottleneck(2)),
    }  # fmt: skip
    a, tuned, other, third = (
        write(tmp_path / f"{name}.safetensors", state) for name, state in states.items()
    )
    given = ("--model", f"{__name__}:Bottleneck", "--json")
    assert json.loads(run("compare", a, tuned, *given, code=3).stdout)["kind"] == "undecided"
    beside = (*given, "--independent", other, "--null", "1")
    found = told(run, "compare", "compare", a, tuned, *beside, code=1)
    assert found["kind"] == "derived" and len(found["null"]) == 3
    assert json.loads(run("compare", a, third, *beside, code=1).stdout)["kind"] == "unrelated"
    shown = run("compare", a, tuned, *given, "--null", "0", code=2).stderr
    assert four(shown) == ["came", "expected", "instead"]


@pytest.mark.filterwarnings("ignore")
def test_folders_and_programs_bring_their_models(run, folder, program, weights, tmp_path: Path):
    out = tmp_path / "moved"
    run("transform", folder, out)
    found = json.loads(run("compare", folder, out, "--json").stdout)
    assert found["kind"] == "same up to symmetry" and not found["notes"]
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "rope_theta": 77.0}))
    said = run("compare", folder, out, "--json").stderr
    assert "'rope_theta'" in said and "different functions" in said
    assert json.loads(run("compare", program, weights, "--json").stdout)["kind"] == "identical"


class Smooth(nn.Sequential):
    """The tensors of `Wide`, and another function of them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 20))

    def example_inputs(self) -> tuple[torch.Tensor]:
        return Wide().example_inputs()


class Narrow(nn.Sequential):
    """One unit fewer."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 31), nn.ReLU(), nn.Linear(31, 20))

    def example_inputs(self) -> tuple[torch.Tensor]:
        return Wide().example_inputs()


def broken(name: str) -> dict[str, torch.Tensor]:
    state = state_of(Wide())
    if name == "nan":
        state["2.weight"][3, 2] = torch.nan
    elif name == "missing":
        del state["2.bias"]
    elif name == "extra":
        state["3.bias"] = torch.zeros(2)
    elif name == "dtype":
        state = {n: t.double() for n, t in state.items()}
    elif name == "whole":
        state["0.bias"] = state["0.bias"].long()
    elif name == "shape":
        state["0.weight"] = state["0.weight"][:, :-1]
    return state


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nan", "'2.weight'"), ("missing", "'2.bias' missing"), ("extra", "'3.bias' unknown"),
        ("dtype", "'0.weight' has the dtype float64"), ("whole", "'0.bias' holds whole numbers"),
        ("shape", "'0.weight' has shape (32, 19)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["compare", "align", "merge"])
def test_weights_that_do_not_fit_are_named(run, files, tmp_path, command, name: str, says: str):
    bad = write(tmp_path / "bad.safetensors", broken(name))
    out = [] if command == "compare" else [tmp_path / "out.safetensors"]
    shown = run(command, files["a"], bad, *out, "--model", WIDE, code=2).stderr
    assert four(shown) == ["came", "expected", "instead"] and says in shown
    assert "bad.safetensors" in shown and not (tmp_path / "out.safetensors").exists()


def test_another_architecture_is_named_by_tensor_shape_and_space(run):
    shown = run("compare", WIDE, f"{__name__}:Narrow", code=2).stderr
    assert four(shown) == ["came", "expected", "instead"]
    assert "'0.weight' has shape (31, 20)" in shown and "(32, 20)" in shown and "mlp" in shown
    shown = run("compare", WIDE, f"{__name__}:Smooth", code=2).stderr
    assert "not its symmetry" in shown and four(shown) == ["came", "expected", "instead"]


@pytest.mark.parametrize("command", ["compare", "align", "merge"])
def test_a_model_alone_needs_weights(run, tmp_path: Path, command: str):
    out = [] if command == "compare" else [tmp_path / "out.safetensors"]
    source = "tests.models:on_meta"
    shown = run(command, source, source, *out, "--inputs", "2x5", code=2).stderr
    assert four(shown) == ["came", "expected", "instead"] and "--model" in shown


def test_weights_alone_need_a_model(run, files):
    shown = run("compare", files["a"], files["moved"], code=2).stderr
    assert "--model package.module:factory" in shown
    shown = run("compare", WIDE, files["moved"]).stdout
    assert shown.startswith("same up to symmetry")
    run("compare", WIDE, files["moved"], "--key", "model", code=2)
    run("compare", WIDE, "nowhere.safetensors", code=2)


def test_a_key_leads_into_archives(run, files, tmp_path: Path):
    torch.save({"model": moved(Wide()), "epoch": 3}, tmp_path / "run.pt")
    call = ("compare", files["a"], tmp_path / "run.pt", "--model", WIDE)
    run(*call, code=2)
    assert "'epoch' stay behind" in run(*call, "--key", "model").stderr
