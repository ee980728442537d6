"""`paramsym transform`: other numbers, the same function, and the source untouched."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.models import Small, Tied

SMALL = "tests.models:Small"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outputs(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    model = Small()
    model.load_state_dict(state)
    with torch.no_grad():
        return model.eval()(x)


def test_a_safetensors_file_becomes_an_equivalent_one(run, weights: Path, tmp_path: Path):
    out, before = tmp_path / "moved.safetensors", digest(weights)
    output = run("transform", SMALL, out, "--weights", weights, "--seed", 3).output
    assert "are in tensors that moved" in output and digest(weights) == before
    old, new = load_file(weights), load_file(out)
    assert list(old) == list(new)
    assert all(old[n].dtype == new[n].dtype and old[n].shape == new[n].shape for n in old)
    assert float((old["first.weight"] - new["first.weight"]).abs().max()) > 0.1
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(5))
    a, b = outputs(old, x), outputs(new, x)
    assert float((a - b).abs().max() / a.abs().max()) < 1e-5
    with safe_open(out, framework="pt") as file:
        assert file.metadata()["origin"] == "a test"


def test_the_same_seed_writes_the_same_file(run, weights: Path, tmp_path: Path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / f"{name}.safetensors"
        run("transform", SMALL, out, "--weights", weights, "--seed", seed)
    a, b, c = (load_file(tmp_path / f"{name}.safetensors") for name in "abc")
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)


def test_strength_zero_changes_nothing(run, weights: Path, tmp_path: Path):
    out = tmp_path / "same.safetensors"
    run("transform", SMALL, out, "--weights", weights, "--strength", 0)
    old, new = load_file(weights), load_file(out)
    assert all(torch.equal(old[n], new[n]) for n in old)


def test_only_moves_what_it_names(run, weights: Path, tmp_path: Path):
    found = json.loads(run("inspect", SMALL, "--no-verify", "--json").output)
    space = next(s for s in found["spaces"] if s["dimension"])
    out = tmp_path / "part.safetensors"
    run("transform", SMALL, out, "--weights", weights, "--only", space["name"])
    old, new = load_file(weights), load_file(out)
    assert torch.equal(old["last.bias"], new["last.bias"])
    assert any(not torch.equal(old[n], new[n]) for n in old)


@pytest.mark.filterwarnings("ignore")
def test_only_takes_patterns_as_they_are_printed(run, folder: Path, tmp_path: Path):
    out = tmp_path / "moved"
    run("transform", folder, out, "--only", "layers.{0,9}.mlp,*.1.attn.{head,vo}")
    old, new = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    moved = {name.split(".", 2)[2] for name in old if not torch.equal(old[name], new[name])}
    values = {f"1.self_attn.{part}_proj.weight" for part in "qkvo"}
    mlp = {f"0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert mlp | {"1.self_attn.v_proj.weight", "1.self_attn.o_proj.weight"} <= moved
    assert moved <= mlp | values


@pytest.mark.filterwarnings("ignore")
def test_a_pattern_of_nothing_lists_near_names(run, folder: Path, tmp_path: Path):
    only, out = "layers.{0..7}.atn.head", tmp_path / "moved"
    output = run("transform", folder, out, "--only", only, code=2).output
    assert only in output and "layers.{0..1}.attn.head" in output and not out.exists()


def test_archives_of_torch_save_stay_archives(run, tmp_path: Path):
    source, out = tmp_path / "small.pt", tmp_path / "moved.pt"
    torch.save(Small().state_dict(), source)
    run("transform", SMALL, out, "--weights", source)
    assert set(torch.load(out, weights_only=True)) == set(Small().state_dict())


def test_tied_weights_stay_tied_and_need_one_name(run, tmp_path: Path):
    state = {n: t for n, t in Tied().state_dict().items() if n != "head.weight"}
    source, out = tmp_path / "tied.safetensors", tmp_path / "moved.safetensors"
    save_file(state, source)
    run("transform", "tests.models:Tied", out, "--weights", source, "--inputs", "2x7:int64<11")
    assert set(load_file(out)) == set(state)


def test_a_program_becomes_a_program(run, program: Path, tmp_path: Path):
    out = tmp_path / "moved.pt2"
    result = json.loads(run("transform", program, out, "--json").output)
    assert result["error"] < 1e-5 and result["changed"] > 70
    x = Small().example_inputs()
    a = torch.export.load(program).module()(*x)
    b = torch.export.load(out).module()(*x)
    assert float((a - b).detach().abs().max()) < 1e-5 * float(a.detach().abs().max())


@pytest.mark.filterwarnings("ignore")
def test_a_folder_becomes_a_folder_with_its_other_files(run, folder: Path, tmp_path: Path):
    (folder / "tokenizer.json").write_text("{}")
    out = tmp_path / "moved"
    run("transform", folder, out)
    assert {p.name for p in folder.iterdir()} <= {p.name for p in out.iterdir()}
    assert (out / "config.json").read_text() == (folder / "config.json").read_text()
    old, new = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert set(old) == set(new) and any(not torch.equal(old[n], new[n]) for n in old)


@pytest.mark.filterwarnings("ignore")
def test_a_sharded_folder_stays_sharded(run, sharded: Path, tmp_path: Path):
    out = tmp_path / "moved"
    run("transform", sharded, out)
    assert len(list(out.glob("*.safetensors"))) > 1
    assert (out / "model.safetensors.index.json").is_file()


def test_the_source_is_never_overwritten(run, weights: Path):
    before = digest(weights)
    output = run("transform", SMALL, weights, "--weights", weights, code=2).output
    assert "this is the source" in output and digest(weights) == before


def test_a_link_to_the_source_is_the_source(run, weights: Path, tmp_path: Path):
    link = tmp_path / "link.safetensors"
    link.symlink_to(weights)
    output = run("transform", SMALL, link, "--weights", weights, code=2).output
    assert "this is the source" in output


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_written_into_a_source_folder(run, folder: Path):
    before = sorted(p.name for p in folder.iterdir())
    assert "inside the source" in run("transform", folder, folder / "new", code=2).output
    assert "the source" in run("transform", folder, folder, code=2).output
    assert sorted(p.name for p in folder.iterdir()) == before


def test_an_unknown_name_lists_the_known_ones(run, weights: Path, tmp_path: Path):
    out = tmp_path / "x.safetensors"
    output = run("transform", SMALL, out, "--weights", weights, "--only", "h9", code=2).output
    assert "h9" in output and "first" in output and not out.exists()
