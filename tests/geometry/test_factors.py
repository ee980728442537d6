"""Families that share no tensor, balanced on their own: against all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.geometry.balance import balance
from paramsym.geometry.factors import factors_of
from paramsym.geometry.movers import Movers, movers_of
from paramsym.geometry.turns import Turns
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, torch.Tensor]


class Block(nn.Module):
    """A residual sum whose norm lets no scale pass."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def blocks(count: int, width: int = 6, hidden: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(Block(width, hidden) for _ in range(count)), nn.LayerNorm(width)
    ).double()


def names_of(movers: Movers) -> list[str]:
    return [n for f in fields(Movers) if f.name != "held" for n in getattr(movers, f.name)]


@pytest.mark.parametrize("name", ["MLP, ReLU", "MultiheadAttention", "convolutions", "GPT-2"])
@pytest.mark.parametrize("shifts", [False, True])
def test_factors_share_no_tensor_and_leave_no_family_out(name: str, shifts: bool) -> None:
    model, _ = build(name)
    symmetry = derived(name)
    movers = movers_of(symmetry, 2.0, (), (), shifts)
    factors = factors_of(symmetry, movers)
    tensors = [n for factor in factors for n in factor.tensors]
    families = [n for factor in factors for n in names_of(factor.movers)]
    assert len(tensors) == len(set(tensors))
    assert sorted(families) == sorted(names_of(movers))
    for factor in factors:
        for space in (*factor.movers.scales, *factor.movers.bases):
            assert {*symmetry.parameters_of(space)} <= {*factor.tensors}


@pytest.mark.parametrize("name", ["MultiheadAttention", "convolutions", "GPT-2"])
def test_factors_reach_what_all_families_reach_together(name: str) -> None:
    model, _ = build(name)
    symmetry = derived(name)
    params = {n: p.detach().double() if p.is_floating_point() else p
              for n, p in model.state_dict().items()}  # fmt: skip
    movers = movers_of(symmetry, 2.0, (), (), False)
    turns = Turns(symmetry, params, 2.0, movers, 1e-12)
    turns.settle(100, None)
    whole, found = turns.found(), balance(symmetry, params, shifts=False)
    assert found.before == pytest.approx(whole.before, rel=1e-12)
    assert found.value == pytest.approx(whole.value, rel=1e-10)
    assert found.status == whole.status and found.gap <= 1e-9 * found.value
    assert {*found.moment} == {*whole.moment}
    counted = [n for n in symmetry.signature if n not in (*symmetry.buffers, *symmetry.ties)]
    if not symmetry.offsets:
        moved = sum(float(found.params[n].square().sum()) for n in counted)
        assert found.value == pytest.approx(moved, rel=1e-12)


def test_a_network_of_blocks_has_one_factor_each_and_one_that_is_alone_is_the_same() -> None:
    model = blocks(5)
    symmetry = find_symmetry(model, (torch.randn(3, 6).double(),), check=False)
    factors = factors_of(symmetry, movers_of(symmetry, 2.0, (), (), False))
    assert len(factors) == 5
    params = {n: p.detach() for n, p in model.state_dict().items()}
    found = balance(symmetry, params, shifts=False)
    alone = blocks(1)
    alone.load_state_dict({n: p for n, p in params.items() if n.startswith("0.")}, strict=False)
    one = find_symmetry(alone, (torch.randn(3, 6).double(),), check=False)
    first = balance(one, {n: p.detach() for n, p in alone.state_dict().items()}, shifts=False)
    for n in ("0.up.weight", "0.down.weight", "0.up.bias"):
        torch.testing.assert_close(found.params[n], first.params[n], rtol=1e-9, atol=1e-11)


class Counted(Mapping[str, torch.Tensor]):
    """Tensors that are copied whenever they are read, and how many numbers are alive at most."""

    def __init__(self, state: State) -> None:
        self.state, self.reads, self.alive, self.most = state, dict.fromkeys(state, 0), 0, 0

    def __getitem__(self, name: str) -> torch.Tensor:
        import weakref

        made = self.state[name].clone()
        self.reads[name] += 1
        self.alive += made.numel()
        self.most = max(self.most, self.alive)
        weakref.finalize(made, self._gone, made.numel())
        return made

    def _gone(self, count: int) -> None:
        self.alive -= count

    def __contains__(self, name: object) -> bool:
        return name in self.state

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)


def test_only_one_factor_is_in_memory_and_each_tensor_is_read_once() -> None:
    model = blocks(12, 8, 20)
    symmetry = find_symmetry(model, (torch.randn(3, 8).double(),), check=False)
    state = {n: p.detach() for n, p in model.state_dict().items()}
    lazy, total = Counted(state), sum(p.numel() for p in state.values())
    found, eager = balance(symmetry, lazy, shifts=False), balance(symmetry, state, shifts=False)
    assert found.value == pytest.approx(eager.value, rel=1e-12)
    assert lazy.most <= total / 6
    assert max(lazy.reads.values()) == 1
    for name, tensor in found.params.items():  # reads them, all of them
        torch.testing.assert_close(tensor, eager.params[name])
    assert max(lazy.reads.values()) > 1


def test_numbers_that_are_read_are_looked_at_like_those_that_are_there() -> None:
    model = blocks(2)
    symmetry = find_symmetry(model, (torch.randn(3, 6).double(),), check=False)
    state = {n: p.detach().clone() for n, p in model.state_dict().items()}
    for wrong in (
        state["0.up.weight"].mT.contiguous(),
        torch.full_like(state["0.up.weight"], torch.inf),
    ):
        broken = {**state, "0.up.weight": wrong}
        said = []
        for given in (broken, Counted(broken)):
            with pytest.raises(ValueError, match="0.up.weight|largest number") as raised:
                balance(symmetry, given, shifts=False)
            said.append(str(raised.value))
        assert said[0].split(":")[0] == said[1].split(":")[0]
