"""A weight absorbs what it brought about itself: attention behind a norm, where nothing has a bias.

The bias of a norm that a stream and the values read moves by d = −κ O t / (1 + w·O t), and the
values by w ⊗ (t + V O t): they write O u with u = −d/…, and take back what they make of d.
"""

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, audit, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH, HEADS = 6, 2
MOVED = {"value.weight", "before.bias", "offset"}


class Post(nn.Module):
    """One layer of attention with its norm last, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.enter, self.before, self.after = (
            nn.Linear(9, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        )  # fmt: skip
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.offset = nn.Parameter(torch.randn(WIDTH))
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.before(self.enter(x))
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for y in (self.query(h) + self.offset, self.key(h), self.value(h))
        )
        shares = (q @ k.mT).softmax(-1)
        if self.way == "no shares":  # they sum to nothing known
            shares = (q @ k.mT).tanh()
        made = self.out((shares @ v).transpose(1, 2).flatten(2))
        found = self.leave(torch.tanh(self.after(h + made)))
        return (found, h[:, 0].tanh()) if self.way == "read" else found


def derived(way: str) -> tuple[Post, Tensor, ParameterSymmetry]:
    """A layer with what the derivation finds by itself; no claim of it is wrong."""
    torch.manual_seed(0)
    model, x = randomise(Post(way)), torch.randn(20, 5, 9)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-9
    return model, x, symmetry


def returned(symmetry: ParameterSymmetry) -> int:
    """The dimensions in which the values move against the bias of the norm in front of them."""
    return sum(s.dimension for s in symmetry.shifts if MOVED <= {*s.parameters})


def test_values_take_back_what_they_made_of_the_bias() -> None:
    model, x, symmetry = derived("plain")
    assert returned(symmetry) == WIDTH
    found = audit(model, (x,), symmetry=symmetry)
    assert (found.unexplained, found.refuted) == (0, {})


@pytest.mark.parametrize("way", ["no shares", "read"])
def test_where_something_else_sees_the_bias_they_do_not(way: str) -> None:
    model, x, symmetry = derived(way)
    assert returned(symmetry) == 0
    assert not audit(model, (x,), symmetry=symmetry).refuted


def test_the_motion_is_finite_exact_and_undone() -> None:
    model, x, symmetry = derived("plain")
    model, x = model.double(), x.double()
    (shift,) = (s for s in symmetry.shifts if MOVED <= {*s.parameters})
    before = {n: p.detach() for n, p in model.named_parameters()}
    element = symmetry.sample(torch.Generator().manual_seed(0), 3.0, only=[shift.name])
    after = act(symmetry, element, before)
    first, second = (torch.func.functional_call(model, p, (x,)) for p in (before, after))
    assert max(float((after[n] - before[n]).abs().max()) for n in before) > 0.1
    assert torch.allclose(first, second, rtol=0, atol=1e-11)
    again = act(symmetry, ~element, after)
    assert all(torch.allclose(again[n], before[n], rtol=0, atol=1e-11) for n in before)


class Shared(nn.Module):
    """A norm that is used twice; a bias written to the stream between leads, and the norm's own
    absorbs."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.gain, self.bias = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.enter, self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 4)
        self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.value, self.last = (nn.Linear(4, 4, bias=False) for _ in range(2))

    def norm(self, x: Tensor) -> Tensor:
        made = nn.functional.layer_norm(x, (4,), eps=0.01)
        scale = 1 + self.gain if self.way == "an offset" else self.gain
        return (made if self.way == "no gain" else made * scale) + self.bias

    def attend(self, h: Tensor) -> Tensor:
        return self.out((self.query(h) @ h.mT).softmax(-1) @ self.value(h))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = self.norm(h + self.attend(h))
        inner = self.inner(h)
        h = h + self.outer(torch.sigmoid(inner) * inner)
        h = self.norm(h + self.attend(h))
        return h + self.last(h)


@pytest.mark.parametrize("way", ["a gain", "an offset", "no gain"])
def test_a_bias_that_absorbs_moves_what_weights_never_have(way: str) -> None:
    """Another bias leads: it moves by κ s, and the norm's by −κ s, by which κ is divided."""
    torch.manual_seed(0)
    model, x = randomise(Shared(way)), torch.randn(20, 5, 3)
    symmetry = infer(record(model, (x,)))
    assert any({"outer.bias", "bias", "last.weight"} <= {*s.parameters} for s in symmetry.shifts)
    assert verify(model, symmetry, (x,), limit=100).error < 1e-9
