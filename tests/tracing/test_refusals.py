"""What cannot be read is refused in four parts, and left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from paramsym import TraceError, find_symmetry

X = torch.randn(6, 4)


def quantised() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(4, 5)), nn.Linear(5, 3))


def narrow() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # initialising zero elements is a no-op
        return nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3, bias=False))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))


CASES: dict[str, tuple[Callable[[], nn.Module], Any, tuple[str, ...]]] = {
    "empty batch": (plain, (X[:0],), (
        "example_inputs[0] has shape (0, 4) and no entries", "positive length", "Give a batch")),
    "empty keyword": (plain, {"input": X[:, :0]}, (
        "example_inputs['input'] has shape (6, 0)", "positive length", "Give a batch")),
    "zero width": (narrow, (X,), (
        "the model has no parameters with entries", "at least one was expected",
        "Register weights as torch.nn.Parameter")),
    "scripted": (scripted, (X,), (
        "module '0' (RecursiveScriptModule) is a ScriptModule",
        "an ordinary torch.nn.Module was expected", "Give the module that was scripted")),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(5)), (X,), (
        "'0.weight' is not initialised yet", "a tensor with a shape was expected",
        "Run the model once")),
    "quantised": (quantised, (X,), (
        "module '0' (Linear) is quantised", "floating weights were expected",
        "Derive the symmetry of the floating model")),
    "no parameters": (lambda: nn.Sequential(nn.ReLU()), (X,), (
        "the model has no parameters", "at least one was expected",
        "Register weights as torch.nn.Parameter")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_says_what_came_what_was_expected_where_and_what_to_do(name: str) -> None:
    build, inputs, fragments = CASES[name]
    model = build()
    model.train()
    before = [dict(module.__dict__) for module in model.modules()]
    settings = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    with pytest.raises(TraceError) as caught:
        find_symmetry(model, inputs)
    text = str(caught.value)
    assert text.startswith(f"find_symmetry(model={type(model).__name__}): ")
    assert all(fragment in text for fragment in fragments), text
    assert [dict(module.__dict__) for module in model.modules()] == before
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == settings[:2]
    assert torch.equal(torch.get_rng_state(), settings[2])


def test_what_is_not_refused_is_derived() -> None:
    assert find_symmetry(plain(), (X,)).spaces
    lazy = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3))
    lazy(X)
    assert find_symmetry(lazy, (X,)).spaces
