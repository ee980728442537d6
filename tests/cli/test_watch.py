"""`paramsym watch`: a training script that knows nothing of the ledger is followed."""

import json
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, scale=1.0):
        return scale * self.last(torch.relu(self.first(x)))

torch.manual_seed(0)
model, x, y = Net().double(), torch.randn(8, 4).double(), torch.arange(8) % 3
steps = int(sys.argv[1]) if sys.argv[1:] else 4
optimizer = {optimizer}
for k in range(steps):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x=x, scale=0.5), y){loss}
    loss.backward()
    optimizer.step(){after}
print("trained", __name__, sys.argv[1:])
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"


def training_script(folder: Path, optimizer: str = SGD, loss: str = "", after: str = "") -> Path:
    """A script that trains for a few steps."""
    path = folder / "train.py"
    text = SCRIPT.replace("{optimizer}", optimizer).replace("{loss}", loss)
    path.write_text(text.replace("{after}", after))
    return path


def test_a_script_is_followed_and_reported(run, tmp_path: Path):
    script, page = training_script(tmp_path), tmp_path / "page.html"
    said = " ".join(run("watch", "--html", page, script, "6").stdout.split())
    assert "trained __main__ ['6']" in said  # its arguments, and its own output
    assert "Net, 5 steps" in said and "Conserved to rounding" in said
    text = page.read_text(encoding="utf-8")
    assert "Conserved to rounding" in text and '<th scope="row">mlp</th>' in text
    assert torch.nn.modules.module._global_forward_pre_hooks == {}
    assert "there is such a file" in run("watch", "--html", page, script, code=2).stderr


def test_json_is_not_mixed_with_what_the_script_prints(run, tmp_path: Path):
    found = json.loads(run("watch", "--json", training_script(tmp_path)).stdout)
    assert found["model"] == "Net" and found["steps"] == 3
    assert found["broken"] == [] and found["relative"] <= 1e-14


def test_json_is_not_mixed_with_what_children_print(run, tmp_path: Path, capfd):
    script = training_script(tmp_path, after="; __import__('os').system('echo from a child')")
    run("watch", "--json", script)
    said = capfd.readouterr()
    assert "from a child" in said.err and "from a child" not in said.out


def test_a_script_that_catches_errors_does_not_catch_what_cannot_be_followed(run, tmp_path: Path):
    script = training_script(tmp_path, optimizer="torch.optim.Adam(model.parameters())")
    step = "    optimizer.step()"
    caught = f"    try:\n    {step}\n    except Exception as error:\n        print('caught')"
    script.write_text(script.read_text().replace(step, caught))
    found = run("watch", script, code=2)
    assert "torch.optim.SGD was expected" in found.stderr and "caught" not in found.stdout


def test_what_find_symmetry_refuses_is_not_a_failure_of_the_script(run, tmp_path: Path):
    script = training_script(tmp_path)
    branching = "return self.last.weight.sum().item() * scale * self.last("
    script.write_text(script.read_text().replace("return scale * self.last(", branching))
    said = run("watch", script, code=2).stderr
    assert "find_symmetry(model=Net)" in said and "Run it by itself" not in said


def test_a_ledger_that_ended_reports_no_later_residual(run, tmp_path: Path):
    script, page = training_script(tmp_path), tmp_path / "page.html"
    step = "optimizer.step()"
    script.write_text(script.read_text().replace(
        step, f"{step}; k == 2 and model.first.weight.data.clamp_(-0.1, 0.1)"))  # fmt: skip
    found = run("watch", "--html", page, script, "6", code=2)
    assert "after 2 steps the ledger ended" in found.stderr
    assert "Not conserved" not in found.stdout and not page.exists()


def test_inputs_that_only_a_wrapper_of_keywords_knows(run, tmp_path: Path):
    script = training_script(tmp_path)
    wrapper = """
class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        return self.inner(**batch)

torch.manual_seed(0)
"""
    text = script.read_text().replace("\ntorch.manual_seed(0)\n", wrapper)
    script.write_text(text.replace("Net().double()", "Wrapper(Net().double())"))
    assert "Conserved to rounding" in run("watch", script).stdout


def test_a_script_may_change_the_folder_and_make_models_that_it_drops(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = training_script(tmp_path)
    (tmp_path / "beside_the_script.py").write_text("")
    first = "import os\nos.chdir('/')\nimport beside_the_script\n"
    made = "torch.manual_seed(0)\nfor _ in range(9): Net()(torch.zeros(1, 4))\n"
    script.write_text(first + script.read_text().replace("torch.manual_seed(0)\n", made))
    monkeypatch.chdir(tmp_path)
    assert "Conserved to rounding" in run("watch", script.name).stdout


def test_autocast_is_noticed(run, tmp_path: Path):
    script = training_script(tmp_path)
    text = script.read_text().replace(".double()", "").replace("model(x=x", "auto(x=x")
    auto = "def auto(**given):\n    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
    auto += "        return model(**given).float()\nfor k in"
    script.write_text(text.replace("for k in", auto))
    found = json.loads(run("watch", "--json", script, "20").stdout)
    assert found["broken"] == [] and found["relative"] > 1e-6


def test_a_penalty_on_one_layer_is_found(run, tmp_path: Path):
    script = training_script(tmp_path, loss=" + 1e-3 * model.first.weight.square().sum()")
    page = tmp_path / "page.html"
    said = run("watch", "--html", page, script, code=1).stdout
    assert "Not conserved: mlp" in said and "a penalty on weights" in " ".join(said.split())
    assert "<td><strong>" in page.read_text(encoding="utf-8")  # the family in question


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"optimizer": "torch.optim.Adam(model.parameters())"}, "torch.optim.SGD was expected"),
        (
            {"after": "; model.first.weight.data.clamp_(-0.1, 0.1)"},
            "after 1 steps the ledger ended",
        ),
        ({"after": "; break"}, "before an optimiser had taken two steps"),
        ({"after": "; raise KeyError('lost')"}, "KeyError: 'lost'"),
        ({"after": "; sys.exit(3)"}, "it ended with exit code 3"),
    ],
)
def test_what_cannot_be_followed_is_said(run, tmp_path: Path, made: dict, said: str):
    assert said in run("watch", training_script(tmp_path, **made), code=2).stderr


def test_a_missing_script(run, tmp_path: Path):
    assert "there is no such file" in run("watch", tmp_path / "none.py", code=2).stderr
