"""A model that was traced or measured is as it was, whatever it does and whoever else runs."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import TraceError, find_symmetry, verify
from paramsym.recording import running
from paramsym.recording.precision import lifted

X = (torch.randn(6, 4),)


class Busy(nn.Module):
    """Stores, counts, caches and changes settings while it runs; raises if it is told to."""

    def __init__(self, fail: bool = False):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)
        self.dropout = nn.Dropout(0.5)
        self.fail, self.last, self.calls = fail, None, 0
        self.log: list[Any] = ["start"]
        self.cache: dict[str, Any] = {"kept": [1, 2]}
        self.seen: set[int] = set()
        self.plain = torch.zeros(5)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.a(x))
        self.last, self.calls = hidden, self.calls + 1
        self.log.append(hidden)
        self.cache["hidden"] = hidden
        self.cache["kept"].append(3)
        self.seen.add(self.calls)
        self.plain += 1
        self.steps += 1
        self.new = nn.Linear(2, 2)
        self.b.bias.note = "seen"
        self.register_forward_hook(lambda *_: None)
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        if self.fail:
            raise RuntimeError("no")
        return self.b(hidden)


def snapshot(model: nn.Module) -> list[Any]:
    return [
        [(n, p, type(p), id(p), p.clone()) for n, p in model.named_parameters()],
        [(n, b, id(b), b.clone()) for n, b in model.named_buffers()],
        [(n, m.training, sorted(m.__dict__), list(m._modules)) for n, m in model.named_modules()],
        [len(m._forward_hooks) for m in model.modules()],
    ]


def settings() -> list[Any]:
    state = np.random.get_state()
    return [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state().tolist(),
            random.getstate(), state[1].tolist(), state[2],  # type: ignore[index, union-attr]
            torch.backends.mha.get_fastpath_enabled(),
            gc.isenabled(), gc.get_threshold()]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("use", ["find", "verify"])
def test_the_model_and_the_process_come_back_whole(fail: bool, use: str) -> None:
    symmetry = find_symmetry(Busy(), X)
    model = Busy(fail)
    model.dropout.eval()
    before, around = snapshot(model), settings()
    expected: type[Exception] = TraceError if use == "find" else RuntimeError
    try:
        if use == "find":
            find_symmetry(model, X)
        else:
            assert verify(model, symmetry, X, dtype=torch.float32).error < 1e-4
        assert not fail
    except expected:
        assert fail
    assert same(snapshot(model), before) and same(settings(), around)
    assert (model.last, model.calls, model.log, model.seen) == (None, 0, ["start"], set())
    assert model.cache == {"kept": [1, 2]} and not hasattr(model, "new")
    assert torch.equal(model.plain, torch.zeros(5))


def test_a_model_that_runs_by_itself_is_changed() -> None:
    """Negative control: the model above does leave traces."""
    model, other = Busy(), nn.Linear(1, 1)
    before, around = snapshot(model), settings()
    with running.preserved(other, training=True):  # gives back the settings only
        model(*X)
        assert not same(settings(), around)
    assert same(settings(), around)
    assert model.calls == 1 and model.log != ["start"] and not same(snapshot(model), before)


def run_threads(work: Callable[[int], Any], count: int) -> list[BaseException]:
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def one(k: int) -> None:
        try:
            barrier.wait()
            for _ in range(5):
                work(k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_threads_derive_on_one_model_at_once() -> None:
    model = net()
    before, expected = snapshot(model), str(find_symmetry(model, X))
    found: list[str] = []
    assert not run_threads(lambda k: found.append(str(find_symmetry(model, X))), 8)
    assert found == [expected] * 40
    assert same(snapshot(model), before)
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_threads_on_several_models_leave_the_default_dtype() -> None:
    models = [net() for _ in range(4)]
    symmetry = find_symmetry(models[0], X)

    def work(k: int) -> None:
        if k % 2:
            find_symmetry(models[k], X)
        else:
            assert verify(models[k], symmetry, X).error < 1e-10

    around = settings()
    assert not run_threads(work, 4)
    assert same(settings(), around) and torch.get_default_dtype() == torch.float32


class Nobody:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


def test_without_the_lock_threads_do_get_in_each_others_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: two threads inside of `lifted` leave the default dtype of the second."""
    from paramsym.recording import precision

    def overlap() -> torch.dtype:
        first, second = threading.Event(), threading.Event()

        def one() -> None:
            with lifted():
                first.set()
                second.wait(0.3)

        def two() -> None:
            first.wait()
            with lifted():
                second.set()
                thread.join(1)

        thread = threading.Thread(target=one)
        other = threading.Thread(target=two)
        for t in (thread, other):
            t.start()
        for t in (thread, other):
            t.join()
        left = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        return left

    assert overlap() == torch.float32
    monkeypatch.setattr(precision, "exclusive", Nobody())
    assert overlap() == torch.float64


def test_what_a_model_leaves_is_collected_and_nothing_else_is_walked() -> None:
    """Cycles do not pile up while a symmetry is tried; a look at everything would be noticed."""

    class Left:
        def __init__(self) -> None:
            self.own = self

    found: list[int] = []

    def note(_: str, info: dict[str, int]) -> None:
        found.append(info["generation"])

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        with running.collected_young():
            gc.set_threshold(50, 2, gc.get_threshold()[2])
            alive = [weakref.ref(Left()) for _ in range(5000)]
            assert 1 in found and 2 not in found
        gc.collect()
    finally:
        gc.callbacks.remove(note)
    assert sum(one() is not None for one in alive) < 500
    assert 2 in found and gc.get_threshold() == thresholds
