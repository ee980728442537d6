"""Weights that are computed: adapters beside a layer, in the spellings that are in use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coverage.measure import Measured, measured

DRAWN = torch.Generator().manual_seed(4)
ROWS, COLUMNS, OUT, RANK, BATCH = 5, 4, 3, 2, 24
INPUTS = torch.randn(BATCH, COLUMNS, generator=DRAWN)


def count(model: nn.Module, inputs: Tensor = INPUTS) -> Measured:
    found = measured(model, (inputs,))
    assert found.error < 1e-9
    assert found.refuted == ()
    return found


def drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=DRAWN))


# -- entrywise products of two products ------------------------------------------------------------
Scale = Callable[[Tensor], Tensor]


class Hadamard(nn.Module):
    """A layer beside the entrywise product of two matrices of low rank."""

    def __init__(self, outputs: int, inputs: int, scale: Scale) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.scale = scale
        self.a, self.b = drawn(outputs, RANK), drawn(RANK, inputs)
        self.c, self.d = drawn(outputs, RANK), drawn(RANK, inputs)

    def forward(self, x: Tensor) -> Tensor:
        change = self.scale((self.a @ self.b) * (self.c @ self.d))
        return self.base(x) + functional.linear(x, change)


SCALES: dict[str, Scale] = {
    "a number": lambda w: 4.0 * w,
    "a constant": lambda w: w * torch.tensor(4.0),
    "a constant before": lambda w: torch.tensor(4.0) * w,
    "a constant of one entry": lambda w: w * torch.full((1, 1), 4.0),
    "by a constant": lambda w: w / torch.tensor(4.0),
    "no short fraction": lambda w: w * torch.tensor(8 / 3),
}


@pytest.mark.parametrize("name", SCALES)
def test_entrywise_products_are_absorbed_by_the_layer(name: str) -> None:
    """All entries of the four factors move freely, as the weight beside them takes up the rest."""
    scale = SCALES[name]
    model = nn.Sequential(
        Hadamard(ROWS, COLUMNS, scale), nn.Tanh(), nn.Linear(ROWS, OUT, bias=False)
    )
    found = count(model)
    assert (found.explained, found.unexplained) == (2 * RANK * (ROWS + COLUMNS), 0)


def test_a_product_with_itself_is_not_linear_in_its_factors() -> None:
    class Squared(Hadamard):
        def forward(self, x: Tensor) -> Tensor:
            product = self.a @ self.b
            return self.base(x) + functional.linear(x, torch.tensor(4.0) * (product * product))

    found = count(nn.Sequential(Squared(ROWS, COLUMNS, SCALES["a number"]), nn.Tanh()))
    assert found.explained < RANK * (ROWS + COLUMNS) + 2 * RANK * (ROWS + COLUMNS)
    assert found.unexplained > 0


# -- magnitudes apart from directions --------------------------------------------------------------
class Directed(nn.Module):
    """A layer whose weight has rows of learned lengths, with a correction of low rank inside."""

    def __init__(self, spell: Spelling, bias: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(COLUMNS, ROWS, bias=bias)
        self.a, self.b = drawn(RANK, COLUMNS), drawn(ROWS, RANK)
        self.m = drawn(ROWS)
        self.spell = spell

    @property
    def w(self) -> Tensor:
        return self.base.weight

    @property
    def merged(self) -> Tensor:
        return self.w + 2.0 * self.b @ self.a

    @property
    def gain(self) -> Tensor:
        return self.m / self.merged.norm(dim=1)

    def low(self, x: Tensor) -> Tensor:
        return functional.linear(functional.linear(x, self.a), self.b) * 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.spell(self, x)


Spelling = Callable[[Directed, Tensor], Tensor]


def as_adapters_do(layer: Directed, x: Tensor) -> Tensor:
    whole = layer.base(x)
    plain = whole if layer.base.bias is None else whole - layer.base.bias
    merged = layer.w + (layer.low(torch.eye(COLUMNS)).T).detach()
    gain = (layer.m / torch.linalg.norm(merged, dim=1).detach()).view(1, -1)
    return whole + ((gain - 1) * plain + gain * layer.low(x))


def by_columns(layer: Directed, x: Tensor) -> Tensor:
    bias = torch.zeros(ROWS) if layer.base.bias is None else layer.base.bias
    x = x[:, None]
    whole = torch.addmm(bias, x.view(-1, COLUMNS), layer.w.T).view(*x.shape[:-1], ROWS)
    plain = whole - bias
    return (whole + (layer.gain - 1) * plain + layer.gain * layer.low(x)).squeeze(1)


def in_place(layer: Directed, x: Tensor) -> Tensor:
    whole = layer.base(x)
    part = functional.linear(x, layer.w)
    part *= layer.gain - 1
    whole += part
    whole += layer.gain * layer.low(x)
    return whole


def bias_last(layer: Directed, x: Tensor) -> Tensor:
    out = layer.gain * functional.linear(x, layer.w) + layer.gain * layer.low(x)
    return out if layer.base.bias is None else out + layer.base.bias


SPELLINGS: dict[str, Spelling] = {
    "as adapters do": as_adapters_do,
    "in place": in_place,
    "gathered": bias_last,
    "less a part": lambda s, x: (
        s.base(x) - (1 - s.gain) * functional.linear(x, s.w) + s.gain * s.low(x)
    ),
    "part of everything": lambda s, x: (
        s.base(x) + s.gain * (functional.linear(x, s.w) + s.low(x)) - functional.linear(x, s.w)
    ),
    "numbers before axes": lambda s, x: (
        s.base(x) + (s.gain - 1).view(1, -1) * functional.linear(x, s.w) + s.gain[None] * s.low(x)
    ),
    "merged": lambda s, x: functional.linear(x, s.gain[:, None] * s.merged, s.base.bias),
    "merged and normalised": lambda s, x: functional.linear(
        x, s.m[:, None] * functional.normalize(s.merged, dim=1), s.base.bias
    ),
    "lengths by hand": lambda s, x: (
        s.base(x)
        + (s.m / s.merged.pow(2).sum(1).sqrt() - 1) * functional.linear(x, s.w)
        + s.m / s.merged.pow(2).sum(1).sqrt() * s.low(x)
    ),
    "divided last": lambda s, x: (
        s.base(x)
        - functional.linear(x, s.w)
        + s.m * (functional.linear(x, s.w) + s.low(x)) / s.merged.norm(dim=1)
    ),
    "two quotients": lambda s, x: (
        s.base(x)
        - functional.linear(x, s.w)
        + s.m * functional.linear(x, s.w) / s.merged.norm(dim=1)
        + s.m * s.low(x) / s.merged.norm(dim=1)
    ),
}
ABSORBED = RANK * (ROWS + COLUMNS)  # whatever the correction is, the weight beside it takes it up


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SPELLINGS)
def test_directions_have_no_length_and_no_part(name: str, bias: bool) -> None:
    """The correction moves freely against the weight, and so does the length of each row."""
    layer = Directed(SPELLINGS[name], bias)
    found = count(nn.Sequential(layer, nn.Tanh(), nn.Linear(ROWS, OUT, bias=False)))
    assert (found.explained, found.unexplained) == (ABSORBED + ROWS, 0)


def test_a_layer_that_counts_its_rows_together_is_one_product() -> None:
    """Behind other units, as windows of the inputs themselves are read one by one."""
    first = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Tanh())
    last = nn.Sequential(nn.Tanh(), nn.Linear(ROWS, OUT, bias=False))
    found = count(nn.Sequential(first, Directed(by_columns), last))
    assert (found.explained, found.unexplained) == (ABSORBED + ROWS, 0)


OTHERS: dict[str, tuple[Spelling, int]] = {
    "another scale in the norm": (
        lambda s, x: (
            s.base(x)
            + (s.m / (s.w + 2.1 * s.b @ s.a).norm(dim=1) - 1) * functional.linear(x, s.w)
            + s.m / (s.w + 2.1 * s.b @ s.a).norm(dim=1) * s.low(x)
        ),
        ROWS + RANK * RANK,
    ),
    "another scale beside it": (
        lambda s, x: s.base(x) + (s.gain - 1) * functional.linear(x, s.w) + 1.1 * s.gain * s.low(x),
        ROWS + RANK * RANK,
    ),
    "another number": (
        lambda s, x: s.base(x) + (s.gain - 1.5) * functional.linear(x, s.w) + s.gain * s.low(x),
        RANK * RANK,
    ),
    "the norm of the weight alone": (
        lambda s, x: (
            s.base(x)
            + (s.m / s.w.norm(dim=1) - 1) * functional.linear(x, s.w)
            + s.m / s.w.norm(dim=1) * s.low(x)
        ),
        ROWS + RANK * RANK,
    ),
    "a norm with a margin": (
        lambda s, x: functional.linear(
            x, (s.m / (s.merged.norm(dim=1) + 0.1))[:, None] * s.merged, s.base.bias
        ),
        ABSORBED,
    ),
    "a norm of columns": (
        lambda s, x: functional.linear(x, s.m[:, None] * s.merged / s.merged.norm(dim=0)),
        ABSORBED + COLUMNS,
    ),
    "the product is an output": (
        lambda s, x: torch.cat([as_adapters_do(s, x), s.low(x)], 1),
        RANK * RANK,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_parts_tell_apart_is_not_moved(name: str) -> None:
    """Only the correction's own basis and the scales of rows that the parts share are claimed."""
    spelling, explained = OTHERS[name]
    found = count(nn.Sequential(Directed(spelling, name != "a norm of columns"), nn.Tanh()))
    assert found.explained == explained


