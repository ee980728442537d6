"""`paramsym transport`: an artefact is moved, compared, and written or not at all."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paramsym import act, find_symmetry, transport
from paramsym.checkpoints import open_checkpoint
from paramsym.checkpoints.sketch import are_alike, parsed, sketch_of, written
from paramsym.formats.weights import metadata_of

CONFIG = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 2, "fan_in_fan_out": False, "bias": "none",
    "target_modules": ["q_proj"], "use_dora": False, "alpha_pattern": {}, "task_type": "CAUSAL_LM",
}  # fmt: skip


class Case:
    """A folder, an element of its symmetry, and what is attached to it."""

    def __init__(self, folder: Path, tmp_path: Path):
        self.folder, checkpoint = folder, open_checkpoint(str(folder))
        self.params = checkpoint.state()
        self.symmetry = find_symmetry(checkpoint.model, checkpoint.inputs)
        self.g = self.symmetry.sample(torch.Generator().manual_seed(0))
        self.along, self.lora = tmp_path / "g.safetensors", tmp_path / "lora"
        self.g.save(self.along)
        self.lora.mkdir()
        generator = torch.Generator().manual_seed(1)
        made = {}
        for name, module in checkpoint.model.named_modules():
            if isinstance(module, torch.nn.Linear):
                outputs, inputs = module.weight.shape
                stem = f"base_model.model.{name}.lora"
                made[f"{stem}_A.weight"] = 0.3 * torch.randn(2, inputs, generator=generator)
                made[f"{stem}_B.weight"] = 0.3 * torch.randn(outputs, 2, generator=generator)
        self.tensors = made
        save_file(made, self.lora / "adapter_model.safetensors", {"format": "pt", "by": "a test"})
        (self.lora / "adapter_config.json").write_text(json.dumps(CONFIG))
        (self.lora / "README.md").write_text("an adapter")

    def command(self, artefact: Path, out: Path, *more: object) -> tuple[object, ...]:
        return "transport", artefact, out, "--along", self.along, "--of", self.folder, *more


@pytest.fixture
def case(folder: Path, tmp_path: Path) -> Case:
    return Case(folder, tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(run, case: Case, *command: object, says: tuple[str, ...]) -> None:
    """Four parts, exit code 2, and nothing written."""
    before = contents(case.lora.parent)
    shown = run(*command, code=2).stderr
    parts = [line.strip().split("  ")[0] for line in shown.splitlines()]
    assert parts[0].startswith("Error in ") and parts[-3:] == ["came", "expected", "instead"]
    flat = re.sub(r"\s+", " ", shown)
    for text in says:
        assert text in flat, f"{text!r} is not in {flat}"
    assert contents(case.lora.parent) == before


def test_an_adapter_is_written_as_it_came_and_its_source_is_not_touched(run, case, tmp_path):
    before = contents(case.lora.parent)
    out = tmp_path / "moved"
    found = json.loads(run(*case.command(case.lora, out), "--json").stdout)
    assert found["error"] <= 1e-5 and found["control"] >= 1e-2 and not found["notes"]
    assert found["compared"] == "outputs of the model with the adapter merged"
    wanted = transport(case.tensors, case.g, case.params, config=CONFIG)
    file = out / "adapter_model.safetensors"
    written = load_file(file)
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[n], t) for n, t in wanted.items())
    assert metadata_of(file)["by"] == "a test"
    for name in ("adapter_config.json", "README.md"):
        assert (out / name).read_bytes() == (case.lora / name).read_bytes()
    assert {p: b for p, b in contents(tmp_path).items() if not p.startswith(str(out))} == before


def test_what_was_compared_is_printed_beside_the_control(run, case, tmp_path):
    said = run(*case.command(case.lora, tmp_path / "moved")).stdout
    assert "largest change: outputs of the model with the adapter merged" in said
    assert "the control" in said and "residual, 2" in said


def test_an_autoencoder_by_its_names_and_anything_by_types(run, case, tmp_path):
    sae, other = tmp_path / "sae.safetensors", tmp_path / "other.safetensors"
    tensors = {"W_enc": torch.randn(8, 20), "W_dec": torch.randn(20, 8), "b_dec": torch.randn(8)}
    save_file(tensors, sae)
    save_file({"fc": torch.randn(8, 16)}, other)
    out = tmp_path / "out.safetensors"
    found = json.loads(run(*case.command(sae, out), "--json").stdout)
    assert found["types"] == {"W_enc": "residual*, 20", "W_dec": "20, residual",
                              "b_dec": "residual"}  # fmt: skip
    assert found["error"] <= 1e-6 and found["control"] >= 1e-2
    wanted = transport(tensors, case.g)
    assert all(torch.allclose(t, wanted[n], atol=1e-5) for n, t in load_file(out).items())
    types = tmp_path / "types.json"
    types.write_text(json.dumps({"fc": "residual, (residual + residual)*"}))
    run(*case.command(other, tmp_path / "fc.safetensors", "--types", types))
    refused(run, case, *case.command(other, tmp_path / "no.safetensors"),
            says=("axis 0 of 8: residual", "State it"))  # fmt: skip
    types.write_text("[]")
    refused(run, case, *case.command(other, tmp_path / "no.safetensors", "--types", types),
            says=("something else than texts",))  # fmt: skip


def test_the_element_of_another_model_is_named_by_fingerprint(run, case, tmp_path):
    from tests.models import Small

    model = Small()
    symmetry = find_symmetry(model, model.example_inputs())
    symmetry.sample(torch.Generator().manual_seed(0)).save(case.along)
    says = (symmetry.fingerprint[:12], case.symmetry.fingerprint[:12])
    refused(run, case, *case.command(case.lora, tmp_path / "moved"), says=says)


def test_the_adapter_of_another_model_is_named_by_shape(run, case, tmp_path):
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    save_file({**case.tensors, name: torch.ones(2, 9)}, case.lora / "adapter_model.safetensors")
    refused(run, case, *case.command(case.lora, tmp_path / "moved"),
            says=("(2, 9)", "'model.layers.0.mlp.up_proj.weight' of shape (12, 8)"))  # fmt: skip


def test_places_that_are_missing_or_taken(run, case, tmp_path):
    out = tmp_path / "moved"
    refused(run, case, *case.command(tmp_path / "nothing", out), says=("no such file or folder",))
    refused(run, case, *case.command(case.lora, case.lora), says=("this is the source",))
    refused(run, case, *case.command(case.lora, case.lora / "x"), says=("inside the source",))
    refused(run, case, *case.command(case.lora, tmp_path / "x.safetensors"), says=("a folder",))
    run(*case.command(case.lora, out))
    refused(run, case, *case.command(case.lora, out), says=("--force",))
    run(*case.command(case.lora, out), "--force")
    case.along.unlink()
    refused(run, case, *case.command(case.lora, tmp_path / "n"), says=("an element of",))


def test_half_precision_is_compared_without_its_rounding(run, case, tmp_path, monkeypatch):
    half = {n: t.bfloat16() for n, t in case.tensors.items()}
    save_file(half, case.lora / "adapter_model.safetensors")
    found = json.loads(run(*case.command(case.lora, tmp_path / "moved"), "--json").stdout)
    assert found["error"] < 0.1 < 0.2 < found["control"]
    written = load_file(tmp_path / "moved" / "adapter_model.safetensors")
    assert {t.dtype for t in written.values()} == {torch.bfloat16}

    def nearly(tensors, *args, **options):
        """Wrong by less than bfloat16 is allowed to round."""
        return {n: 1.02 * t for n, t in transport(tensors, *args, **options).items()}

    monkeypatch.setattr("paramsym.checkpoints.transported.transport", nearly)
    refused(run, case, *case.command(case.lora, tmp_path / "n"), says=("at most 1e-04",))


def test_what_was_moved_belongs_to_the_moved_model(run, case, tmp_path):
    """Twice moved, it fits a model that is moved twice, and the comparison would say yes."""
    once, back, there = tmp_path / "once", tmp_path / "back.safetensors", tmp_path / "there"
    run(*case.command(case.lora, once))
    says = ("a model of other weights", "fingerprint")
    refused(run, case, *case.command(once, tmp_path / "n"), says=says)
    (~case.g).save(back)
    open_checkpoint(str(case.folder)).save(there, act(case.symmetry, case.g, case.params))
    run("transport", once, tmp_path / "undone", "--along", back, "--of", there)
    undone = load_file(tmp_path / "undone" / "adapter_model.safetensors")
    assert all(torch.allclose(undone[n], t, atol=1e-4) for n, t in case.tensors.items())
    run(*case.command(tmp_path / "undone", tmp_path / "again"))  # it is at home once more


def test_sketches_tell_weights_apart_up_to_rounding(case):
    here = sketch_of(case.params)
    assert are_alike(here, sketch_of({n: t.bfloat16() for n, t in case.params.items()}))
    assert parsed(written(here)) and parsed("no numbers") is None
    for name in (*case.symmetry.spaces, None):
        g = case.symmetry.sample(torch.Generator().manual_seed(1), only=name and [name])
        moved = act(case.symmetry, g, case.params)
        if any(not torch.allclose(moved[n], t) for n, t in case.params.items()):
            assert not are_alike(here, sketch_of(moved)), name


def test_an_element_that_hardly_moves_is_told(run, case, tmp_path):
    case.symmetry.identity().save(case.along)
    said = run(*case.command(case.lora, tmp_path / "moved"))
    assert "the comparison shows little" in said.stderr


def test_a_wrong_move_is_not_written(run, case, tmp_path, monkeypatch):
    """The comparison decides, whatever was moved."""
    monkeypatch.setattr(
        "paramsym.checkpoints.transported.transport", lambda tensors, *a, **k: dict(tensors)
    )
    refused(run, case, *case.command(case.lora, tmp_path / "moved"),
            says=("computes another function", "Nothing is kept"))  # fmt: skip
