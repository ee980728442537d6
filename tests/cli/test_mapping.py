"""`paramsym export` and `paramsym check-mapping`: from a folder to a file that a tool loads."""

import json
from pathlib import Path

import pytest
import yaml

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
    assert f"missing reader: {lost}.weight" in said and "right: model.layers.0" in said
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
    layers = json.loads(out.read_text())["scaling_layers"]
    assert layers[0]["prev_op"] == NORM and layers[0]["inp"] == layers[0]["layers"][0]
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
    assert "cannot be written" in run("export", folder, "--for", "awq", "--output", away,
                                      code=2).output  # fmt: skip
    assert "Expected a recipe" in run("check-mapping", folder, tmp_path / "none.yaml",
                                      code=2).output  # fmt: skip
