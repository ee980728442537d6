"""Units of slices: each slice that is read by itself has an order as a parameter of its own has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, same_orbit, verify
from paramsym.algebra import Trivial
from paramsym.geometry.same_orbit import Kind
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.coverage.stacked import NETWORKS, STACKS, Stacked
from tests.coverage.test_stacked import CASES, derived
from tests.tracing.zoo import randomise

SIZE = 4
Step = Callable[[list[Tensor], Tensor], Tensor]


def _chain(w: list[Tensor], h: Tensor) -> Tensor:
    """Each layer writes the units that the next one reads."""
    for matrix in w:
        h = torch.nn.functional.gelu(h @ matrix)
    return h


def _experts(w: list[Tensor], h: Tensor) -> Tensor:
    """Layers side by side: the hidden units of each are read by it alone."""
    made = [torch.nn.functional.gelu(h @ a) @ b for a, b in zip(w[::2], w[1::2], strict=True)]
    return torch.tanh(sum(made, torch.zeros(())))


def _two_of_three(w: list[Tensor], h: Tensor) -> Tensor:
    """The hidden units of two layers are added, those of the others stand apart."""
    first, second = torch.relu(h @ w[0]), torch.relu(h @ w[1])
    return torch.tanh((first + second) @ w[2] + torch.relu(h @ w[3]) @ w[4])


def _compared(w: list[Tensor], h: Tensor) -> Tensor:
    """Units of two layers meet in one softmax, where the layers lie side by side."""
    made = torch.stack([h @ w[0], h @ w[1]]).softmax(0)
    return torch.tanh(made[0] @ w[2] + made[1] @ w[3])


def _ordered(w: list[Tensor], h: Tensor) -> Tensor:
    """The units of one layer are added up from the left, and so have an order."""
    h = torch.sigmoid(h @ w[0]).cumsum(-1)
    return torch.sigmoid(torch.sigmoid(h @ w[1]) @ w[2])


STEPS: dict[str, tuple[int, Step]] = {
    f.__name__.strip("_"): (count, f)
    for count, f in (
        (3, _chain), (6, _experts), (5, _two_of_three), (4, _compared),
        (3, _ordered),
    )
}  # fmt: skip


class Square(nn.Module):
    """Square matrices in one parameter, or each in its own."""

    def __init__(self, step: str, apart: bool = False) -> None:
        super().__init__()
        count, self.step = STEPS[step]
        self.enter, self.leave = nn.Linear(5, SIZE), nn.Linear(SIZE, 3)
        self.w = nn.Parameter(torch.randn(count, SIZE, SIZE))
        self.parts = nn.ParameterList(p.clone() for p in self.w.unbind()) if apart else None
        if apart:
            del self.w

    def forward(self, x: Tensor) -> Tensor:
        w = [*self.w] if self.parts is None else [*self.parts]
        return self.leave(self.step(w, torch.sigmoid(self.enter(x))))


def groups(symmetry: ParameterSymmetry) -> Counter[tuple[str, int]]:
    """How often which group acts on how many units."""
    found: Counter[tuple[str, int]] = Counter()
    for space in symmetry.spaces.values():
        if not isinstance(space.group, Trivial):
            copies = math.prod(symmetry.spaces[base].size for base in space.over)
            found[type(space.group).__name__, space.size] += copies
    return found


def of(model: nn.Module) -> ParameterSymmetry:
    """What the derivation finds by itself; no claim of it is wrong."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    return symmetry


@pytest.mark.parametrize("step", [step for step in STEPS if step != "ordered"])
def test_slices_have_the_orders_of_parameters_of_their_own(step: str) -> None:
    torch.manual_seed(0)
    whole, apart = (of(randomise(Square(step, k))) for k in (False, True))
    assert groups(whole) == groups(apart)


@pytest.mark.parametrize(("network", "stack"), CASES)
def test_slices_have_the_groups_of_parameters_of_their_own(network: str, stack: str) -> None:
    _, symmetry = derived(network, stack)
    _, twin = derived(network, stack, apart=True)
    assert groups(symmetry) == groups(twin)


