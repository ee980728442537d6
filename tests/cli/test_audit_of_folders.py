"""`inspect FOLDER --audit` where the model is too large, or has no weights."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def configuration(folder: Path) -> Path:
    """A folder with a configuration alone, one key and value head for each head."""
    for file in folder.glob("*.safetensors"):
        file.unlink()
    path = folder / "config.json"
    sizes = json.loads(path.read_text()) | {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
        "intermediate_size": 64, "vocab_size": 3000, "num_hidden_layers": 3,
    }  # fmt: skip
    path.write_text(json.dumps(sizes))
    return folder


def test_a_configuration_alone_is_audited_by_its_twin(run, configuration: Path):
    found = json.loads(run("inspect", configuration, "--audit", "--json").stdout)
    assert found["parameters"] == 222_944 and found["verification"] is None
    audit = found["audit"]
    assert audit["complete"] and audit["parameters"] < 2000
    assert audit["twin_of"] == {
        "model": "LlamaForCausalLM", "parameters": 222_944, "redundant": found["redundant"],
        "redundant_exact": True,
    }  # fmt: skip
    assert audit["verdict"].startswith("complete on the twin of 1,768 parameters; the same")


def test_without_a_twin_the_report_says_why(run, configuration: Path):
    done = run("inspect", configuration, "--audit", "--limit", "300")
    output = " ".join(done.output.split())
    assert "Audit not done" in output and "more than 300" in output
    assert "without weights no move is measured" in output


def test_small_models_with_weights_are_audited_themselves(run, folder: Path):
    found = json.loads(run("inspect", folder, "--audit", "--json").stdout)
    assert found["audit"]["twin_of"] is None and found["audit"]["complete"]
    assert found["audit"]["parameters"] == found["parameters"]


def test_what_is_no_folder_still_needs_weights(run):
    output = run("inspect", "tests.models:on_meta", "--audit", "--inputs", "2x5", code=2).output
    assert "without numbers" in " ".join(output.split())
