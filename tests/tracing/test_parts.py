"""What an operator combines over an axis that is joined of several parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import act, audit, find_symmetry
from paramsym.algebra import Permutation
from paramsym.primitives.joint import Joint
from paramsym.tracing.circuit import Circuit
from tests.tracing.zoo import randomise

Step = Callable[["Parts", Tensor], Tensor]

JOINED: dict[str, Step] = {
    "zeros": lambda m, h: functional.pad(h, (0, 0, 1, 1)),
    "a token": lambda m, h: torch.cat([m.token.expand(len(h), 1, -1), h], 1),
    "another layer's": lambda m, h: torch.cat([h, m.line(h[:, :2])], 1),
    "a written place": lambda m, h: _written(m, h),
    "exchanged": lambda m, h: torch.cat([m.line(h[:, 2:]), h[:, :2]], 1),
}
COMBINED: dict[str, Step] = {
    "centred": lambda m, h: h - h.mean(1, keepdim=True),
    "centred by hand": lambda m, h: h - h.sum(1, keepdim=True) / h.shape[1],
    "centred on both": lambda m, h: h - h.mean((1, 2), keepdim=True),
    "normalised": lambda m, h: functional.instance_norm(h.mT).mT,
    "of unit length": lambda m, h: functional.normalize(h, dim=1),
    "layer norm over both": lambda m, h: functional.layer_norm(h, h.shape[1:]),
    "softmax": lambda m, h: h.softmax(1),
    "less its largest": lambda m, h: h - h.amax(1, keepdim=True),
    "added up": lambda m, h: h.cumsum(1),
    "sorted": lambda m, h: h.sort(1)[0],
}
READ: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda h: h[:, 0], "last": lambda h: h[:, -1], "between": lambda h: h[:, 2],
    "first and last": lambda h: h[:, 0] + h[:, -1], "all": lambda h: h,
}  # fmt: skip


def _written(model: Parts, h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 0] = model.line(h[:, -1])
    return h


class Parts(nn.Module):
    """A layer, its places joined with others, something over all of them, and a layer."""

    def __init__(self, joined: Step, combined: Step, read: Callable[[Tensor], Tensor]):
        super().__init__()
        self.enter, self.line, self.leave = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 5)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.steps, self.read = (joined, combined), read

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for step in self.steps:
            h = step(self, h)
        return self.leave(self.read(h))


def built(joined: str, combined: str, read: str) -> tuple[Parts, Tensor]:
    torch.manual_seed(0)
    model = Parts(JOINED[joined], COMBINED[combined], READ[read])
    return randomise(model).double(), torch.randn(3, 5, 3).double()


def change(model: nn.Module, x: Tensor) -> float:
    """How far the derived symmetry, unchecked, moves the outputs."""
    found = find_symmetry(model, (x,), check=False)
    state = {n: p.detach() for n, p in model.named_parameters()}
    moved = act(found, found.sample(torch.Generator().manual_seed(3)), state)
    after = torch.func.functional_call(model, moved, (x,))
    return float(((after - model(x)).abs().max() / model(x).abs().max()).detach())


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("combined", COMBINED)
@pytest.mark.parametrize("joined", JOINED)
def test_one_part_shows_in_all_others(joined: str, combined: str, read: str) -> None:
    assert change(*built(joined, combined, read)) < 1e-9


@pytest.mark.parametrize("combined", ["centred", "centred by hand"])
@pytest.mark.parametrize(("joined", "read"), [("zeros", "last"), ("a token", "first")])
def test_parts_of_one_mean_change_basis_together(joined: str, combined: str, read: str) -> None:
    model, x = built(joined, combined, read)
    found = find_symmetry(model, (x,))
    assert found.checked is not None and not found.checked.refuted
    assert sum(found.dimension(name) for name in found.spaces) == 16


def test_without_it_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: taken joint by joint, a padded place has a basis of its own."""
    monkeypatch.setattr(Joint, "is_partial", False)
    assert change(*built("zeros", "centred", "last")) > 1e-2


class Registers(nn.Module):
    """Attention over given places and tokens without a place, whose order is free."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(3, 4), nn.LayerNorm(4)
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))
        self.places = nn.Parameter(torch.zeros(5, 4))
        self.tokens = nn.Parameter(torch.zeros(1, 3, 4))
        self.leave = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x) + self.places
        h = torch.cat([h[:, :1], self.tokens.expand(len(h), -1, -1), h[:, 1:]], 1)
        n = self.norm(h)
        h = h + self.o((self.q(n) @ self.k(n).mT / 2).softmax(-1) @ self.v(n))
        return self.leave(torch.tanh(h[:, 0]))


def test_a_value_bias_slides_past_tokens_whose_order_is_free() -> None:
    torch.manual_seed(0)
    model, x = randomise(Registers()).double(), torch.randn(4, 5, 3).double()
    found = find_symmetry(model, (x,))
    assert audit(model, (x,), symmetry=found).complete
    assert any(isinstance(s.group, Permutation) and s.size == 3 for s in found.spaces.values())


class Prefix(nn.Module):
    """The first of a token, three others, and given places."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.enter, self.leave, self.end = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)
        self.token, self.others = nn.Parameter(torch.zeros(1, 4)), nn.Parameter(torch.zeros(3, 4))
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        tokens = (t.expand(len(x), -1, -1) for t in (self.token, self.others))
        h = torch.cat([*tokens, self.enter(x)], 1)
        return self.end(torch.tanh(self.leave(h[:, : self.count])))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_window_over_tokens_is_not_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    torch.manual_seed(0)
    model, x = randomise(Prefix(count)).double(), torch.randn(4, 3, 3).double()
    assert change(model, x) < 1e-9
    monkeypatch.setattr(Circuit, "_written", lambda self, key: self.writers.get(key, []))
    assert count != 2 or change(model, x) > 1e-3  # the control: by the name of the first


class Offset(nn.Module):
    """Given places and tokens, to which a token and the rows of a table are added, one later."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5)
        self.token, self.others = nn.Parameter(torch.zeros(1, 4)), nn.Parameter(torch.zeros(3, 4))
        self.table, self.place = nn.Parameter(torch.zeros(7, 4)), place

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.enter(x), self.others.expand(len(x), -1, -1)], 1)
        h = self.norm(h + torch.cat([self.token, self.table]))
        return self.leave(h[:, self.place])


@pytest.mark.parametrize("place", range(8))
def test_a_part_of_an_axis_is_not_alike_at_all_places(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    torch.manual_seed(0)
    model, x = randomise(Offset(place)).double(), torch.randn(4, 5, 3).double()
    assert change(model, x) < 1e-9
    monkeypatch.setattr(Circuit, "is_window", lambda *_: False)  # the control
    assert place not in range(1, 5) or change(model, x) > 1e-3
