"""Several calls in one pass against the same calls one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.checking import together as several
from paramsym.checking.audit import audit, audit_cost
from paramsym.checking.jacobian import Network
from tests.tracing.networks import TABLE, Row, build
from tests.tracing.programs import draw

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
SPREADS = [1.0, 1.0, 4.0, 64.0, 1.0]


def network(model: nn.Module, inputs: Any, batched: bool = True, outputs: Any = None) -> Network:
    found = Network(model, inputs, outputs, False, torch.Generator().manual_seed(2))
    found.batched = batched
    return found


def rows_at(model: nn.Module, inputs: Any, batched: bool, outputs: Any = None) -> list[Tensor]:
    """Every row at inputs that are the same ones in both ways."""
    return network(model, inputs, batched, outputs).rows(10**6, SPREADS)


def assert_same(model: nn.Module, inputs: Any, outputs: Any = None) -> None:
    together = rows_at(model, inputs, True, outputs)
    alone = rows_at(model, inputs, False, outputs)
    assert len(together) == len(alone) == len(SPREADS)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


def is_batched(model: nn.Module, inputs: Any, outputs: Any = None) -> bool:
    """Whether the calls were made in one pass."""
    found = network(model, inputs, outputs=outputs)
    found.rows(2, SPREADS)
    return found.batched


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_pass_gives_the_rows_of_its_calls(row: Row) -> None:
    model, inputs = build(row)
    assert is_batched(model, inputs, row.outputs)
    assert_same(model, inputs, row.outputs)


class Cut(nn.Module):
    """Parts of it are hidden from autograd, and another part is the derivative of a rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).detach()
        with torch.no_grad():
            h = h * self.gain
        return self.last(h.tanh() + (h.round() - h).detach())


def test_what_is_hidden_from_autograd_is_seen_in_a_pass_as_well() -> None:
    model, inputs = Cut().double(), torch.randn(3, 4)
    assert_same(model, inputs)
    assert all(float(rows.abs().amax(0).min()) > 0 for rows in rows_at(model, inputs, True))


class Doubled(torch.autograd.Function):
    """Written by hand, without a word on batches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Tensor:
        return 2 * grad[0]


class WrongRule(torch.autograd.Function):
    """Its rule for batches is that of another function."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Tensor:
        return 2 * grad[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, Any]:
        return 3 * x, in_dims[0]


class WrongDerivative(WrongRule):
    """Its rule for batches computes the function, and cuts the derivative in half."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, Any]:
        return x + x.detach().requires_grad_(False), in_dims[0]


@pytest.mark.parametrize("function", [Doubled, WrongRule, WrongDerivative])
def test_what_a_pass_does_not_compute_is_computed_one_by_one(function: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(function.apply(self.first(x)).tanh())

    torch.manual_seed(0)
    model, inputs = Model().double(), torch.randn(3, 4)
    assert not is_batched(model, inputs)
    assert_same(model, inputs)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_a_pass_that_torch_cannot_derive_is_made_one_by_one(kind: type[nn.Module]) -> None:
    """Over one place torch refuses the gradient of a convolution whose batch lies in its groups."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 6), kind(6, 6, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).transpose(1, 2)).tanh()

    assert_same(Model().double(), (torch.randn(1, 1, 3).double(),))


def test_values_of_moved_parameters_are_those_of_each_call() -> None:
    model, inputs = build(TABLE[0])
    one, other = network(model, inputs), network(model, inputs, batched=False)
    draws = one.draws(SPREADS)
    shifts = torch.arange(len(SPREADS), dtype=torch.float64)
    leaves = [one.state[n] + shifts.reshape(-1, *[1] * one.state[n].ndim) * 0.1 for n in one.names]
    together, alone = one.values(leaves, draws), other.values(leaves, draws)
    assert one.batched and not torch.allclose(together[0], together[1])
    torch.testing.assert_close(together, alone)


def test_random_programs_have_the_same_rows_in_a_pass() -> None:
    """What no rule of ours has seen: views, writes in place, buffers, recurrences, lookups."""
    batched = 0
    for number in range(20):
        program = draw(number)
        inputs = program.draw_inputs(torch.Generator().manual_seed(0))
        model = program.build(0)
        try:
            rows_at(model, inputs, batched=False)
        except RuntimeError:  # batch norm by a variance that is computed from parameters
            continue
        assert_same(model, inputs)
        batched += is_batched(model, inputs)
    assert 10 < batched


class Padded(nn.Module):
    """Attention over a window to which a few places are padded."""

    def __init__(self, window: int):
        super().__init__()
        self.window, self.first, self.last = window, nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.pad(self.first(x), (0, 0, 0, self.window - x.shape[-2]))
        return self.last((h @ h.mT).tanh() @ h)[..., : x.shape[-2], :]


def test_calls_that_keep_much_are_not_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_ROOM", 1 << 17)  # for ten calls of a window of 60

    def passes(window: int) -> tuple[list[int], int]:
        given = Padded(window).double(), (torch.rand(2, 5, 3).double(),)
        network = Network(*given, None, False, torch.Generator().manual_seed(2))
        return [*network.passes(32, 7)], audit_cost(*given).bytes

    few, much = passes(60)
    many, little = passes(12)
    assert 1 < max(few) < 12 and sum(few) == 32 and max(many) == 32
    assert much - little > 8 * 2 * 2 * 60**2  # what one call keeps is stated
    model, x = Padded(60).double(), (torch.rand(2, 5, 3).double(),)
    small = Padded(12).double()
    small.load_state_dict(model.state_dict())
    found, same = audit(model, x), audit(small, x)
    assert (found.explained, found.unexplained) == (same.explained, same.unexplained)
