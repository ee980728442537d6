"""Families of networks as people write them: modulations, scales of branches, and their like."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, assert_lowering, find_symmetry
from paramsym.structure.origin import Windows, added
from tests.coverage.measure import measured
from tests.tracing.zoo import Apply

IN, CONTEXT, WIDTH, OUT, BATCH = 11, 3, 5, 4, 8


class Modulated(nn.Module):
    """h ↦ readout(modulate(h, layers of a context)) with a linear h behind a plain norm."""

    def __init__(
        self, modulate: Callable[[Modulated, Tensor, Tensor], Tensor], rows: int = 2,
        bias: bool = True, norm: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.first, self.last = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, OUT)
        self.context = nn.Linear(7, CONTEXT)
        self.beside = nn.Parameter(torch.randn(CONTEXT, WIDTH))
        self.gain = nn.Linear(CONTEXT, rows * WIDTH, bias=bias)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False) if norm else nn.Identity()
        self.modulate = modulate

    def forward(self, x: Tensor, c: Tensor) -> Tensor | tuple[Tensor, ...]:
        c = torch.tanh(self.context(c))
        return self.last(self.modulate(self, self.norm(self.first(x)), c))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, IN).double(), torch.randn(BATCH, 7).double()


def halves(m: Modulated, c: Tensor) -> tuple[Tensor, ...]:
    return m.gain(c).chunk(2, -1)


def two(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b = halves(m, c)
    return h * (1 + g) + b


def swapped(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    b, g = halves(m, c)
    return b + (g + 1.0) * h


def around(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b = m.gain(c).split(WIDTH, dim=-1)
    return h + h * g + b


def complement(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b = halves(m, c)
    return h * (1 - g) + b


def rows(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b = m.gain(c).view(-1, 2, WIDTH).unbind(1)
    return torch.add(h * g.add(2.5), b)


def in_time(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b = m.gain(c)[:, None].chunk(2, dim=-1)
    return (h[:, None] * (1 + g) + b).squeeze(1)


def one(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    return h * (1 + m.gain(c))


def thrice(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g, b, a = m.gain(c).chunk(3, -1)
    return a * (h * (1 + g) + b)


def summed(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    return h * (1 + (m.gain(c) - 0.5 * torch.tanh(c) @ m.beside))


MODULATIONS = {
    "two": (two, 2), "swapped": (swapped, 2), "around": (around, 2), "rows": (rows, 2),
    "complement": (complement, 2), "in time": (in_time, 2), "one": (one, 1), "three": (thrice, 3),
    "summed": (summed, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULATIONS)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
def test_numbers_added_to_a_modulation_are_those_of_its_bias(name: str, norm: bool) -> None:
    function, count = MODULATIONS[name]
    found = measured(Modulated(function, count, norm=norm).double(), inputs())
    assert found.error < 1e-9 and not found.refuted
    assert found.unexplained == 0
    assert "gain.bias" in found.symmetry.offsets


@pytest.mark.parametrize("name", MODULATIONS)
def test_the_lowered_modulation_computes_the_same_numbers(name: str) -> None:
    function, count = MODULATIONS[name]
    assert assert_lowering(Modulated(function, count).double(), inputs()).worst < 1e-10


def test_origins_in_windows_are_written_and_read() -> None:
    symmetry = find_symmetry(Modulated(two).double(), inputs())
    assert symmetry.offsets["gain.bias"] == Windows(2 * WIDTH, ((0, WIDTH, 1.0),))
    again = ParameterSymmetry.from_json(symmetry.to_json())
    assert again.offsets == symmetry.offsets


def test_a_table_of_classes_serves_as_a_bias() -> None:
    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, OUT)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
            self.table = nn.Embedding(3, 2 * WIDTH)

        def forward(self, x: Tensor, label: Tensor) -> Tensor:
            g, b = self.table(label).chunk(2, 1)
            return self.last(self.norm(self.first(x)) * (1 + g) + b)

    labels = torch.arange(27) % 3
    found = measured(Conditional().double(), (torch.randn(27, IN).double(), labels))
    assert found.error < 1e-9 and not found.refuted and found.unexplained == 0
    assert found.symmetry.offsets["table.weight"] == Windows(2 * WIDTH, ((0, WIDTH, 1.0),))


def seen_twice(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g = m.gain(c)
    return h * (1 + g) * torch.tanh(g)


def two_numbers(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g = m.gain(c)
    return h * (1 + g) + torch.tanh(h * (2 + g))


def returned(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g = m.gain(c)
    return torch.cat([(h * (1 + (g + torch.tanh(c) @ m.beside)))[:, :2], g[:, 2:]], 1)


def bent(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    return h * (1 + torch.tanh(m.gain(c)))


def bias_read_twice(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    return h * (1 + m.gain(c)) + torch.sin(m.gain.bias)


def overlapping(m: Modulated, h: Tensor, c: Tensor) -> Tensor:
    g = m.gain(c)
    return torch.cat([h[:, :4] * (1 + g[:, :4]), torch.sin(g[:, 3:])], 1)[:, :WIDTH]


@pytest.mark.parametrize(
    "function", [seen_twice, two_numbers, bent, bias_read_twice, overlapping, returned],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_bias_that_serves_two_ends_keeps_its_origin(function: Callable) -> None:
    found = measured(Modulated(function, 1, norm=False).double(), inputs())
    assert found.error < 1e-9 and not found.refuted
    assert "gain.bias" not in found.symmetry.offsets


def test_a_value_that_is_returned_keeps_its_origin() -> None:
    class Returned(Modulated):
        def forward(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            g = self.gain(c)
            return self.last(self.first(x) * (1 + (g + c @ self.beside))), g

    model = Returned(one, 1)
    given = torch.randn(BATCH, IN).double(), torch.randn(BATCH, CONTEXT).double()
    found = measured(model.double(), given)
    assert found.error < 1e-9 and not found.refuted
    assert "gain.bias" not in found.symmetry.offsets
    assert_lowering(model, given)


def test_windows_repeat_along_the_rows_of_a_table() -> None:
    windows = Windows(3, ((1, 2, 2.0),))
    assert added(torch.zeros(2, 3), windows).tolist() == [[0, 2, 0], [0, 2, 0]]
    assert torch.equal(added(added(torch.ones(2, 3), windows), -windows), torch.ones(2, 3))
    assert F.relu(windows.numbers()).sum() == 2


class Padded(nn.Module):
    """A projection without bias of a normed sequence that was moved by zeros or by something."""

    def __init__(self, move: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.norm = nn.Linear(IN, WIDTH), nn.LayerNorm(WIDTH)
        self.key = nn.Linear(WIDTH, 7, bias=False)
        self.move = move

    def forward(self, x: Tensor) -> Tensor:
        return self.key(self.move(self.norm(self.first(x))))


ZEROS = {
    "pad": lambda h: F.pad(h, (0, 0, 1, 0)),
    "shift": lambda h: F.pad(h, (0, 0, 1, -1)),
    "zeros": lambda h: torch.cat([torch.zeros_like(h[:, :1]), h], 1),
    "zeros and a part": lambda h: torch.cat([h.new_zeros(len(h), 1, WIDTH), h[:, :-1]], 1),
    "both ends": lambda h: F.pad(h, (0, 0, 1, 2)),
}


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_that_are_joined_hide_no_direction(name: str) -> None:
    """Zeros receive nothing, so that what a norm never gives is never received at all."""
    found = measured(Padded(ZEROS[name]).double(), (torch.randn(BATCH, 4, IN).double(),))
    assert found.error < 1e-9 and not found.refuted
    assert found.unexplained == 0


@pytest.mark.parametrize("number", [1.0, 1e-6])
def test_numbers_that_are_joined_are_received(number: float) -> None:
    found = measured(
        Padded(lambda h: F.pad(h, (0, 0, 1, 0), value=number)).double(),
        (torch.randn(BATCH, 4, IN).double(),),
    )
    assert found.error < 1e-9 and not found.refuted


@pytest.mark.parametrize(
    "added",
    [lambda h: h + torch.ones(WIDTH), lambda h: h - torch.full_like(h, 0.3),
     lambda h: h.new_ones(WIDTH).double() - h, lambda h: torch.ones(1, WIDTH).double() + h],
    ids=["ones", "full", "from ones", "a row"],
)  # fmt: skip
def test_constants_of_one_number_are_that_number(added: Callable) -> None:
    model = nn.Sequential(nn.Linear(IN, WIDTH), Apply(added), nn.ReLU(), nn.Linear(WIDTH, 4))
    found = measured(model.double(), (inputs()[0],))
    assert found.error < 1e-9 and not found.refuted
    assert (found.explained, found.unexplained) == (WIDTH, 0)


def test_constants_of_other_numbers_hold_their_units() -> None:
    """Control."""
    model = nn.Sequential(
        nn.Linear(IN, WIDTH), Apply(lambda h: torch.tanh(h + torch.linspace(0, 1, WIDTH))),
        nn.Linear(WIDTH, 4),
    ).double()  # fmt: skip
    found = measured(model, (inputs()[0],))
    assert found.error < 1e-9 and not found.refuted
    assert not found.symmetry.spaces