def test_an_order_that_is_fixed_in_one_slice_is_fixed_in_all() -> None:
    """An index type is frozen as a whole, which is sound, and less than the twin has."""
    torch.manual_seed(0)
    whole, apart = (of(randomise(Square("ordered", k))) for k in (False, True))
    assert not groups(whole)
    assert groups(apart) == {("Permutation", SIZE): 3}


def test_types_say_which_slice_has_which_order() -> None:
    torch.manual_seed(0)
    symmetry = of(randomise(Square("chain")))
    assert [*map(str, symmetry.signature["w"][1:])] == [
        "{0: state | state.2 | state.3}", "{0: state.2 | state.3 | state.4}"
    ]  # fmt: skip
    symmetry = of(randomise(Square("experts")))
    assert str(symmetry.signature["w"][2]) == (
        "{0: state.3 | state | state.4 | state | state.5 | state}"
    )


@pytest.mark.parametrize("stack", STACKS)
def test_heads_of_layers_in_one_parameter_trade_places_layer_by_layer(stack: str) -> None:
    class Layers(Stacked):
        SHAPES = NETWORKS["Attention"].SHAPES * 2

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.enter(x))
            parts = self.slices()
            for layer in (parts[:3], parts[3:6]):
                q, k, v = (torch.einsum("bnd,hed->bhne", x, w) for w in layer)
                mixed = (q @ k.mT).softmax(-1) @ torch.tanh(v)
                x = x + torch.tanh(torch.einsum("bhne,hed->bnd", mixed, self.out))
            return self.leave(x)

    found = []
    for apart in (False, True):
        torch.manual_seed(0)
        x, model = torch.randn(2, 7, 5), randomise(Layers(stack, apart))
        symmetry = infer(record(model, (x,)))
        assert verify(model, symmetry, (x,), limit=100).error < 1e-11
        found.append(groups(symmetry))
    assert found[0] == found[1]


def test_networks_that_differ_by_the_order_of_one_slice_are_one() -> None:
    torch.manual_seed(0)
    model = randomise(Square("chain"))
    symmetry = of(model)
    here = {name: p.detach() for name, p in model.named_parameters()}
    order = torch.tensor([2, 0, 3, 1])
    there = {**here, "w": here["w"].clone()}
    there["w"][0], there["w"][1] = here["w"][0][:, order], here["w"][1][order]
    assert same_orbit(symmetry, here, there).kind is Kind.EQUAL
    there["w"][1] = here["w"][1][order.flip(0)]
    assert same_orbit(symmetry, here, there).kind is Kind.DIFFERENT


def test_a_sampled_order_moves_each_slice_by_itself() -> None:
    torch.manual_seed(0)
    model = randomise(Square("experts"))
    symmetry = of(model)
    here = {name: p.detach() for name, p in model.named_parameters()}
    moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(3)), here)
    first, second = here["w"][::2], moved["w"][::2]
    orders = {
        tuple((a.mT[None] - b.mT[:, None]).abs().amax(-1).argmin(0).tolist())
        for a, b in zip(first, second, strict=True)
    }
    assert len(orders) > 1


class Distances(nn.Module):
    """Attention over places of a grid, with a bias a head that is joined row by row of a table.

    Places are counted as rows by columns by the one, and one after the other by the other, so that
    no order of them can change: no joint says that the heads of both are the same.
    """

    def __init__(self, split: bool):
        super().__init__()
        self.split = split
        self.enter, self.query, self.leave = (nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Parameter(torch.randn(7, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        if self.split:  # windows of two by two
            x = x.view(len(x), 2, 2, 2, 2, 8).transpose(2, 3)
        x = x.reshape(-1, 4, 8)
        q = self.query(x).view(len(x), 4, 4, 2).transpose(1, 2)
        rows = [self.table[3 + i - j] for i in range(4) for j in range(4)]
        bias = torch.stack(rows).view(4, 4, 4).permute(2, 0, 1)
        y = (q @ q.mT + bias).softmax(-1) @ q
        return self.leave(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("split", [False, True])
def test_an_order_that_joints_do_not_tell_is_that_of_its_leaf(split: bool) -> None:
    torch.manual_seed(0)
    model, x = randomise(Distances(split)), torch.randn(3, 4, 4, 8)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    assert [str(s.group) for s in symmetry.spaces.values()].count("Permutation(4)") == 1
