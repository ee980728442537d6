"""What no output shows may be anything, unless it is read where not every number has a value:
the variance of a BatchNorm whose scores a softmax over one key does not see stays positive."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer

FUNCTIONS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {  # by whether all is allowed
    "rsqrt": (False, torch.rsqrt), "sqrt": (False, torch.sqrt), "log": (False, torch.log),
    "log1p": (False, torch.log1p), "acos": (False, torch.acos), "atanh": (False, torch.atanh),
    "logit": (False, torch.logit), "a root": (False, lambda t: t**0.3),
    "lgamma": (False, torch.lgamma), "of a tensor": (False, lambda t: t.pow(t)),
    "Cholesky": (False, lambda t: torch.linalg.cholesky(torch.diag(t)).diagonal()),
    "an inverse": (False, torch.reciprocal), "a negative power": (False, lambda t: t**-2),
    "over a ReLU": (False, lambda t: t / torch.relu(t)),
    "a unit vector": (False, lambda t: torch.relu(t) / torch.relu(t).norm()),
    "a unit vector with a floor": (True, lambda t: nn.functional.normalize(torch.relu(t), dim=0)),
    "infinity below zero": (False, lambda t: nn.functional.threshold(t, 0.0, float("inf"))),
    "infinity above": (False, lambda t: torch.where(t > 0.9, float("inf"), t)),
    "infinity or one": (False, lambda t: torch.where(t > 0.9, float("inf"), 1.0)),
    "a root of a sum": (
        False, lambda t: nn.functional.lp_pool1d(t.expand(1, 1, 3), 3.0, 3).reshape(-1)),
    "a maximum": (True, lambda t: nn.functional.max_pool1d(t.expand(1, 1, 3), 3).reshape(-1)),
    "over a sum": (False, lambda t: 1 / (t + t.abs())),
    "tanh": (True, torch.tanh), "cube": (True, lambda t: t**3), "above": (True, lambda t: t / 3),
    "exp": (True, torch.exp), "plus one": (True, lambda t: 1 + t), "relu": (True, torch.relu),
}  # fmt: skip


class OneKey(nn.Module):
    """Attention to one key, whose query is scaled by a function of a parameter."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function
        self.query, self.key, self.value = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 5)
        self.size = nn.Parameter(torch.tensor([0.3, 0.5, 0.7]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unsqueeze(1) for layer in (self.query, self.key, self.value))
        q = q * self.function(self.size)
        return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_seen_stays_where_it_has_a_value(name: str) -> None:
    torch.manual_seed(0)
    everywhere, function = FUNCTIONS[name]
    model, x = OneKey(function).double(), (torch.randn(6, 4, dtype=torch.float64),)
    symmetry = infer(record(model, x))
    moved = {p for shift in symmetry.shifts for p in shift.parameters}
    assert {"query.weight", "query.bias", "key.weight"} <= moved
    assert ("size" in moved) == everywhere
    state, before = model.state_dict(), model(*x)
    for seed in range(5):
        element = symmetry.sample(torch.Generator().manual_seed(seed), 3.0, dtype=torch.float64)
        model.load_state_dict(act(symmetry, element, state))
        assert torch.allclose(model(*x), before)
    assert verify(model, symmetry, x).error < 1e-9


@pytest.mark.parametrize("order", [1, 2])
def test_what_would_never_end_is_not_probed(order: int) -> None:
    """The series of a polygamma function at −1e30 has as many terms."""
    model = OneKey(lambda t: torch.polygamma(order, t)).double()
    symmetry = infer(record(model, (torch.randn(6, 4, dtype=torch.float64),)))
    assert [*symmetry.unknown] == ["polygamma"]


class Width(nn.Module):
    """A model with parameters of no entries: tokens and a layer that were switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.narrow = nn.Parameter(torch.randn(0, 5)), nn.Parameter(torch.randn(5, 0))
        self.enter, self.leave = nn.Linear(4, 5), nn.Linear(5, 3)
        self.back = nn.Parameter(torch.randn(0, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.tokens.expand(len(x), -1, -1), torch.relu(self.enter(x))], 1)
        return self.leave(h + torch.relu(h @ self.narrow) @ self.back)


def test_what_has_no_entries_is_dead() -> None:
    torch.manual_seed(0)
    model, x = Width().double(), (torch.randn(3, 6, 4, dtype=torch.float64),)
    symmetry = infer(record(model, x))
    assert {"tokens", "narrow", "back"} == {*symmetry.dead}
    assert len(symmetry.spaces) == 1
    assert verify(model, symmetry, x).error < 1e-9
