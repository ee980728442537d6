"""Streams that a norm writes, among others: a common change along what the norm never writes.

Derived without a check, so that nothing but the derivation is asked.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import act, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH = 5


class Stream(nn.Module):
    """Words, positions and a norm, and a block that reads them, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.words, self.places = nn.Embedding(30, WIDTH), nn.Embedding(6, WIDTH)
        gains = way != "no gains"
        self.first, self.second = (
            nn.LayerNorm(WIDTH, eps=0.01, elementwise_affine=gains) for _ in range(2)
        )
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in "qkv")
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)
        self.leave = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        words, places = self.words(x), self.places(torch.arange(x.shape[1]))
        if self.way in ("norm last", "no gains"):  # of words; positions come later
            h = self.first(words) + places
            weights = torch.softmax(self.query(h) @ self.key(h).mT, -1)
            return self.leave(self.second(h + weights @ self.value(h)))
        h = self.first(words + places)
        if self.way == "two norms":
            h = h + self.second(words)
        if self.way == "RMS norm":
            h = functional.rms_norm(words + places, (WIDTH,), self.first.weight) + places
        h = h + self.down(torch.tanh(self.up(functional.layer_norm(h, (WIDTH,), eps=0.01))))
        if self.way == "activated":
            h = torch.tanh(h)
        if self.way == "one place":
            h = h[:, 1:].mean(1) + h[:, 0]
        return self.leave(h)


def found(way: str) -> tuple[nn.Module, Tensor, ParameterSymmetry, list[str]]:
    """A stream at generic weights, its inputs, what is derived, and the changes of the stream."""
    torch.manual_seed(0)
    model, x = randomise(Stream(way)).double(), torch.randint(30, (12, 6))
    symmetry = infer(record(model, (x,)))
    return model, x, symmetry, [s.name for s in symmetry.shifts if "common change" in s.family]


@pytest.mark.parametrize("way", ["norm last", "no gains", "norm first", "one place"])
def test_a_stream_moves_along_what_its_norm_never_writes(way: str) -> None:
    model, x, symmetry, names = found(way)
    assert len(names) == 1 and symmetry.shift_of[names[0]].dimension == 1
    checked = verify(model, symmetry, (x,), limit=100)
    assert checked.error < 1e-11
    assert checked.control > 1e-3
    before, state = model(x), model.state_dict()
    for delta in (-0.7, 2.0):
        slide = symmetry.element({names[0]: torch.tensor([delta]).double()})
        moved = act(symmetry, slide, state)
        after = torch.func.functional_call(model, moved, (x,))
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
        back = act(symmetry, ~slide, moved)
        torch.testing.assert_close(dict(back), dict(state), rtol=1e-9, atol=1e-9)
        gone = moved | {
            "leave.weight": state["leave.weight"],
            "query.weight": state["query.weight"],
        }
        wrong = torch.func.functional_call(model, gone, (x,))
        assert not torch.allclose(wrong, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", ["two norms", "RMS norm", "activated"])
def test_nothing_moves_where_something_else_is_written_or_read(way: str) -> None:
    model, x, symmetry, names = found(way)
    assert not names
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
