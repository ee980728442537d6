"""Fixtures that every test may use: both dtypes, and randomness that can be repeated."""

import gc
import json
from pathlib import Path

import hypothesis  # noqa: F401 (before the freeze: its plugins ask who refers to their generators)
import pytest
import torch

from paramsym.primitives import defects

AT_ONCE = Path(__file__).with_name("at_once.json")


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` takes its choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests with instances `make test` runs some: so many, spread evenly, or those named.

    The others are slow, and left to `make reproduce`, as is a test of which there are to be 0.
    """
    table = json.loads(AT_ONCE.read_text())
    wanted = {(f, t): kept for f, tests in table.items() for t, kept in tests.items()}
    collected: dict[tuple[str, str], list[tuple[str, pytest.Item]]] = {}
    for item in items:
        path, _, name = item.nodeid.partition("::")
        test, _, instance = name.removesuffix("]").partition("[")
        collected.setdefault((path, test), []).append((instance, item))
    for test in wanted.keys() & collected.keys():
        names, kept = [instance for instance, _ in collected[test]], wanted[test]
        if isinstance(kept, int):
            kept = [names[k * len(names) // kept] for k in range(min(kept, len(names)))]
        for instance, item in collected[test]:
            if instance not in kept:
                item.add_marker(pytest.mark.slow)
    if config.args == config.getini("testpaths"):  # the whole suite was collected
        there = {(*test, i) for test, found in collected.items() for i, _ in found}
        named = {(*t, i) for t, kept in wanted.items() if isinstance(kept, list) for i in kept}
        if missing := sorted(map(str, (wanted.keys() - collected.keys()) | (named - there))):
            raise pytest.UsageError(f"{AT_ONCE.name} names tests that there are not: {missing}")


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
