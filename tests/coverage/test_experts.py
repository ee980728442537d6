# ruff: noqa: E501
"""Mixtures of experts, in the ways in which people write routers, gates and stacks of experts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, audit, find_symmetry, verify
from paramsym.lowering.normalise import normalise
from paramsym.lowering.recognisers.dense import chosen
from paramsym.recording.experts import dense_experts
from paramsym.recording.record import record
from paramsym.recording.refusals import TraceError
from tests.coverage.measure import Measured, measured
from tests.tracing.test_normalise import computed

TOKENS, WIDTH, HIDDEN, EXPERTS, OUT = 23, 4, 7, 3, 6
UNITS, COMMON = EXPERTS * HIDDEN, WIDTH + 1  # scales of units; translations of the router

Gate = Callable[[Tensor], Tensor]


def parameter(*shape: int) -> nn.Parameter:
    generator = torch.Generator().manual_seed(sum(shape))
    return nn.Parameter(torch.randn(shape, generator=generator))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Stack(nn.Module):
    """Σ_e gate_e(x) f_e(x) for two layers f_e in stacked tensors."""

    def __init__(self, gate: Gate):
        super().__init__()
        self.router, self.gate = nn.Linear(WIDTH, EXPERTS), gate
        self.w1, self.b1 = parameter(EXPERTS, HIDDEN, WIDTH), parameter(EXPERTS, HIDDEN)
        self.w2, self.b2 = parameter(EXPERTS, OUT, HIDDEN), parameter(EXPERTS, OUT)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(torch.einsum("td,ehd->teh", x, self.w1) + self.b1)
        y = torch.einsum("teh,eoh->teo", h, self.w2) + self.b2
        return torch.einsum("te,teo->to", self.gate(self.router(x)), y)


class Listed(nn.Module):
    """The same with a module for each expert, and what the function does with them."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.router, self.function = nn.Linear(WIDTH, EXPERTS), function
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.experts, self.router(x), x)


def found(model: nn.Module) -> Measured:
    generator = torch.Generator().manual_seed(7)
    return measured(model.eval(), (torch.randn(TOKENS, WIDTH, generator=generator),))


def has_order_of_experts(symmetry: ParameterSymmetry) -> bool:
    """Whether the rows of the router trade places with the experts."""
    order = str(symmetry.signature["router.bias"][0])
    if order not in symmetry.spaces or "Permutation" not in repr(symmetry.spaces[order].group):
        return False
    return all(str(symmetry.signature[name][0]) == order for name in ("w1", "b1", "w2", "b2"))


# -- gates -------------------------------------------------------------------------------------


