"""Loops over the experts that some token hit, as mixtures of experts are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import TraceError, find_symmetry
from tests.coverage.measure import Measured, measured

EXPERTS, WIDTH = 5, 7


class Mixture(nn.Module):
    """Two of five experts for each token, which `loop` visits."""

    def __init__(self, loop: Loop):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, WIDTH))
            for _ in range(EXPERTS)
        )
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.counts = nn.Buffer(torch.zeros(EXPERTS))
        self.loop, self.out = loop, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        return self.out(self.loop(self, x, weights, chosen))

    def of(self, expert: int, x: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        return self.experts[expert](x[rows]) * weights[:, None]


Loop = Callable[[Mixture, Tensor, Tensor, Tensor], Tensor]


def by_tensor(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    """The number of an expert is a tensor of one entry, and rows are read behind a new axis."""
    y = torch.zeros_like(x)
    mask = F.one_hot(i, num_classes=EXPERTS).permute(2, 1, 0)
    for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        places, rows = torch.where(mask[e].squeeze(0))
        found = moe.experts[e](x[None, rows].reshape(-1, WIDTH)) * v[rows, places, None]
        y.index_add_(0, rows, found.to(x.dtype))
    return y


def by_number(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    mask = F.one_hot(i, num_classes=EXPERTS).permute(2, 1, 0)
    for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero(as_tuple=False):
        places, rows = torch.where(mask[e.item()])
        y[rows] += moe.of(int(e), x, rows, v[rows, places])
    return y


def first_entry(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    """The entry of each row of positions, with experts beyond the last that do nothing."""
    y = torch.zeros_like(x)
    mask = F.one_hot(i, num_classes=EXPERTS).permute(2, 1, 0)
    for row in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        if (e := row[0]) == EXPERTS:
            continue
        places, rows = torch.where(mask[e])
        y.index_add_(0, rows, moe.of(int(e), x, rows, v[rows, places]))
    return y


def different_ones(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == e)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]))
    return y


def different_tensors(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in torch.unique(i):
        rows, places = (i == e.item()).nonzero(as_tuple=True)
        y[rows] = y[rows] + moe.of(int(e), x, rows, v[rows, places])
    return y


def a_list(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in F.one_hot(i, EXPERTS).sum((0, 1)).nonzero().squeeze(-1).tolist():
        rows, places = torch.where(i == e)
        y.index_add_(0, rows, moe.of(e, x, rows, v[rows, places]))
    return y


def all_in_turn(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    """The plain loop with which the others are compared."""
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        rows, places = torch.where(i == e)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]))
    return y


LOOPS = [by_tensor, by_number, first_entry, different_ones, different_tensors, a_list]


@cache
def of_loop(loop: Loop, tokens: int) -> Measured:
    torch.manual_seed(0)
    x = torch.randn(tokens, WIDTH)
    return measured(Mixture(loop), (x,))


@pytest.mark.parametrize("tokens", [40, 1], ids=["all are hit", "two are hit"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_loop_over_experts_that_were_hit_is_one_over_all(loop: Loop, tokens: int) -> None:
    found, plain = of_loop(loop, tokens), of_loop(all_in_turn, tokens)
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    assert {*found.symmetry.spaces} == {*plain.symmetry.spaces}
    if tokens > 1:
        assert (found.unexplained, found.explained) == (0, plain.explained)


# -- visits that leave more behind than rows ---------------------------------------------------


def a_bias_of_each(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == e)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places])) + moe.bias[e]
    return y


def a_bias_in_place(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == e)
        y.index_add_(0, rows, moe.of(e, x, rows, v[rows, places]))
        y += moe.bias[e]
    return y


def counted(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = different_ones(moe, x, v, i)
    for e in i.unique().tolist():
        moe.counts[e] += 1
        rows, places = torch.where(i == e)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]))
    return y


def numbers_are_kept(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    return torch.stack([moe.experts[e](x) for e in i.unique().tolist()]).sum(0)


def numbers_are_indexed(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    return moe.experts[i.unique().tolist()[0]](x)


def the_end_is_not_reached(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == e)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]))
        if e == 2:
            break
    return y


def rows_of_another(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == (e + 1) % EXPERTS)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]))
    return y


def hit_twice(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    """An expert that one token alone chose is left out."""
    y = torch.zeros_like(x)
    for e in (F.one_hot(i, EXPERTS).sum((0, 1)) > 1).nonzero():
        rows, places = torch.where(i == e.item())
        y = y.index_add(0, rows, moe.of(int(e), x, rows, v[rows, places]))
    return y


def rows_behind_an_axis(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for e in i.unique().tolist():
        rows, places = torch.where(i == e)
        mean = x[None, rows].mean(1)
        y = y.index_add(0, rows, moe.of(e, x, rows, v[rows, places]) + mean)
    return y


def counts_are_returned(moe: Mixture, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    return different_ones(moe, x, v, i) * torch.unique(i, return_counts=True)[1].sum()


@pytest.mark.parametrize(
    "loop",
    [a_bias_of_each, a_bias_in_place, counted, numbers_are_kept, numbers_are_indexed,
     the_end_is_not_reached, rows_of_another, hit_twice, rows_behind_an_axis, counts_are_returned],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_loop_that_does_more_stops_the_trace(loop: Loop) -> None:
    torch.manual_seed(0)
    with pytest.raises(TraceError):
        find_symmetry(Mixture(loop).eval(), (torch.randn(40, WIDTH),))


WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], None]] = {
    "a mask": lambda out, hit, y: out.__setitem__(hit, y),
    "places": lambda out, hit, y: out.__setitem__(hit.nonzero(as_tuple=True)[0], y),
    "places of whole rows": lambda out, hit, y: out.__setitem__(
        (hit.nonzero(as_tuple=True)[0], slice(None)), y
    ),
    "added": lambda out, hit, y: out.index_add_(0, hit.nonzero(as_tuple=True)[0], y),
}


class Switch(nn.Module):
    """One expert for each token, which writes its rows into a tensor of zeros."""

    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.router, self.leave, self.write = nn.Linear(5, 3), nn.Linear(5, 2), write
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 5)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        share, chosen = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            hit = chosen == number
            self.write(out, hit, expert(flat[hit]))
        return self.leave(out * share[:, None])


@pytest.mark.parametrize("name", WRITES)
def test_experts_that_write_their_rows_share_the_basis_of_what_reads_them(name: str) -> None:
    x = torch.randn(20, 4, 5, generator=torch.Generator().manual_seed(0))
    found = measured(Switch(WRITES[name]), (x,))
    assert found.error < 1e-9 and found.refuted == () and found.unexplained == 0
    groups = sorted(str(space.group) for space in found.symmetry.spaces.values())
    assert groups == ["GeneralLinear(5)", *["Monomial(4)"] * 3]
