"""A part of a copy of a gain is no gain: its entries are not those of the parameter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH = 6
CUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda g: g[:WIDTH], "all, with one": lambda g: 1 + g[:WIDTH],
    "a cut of a copy": lambda g: (g * 1)[1:], "a cut of a sum": lambda g: (1 + g)[1:],
    "a cut of a power": lambda g: (g**2)[:-1], "a cut of a clone": lambda g: g.clone()[1:],
    "steps": lambda g: torch.cat([(1 + g)[::2], (1 + g)[1::2]])[:WIDTH],
    "one repeated": lambda g: (1 + g)[2].expand(WIDTH),
    "no step at all": lambda g: (1 + g).as_strided((WIDTH,), (0,)),
    "two cuts": lambda g: (1 + g)[1:] / (1 + g)[:-1],
}  # fmt: skip


class Gained(nn.Module):
    """Units between two linear maps, or behind a norm, with a part of a vector for gains."""

    def __init__(self, cut: Callable[[Tensor], Tensor], norm: bool):
        super().__init__()
        self.cut, self.norm = cut, norm
        self.enter, self.leave = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 8)
        self.gain = nn.Parameter(torch.randn(WIDTH + 1))

    def forward(self, x: Tensor) -> Tensor:
        gain, h = self.cut(self.gain), self.enter(x)
        h = nn.functional.layer_norm(h, (WIDTH,), gain) if self.norm else h * gain
        return self.leave(h)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_out_of_a_gain_is_sound(name: str, norm: bool) -> None:
    model, x = randomise(Gained(CUTS[name], norm)), (torch.randn(7, 4),)
    symmetry = infer(record(model, x))
    assert symmetry.spaces or symmetry.shifts
    assert verify(model, symmetry, x, limit=100).error < 1e-9
