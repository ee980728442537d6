"""Places that the forward pass draws are no places of the model: which units are read changes.

Number by number nothing can be compared, so that outputs are compared over all orders at once.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paramsym import act, find_symmetry
from paramsym.primitives import defects
from paramsym.recording.record import record
from paramsym.tracing.infer import infer

UNITS = 4
FIXED = torch.tensor([2, 0, 3, 1])


class Drawn(nn.Module):
    """Units in an order that `places` gives at each call, read in the way of its name."""

    def __init__(self, way: str, places: Callable[[], Tensor]):
        super().__init__()
        self.way, self.places = way, places
        self.enter, self.leave = nn.Linear(6, UNITS), nn.Linear(UNITS, 3)
        self.table = nn.Embedding(UNITS, 3)

    def forward(self, x: Tensor) -> Tensor:
        units, places = torch.relu(self.enter(x)), self.places()
        match self.way:
            case "units":
                return self.leave(units[:, places])
            case "select":
                return self.leave(units.index_select(1, places))
            case "gather":
                return self.leave(units.gather(1, places.expand(len(x), UNITS)))
            case "rows":
                return units @ self.leave.weight.T[places]
            case "table":
                return units @ self.table(places)
        return self.leave(torch.cat([units[:, places[:2]], units[:, places[2:]]], 1))


WAYS = ("units", "select", "gather", "rows", "table", "joined")
DRAWS = {
    "randperm": lambda: torch.randperm(UNITS),
    "argsort": lambda: torch.rand(UNITS).argsort(),
    "multinomial": lambda: torch.multinomial(torch.ones(UNITS), UNITS),
    "in place": lambda: torch.empty(UNITS).uniform_().argsort(),
}


def test_no_unit_moves_by_itself() -> None:
    torch.manual_seed(0)
    for way, (name, draw) in itertools.product(WAYS, DRAWS.items()):
        model, x = Drawn(way, draw).double(), torch.randn(5, 6).double()
        symmetry = find_symmetry(model, (x,))
        element = symmetry.sample(torch.Generator().manual_seed(1))
        moved = act(symmetry, element, dict(model.state_dict()))

        def over_all_orders(
            state: dict[str, Tensor], model: Drawn = model, x: Tensor = x
        ) -> Tensor:
            found = []
            for order in itertools.permutations(range(UNITS)):
                model.places = lambda order=order: torch.tensor(order)
                found.append(torch.func.functional_call(model, state, (x,)))
            return torch.stack(found)

        before, after = over_all_orders(dict(model.state_dict())), over_all_orders(moved)
        size = before.std()
        for power in (1, 2, 3):
            here, there = (y.pow(power).mean(0) for y in (before, after))
            assert (here - there).abs().max() < 1e-9 * size**power, (way, name)
        assert not symmetry.unreached, (way, name)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "joined"])
def test_places_of_the_model_leave_each_unit_its_scale(way: str) -> None:
    model, x = Drawn(way, lambda: FIXED), torch.randn(5, 6)
    symmetry = find_symmetry(model, (x,))
    assert sum(map(symmetry.dimension, symmetry.spaces)) >= UNITS


class Odd(nn.Module):
    """What ended the derivation of some operation in an error, by its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.enter, self.leave = nn.Linear(6, UNITS), nn.Linear(UNITS, 3)
        self.rows, self.first = nn.Parameter(torch.randn(6, UNITS)), nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.way == "a sum that cancels to a number":
            made = self.leave(torch.relu(self.enter(x)))
            return made, 0 * made.mean() + 1
        if self.way == "a product over nothing":
            sums = [x[:, :k] @ self.rows[:k] for k in range(3)]
            return torch.stack(
                [(torch.tanh(s) * self.first[k]).sum(-1) for k, s in enumerate(sums)]
            )
        return self.leave(torch.relu(self.enter(x))[:, np.array([1, 0, 3, 2])])


@pytest.mark.parametrize(
    "way", ["a sum that cancels to a number", "a product over nothing", "an array of numpy"]
)
def test_nothing_is_held_for_an_error(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defects, "raising", True)
    symmetry = infer(record(Odd(way), (torch.randn(5, 6),)))
    assert not symmetry.unknown and any(
        s.group.dimension or s.group.log_order for s in symmetry.spaces.values()
    )
