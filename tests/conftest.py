"""Fixtures that every test may use: both dtypes, and randomness that can be repeated."""

import gc

import pytest
import torch

from paramsym.primitives import defects


def pytest_collection() -> None:
    """Nothing that is imported is garbage: looking for it took a third of the collection."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is loaded by now is not looked through again, and small garbage may gather."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every property holds in both."""
    return request.param


@pytest.fixture
def tolerance(dtype: torch.dtype) -> float:
    """How far two ways to compute one number may differ: a thousand units in the last place."""
    return 1e3 * torch.finfo(dtype).eps


@pytest.fixture(params=[20261121], ids=lambda seed: f"seed={seed}")
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """The only source of randomness; its seed is part of the test's name."""
    return torch.Generator().manual_seed(request.param)


@pytest.fixture(autouse=True)
def defects_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that a user would see reported aborts a test."""
    monkeypatch.setattr(defects, "raising", True)
