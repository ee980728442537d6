"""Every public function says which argument is of a wrong kind, in words of its own."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

import paramsym
from paramsym.arguments.door import _is_ours
from paramsym.arguments.kinds import hint_of, misfit
from paramsym.quantize.grids import Grid

PACKAGES = (
    "artefacts", "checkpoints", "discovery", "ensembles", "equivariant", "interop", "privacy",
    "relu", "waring",
)  # fmt: skip
WRONG = (None, "text", 3, [1, 2], {"0.weight": 1}, nn.ReLU(), object(), len)
LATER = {"fitting"}  # a block, which reads its argument when it ends in an error


def functions_of(package: Any, names: list[str]) -> dict[str, Callable[..., Any]]:
    found = {name: getattr(package, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def required(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = inspect.Parameter
    return {
        name: p
        for name, p in inspect.signature(function).parameters.items()
        if p.default is p.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    }


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    """Something right for each name of an argument."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    inputs = (torch.randn(3, 4, dtype=torch.float64),)
    symmetry = paramsym.find_symmetry(model, inputs)
    state = model.state_dict()
    inward, outward = torch.randn(6, 5), torch.randn(2, 6)
    return {
        "model": model, "inputs": inputs, "example_inputs": inputs, "data": inputs,
        "outputs": inputs[0], "symmetry": symmetry,
        "element": symmetry.sample(torch.Generator().manual_seed(0)),
        "algebra": symmetry.velocity({}), "optimizer": torch.optim.SGD(model.parameters()),
        **dict.fromkeys(
            ("state_dict", "params", "gradients", "tensors", "a", "b", "velocity",
             "sensitivities", "artefact"), state,
        ),
        "name": "0.weight", "space": "mlp", "loss_fn": lambda y: y.square().mean(),
        "times": [0.1], "tau": 0.1, "outgoing": outward, "incoming": inward, "activation": "relu",
        "calibration": [inputs], "held_out": [inputs], "grid": Grid(8), "optimizer_state": {},
        "quantities": {}, "t": 0.5, "evaluate": lambda state: 0.0, "models": [state, state],
        "pairs": [], "model_or_widths": [2, 3, 2], "config": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", functions_of(paramsym, paramsym.__all__))
def test_a_wrong_kind_is_told_argument_by_argument(name: str, given: dict[str, Any]) -> None:
    function = getattr(paramsym, name)
    parameters = required(function)
    for argument, parameter in parameters.items():
        hint = hint_of(function, parameter.annotation)
        for value in (value for value in WRONG if misfit(value, hint) is not None):
            arguments = {other: given[other] for other in parameters} | {argument: value}
            with pytest.raises(Exception) as raised:
                function(**arguments)
            assert _is_ours(raised.value), (argument, value, raised.value)


CLASSES = {"ConservationLedger": ("symmetry", "model", "optimizer"),
           "Rebalance": ("symmetry", "optimizer")}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_so_do_the_classes_that_are_made_by_hand(name: str, given: dict[str, Any]) -> None:
    for argument in CLASSES[name]:
        for value in WRONG[:4]:
            arguments = {other: given[other] for other in CLASSES[name]} | {argument: value}
            with pytest.raises(ValueError) as raised:
                getattr(paramsym, name)(**arguments)
            assert _is_ours(raised.value), (argument, value, raised.value)


def packaged() -> list[tuple[str, str]]:
    found = []
    for package in PACKAGES:
        module = import_module(f"paramsym.{package}")
        found += [
            (package, name) for name in functions_of(module, [*vars(module)]) if name not in LATER
        ]
    return found


@pytest.mark.parametrize(("package", "name"), packaged())
def test_so_do_the_functions_of_the_packages(package: str, name: str) -> None:
    function = getattr(import_module(f"paramsym.{package}"), name)
    assert (function.__module__, function.__qualname__) == (f"paramsym.{package}", name)
    assert pickle.loads(pickle.dumps(function)) is function
    parameters = required(function)
    hints = {n: hint_of(function, p.annotation) for n, p in parameters.items()}
    wrong = object()
    if any(misfit(wrong, hint) is not None for hint in hints.values()):
        with pytest.raises(Exception) as raised:
            function(**dict.fromkeys(parameters, wrong))
        assert _is_ours(raised.value), raised.value
