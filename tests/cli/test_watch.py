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
    assert found["model"] == "Net" and found["steps"] == 3 and found["stopped"] is None
    assert found["broken"] == [] and found["relative"] <= 1e-14


def test_a_penalty_on_one_layer_is_found(run, tmp_path: Path):
    script = training_script(tmp_path, loss=" + 1e-3 * model.first.weight.square().sum()")
    said = run("watch", script, code=1).stdout
    assert "Not conserved: mlp" in said and "a penalty on weights" in " ".join(said.split())


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
