"""Recurrent layers that begin at a parameter or a buffer: it is their state at one time alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym import verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

KINDS = {
    "rnn": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"}), "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}), "projected": (nn.LSTM, {"proj_size": 2}),
}  # fmt: skip


class Begun(nn.Module):
    def __init__(self, kind: str, learned: bool, layers: int, two_way: bool) -> None:
        super().__init__()
        make, options = KINDS[kind]
        self.run = make(3, 4, layers, batch_first=True, bidirectional=two_way, **options)
        ways, size = 1 + two_way, options.get("proj_size", 4)
        self.leave = nn.Linear(ways * size, 2)
        for name, width in (("state", size), ("cell", 4)):
            given = torch.randn(layers * ways, 1, width)
            if learned:
                setattr(self, name, nn.Parameter(given))
            else:
                self.register_buffer(name, given)

    def forward(self, x: Tensor) -> Tensor:
        state, cell = (s.expand(-1, len(x), -1).contiguous() for s in (self.state, self.cell))
        return self.leave(self.run(x, (state, cell) if isinstance(self.run, nn.LSTM) else state)[0])


@pytest.mark.parametrize(("layers", "two_way"), [(1, False), (2, False), (1, True)])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_state_was_at_first_it_is_not_later(kind, learned, layers, two_way) -> None:
    torch.manual_seed(0)
    model, x = randomise(Begun(kind, learned, layers, two_way)).double(), torch.randn(2, 6, 3)
    symmetry = infer(record(model, (x.double(),)))
    assert verify(model, symmetry, (x.double(),), limit=100).error < 1e-11
    assert not any("weight_hh" in shift.name for shift in symmetry.shifts)
