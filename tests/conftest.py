"""Fixtures that every test may use: both dtypes, and randomness that can be repeated."""

import pytest
import torch

from paramsym.primitives import defects


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
