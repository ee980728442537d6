"""Models from sources: tied weights, dtypes, and programs with mixed inputs."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramsym import find_symmetry
from paramsym.algebra import Monomial, SignedPermutation
from paramsym.checkpoints import CheckpointError, open_checkpoint, transform
from paramsym.checkpoints.plan import plan_of_source
from paramsym.checkpoints.source import aliases, assign
from tests.models import Small, Tied


def test_names_of_one_tensor_are_grouped():
    assert aliases(Tied())["head.weight"] == ["table.weight", "head.weight"]


def test_loading_keeps_ties_and_takes_the_dtype_of_the_file():
    model, state = Tied(), {n: t.double() + 1 for n, t in Tied().state_dict().items()}
    assign(model, state.items(), "here")
    assert model.head.weight is model.table.weight
    assert model.head.weight.dtype == torch.float64
    assert torch.equal(model.hidden.bias, state["hidden.bias"])


def test_tied_names_with_different_numbers_are_refused():
    state = Tied().state_dict()
    state["head.weight"] = state["head.weight"] + 1
    with pytest.raises(CheckpointError, match="ties to it"):
        assign(Tied(), state.items(), "here")


def test_all_differences_are_said_at_once():
    state = Small().state_dict()
    state["other"] = state.pop("last.bias")
    with pytest.raises(CheckpointError, match="'last.bias' missing and 'other' unknown"):
        assign(Small(), state.items(), "here")


def test_weights_of_another_precision_change_the_inputs(tmp_path: Path):
    path = tmp_path / "half.safetensors"
    save_file(
        {n: t.double() if t.is_floating_point() else t for n, t in Small().state_dict().items()},
        path,
    )
    opened = open_checkpoint("tests.models:Small", str(path))
    assert opened.inputs[0].dtype == torch.float64
    done = transform(opened, tmp_path / "out.safetensors", torch.Generator().manual_seed(0))
    assert done.error < 1e-12 and done.tolerance == 1e-9


class Mixed(torch.nn.Module):
    """One positional and one keyword input, a tied weight, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.last = torch.nn.Linear(7, 5, bias=False)
        self.again = torch.nn.Linear(5, 7)
        self.again.weight = self.first.weight
        self.register_buffer("constant", torch.ones(5), persistent=False)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        hidden = self.last(torch.relu(self.first(x * self.constant) + self.again(y)))
        return hidden


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.pt2"
    x, y = torch.randn(2, 5), torch.randn(2, 5)
    torch.export.save(torch.export.export(Mixed().eval(), (x,), {"y": y}), path)
    return path


def test_programs_take_positional_and_keyword_inputs(mixed: Path, tmp_path: Path):
    opened = open_checkpoint(str(mixed))
    symmetry = find_symmetry(opened.model, opened.inputs)
    assert set(symmetry.ties) == {"again.weight"} and not symmetry.unknown
    done = transform(opened, tmp_path / "out.pt2", torch.Generator().manual_seed(0))
    assert done.changed > 60 and done.error < 1e-5


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch copies its own tree specifications
def test_programs_can_be_copied_and_have_no_mode(mixed: Path):
    model = open_checkpoint(str(mixed)).model
    assert model.eval() is model and model.train() is model
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.get_parameter("first.weight").zero_()
    assert float(model.get_parameter("first.weight").detach().abs().max()) > 0


def test_a_move_that_rounds_too_much_is_not_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("paramsym.checkpoints.equivalent.TOLERANCE", {torch.float32: 0.0})
    opened = open_checkpoint("tests.models:Small")
    with pytest.raises(CheckpointError, match="computes another function"):
        transform(opened, tmp_path / "out.safetensors", torch.Generator().manual_seed(0))
    assert not list(tmp_path.iterdir())


class BesideLarge(torch.nn.Module):
    """A network with tanh, beside an output column of size 1e13 and one that vanishes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
        self.large = torch.nn.Parameter(torch.tensor([1e13]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(torch.tanh(self.first(x)))
        nothing = torch.softmax(y, -1).sum(-1, keepdim=True) - 1
        return torch.cat([y, nothing, self.large.expand(len(y), 1)], -1)

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.linspace(-1, 1, 20).reshape(5, 4),)


def test_a_wrong_file_is_seen_beside_a_large_output(tmp_path: Path, monkeypatch):
    right = open_checkpoint("tests.checkpoints.test_sources:BesideLarge")
    done = transform(right, tmp_path / "right.safetensors", torch.Generator().manual_seed(0))
    assert done.changed > 40 and done.error <= 1e-4

    def planted(*given):
        symmetry = find_symmetry(*given)
        (name,) = (n for n, s in symmetry.spaces.items() if s.group == SignedPermutation(6))
        wrong = replace(symmetry.spaces[name], group=Monomial(6))
        return replace(symmetry, spaces={**symmetry.spaces, name: wrong})

    monkeypatch.setattr("paramsym.checkpoints.equivalent.find_symmetry", planted)
    wrong = open_checkpoint("tests.checkpoints.test_sources:BesideLarge")
    with pytest.raises(CheckpointError, match="computes another function"):
        transform(wrong, tmp_path / "wrong.safetensors", torch.Generator().manual_seed(0))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["right.element.safetensors", "right.record.json", "right.safetensors"]


def test_half_precision_is_planned_in_float32_as_it_is_tried(tmp_path: Path, monkeypatch):
    def memory(model: torch.nn.Module) -> int:
        opened = open_checkpoint("tests.models:Small")
        opened.model = model
        symmetry = find_symmetry(Small(), opened.inputs)
        return plan_of_source(opened, symmetry, tmp_path / "out").memory

    wide = memory(Small())
    assert memory(Small().half()) == wide and memory(Small().double()) > 1.9 * wide
    monkeypatch.setattr("paramsym.checkpoints.plan.LARGEST", 0)  # it is not tried
    assert memory(Small().half()) < 0.6 * wide
