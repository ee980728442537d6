"""Steps that do not fill their axis: every other one of five places."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

CUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "every other one": ((5,), lambda y: y[:, ::2]),
    "every third": ((7,), lambda y: y[:, 2::3]),
    "the second of two": ((5,), lambda y: y[:, 1::2]),
    "behind a transposition": ((5,), lambda y: y.transpose(0, 1)[::2].transpose(0, 1)),
    "two axes": ((5, 5), lambda y: y[:, ::2, ::2].flatten(1, 2)),
    "one axis of two": ((3, 5), lambda y: y[:, 1:, ::2].flatten(1, 2)),
    "a cut of a cut": ((9,), lambda y: y[:, ::2][:, ::2]),
    "beside all": ((5,), lambda y: torch.cat([y[:, ::2], y, y[:, 1::2]], 1)),
}


class Cut(nn.Module):
    """Places of a hidden layer, some of which are read."""

    def __init__(self, cut: Callable[[Tensor], Tensor]):
        super().__init__()
        self.cut, self.enter, self.leave = cut, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.cut(torch.relu(self.enter(x))))


@pytest.mark.parametrize("name", CUTS)
def test_the_other_axes_pass(name: str) -> None:
    places, cut = CUTS[name]
    model, x = randomise(Cut(cut)), (torch.randn(20, *places, 3),)
    symmetry = infer(record(model, x))
    assert [space.size for space in symmetry.spaces.values()] == [4]
    assert verify(model, symmetry, x).error < 1e-9
    assert audit(model, x, symmetry=symmetry).unexplained == 0


def test_units_that_are_cut_keep_their_order() -> None:
    """Every other unit of five is read by itself: none of them can be another one."""
    model = nn.ModuleDict({"enter": nn.Linear(3, 5), "leave": nn.Linear(3, 2)})

    class Units(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.parts["enter"](x))
            return self.parts["leave"](h[:, ::2]) + h[:, 1:2].sin() + h[:, 3:4]

    made, x = randomise(Units()), (torch.randn(20, 3),)
    symmetry = infer(record(made, x))
    assert verify(made, symmetry, x, limit=100).error < 1e-9