def test_directions_of_a_convolution_have_no_length_and_no_part() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Conv1d(COLUMNS, ROWS, 2)
            self.a, self.b, self.m = (
                drawn(RANK, COLUMNS, 2),
                drawn(ROWS, RANK, 1),
                drawn(1, ROWS, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            w = self.base.weight
            product = (self.b.view(ROWS, -1) @ self.a.view(RANK, -1)).reshape(w.shape)
            gain = self.m / (w + 0.5 * product).norm(dim=(1, 2), keepdim=True).transpose(0, 1)
            whole = self.base(x)
            plain = whole - self.base.bias.view(1, -1, 1)
            low = functional.conv1d(functional.conv1d(x, self.a), self.b) * 0.5
            return whole + (gain - 1) * plain + gain * low

    inputs = torch.randn(BATCH, COLUMNS, 3, generator=DRAWN)
    found = count(nn.Sequential(Convolution(), nn.Tanh(), nn.Conv1d(ROWS, OUT, 1)), inputs)
    assert (found.explained, found.unexplained) == (RANK * (ROWS + 2 * COLUMNS) + ROWS, 0)


# -- convolutions beside each other ----------------------------------------------------------------
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_takes_up_one_of_low_rank_beside_it(stride: int) -> None:
    class Corrected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Conv2d(COLUMNS, ROWS, 3, stride, padding=1)
            self.a = nn.Conv2d(COLUMNS, RANK, 3, stride, padding=1, bias=False)
            self.b = nn.Conv2d(RANK, ROWS, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + 2.0 * self.b(self.a(x))

    inputs = torch.randn(BATCH, COLUMNS, 4, 4, generator=DRAWN)
    found = count(nn.Sequential(Corrected(), nn.Tanh(), nn.Conv2d(ROWS, OUT, 1)), inputs)
    assert (found.explained, found.unexplained) == (RANK * (ROWS + 9 * COLUMNS), 0)


def test_windows_that_lie_otherwise_are_others() -> None:
    class Corrected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Conv1d(COLUMNS, ROWS, 3, padding=1)
            self.a = nn.Conv1d(COLUMNS, RANK, 3, padding=2, dilation=2, bias=False)
            self.b = nn.Conv1d(RANK, ROWS, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.b(self.a(x))

    inputs = torch.randn(BATCH, COLUMNS, 6, generator=DRAWN)
    found = count(nn.Sequential(Corrected(), nn.Tanh(), nn.Conv1d(ROWS, OUT, 1)), inputs)
    assert found.explained == RANK * RANK


# -- matrices that layers share --------------------------------------------------------------------
class Shared(nn.Module):
    """Two layers that scale windows of the same two fixed matrices, each by vectors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Buffer(torch.randn(RANK, max(COLUMNS, ROWS), generator=DRAWN))
        self.b = nn.Buffer(torch.randn(max(OUT, ROWS), RANK, generator=DRAWN))
        self.first, self.last = nn.Linear(COLUMNS, ROWS), nn.Linear(ROWS, OUT)
        self.inside = nn.ParameterList([drawn(RANK), drawn(RANK)])
        self.outside = nn.ParameterList([drawn(ROWS), drawn(OUT)])

    def scaled(self, x: Tensor, k: int, outputs: int) -> Tensor:
        inner = self.inside[k] * functional.linear(x, self.a[:, : x.shape[-1]])
        return self.outside[k] * functional.linear(inner, self.b[:outputs])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x) + self.scaled(x, 0, ROWS))
        return self.last(x) + self.scaled(x, 1, OUT)


def test_scaled_windows_of_shared_matrices_are_absorbed() -> None:
    """Also by a layer whose inputs are two pieces, as its outputs are a part of the others."""
    found = count(Shared())
    assert (found.explained, found.unexplained) == (2 * RANK + ROWS + OUT, 0)
