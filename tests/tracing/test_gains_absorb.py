"""A bias behind a gain takes back what a bias behind another gain adds: b₂ −= (g₁ / g₂) d.

Layer scale, gates of residual branches. Derived without a check, so that nothing but the derivation
is asked; then audited.
"""

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH, HIDDEN = 4, 3


class Gated(nn.Module):
    """Two residual branches, each behind a gain, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        shape = {"scalar": (), "one entry": (1,), "matrix": (3, WIDTH)}.get(way, (WIDTH,))
        self.first, self.enter, self.leave = (
            nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        )  # fmt: skip
        self.one, self.two = (nn.Parameter(torch.ones(shape)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one, self.two
        if self.way == "less one":
            one, two = 1 + one, 1 - two
        if self.way == "of data":
            two = torch.tanh(two * x[:, :1])
        x = x + one * self.first(torch.tanh(x))
        made = two * self.leave(torch.tanh(self.enter(x)))
        return x + made if self.way != "tied" else x + made + torch.tanh(two * self.leave.bias)


def derived(model: Gated) -> tuple[ParameterSymmetry, Tensor]:
    """What the derivation finds by itself; no claim of it is wrong."""
    x = torch.randn(7, 3, WIDTH)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-9
    return symmetry, x


def slides(symmetry: ParameterSymmetry) -> list[int]:
    """The sizes of the motions of the first bias that the last one takes back."""
    both = {"first.bias", "leave.bias"}
    return [s.dimension for s in symmetry.shifts if both <= {*s.parameters}]


@pytest.mark.parametrize("way", ["layer scale", "scalar", "one entry", "less one"])
def test_a_bias_is_taken_back_behind_another_gain(way: str) -> None:
    model = randomise(Gated(way))
    symmetry, x = derived(model)
    assert slides(symmetry) == [WIDTH]
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0


@pytest.mark.parametrize("way", ["matrix", "of data", "tied"])
def test_not_behind_what_is_no_gain(way: str) -> None:
    """A gain that places have of their own, one that data write, and a bias that is read."""
    symmetry, _ = derived(randomise(Gated(way)))
    assert not slides(symmetry)


@pytest.mark.parametrize("way", ["layer scale", "scalar"])
@pytest.mark.parametrize("gain", ["one", "two"])
def test_a_gain_that_vanishes_divides_nothing(way: str, gain: str) -> None:
    model = randomise(Gated(way))
    with torch.no_grad():
        getattr(model, gain).view(-1)[0] = 0
    symmetry, x = derived(model)
    assert slides(symmetry) == ([] if gain == "two" else [WIDTH])
    assert not audit(model, (x,), symmetry=symmetry).refuted


class Complex(nn.Module):
    """Biases of a complex layer, some of which are real, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex128))
        self.gain, self.bias = (
            nn.Parameter(torch.randn(WIDTH, dtype=torch.complex128)) for _ in range(2)
        )
        self.real, self.other = (
            nn.Parameter(torch.randn(WIDTH, dtype=torch.float64)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        made = x.to(torch.complex128) @ self.weight
        if self.way == "a complex bias":
            made = made + self.gain * self.bias + self.real
        elif self.way == "a complex gain":
            made = made + self.gain * self.real + self.other
        elif self.way == "a complex weight":
            made = made + self.bias @ self.weight + self.real
        else:
            made = made + self.real + self.other
        return torch.view_as_real(made)


@pytest.mark.parametrize(
    "way", ["a complex bias", "a complex gain", "a complex weight", "both real"]
)
def test_a_real_bias_carries_nothing_complex(way: str) -> None:
    torch.manual_seed(0)
    model, x = Complex(way), (torch.randn(7, WIDTH, dtype=torch.float64),)
    symmetry = infer(record(model, x))
    assert verify(model, symmetry, x, limit=100).error < 1e-9
    assert bool(symmetry.shifts) == (way != "a complex weight")  # a complex one carries real ones
