"""Figures are drawn without touching global state, and say what they show."""

import pytest

from paramsym import relu
from paramsym.relu import moves

pictures = pytest.importorskip("paramsym.relu.pictures")
pytest.importorskip("matplotlib")

NET = [
    ([["1", "3/10"], ["-2/5", "1"]], ["1/5", "1/2"]),
    ([["1", "-4/5"], ["1", "-4/5"]], ["-3/5", "-8/5"]),
    ([["1", "-2"]], ["0"]),
]


def test_before_and_after_states_that_nothing_changed(tmp_path):
    moved = moves.translate(moves.reflect(NET, 1, 0, 1), 1, 0, "6/5")
    figure = pictures.before_and_after(NET, moved)
    assert "the same function" in figure.get_suptitle()
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_half_lines_and_slice(tmp_path):
    pictures.half_lines(NET).savefig(tmp_path / "b.png")
    pictures.fiber_slice(NET, points=31).savefig(tmp_path / "c.png")
    assert (tmp_path / "b.png").stat().st_size > 5000


def test_pictures_refuse_what_they_cannot_show():
    with pytest.raises(relu.ReLUError, match="two inputs"):
        pictures.before_and_after([([[1]], [0]), ([[1]], [0]), ([[1]], [0])], NET)
    visible = [([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [1]), ([[1]], [0])]
    with pytest.raises(relu.ReLUError, match="type B"):
        pictures.half_lines(visible)