def dense(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def scattered(scores: Tensor) -> Tensor:
    v, i = scores.softmax(-1).topk(2, -1)
    return torch.zeros(len(scores), EXPERTS).scatter(1, i, v.to(torch.get_default_dtype()))


def renormalised(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    v, i = p.topk(2, dim=-1)
    v = v / v.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter_(-1, i, v)


def renormalised_in_place(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    v, i = torch.topk(p, 2)
    v /= v.sum(dim=-1, keepdim=True) + 1e-20
    gates = torch.zeros_like(p)
    gates.scatter_add_(1, i, v)
    return gates


def softmax_of_chosen(scores: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    return torch.zeros_like(scores).scatter(1, i, F.softmax(v, dim=-1))


def others_at_minus_infinity(scores: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    return torch.full_like(scores, -torch.inf).scatter(-1, i, v).softmax(-1)


def below_threshold(scores: Tensor) -> Tensor:
    v, _ = scores.topk(2)
    return scores.masked_fill(scores < v[:, -1:], -torch.inf).softmax(-1)


def above_threshold(scores: Tensor) -> Tensor:
    v = torch.topk(scores, 2).values
    return torch.where(scores >= v[..., -1, None], scores, -torch.inf).softmax(-1)


def boolean_mask(scores: Tensor) -> Tensor:
    i = scores.topk(2, -1)[1]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, i, True)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def mask_times(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    mask = torch.zeros_like(p)
    mask.scatter_(-1, p.topk(2, -1).indices, 1)
    gates = p * mask
    return gates / gates.sum(-1, keepdim=True)


def one_hot_product(scores: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    return (F.one_hot(i, EXPERTS) * v.softmax(-1)[..., None]).sum(1)


def one_hot_einsum(scores: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    return torch.einsum("tke,tk->te", F.one_hot(i, EXPERTS).to(v.dtype), v.softmax(-1))


def one_hot_counts(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * F.one_hot(scores.topk(2, -1)[1], EXPERTS).sum(1)


def one_hot_largest(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * F.one_hot(scores.topk(2, -1)[1], EXPERTS).amax(1)


def switched(scores: Tensor) -> Tensor:
    v, i = scores.softmax(-1).max(-1)
    return F.one_hot(i, EXPERTS) * v[:, None]


def switched_by_argmax(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    return p * F.one_hot(p.argmax(-1), EXPERTS)


def switched_with_capacity(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    v, i = p.max(-1)
    mask = F.one_hot(i, EXPERTS)
    before = (mask.cumsum(0) - 1) * mask
    return v[:, None] * ((before < 4) * mask)


def sorted_down(scores: Tensor) -> Tensor:
    v, i = scores.sort(-1, descending=True)
    v, i = v[:, :2], i[:, :2]
    return torch.zeros_like(scores).scatter(-1, i, v.softmax(-1))


def argsorted(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    i = p.argsort(-1, descending=True)[:, :2]
    return torch.zeros_like(p).scatter(-1, i, p.gather(-1, i))


def least(scores: Tensor) -> Tensor:
    v, i = scores.topk(2, -1, largest=False)
    return torch.zeros_like(scores).scatter(-1, i, v.softmax(-1))


GATES = [
    dense, scattered, renormalised, renormalised_in_place, softmax_of_chosen,
    others_at_minus_infinity, below_threshold, above_threshold, boolean_mask, mask_times,
    one_hot_product, one_hot_einsum, one_hot_counts, one_hot_largest, switched, switched_by_argmax,
    switched_with_capacity, sorted_down, argsorted, least,
]  # fmt: skip


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_gates_follow_the_order_of_experts_and_see_no_common_shift(gate: Gate) -> None:
    got = found(Stack(gate))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)
    assert has_order_of_experts(got.symmetry)


# -- spellings drawn at random -----------------------------------------------------------------


class Drawn:
    """A gate put together from one way of each: to score, to choose, to weigh, and to place."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.score = draw.choice(["plain", "divided", "softmax"])
        self.choose = draw.choice(["topk", "sort", "argsort"])
        self.weigh = draw.choice(
            ["softmax", "sum", "scaled"] if self.score == "softmax" else ["softmax"]
        )
        self.place = draw.choice(["scatter", "add", "product", "einsum", "mask", "fill"])
        self.k = draw.choice([1, 2])

    def __call__(self, scores: Tensor) -> Tensor:
        s = {
            "plain": lambda: scores,
            "divided": lambda: scores / 1.7,
            "softmax": lambda: scores.softmax(-1),
        }[self.score]()
        if self.choose == "topk":
            v, i = torch.topk(s, self.k, dim=-1, sorted=True)
        elif self.choose == "sort":
            v, i = (part[..., : self.k] for part in torch.sort(s, -1, descending=True))
        else:
            i = s.argsort(-1, descending=True)[:, : self.k]
            v = torch.gather(s, -1, i)
        v = {
            "softmax": lambda: v.softmax(-1),
            "sum": lambda: v / v.sum(-1, keepdim=True),
            "scaled": lambda: 2.5 * v,
        }[self.weigh]()
        return self._placed(s, v, i)

    def _placed(self, s: Tensor, v: Tensor, i: Tensor) -> Tensor:
        if self.place == "scatter":
            return torch.zeros_like(s).scatter(-1, i, v)
        if self.place == "add":
            return s.new_zeros(s.shape).scatter_add_(1, i, v)
        if self.place == "product":
            return (v.unsqueeze(-1) * F.one_hot(i, EXPERTS)).sum(dim=-2)
        if self.place == "einsum":
            return torch.einsum("tk,tke->te", v, F.one_hot(i, num_classes=EXPERTS).to(v))
        mask = F.one_hot(i, EXPERTS).sum(1)
        if self.place == "mask":
            return s.softmax(-1) * mask
        return s.masked_fill(mask == 0, -torch.inf).softmax(-1)


@pytest.mark.parametrize("seed", range(6))
def test_gates_drawn_at_random(seed: int) -> None:
    gate = Drawn(seed)
    got = found(Stack(gate))
    assert got.error < 1e-12 and not got.refuted and not got.symmetry.unknown, vars(gate)
    assert got.unexplained == 0 and got.explained >= UNITS + COMMON, vars(gate)
    assert has_order_of_experts(got.symmetry), vars(gate)


# -- near misses -------------------------------------------------------------------------------


def places_weigh(scores: Tensor) -> Tensor:
    """The first of two counts less: only a rank says which."""
    v, i = scores.topk(2, -1)
    return torch.zeros_like(scores).scatter(-1, i, v.softmax(-1) * torch.tensor([1.0, 2.0]))


def first_place_alone(scores: Tensor) -> Tensor:
    v, i = scores.softmax(-1).topk(2, -1)
    return torch.zeros_like(v.new_empty(len(v), EXPERTS)).scatter(-1, i[:, :1], v[:, 1:])


def experts_are_numbered(scores: Tensor) -> Tensor:
    i = (scores + torch.arange(EXPERTS)).topk(2, -1)[1]
    return torch.zeros_like(scores).scatter(-1, i, scores.gather(-1, i).softmax(-1))


def scores_that_tie(scores: Tensor) -> Tensor:
    """Zeros of a ReLU are told apart by their places, for many inputs."""
    v, i = scores.relu().topk(2, -1)
    return torch.zeros_like(scores).scatter(-1, i, v.softmax(-1))


def shifted_places(scores: Tensor) -> Tensor:
    v, i = scores.softmax(-1).topk(2, -1)
    return torch.zeros_like(scores).scatter(-1, (i + 1) % EXPERTS, v)


@pytest.mark.parametrize(
    "gate",
    [places_weigh, first_place_alone, experts_are_numbered, scores_that_tie, shifted_places],
    ids=lambda gate: gate.__name__,
)  # fmt: skip
def test_gates_that_tell_experts_apart_keep_their_order(gate: Gate) -> None:
    got = found(Stack(gate))
    assert got.error < 1e-12 and not got.refuted
    assert not has_order_of_experts(got.symmetry)
    assert got.explained >= UNITS


def sigmoids(scores: Tensor) -> Tensor:
    p = scores.sigmoid()
    v, i = p.topk(2, -1)
    return torch.zeros_like(p).scatter(-1, i, v / v.sum(-1, keepdim=True))


def test_a_sigmoid_sees_a_common_shift() -> None:
    got = found(Stack(sigmoids))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS, 0)
    assert has_order_of_experts(got.symmetry)


def test_what_is_chosen_is_what_topk_says() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0], [0.0, -1.0, -torch.inf, 5.0]])
    mask = chosen(scores, 2, 1)
    assert mask.tolist() == [[False, True, False, True], [True, False, False, True]]


# -- a module for each expert ------------------------------------------------------------------


def stacked(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("te,teo->to", scores.softmax(-1), torch.stack([e(x) for e in experts], 1))


def stacked_chosen(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    gates = softmax_of_chosen(scores)
    return (gates[..., None] * torch.stack([e(x) for e in experts], 1)).sum(1)


def masked_product(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    v, out = v.softmax(-1), torch.zeros(1)
    for k, e in enumerate(experts):
        out = out + (v * (i == k)).sum(-1, keepdim=True) * e(x)
    return out


def masked_where(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    v, i = scores.topk(2, -1)
    v, out = v.softmax(-1), torch.zeros(1)
    for k, e in enumerate(experts):
        out = out + torch.where(i == k, v, 0.0).sum(-1)[:, None] * e(x)
    return out


@pytest.mark.parametrize(
    "function", [stacked, stacked_chosen, masked_product, masked_where], ids=lambda f: f.__name__
)
def test_a_module_for_each_expert(function: Callable[..., Tensor]) -> None:
    got = found(Listed(function))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)


# -- weights that are gathered -----------------------------------------------------------------

Reading = Callable[[Stack, Tensor, Tensor, Tensor], Tensor]


class Gathered(Stack):
    """A stack whose weights are read at the k experts that each token has."""

    def __init__(self, reading: Reading):
        super().__init__(softmax_of_chosen)
        self.reading, self.places = reading, parameter(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        v, i = self.router(x).topk(2, -1)
        return self.reading(self, x, v.softmax(-1), i)


def hidden(of: Stack, x: Tensor, i: Tensor) -> Tensor:
    return F.relu(torch.einsum("tkhd,td->tkh", of.w1[i], x) + of.b1[i])


def by_einsum(of: Stack, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.einsum("tkoh,tkh->tko", of.w2[i], hidden(of, x, i)) + of.b2[i]
    return torch.einsum("tko,tk->to", y, v)


def by_sum(of: Stack, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.einsum("tkoh,tkh->tko", of.w2[i], hidden(of, x, i))
    y += of.b2[i]
    return (y * v.unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("reading", [by_einsum, by_sum], ids=lambda f: f.__name__)
def test_gathered_weights_have_the_scales_and_orders_of_each_expert(reading: Reading) -> None:
    model = Gathered(reading)
    del model.places
    got = found(model)
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)
    assert has_order_of_experts(got.symmetry)


def places_meet(of: Stack, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    h = hidden(of, x, i)
    h = h - h.mean(1, keepdim=True)
    return torch.einsum("tkoh,tkh,tk->to", of.w2[i], h, v)


def places_have_weights(of: Any, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    y = torch.einsum("tkoh,tkh->tko", of.w2[i], hidden(of, x, i)) * of.places
    return torch.einsum("tko,tk->to", y, v)


def other_experts_read(of: Stack, x: Tensor, v: Tensor, i: Tensor) -> Tensor:
    j = of.router(-x).topk(2, -1)[1]
    return torch.einsum("tkoh,tkh,tk->to", of.w2[j], hidden(of, x, i), v)


@pytest.mark.parametrize(
    "reading", [places_meet, places_have_weights, other_experts_read], ids=lambda f: f.__name__
)
def test_places_that_see_each_other_keep_one_order_for_all_experts(reading: Reading) -> None:
    got = found(Gathered(reading))
    assert got.error < 1e-12 and not got.refuted
    assert not has_order_of_experts(got.symmetry)
    assert not any(space.over for space in got.symmetry.spaces.values() if space.size == HIDDEN)


# -- loops over the rows of one expert ---------------------------------------------------------


def chosen_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    v, i = scores.topk(2, -1)
    return v.softmax(-1), i


def rows_by_where(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    (v, i), out = chosen_of(scores), torch.zeros(len(x), OUT, dtype=x.dtype)
    for k, e in enumerate(experts):
        n, j = torch.where(i == k)
        out[n] += v[n, j, None] * e(x[n])
    return out


def rows_by_index_add(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    (v, i), out = chosen_of(scores), x.new_zeros(len(x), OUT)
    for k, e in enumerate(experts):
        n, j = (i == k).nonzero(as_tuple=True)
        if n.numel() == 0:
            continue
        out.index_add_(0, n, e(x[n]) * v[n, j].unsqueeze(-1))
    return out


def rows_of_one_hot(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    (v, i), out = chosen_of(scores), x.new_zeros(len(x), OUT)
    mask = F.one_hot(i, EXPERTS).permute(2, 1, 0)
    for k, e in enumerate(experts):
        j, n = torch.where(mask[k])
        out = out.index_add(0, n, e(x[n]) * v[n, j, None])
    return out


def rows_of_any(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    (v, i), out = chosen_of(scores), x.new_zeros(len(x), OUT)
    for k, e in enumerate(experts):
        mask = (i == k).any(-1)
        out[mask] += e(x[mask]) * torch.where(i == k, v, 0).sum(-1)[mask].unsqueeze(1)
    return out


def rows_of_gates(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    gates, out = softmax_of_chosen(scores), x.new_zeros(len(x), OUT)
    for k, e in enumerate(experts):
        n = gates[:, k].nonzero().squeeze(-1)
        if len(n):
            out[n] = out[n] + gates[n, k, None] * e(x.index_select(0, n))
    return out


LOOPS = [rows_by_where, rows_by_index_add, rows_of_one_hot, rows_of_any, rows_of_gates]


@pytest.mark.parametrize("function", LOOPS, ids=lambda f: f.__name__)
def test_loops_over_the_rows_of_one_expert(function: Callable[..., Tensor]) -> None:
    got = found(Listed(function))
    assert got.error < 1e-12 and not got.refuted and not got.symmetry.unknown
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)


def rows_of_the_largest(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    v, i = scores.softmax(-1).max(-1)
    out = x.new_zeros(len(x), OUT)
    for k, e in enumerate(experts):
        mask = i == k
        out[mask] = v[mask][:, None] * e(x[mask])
    return out


def rows_written_meanwhile(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    """What was read is no longer there when it is put back, so that nothing is added."""
    (_, i), out = chosen_of(scores), x.new_zeros(len(x), OUT)
    n, m = torch.where(i == 0)[0], torch.where(i == 1)[0]
    before = out[n]
    out[m] += experts[1](x[m])
    out[n] = before + experts[0](x[n])
    return out + experts[2](x)


def rows_scaled_meanwhile(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    (_, i), out = chosen_of(scores), x.new_ones(len(x), OUT)
    n = torch.where(i == 0)[0]
    rows = out[n]
    rows *= 3
    rows += experts[0](x[n])
    rows += experts[1](x[n])
    out[n] = rows
    return out + experts[2](x)


@pytest.mark.parametrize(
    "function", [rows_of_the_largest, rows_written_meanwhile, rows_scaled_meanwhile],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_the_record_of_selected_rows_computes_what_the_model_does(
    function: Callable[..., Tensor],
) -> None:
    model = Listed(function).double().eval()
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    graph = normalise(record(model, (x,)))
    assert torch.allclose(computed(graph, model, x), model(x), atol=1e-12)
    got = found(Listed(function))
    assert got.error < 1e-12 and not got.refuted


def rows_are_averaged(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    n, out = torch.where(scores.argmax(-1) == 0)[0], x.new_zeros(len(x), OUT)
    y = experts[0](x[n])
    out[n] = y - y.mean(0)
    return out


def rows_meet_rows(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    n, out = torch.where(scores.argmax(-1) == 0)[0], x.new_zeros(len(x), OUT)
    y = experts[0](x[n])
    out[n] = torch.matmul(torch.matmul(y, y.T), y)
    return out


def rows_are_returned(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    return experts[0](x[scores.argmax(-1) == 0])


def rows_are_dropped(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    """A capacity: the first rows only, which an order of tokens decides."""
    n, out = torch.where(scores.argmax(-1) == 0)[0][:3], x.new_zeros(len(x), OUT)
    out[n] = experts[0](x[n])
    return out


def one_row_is_written(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    n, out = torch.where(scores.argmax(-1) == 0)[0], x.new_zeros(len(x), OUT)
    y = experts[0](x[n])
    y[0] = 0
    out[n] = y
    return out


def rows_meet_all(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
    n, out = torch.where(scores.argmax(-1) == 0)[0], x.new_zeros(len(x), OUT)
    out[n] = experts[0](x[n]) + experts[1](x)[: len(n)]
    return out


@pytest.mark.parametrize(
    "function",
    [rows_are_averaged, rows_meet_rows, rows_are_returned, rows_are_dropped, one_row_is_written,
     rows_meet_all],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_rows_that_see_each_other_stop_the_trace(function: Callable[..., Tensor]) -> None:
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))
    with pytest.raises(TraceError, match="select"):
        find_symmetry(Listed(function).eval(), (x,))


def test_a_mask_that_is_met_alone_compares_scores_in_all_of_its_blocks() -> None:
    """Rows of the router of which a mask shows one only have one scale, not one for each block."""

    def function(experts: nn.ModuleList, scores: Tensor, x: Tensor) -> Tensor:
        mask = (scores.topk(2, -1)[1] == 0).any(-1)
        out = x.new_zeros(len(x), OUT)
        out[mask] = experts[0](x[mask])
        return out + experts[2](x)

    for seed in range(2):
        x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
        model = Listed(function).double().eval()
        assert verify(model, find_symmetry(model, (x,)), (x,)).error < 1e-12


# -- slices of stacked weights -----------------------------------------------------------------


class Sliced(Stack):
    """A stack whose weights are read expert by expert; the second layer is that of another one."""

    def __init__(self, function: Callable[[Tensor, int], Tensor], second: Callable[[int], int]):
        super().__init__(softmax_of_chosen)
        self.function, self.second = function, second

    def forward(self, x: Tensor) -> Tensor:
        gates, out = self.gate(self.router(x)), x.new_zeros(len(x), OUT)
        for e in range(EXPERTS):
            h = self.function(F.linear(x, self.w1[e], self.b1[e]), e)
            y = F.linear(h, self.w2[self.second(e)], self.b2[e])
            out = out + gates[:, e, None] * y
        return out


def test_slices_of_stacked_weights_have_scales_of_their_own() -> None:
    got = found(Sliced(lambda h, e: h.relu(), lambda e: e))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)


def test_rows_of_slices_have_scales_of_their_own() -> None:
    class Rows(Stack):
        def forward(self, x: Tensor) -> Tensor:
            (v, i), out = chosen_of(self.router(x)), x.new_zeros(len(x), OUT)
            for e in range(EXPERTS):
                n, j = torch.where(i == e)
                h = F.linear(x[n], self.w1[e], self.b1[e]).relu()
                out[n] += v[n, j, None] * F.linear(h, self.w2[e], self.b2[e])
            return out

    got = found(Rows(dense))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (UNITS + COMMON, 0)


@pytest.mark.parametrize(
    ("function", "second", "scaled"),
    [
        (lambda h, e: h.relu() if e else h.tanh(), lambda e: e, EXPERTS - 1),
        (lambda h, e: h.relu(), lambda e: EXPERTS - 1 - e, EXPERTS),
    ],
    ids=["one_has_no_scale", "layers_of_two_experts"],
)
def test_scales_that_not_all_slices_have_are_said_piece_by_piece(
    function: Callable[[Tensor, int], Tensor], second: Callable[[int], int], scaled: int
) -> None:
    got = found(Sliced(function, second))
    assert got.error < 1e-12 and not got.refuted
    assert (got.explained, got.unexplained) == (scaled * HIDDEN + COMMON, 0)


# -- transformers ------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 5, "moe_intermediate_size": 5,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 16, "tie_word_embeddings": False,
    "attn_implementation": "eager", "use_cache": False, "pad_token_id": None,
}  # fmt: skip


def transformer(name: str, implementation: str | None, **sizes: Any) -> nn.Module:
    import transformers

    sizes = {**SIZES, "experts_implementation": implementation, **sizes}
    config = getattr(transformers, f"{name}Config")(**sizes)
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 3}),
    "qwen2": ("Qwen2Moe", {"num_experts": 3, "shared_expert_intermediate_size": 7, "decoder_sparse_step": 1}),
    "glm4": ("Glm4Moe", {"n_routed_experts": 3, "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1}),
    "granite": ("GraniteMoe", {"num_local_experts": 3}),
    "aria": ("AriaText", {"moe_num_experts": 3, "moe_topk": 2, "moe_num_shared_experts": 1, "intermediate_size": 8}),
}  # fmt: skip
GPT_OSS = (
    "GptOss",
    {"num_local_experts": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
)

TEXT = {"input_ids": torch.arange(27).reshape(3, 9) * 7 % 11}


def table(symmetry: ParameterSymmetry) -> dict[str, str]:
    return {name: str(axes) for name, axes in symmetry.signature.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_transformers(family: str) -> None:
    name, sizes = FAMILIES[family]
    got = measured(transformer(name, "eager", **sizes), TEXT)
    assert got.error < 1e-11 and not got.refuted and not got.symmetry.unknown
    assert got.unexplained == 0
    own = [space for space in got.symmetry.spaces.values() if space.over and space.size in (5, 8)]
    assert own, "each expert has scales and an order of its own"


def test_a_gate_of_clamped_affine_units_is_flat_only_where_no_clamp_is_met() -> None:
    """(u + 1)·g(v): W_u ↦ s W_u, b_u ↦ s b_u + s − 1 per unit, as long as |u| stays below 7."""
    name, sizes = GPT_OSS
    got = measured(transformer(name, "eager", **sizes), TEXT)
    assert got.error < 1e-11 and not got.refuted
    assert got.unexplained == 3 * SIZES["intermediate_size"]


@pytest.mark.parametrize("family", [FAMILIES["mixtral"], GPT_OSS], ids=lambda found: found[0])
def test_all_implementations_give_one_symmetry(family: tuple[str, dict[str, Any]]) -> None:
    name, sizes = family
    eager = find_symmetry(transformer(name, "eager", **sizes), TEXT)
    for implementation in (None, "batched_mm", "grouped_mm"):
        found = find_symmetry(transformer(name, implementation, **sizes), TEXT)
        assert table(found) == table(eager)


def test_the_default_implementation_is_checked_in_float64() -> None:
    model = transformer("Mixtral", None, num_local_experts=3)
    symmetry = find_symmetry(model, TEXT)
    assert verify(model, symmetry, TEXT).error < 1e-10
    assert audit(model, TEXT, symmetry=symmetry).unexplained == 0


def test_a_stack_runs_as_before_after_it_was_recorded() -> None:
    model = transformer("Mixtral", None, num_local_experts=3, intermediate_size=8)
    before, keys = model(**TEXT).logits, [list(m.__dict__) for m in model.modules()]
    with torch.no_grad(), dense_experts(model):
        inside = model(**TEXT).logits
    find_symmetry(model, TEXT)
    assert [list(m.__dict__) for m in model.modules()] == keys
    assert torch.equal(model(**TEXT).logits, before)
    assert not torch.equal(inside, torch.zeros_like(inside))
    assert torch.allclose(inside, before, atol=1e-6)


def test_a_stack_of_a_release_that_says_less_is_a_stack() -> None:
    model = transformer("Mixtral", None, num_local_experts=3)
    said = table(find_symmetry(model, TEXT))
    for module in model.modules():
        module.__dict__.pop("has_post_expert_norm", None)
    assert table(find_symmetry(model, TEXT)) == said


class Grouped(nn.Module):
    """Experts of which whole groups are chosen first, and the best of these next."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 6)
        self.w1, self.w2 = parameter(6, HIDDEN, WIDTH), parameter(6, OUT, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).sigmoid()
        groups = scores.view(len(x), 3, 2)
        best = torch.zeros(len(x), 3).to(x).scatter(1, groups.sum(-1).topk(2)[1], 1.0)
        kept = (groups * best[..., None]).flatten(1)
        gates = torch.zeros_like(kept).scatter(1, kept.topk(2)[1], 1.0) * kept
        h = F.relu(torch.einsum("td,ehd->teh", x, self.w1))
        return torch.einsum("te,teh,eoh->to", gates, h, self.w2)


def test_experts_in_groups_have_orders_and_scales_of_their_own() -> None:
    """A scale for each unit of each expert; not one for each group times one for each place."""
    found = measured(Grouped().double(), (torch.randn(90, WIDTH).double(),))
    assert found.refuted == () and found.error < 1e-10
    assert (found.explained, found.unexplained) == (6 * HIDDEN, 0)
    orders = [s for s in found.symmetry.spaces.values() if s.size == HIDDEN and s.over]
    assert [len(s.over) for s in orders] == [2]
