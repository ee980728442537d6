"""Example inputs that do not fit: the input, its shape, and what the layer takes; no traceback."""

import re

import pytest
import torch
from torch import nn

from paramsym.checkpoints import CheckpointError, fitting
from paramsym.checkpoints.factory import FactorySource

SMALL = "tests.models:Small"


def refused(run, *arguments: str) -> str:
    shown = run("inspect", *arguments, code=2).stderr
    parts = [line.strip().split("  ")[0] for line in shown.strip().splitlines()]
    assert parts[0].startswith("Error in the example inputs of")
    assert parts[1:] == ["came", "expected", "instead"], shown
    assert "Traceback" not in shown and "fake_tensor" not in shown
    return re.sub(r"\s+", " ", shown)


@pytest.mark.parametrize("more", [[], ["--no-verify"]])
def test_a_wrong_shape_names_input_and_shapes(run, more, capfd):
    shown = refused(run, SMALL, "--inputs", "2x9", *more)
    assert "input 'x' has shape (2, 9)" in shown and "5 on the last axis" in shown
    assert "module 'first' (Linear)" in shown and "Give --inputs 2x5" in shown
    assert "Traceback" not in capfd.readouterr().err  # which torch logs by itself


def test_what_the_error_asks_for_works(run):
    run("inspect", SMALL, "--inputs", "2x5", "--no-verify")


def test_one_of_two_inputs(run):
    shown = refused(run, "tests.models:two_inputs", "--inputs", "x=2x4,y=2x5")
    assert "input 'y' has shape (2, 5)" in shown and "Give --inputs with y=2x3" in shown


def test_too_few_inputs(run):
    shown = refused(run, "tests.models:two_inputs", "--inputs", "2x4")
    assert "what forward(x, y) takes" in shown and "'y'" in shown


def test_a_wrong_dtype(run):
    shown = refused(run, "tests.models:Tied", "--inputs", "2x7")
    assert "whole numbers (int64) below 11" in shown and "float32" in shown
    shown = refused(run, SMALL, "--inputs", "2x5:int64")
    assert "numbers of dtype float32" in shown and "int64" in shown


def explained(model: nn.Module, *inputs: torch.Tensor) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught, fitting(FactorySource("m", model, inputs)):
        raise RuntimeError("something")
    return caught.value


def test_layers_say_what_they_take():
    cases = [
        (nn.Conv2d(3, 4, 3), (2, 1, 8, 8), "3 on the second axis, as in (2, 3, 8, 8)"),
        (nn.Conv2d(3, 4, 3), (8, 8), "4 axes, batch × 3 × size × size"),
        (nn.Conv1d(3, 4, 3), (5, 8), "3 on the first axis, as in (3, 8)"),
        (nn.GRU(6, 4), (7, 2, 5), "6 on the last axis, as in (7, 2, 6)"),
        (nn.LayerNorm(6), (2, 5), "6 on the last axis, as in (2, 6)"),
        (nn.BatchNorm1d(6), (2, 5), "6 on the second axis, as in (2, 6)"),
    ]
    for model, shape, expected in cases:
        error = explained(nn.Sequential(model), torch.zeros(shape))
        assert expected in error.expected, (model, error.expected)


def test_a_layer_that_the_input_reaches_by_way_of_others():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    error = explained(model, torch.zeros(2, 2, 4))
    assert "module '1' (Linear) receives the shape (2, 8)" in error.came
    assert "from input 'input' (2, 2, 4) float32" in error.came and "6 on the" in error.expected
    assert error.instead == "Give other --inputs"


def test_a_module_of_the_user_is_named_with_what_it_said():
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[0] == 7, "seven rows, please"
            return x

    error = explained(nn.Sequential(Strict()), torch.zeros(2, 3))
    assert "module '0' (Strict) stopped with AssertionError: seven rows" in error.came


def test_a_model_that_runs_is_not_blamed_on_its_inputs():
    with (
        pytest.raises(RuntimeError, match="something"),
        fitting(FactorySource("m", nn.Linear(3, 2), (torch.zeros(2, 3),))),
    ):
        raise RuntimeError("something")


def test_models_without_numbers_are_asked_as_well():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    assert "3 on the last axis" in explained(model, torch.zeros(2, 4)).expected
