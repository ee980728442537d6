"""`paramsym export` and `paramsym check-mapping`: from a folder to a file that a tool loads."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

NORM = "model.layers.0.input_layernorm"


def test_maps_are_exported_and_sound(
    run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "recipe.yaml"
    said = run("export", folder, "--for", "awq", "--output", out).stdout
    assert "the function changes by" in said and "model.layers.{" in said
    recipe = yaml.safe_load(out.read_text())
    mappings = recipe["awq_0_stage"]["awq_modifiers"]["AWQModifier"]["mappings"]
    assert mappings[0]["smooth_layer"] == NORM
    assert run("check-mapping", folder, out).stdout.startswith("sound: ")


def test_a_missing_reader_is_named_and_the_answer_is_no(run, folder: Path, tmp_path: Path):
    out = tmp_path / "recipe.yaml"
    run("export", folder, "--for", "awq", "--output", out)
    recipe = yaml.safe_load(out.read_text())
    entry = recipe["awq_0_stage"]["awq_modifiers"]["AWQModifier"]["mappings"][0]
    lost = entry["balance_layers"].pop()
    out.write_text(yaml.safe_dump(recipe))
    said = run("check-mapping", folder, out, code=1).stdout
    assert f"missing reader: {lost}.weight" in said and "right: self_attn.q_proj" in said
    found = json.loads(run("check-mapping", folder, out, "--json", code=1).stdout)
    assert not found["sound"]
    assert found["maps"][0]["verdict"]["kind"] == "missing reader"
    assert found["maps"][0]["change"] > 1e-3


def test_a_configuration_alone_is_enough(run, folder: Path, tmp_path: Path):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    out = tmp_path / "layers.json"
    said = run("export", folder, "--for", "quark", "--output", out).stdout
    assert "replayed on a small model of the same configuration" in said
    document = json.loads(out.read_text())
    layers = document["scaling_layers"]
    assert document["model_decoder_layers"] == "model.layers"
    assert layers[0]["prev_op"] == NORM.rpartition(".")[2]
    assert layers[0]["inp"] == layers[0]["layers"][0]
    assert "not replayed" in run("check-mapping", folder, out).stdout


def test_without_an_output_the_document_is_printed(run, folder: Path):
    document = yaml.safe_load(run("export", folder, "--for", "smoothquant").stdout)
    mappings = document["smooth_stage"]["smooth_modifiers"]["SmoothQuantModifier"]["mappings"]
    assert mappings[0][1] == NORM
    found = json.loads(run("export", folder, "--for", "smoothquant", "--json").stdout)
    assert found["output"] is None and len(found["entries"]) == len(mappings)


def test_bad_input_is_said_and_nothing_is_written(run, folder: Path, tmp_path: Path):
    out = tmp_path / "there.yaml"
    out.write_text("kept")
    assert "there is such a file" in run("export", folder, "--for", "awq", "--output", out,
                                         code=2).output  # fmt: skip
    assert out.read_text() == "kept"
    run("export", folder, "--for", "gptq", code=2)
    away = tmp_path / "nowhere" / "a.yaml"
    assert "nothing can be written there" in run("export", folder, "--for", "awq", "--output", away,
                                      code=2).output  # fmt: skip
    assert "a recipe in YAML" in run("check-mapping", folder, tmp_path / "none.yaml",
                                      code=2).output  # fmt: skip


def test_rotations_and_blocks_are_exported(run, folder: Path, tmp_path: Path):
    out = tmp_path / "recipe.yaml"
    said = run("export", folder, "--for", "spinquant", "--output", out).stdout
    assert "norms to fold" in said and "replayed with random rotations" in said
    (stage,) = yaml.safe_load(out.read_text()).values()
    assert stage["rotation_modifiers"]["SpinQuantModifier"]["transform_config"]
    found = json.loads(run("export", folder, "--for", "spinquant", "--json").stdout)
    assert found["error"] < 1e-10 and found["rotations"][0]["space"] == "residual"
    out = tmp_path / "blocks.json"
    assert "hidden" in run("export", folder, "--for", "optimizer", "--output", out).stdout
    found = json.loads(run("export", folder, "--for", "optimizer", "--json").stdout)
    assert found["parameters"] == json.loads(out.read_text())["parameters"]


def test_what_the_format_cannot_say_is_moved(run, folder: Path, tmp_path: Path):
    out = tmp_path / "moved"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    said = run("export", folder, "--for", "awq", "--apply", out).stdout
    assert "of the weights moved; outputs differ by" in said
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    a, b = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    changed = {name.rpartition("self_attn.")[2] for name in a if not torch.equal(a[name], b[name])}
    attention = {f"{p}_proj.weight" for p in "qkvo"}
    assert changed == {*attention, "model.norm.weight", "lm_head.weight"}  # all that is refused
    assert "up to symmetry" in run("compare", folder, out).stdout


def test_given_scales_are_those_of_the_move(run, folder: Path, tmp_path: Path):
    out, scales = tmp_path / "moved", tmp_path / "scales.safetensors"
    weight = load_file(folder / "model.safetensors")["model.layers.0.self_attn.v_proj.weight"]
    s = torch.linspace(0.5, 2.0, len(weight))
    save_file({"layers.0.attn.vo": s}, scales)
    run("export", folder, "--for", "awq", "--apply", out, "--scales", scales)
    moved = load_file(out / "model.safetensors")["model.layers.0.self_attn.v_proj.weight"]
    assert torch.allclose(moved, weight * s.reshape(-1, 1))


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        ({"layers.0.attn.vo": -torch.ones(4)}, "not positive"),
        ({"nowhere": torch.ones(4)}, "nowhere"),
        ({"layers.0.attn.vo": torch.ones(3)}, "layers.0.attn.vo"),
    ],
)
def test_wrong_scales_are_refused(run, folder: Path, tmp_path: Path, scales, said: str):
    out, file = tmp_path / "moved", tmp_path / "scales.safetensors"
    recipe = tmp_path / "recipe.yaml"
    save_file(scales, file)
    told = run("export", folder, "--for", "awq", "--output", recipe, "--apply", out, "--scales",
               file, code=2).output  # fmt: skip
    assert said in told and not out.exists() and not recipe.exists()


def test_where_nothing_can_be_said_no_recipe_is_written(run, tmp_path: Path):
    recipe, source = tmp_path / "recipe.yaml", ("tests.models:Tied", "--inputs", "2x5:int64<11")
    said = run("export", *source, "--for", "quark", "--output", recipe, code=2).output
    assert "no map that quark can be told" in said and not recipe.exists()
    assert "scaling_layers" not in run("export", *source, "--for", "quark").stdout


def test_options_that_do_not_go_together_are_refused(run, folder: Path, tmp_path: Path):
    out, file = tmp_path / "moved", tmp_path / "none.safetensors"
    assert "told of no scales" in run("export", folder, "--for", "optimizer", "--apply", out,
                                      code=2).output  # fmt: skip
    assert "no --apply" in run("export", folder, "--for", "awq", "--scales", file, code=2).output
    assert "cannot be read" in run("export", folder, "--for", "awq", "--apply", out, "--scales",
                                   file, code=2).output  # fmt: skip
    assert "source" in run("export", folder, "--for", "awq", "--apply", folder, code=2).output


def test_a_mapping_that_cannot_be_read_is_told_before_anything_is_derived(
    run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("paramsym.checkpoints.mapped.find_symmetry", None)
    file = tmp_path / "empty.yaml"
    file.write_text("AWQModifier: {mappings: []}")
    said = run("check-mapping", folder, file, code=2).output
    assert "came" in said and "without entries" in said and "instead" in said


def test_quantised_weights_are_not_needed(run, folder: Path, tmp_path: Path):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"packed": torch.zeros(3)}, folder / "model.safetensors")
    out = tmp_path / "recipe.yaml"
    said = run("export", folder, "--for", "awq", "--output", out)
    assert "quantised by gptq" in said.output and "replayed on a small model" in said.output
    assert run("check-mapping", folder, out).exit_code == 0
    moved = tmp_path / "moved"
    assert "quantised by gptq" in run("export", folder, "--for", "awq", "--apply", moved,
                                      code=2).output  # fmt: skip
    assert "quantised by gptq" in run("inspect", folder, code=2).output
    assert not moved.exists()


def test_an_adapter_is_named(run, tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    said = run("export", tmp_path, "--for", "awq", code=2).output
    assert "adapter on top of 'some/base'" in said and "merge_and_unload" in said


def test_maps_that_are_wrong_alike_are_said_once(run, folder: Path, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"AWQModifier": {"mappings": [
        {"smooth_layer": "re:.*input_layernorm$", "balance_layers": ["re:.*q_proj$"]},
        {"smooth_layer": "re:.*nowhere$", "balance_layers": ["re:.*q_proj$"]},
    ]}}))  # fmt: skip
    said = run("check-mapping", folder, recipe, code=1).stdout
    layers = len(json.loads(run("check-mapping", folder, recipe, "--json", code=1).stdout)["maps"])
    assert said.count("missing reader:") == 1 and f"(×{layers - 1})" in said
    assert "re:.*nowhere$ -> re:.*q_proj$" in said
