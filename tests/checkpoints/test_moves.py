"""What an element moves, in words; and the file that keeps it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym import act, find_symmetry
from paramsym.checkpoints import CheckpointError
from paramsym.checkpoints.elements import check_element, place_beside, written_element
from paramsym.checkpoints.moves import Move, moves_of


def symmetry_of(*layers: nn.Module):
    return find_symmetry(nn.Sequential(*layers), (torch.randn(3, 5),))


RELU = symmetry_of(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
TANH = symmetry_of(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
LINEAR = symmetry_of(nn.Linear(5, 2), nn.Linear(2, 3))


@pytest.mark.parametrize(
    ("symmetry", "value", "move"),
    [
        (RELU, [1, 2, 0, 3], Move("order", 3, 4)),
        (RELU, [1.0, 2.0, 1.0, 1.0], Move("scales")),
        (RELU, ([0, 1, 3, 2], [1.0, 1.0, 0.5, 1.0]), Move("order, scales", 2, 4)),
        (TANH, [1.0, -1.0, 1.0, 1.0], Move("signs")),
        (LINEAR, [[1.0, 0.1], [0.0, 1.0]], Move("basis")),
    ],
    ids=["order", "scales", "both", "signs", "basis"],
)
def test_each_kind_of_move_has_its_word(symmetry, value, move: Move):
    (name,) = symmetry.spaces
    element = symmetry.element({name: value})
    assert moves_of(element) == {name: move}
    assert moves_of(~element @ element) == {}


@pytest.mark.parametrize("symmetry", [RELU, TANH, LINEAR], ids=["relu", "tanh", "linear"])
def test_the_identity_and_rounding_move_nothing(symmetry):
    assert moves_of(symmetry.identity()) == {}
    if symmetry is RELU:
        (name,) = symmetry.spaces
        assert moves_of(symmetry.element({name: [1.0 + 1e-7, 1.0, 1.0, 1.0]})) == {}


def test_every_space_and_shift_that_moves_is_named():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    symmetry = find_symmetry(model, (torch.randn(3, 5),))
    element = symmetry.sample(torch.Generator().manual_seed(0))
    moves = moves_of(element)
    shifts = {shift.name for shift in symmetry.shifts}
    assert shifts and {n for n, move in moves.items() if move.how == "shift"} == shifts
    assert {*moves} == {*element.places}


def test_the_place_beside_is_no_part_of_a_folder_or_a_checkpoint():
    for name in ("out", "out.pt2", "out.safetensors", "out.pt"):
        assert place_beside(Path("here") / name) == Path("here/out.element.safetensors")


def test_an_element_takes_its_place_at_the_end_of_the_block_alone(tmp_path: Path):
    element, path = RELU.sample(torch.Generator().manual_seed(0)), tmp_path / "g.safetensors"
    with pytest.raises(RuntimeError, match="stopped"), written_element(element, path):
        raise RuntimeError("stopped")
    assert not [*tmp_path.iterdir()]
    with written_element(element, path):
        assert not path.exists()
    params = {name: torch.randn(RELU.shape(name)) for name in RELU.signature}
    again = act(RELU, type(element).load(path, RELU), params)
    assert all(torch.equal(t, again[n]) for n, t in act(RELU, element, params).items())
    with pytest.raises(CheckpointError, match="such a file"):
        check_element(path)


def test_an_element_that_is_too_large_for_text_is_refused(tmp_path: Path, monkeypatch):
    element = RELU.sample(torch.Generator().manual_seed(0))
    monkeypatch.setattr("paramsym.structure.stored_text.LIMIT", 3)
    path = tmp_path / "g.json"
    with pytest.raises(CheckpointError, match="safetensors") as caught:
        with written_element(element, path):
            pass
    assert str(path) in str(caught.value) and "draft" not in str(caught.value)
    assert not [*tmp_path.iterdir()]
