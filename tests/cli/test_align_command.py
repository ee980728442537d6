"""`paramsym align`: one checkpoint moved next to another, with the element that does it."""

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paramsym import GroupElement, act, find_symmetry
from tests.cli.pairs import SMALL, WIDE, four, moved, outputs, state_of, write
from tests.models import Small, Wide


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A network, and a moved copy with noise of ten per cent."""
    first = write(tmp_path / "a.safetensors", state_of(Wide()))
    return first, write(tmp_path / "b.safetensors", moved(Wide(), noise=0.1))


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    square = sum(float((a[n] - b[n]).double().square().sum()) for n in a)
    size = sum(float(t.double().square().sum()) for s in (a, b) for t in s.values())
    return (square / size) ** 0.5


def test_b_comes_next_to_a_and_computes_what_it_did(run, pair, tmp_path: Path):
    a, b = pair
    contents = [path.read_bytes() for path in pair]
    out = tmp_path / "out.safetensors"
    found = json.loads(run("align", a, b, out, "--model", WIDE, "--json").stdout)
    first, second, new = load_file(a), load_file(b), load_file(out)
    assert apart(first, second) == pytest.approx(found["before"], rel=1e-5)
    assert apart(first, new) == pytest.approx(found["after"], rel=1e-5)
    assert found["after"] < 0.2 < 0.9 < found["before"]
    assert found["moved"]["mlp"]["units"] > 16 and found["moved"]["mlp"]["of"] == 32
    change = (outputs(Wide(), second) - outputs(Wide(), new)).abs().max()
    assert float(change / outputs(Wide(), second).abs().max()) < 1e-5
    assert contents == [path.read_bytes() for path in pair]
    assert {*found["tensors"]} == {*first} and found["error"] < found["tolerance"]


def test_the_element_is_written_beside_for_its_owner_alone(run, pair, tmp_path: Path):
    a, b = pair
    out, element = tmp_path / "out.safetensors", tmp_path / "out.element.safetensors"
    said = run("align", a, b, out, "--model", WIDE).stdout
    assert "element" in said and "order" in said and "32" in said and "→" in said
    assert stat.S_IMODE(element.stat().st_mode) == 0o600
    model = Wide()
    symmetry = find_symmetry(model, model.example_inputs())
    again = act(symmetry, GroupElement.load(element, symmetry), load_file(b))
    assert all(torch.equal(again[n], t) for n, t in load_file(out).items())
    other = tmp_path / "g.json"
    run("align", a, b, out, "--model", WIDE, "--force", "--element", other)
    assert json.loads(other.read_text())["fingerprint"] == symmetry.fingerprint


def test_permutations_and_spaces_limit_what_moves(run, pair, tmp_path: Path):
    a, b = pair
    call = ("align", a, b, tmp_path / "o.safetensors", "--model", WIDE, "--json", "--force")
    whole = json.loads(run(*call).stdout)
    orders = json.loads(run(*call, "--permutations").stdout)
    assert {m["how"] for m in orders["moved"].values()} == {"order"}
    assert {m["how"] for m in whole["moved"].values()} == {"order, scales"}
    second, new = load_file(b), load_file(tmp_path / "o.safetensors")
    rows, sorted_rows = (s["0.weight"].sum(1).sort().values for s in (second, new))
    assert torch.allclose(rows, sorted_rows)
    assert not torch.equal(second["0.weight"], new["0.weight"])
    assert whole["after"] < orders["after"] < orders["before"]
    run(*call, "--permutations", "--spaces", "mlp", code=2)
    shown = run(*call, "--spaces", "nowhere", code=2).stderr
    assert "--spaces nowhere" in shown and four(shown) == ["came", "expected", "instead"]


def test_the_layout_is_that_of_b(run, tmp_path: Path):
    b, out = tmp_path / "b.pt", tmp_path / "out.pt"
    torch.save({"model": {f"module.{n}": t for n, t in moved(Small()).items()}}, b)
    call = ("align", SMALL, b, out, "--key", "model", "--restarts", "2", "--seed", "4")
    assert "module." in run(*call).stderr
    written = torch.load(out, weights_only=True)
    assert [*written] == ["model"] and "module.first.weight" in written["model"]
    assert torch.allclose(
        written["model"]["module.first.weight"], Small().state_dict()["first.weight"], atol=1e-4
    )
    assert (tmp_path / "out.element.safetensors").exists()
    assert "Name the output file" in run(*call[:3], tmp_path / "o.x", *call[4:], code=2).stderr


@pytest.mark.filterwarnings("ignore")
def test_folders_and_programs_keep_their_kind(run, folder, program, tmp_path: Path):
    b, out = tmp_path / "moved", tmp_path / "aligned"
    run("transform", folder, b, "--seed", 2)
    found = json.loads(run("align", folder, b, out, "--json").stdout)
    assert found["after"] < 1e-4 < 0.5 < found["before"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in folder.iterdir())
    assert (tmp_path / "aligned.element.safetensors").exists()
    other = tmp_path / "other.pt2"
    run("transform", program, other)
    found = json.loads(run("align", program, other, tmp_path / "o.pt2", "--json").stdout)
    assert found["after"] < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_stays_what_it_was(run, tmp_path: Path, dtype: torch.dtype):
    first, second = (
        {n: t.to(dtype) for n, t in state.items()}
        for state in (state_of(Wide()), moved(Wide(), noise=0.05))
    )
    a, b = write(tmp_path / "a.safetensors", first), write(tmp_path / "b.safetensors", second)
    out = tmp_path / "out.safetensors"
    found = json.loads(run("align", a, b, out, "--model", WIDE, "--json").stdout)
    assert {t.dtype for t in load_file(out).values()} == {dtype}
    assert found["after"] < 0.1 < 0.9 < found["before"]


def test_nothing_is_replaced_and_nothing_is_half_written(run, pair, tmp_path, monkeypatch):
    a, b = pair
    call = ("align", a, b, tmp_path / "out.safetensors", "--model", WIDE)
    element = tmp_path / "out.element.safetensors"
    element.write_text("precious")
    shown = run(*call, code=2).stderr
    assert "there is such a file already" in shown and str(element) in shown
    assert element.read_text() == "precious" and not call[3].exists()
    element.unlink()
    for place in (a, b):
        assert "this is the source" in run(*call[:3], place, *call[4:], "--force", code=2).stderr
    assert "this is OUT" in run(*call, "--element", call[3], code=2).stderr
    run(*call, "--element", a, "--force", code=2)
    run(*call, "--element", tmp_path / "e.txt", code=2)

    def another(*arguments: object, **options: object) -> float:
        return 1.0

    monkeypatch.setattr("paramsym.checkpoints.moved.difference_from", another)
    shown = run(*call, code=2).stderr
    assert "another function" in shown and "--spaces" in shown
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_bad_options_are_bad_input(run, pair, tmp_path: Path):
    call = ("align", *pair, tmp_path / "out.safetensors", "--model", WIDE)
    for option in (("--sweeps", "-1"), ("--restarts", "x"), ("--seed", "1e99")):
        run(*call, *option, code=2)
    assert not (tmp_path / "out.safetensors").exists()


def test_activations_align_as_well(run, pair, tmp_path: Path):
    a, b = pair
    out, data = tmp_path / "out.safetensors", tmp_path / "inputs.safetensors"
    call = ("align", a, b, out, "--model", WIDE, "--json", "--force", "--data", data)
    write(data, {"x": torch.randn(200, 20, generator=torch.Generator().manual_seed(0))})
    found = json.loads(run(*call).stdout)
    assert found["after"] < 0.2 < 0.9 < found["before"] and "order" in found["moved"]["mlp"]["how"]
    assert any("200 of 200 samples" in note for note in found["notes"])
    write(data, {"x": torch.zeros(200, 20)})  # biases alone tell units apart, badly
    assert json.loads(run(*call).stdout)["after"] > 0.3
    write(data, {"x": torch.randn(200, 19)})
    assert four(run(*call, code=2).stderr) == ["came", "expected", "instead"]


def test_a_program_has_no_layers_to_read(run, program, tmp_path: Path):
    data = write(tmp_path / "inputs.safetensors", {"x": torch.randn(8, 5)})
    call = ("align", program, program, tmp_path / "o.pt2", "--data", data)
    shown = run(*call, code=2).stderr
    assert "Leave --data out" in shown and four(shown) == ["came", "expected", "instead"]
