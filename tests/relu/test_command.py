"""`paramsym relu-equal` through its runner: output and exit codes."""

import json

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from paramsym import relu
from paramsym.relu.command import relu_equal

app = typer.Typer()
app.command("relu-equal")(relu_equal)
RUNNER = CliRunner()

ABS = [([["1"], ["-1"]], ["0", "0"]), ([["1", "1"]], ["0"])]
OTHER = [([["1"]], ["0"]), ([["2"]], ["0"])]


def write(folder, name, net):
    path = folder / name
    path.write_text(json.dumps(relu.as_network(net).to_json()), encoding="utf-8")
    return str(path)


def test_equal_different_and_json(tmp_path):
    a, b = write(tmp_path, "a.json", ABS), write(tmp_path, "b.json", OTHER)
    same = RUNNER.invoke(app, [a, a])
    assert same.exit_code == 0 and same.stdout.startswith("EQUAL")
    other = RUNNER.invoke(app, [a, b, "--exact"])
    assert other.exit_code == 1 and "f(x)" in other.stdout
    data = json.loads(RUNNER.invoke(app, [a, b, "--exact", "--json"]).stdout)
    assert data["kind"] == "DIFFERENT" and data["witness"] and data["values"]


def test_box(tmp_path):
    a = write(tmp_path, "a.json", ABS)
    b = write(tmp_path, "b.json", [([["1"]], ["0"]), ([["1"]], ["0"])])
    assert RUNNER.invoke(app, [a, b, "--exact", "--box", "0", "1"]).exit_code == 0
    assert RUNNER.invoke(app, [a, b, "--exact", "--box", "-1", "1"]).exit_code == 1


def test_undecided_has_its_own_exit_code(tmp_path):
    import numpy as np
    from test_deciding import _hide

    a, b = _hide(np.random.default_rng(0))
    files = [write(tmp_path, "a.json", a), write(tmp_path, "b.json", b)]
    result = RUNNER.invoke(app, [*files, "--exact", "--budget", "0.5"])
    assert result.exit_code == 3 and "Joint cells" in result.stderr


def test_safetensors_and_exported_programs(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 12) if k % 24 == 0 else torch.nn.ReLU()
                                if k % 2 else torch.nn.Linear(12, 12 if k < 22 else 1)
                                for k in range(0, 23)])  # fmt: skip
    save_file(net.state_dict(), str(tmp_path / "a.safetensors"))
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3),)), str(tmp_path / "b.pt2"))
    result = RUNNER.invoke(app, [str(tmp_path / "a.safetensors"), str(tmp_path / "b.pt2")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.json", "{", "no JSON"),
        ("a.json", '[{"W": [["x"]], "b": ["0"]}]', "'x'"),
        ("a.json", '[{"W": [[NaN]], "b": [0]}]', "NaN"),
        ("a.json", '[{"W": [[1]], "b": [0], "activation": "gelu"}]', "gelu"),
        ("a.bin", "", "suffix"),
        ("a.safetensors", "junk", "safetensors"),
        ("a.pt2", "junk", "torch.export"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_errors_have_exit_code_two_and_say_where(tmp_path, name, content, words):
    bad = tmp_path / name
    bad.write_text(content, encoding="utf-8")
    good = write(tmp_path, "good.json", ABS)
    result = RUNNER.invoke(app, [str(bad), good])
    assert result.exit_code == 2 and words in result.stderr and name in result.stderr


def test_missing_file_and_missing_argument(tmp_path):
    good = write(tmp_path, "good.json", ABS)
    result = RUNNER.invoke(app, [good, str(tmp_path / "none.json")])
    assert result.exit_code == 2 and "no file" in result.stderr
    assert RUNNER.invoke(app, [good]).exit_code == 2
    data = json.loads(RUNNER.invoke(app, [good, "none.json", "--json"]).stdout)
    assert data["kind"] == "ERROR"


def test_safetensors_with_other_tensors_are_refused(tmp_path):
    save_file({"conv.weight": torch.zeros(2, 2, 3, 3)}, str(tmp_path / "c.safetensors"))
    with pytest.raises(relu.ReLUError, match="conv.weight"):
        relu.read_network(tmp_path / "c.safetensors")
    save_file({"0.weight": torch.zeros(2, 2), "norm.weight": torch.zeros(2)},
              str(tmp_path / "n.safetensors"))  # fmt: skip
    with pytest.raises(relu.ReLUError, match="norm.weight"):
        relu.read_network(tmp_path / "n.safetensors")
