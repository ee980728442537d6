"""Parameters that lie in memory otherwise than row by row, in models that read it.

Transposed checkpoints and channels-last convolutions compute what their rows do, until a view or a
question about the layout shows it. Every network is derived by the engine alone and moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import act, find_symmetry
from tests.tracing.test_held import x
from tests.tracing.zoo import errors, randomise


class Laid(nn.Module):
    """A function of a parameter that lies column by column, and of one in rows."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], home: str = "parameter"):
        super().__init__()
        self.function = function
        transposed = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double().t()
        if home == "parameter":
            self.a = nn.Parameter(transposed)
        else:
            self.register_buffer("a", transposed)
        self.b = nn.Parameter(torch.randn(2, 6, dtype=torch.float64))
        self.c = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        return self.function(self, h)


def _read(s: Any) -> Tensor:
    return s.a.as_strided((6, 4), (4, 1))


FUNCTIONS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "as strided": (lambda s, h: F.relu(h @ _read(s).T) @ s.b.T, "parameter"),
    "a buffer": (lambda s, h: F.relu(h @ (s.c * _read(s)).T) @ s.b.T, "buffer"),
    "a question": (
        lambda s, h: F.relu(h @ s.a.T) @ s.b.T
        + (h @ (s.a if s.a.is_contiguous() else s.a.flip(0)).T).tanh() @ s.b.T,
        "parameter",
    ),
    "a view": (lambda s, h: F.relu(h @ s.a.t().view(-1).view(4, 6)) @ s.b.T, "parameter"),
    "rows": (lambda s, h: F.relu(h @ s.a.T) @ s.b.T, "parameter"),
    "both": (lambda s, h: F.relu(h @ s.a.T + h @ s.a.t().view(4, 6)) @ s.b.T, "parameter"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_layout_that_is_read_is_kept(name: str) -> None:
    function, home = FUNCTIONS[name]
    model, inputs = Laid(function, home), (x(5, 4),)
    symmetry = find_symmetry(model, inputs, check=False)
    assert not symmetry.unknown
    found = errors(model, symmetry, inputs)
    found.pop("a wrong move", None)
    assert max(found.values(), default=0.0) < 1e-9, (found, str(symmetry))
    assert not find_symmetry(model, inputs).checked.refuted
    free = {"a view", "rows", "both"}
    assert bool(symmetry.spaces) or name not in free


def test_channels_last_is_read_in_its_order() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(4, 6, 3).double().to(memory_format=torch.channels_last)
            self.n = nn.Parameter(torch.randn(36, dtype=torch.float64))

        def forward(self, h: Tensor) -> Tensor:
            return F.linear(h, self.c.weight.as_strided((6, 36), (36, 1)) * self.n)

    model, inputs = Last(), (x(5, 36),)
    symmetry = find_symmetry(model, inputs, check=False)
    found = errors(model, symmetry, inputs)
    found.pop("a wrong move", None)
    assert max(found.values(), default=0.0) < 1e-9


def test_what_is_moved_lies_as_before() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 1)
    )  # fmt: skip
    model = randomise(model.double()).to(memory_format=torch.channels_last)
    symmetry = find_symmetry(model, (torch.randn(2, 3, 7, 7, dtype=torch.float64),))
    state = model.state_dict()
    moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(0)), state)
    assert symmetry.spaces and any(not p.is_contiguous() for p in state.values())
    for name, before in state.items():
        assert lies(moved[name]) == lies(before)


def lies(tensor: Tensor) -> list[int]:
    """The strides that mean something."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


# -- what is not the same at all times -------------------------------------------------------------


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("reader", ["softmax", "difference", "centred"])
def test_states_of_a_sequence_are_not_one_state(cell: type[nn.Module], reader: str) -> None:
    readers: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda h: torch.softmax(h, 1),
        "difference": lambda h: h[:, -1] - h[:, 0],
        "centred": lambda h: h - h.mean(1, keepdim=True),
    }

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r, self.q = cell(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, h: Tensor) -> Tensor:
            return readers[reader](self.q(self.r(h)[0]))

    model, inputs = randomise(Sequence().double()), (x(2, 5, 3),)
    symmetry = find_symmetry(model, inputs, check=False)
    found = errors(model, symmetry, inputs)
    assert found.pop("a wrong move") > 1e-4
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_that_training_updates_are_not_the_old_ones(affine: bool) -> None:
    class Statistics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.n, self.b = (
                nn.Linear(3, 4),
                nn.BatchNorm1d(4, affine=affine),
                nn.Linear(4, 2),
            )

        def forward(self, h: Tensor) -> Tensor:
            out = self.b(self.n(self.a(h)))
            return out + self.n.running_mean.sum()

    model, inputs = randomise(Statistics().double()).train(), (x(5, 3),)
    symmetry = find_symmetry(model, inputs, training=True)
    assert not symmetry.checked.refuted
    # what is read is 0.9 of the old mean and a tenth of that of the batch
    assert "n.running_mean" in {n for shift in symmetry.shifts for n in shift.parameters}
    found = errors(model, symmetry, inputs, training=True)
    assert found.pop("a wrong move") > 1e-4
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("layout", ["rows", "columns", "channels last"])
def test_what_moves_keeps_its_layout(layout: str) -> None:
    """Models take views of parameters, which other strides would not allow."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 2), torch.nn.Flatten(),
        torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 1),
    ).double()  # fmt: skip
    if layout == "channels last":
        model = model.to(memory_format=torch.channels_last)
    if layout == "columns":
        model[4].weight = nn.Parameter(model[4].weight.detach().t().contiguous().t())
    inputs = (torch.randn(2, 3, 5, 5).double(),)
    symmetry, state = find_symmetry(model, inputs), dict(model.state_dict())
    for only in ([name] for name in (None, *symmetry.spaces, *(s.name for s in symmetry.shifts))):
        chosen = None if only == [None] else only
        element = symmetry.sample(torch.Generator().manual_seed(0), only=chosen)
        moved = act(symmetry, element, state)
        assert {n: t.stride() for n, t in moved.items()} == {
            n: t.stride() for n, t in state.items()
        }
