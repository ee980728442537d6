"""Several networks into one: planted orders come back, the objective never rises."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry, merge, readings
from paramsym.merging.differences import relative_distances
from paramsym.merging.evaluation import returned_at
from paramsym.merging.merge import Hopeless
from tests.merging.aligners import align_nothing, align_orders, permutations_of
from tests.models import Small, Tied

State = dict[str, Tensor]
X = (torch.randn(64, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64),)


def network(seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=generator)
    return model


MODEL = network()
WHOLE = find_symmetry(MODEL, X)
ORDERS = permutations_of(WHOLE)
BASE = {n: t.detach() for n, t in MODEL.state_dict().items()}


def planted(count: int, noise: float, seed: int = 0) -> list[State]:
    """Noisy copies of one network, each in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        near = {
            n: t + noise * torch.randn(t.shape, generator=generator, dtype=t.dtype)
            for n, t in BASE.items()
        }
        found.append(act(ORDERS, ORDERS.sample(generator), near))
    return found


def outputs(params: State) -> Tensor:
    return returned_at(MODEL, params, X, "test")


def far(a: State, b: State) -> float:
    return relative_distances(ORDERS, a, b)[""]


def test_two_copies_of_one_network_merge_to_it() -> None:
    a, b = planted(2, 0.0)
    merged = merge(ORDERS, [a, b], align_orders)
    torch.testing.assert_close(merged.params, a, rtol=1e-14, atol=0)
    assert merged.distances == (0.0, 0.0)
    assert merged.objective[1] < 1e-20 < merged.objective[0]
    torch.testing.assert_close(outputs(merged.params), outputs(b), rtol=1e-10, atol=1e-12)
    naive = merge(ORDERS, [a, b], align_nothing, force=True)
    assert not torch.allclose(outputs(naive.params), outputs(b), rtol=0.1)


@pytest.mark.parametrize("reference", [None, 0, 2], ids=str)
def test_many_noisy_copies_merge_nearer_to_what_they_have_in_common(reference: int | None) -> None:
    models = planted(5, 0.1)
    merged = merge(ORDERS, models, align_orders, reference=reference)
    fixed = reference or 0
    assert merged.elements[fixed].parts == ()
    assert merged.distances[fixed] == 0.0
    assert all(torch.equal(merged.aligned[fixed][n], models[fixed][n]) for n in BASE)
    back = align_orders(ORDERS, BASE, merged.params).element
    errors = [far(BASE, act(ORDERS, align_orders(ORDERS, BASE, m).element, m)) for m in models]
    assert far(BASE, act(ORDERS, back, merged.params)) < 0.6 * min(errors)  # noise averages out
    for g, model, aligned in zip(merged.elements, models, merged.aligned, strict=True):
        moved = act(ORDERS, g, model)
        assert all(torch.equal(moved[n], aligned[n]) for n in moved)
    mean = {n: torch.stack([m[n] for m in merged.aligned]).mean(0) for n in BASE}
    torch.testing.assert_close(merged.params, mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("by", ["weights", "readings"])
def test_the_default_aligner_undoes_the_whole_group(by: str) -> None:
    spaces = [*WHOLE.spaces]
    moves = [WHOLE.sample(torch.Generator().manual_seed(k), only=spaces) for k in (1, 2)]
    models = [BASE, *(act(WHOLE, g, BASE) for g in moves)]
    reader = {"read": lambda p: readings(MODEL, WHOLE, p, X)} if by == "readings" else {}
    merged = merge(WHOLE, models, **reader)
    assert max(merged.distances) < 1e-9
    torch.testing.assert_close(outputs(merged.params), outputs(BASE), rtol=1e-8, atol=1e-8)
    assert max(merge(WHOLE, models, align_nothing, force=True).distances) > 0.1


def test_maps_between_pairs_compose_and_those_found_pair_by_pair_do_not() -> None:
    models = [{n: t.detach() for n, t in network(k).state_dict().items()} for k in range(3)]
    merged = merge(ORDERS, models, align_orders, force=True)
    for i, j, k in itertools.permutations(range(3)):
        there = act(ORDERS, merged.between(j, k) @ merged.between(i, j), models[i])
        at_once = act(ORDERS, merged.between(i, k), models[i])
        assert all(torch.equal(there[n], at_once[n]) for n in there)
    loop = ORDERS.identity()
    for i, j in ((0, 1), (1, 2), (2, 0)):
        loop = align_orders(ORDERS, models[j], models[i]).element @ loop
    around = act(ORDERS, loop, models[0])
    assert not all(torch.equal(around[n], models[0][n]) for n in around)


def align_at_random(seed: int) -> Any:
    """Moves that have nothing to do with what they are asked for."""
    generator = torch.Generator().manual_seed(seed)

    def align(symmetry: ParameterSymmetry, a: State, b: State, data: Any = None) -> Any:
        return SimpleNamespace(element=symmetry.sample(generator, only=[*symmetry.spaces]))

    return align


def test_a_move_that_is_refused_costs_the_others_nothing() -> None:
    a, b, c = planted(3, 0.0)
    wild = align_at_random(1)

    def align(symmetry: ParameterSymmetry, x: State, y: State, data: Any = None) -> Any:
        return (wild if torch.equal(y["0.bias"], c["0.bias"]) else align_orders)(symmetry, x, y)

    merged = merge(ORDERS, [a, b, c], align, rounds=0, force=True)
    torch.testing.assert_close(merged.aligned[1], a, rtol=1e-14, atol=0)
    assert merged.elements[2].parts == ()  # what came of it was farther away, and is not kept


def test_each_is_aligned_to_the_weighted_mean_of_the_others() -> None:
    models, weights, asked = planted(3, 0.3), [1.0, 2.0, 5.0], []

    def align(symmetry: ParameterSymmetry, x: State, y: State, data: Any = None) -> Any:
        asked.append(x)
        return align_nothing(symmetry, x, y)

    merge(ORDERS, models, align, weights, reference=2, rounds=1, force=True)
    assert len(asked) == 4  # none of them moved, so that no second start was to be tried
    for place, others in enumerate([(2,), (2, 0), (1, 2), (0, 2)]):
        total = sum(weights[j] for j in others)
        for n in BASE:
            mean = sum(weights[j] / total * models[j][n] for j in others)
            torch.testing.assert_close(asked[place][n], mean, rtol=1e-12, atol=1e-14)


def falls(objective: tuple[float, ...]) -> bool:
    return all(y <= x for x, y in itertools.pairwise(objective))


@given(st.integers(0, 10**6), st.integers(2, 4), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_objective_never_rises_whatever_the_aligner_does(
    seed: int, count: int, weighted: bool, orders: bool
) -> None:
    models = planted(count, 1.0, seed)
    weights = [1.0 + k for k in range(count)] if weighted else None
    symmetry = ORDERS if orders else WHOLE
    merged = merge(symmetry, models, align_at_random(seed), weights, rounds=4, force=True)
    assert falls(merged.objective)
    assert falls(merge(ORDERS, models, align_orders, weights, force=True).objective)
    total = sum(weights) if weights else count
    shares = [w / total for w in weights] if weights else [1 / count] * count
    for n in BASE:
        mean = sum(s * m[n] for s, m in zip(shares, merged.aligned, strict=True))
        torch.testing.assert_close(merged.params[n], mean, rtol=1e-10, atol=1e-12)
    slow = sum(
        s * float((m[n] - merged.params[n]).square().sum())
        for s, m in zip(shares, merged.aligned, strict=True) for n in BASE
    )  # fmt: skip
    assert merged.objective[-1] == pytest.approx(slow, rel=1e-9)


def test_an_objective_that_rises_would_be_seen() -> None:
    assert falls((3.0, 2.0, 2.0))
    assert not falls((3.0, 2.0, 2.0000001))


def test_rounds_lower_the_objective_of_independent_networks() -> None:
    models = [{n: t.detach() for n, t in network(k).state_dict().items()} for k in range(5)]
    once = merge(ORDERS, models, align_orders, rounds=0, force=True).objective
    many = merge(ORDERS, models, align_orders, rounds=20, force=True).objective
    assert len(once) == 2
    assert many[-1] < once[-1] < once[0]


# -- refusals -----------------------------------------------------------------------------------


def test_independent_networks_are_hopeless_unless_forced() -> None:
    model = nn.Sequential(nn.Linear(90, 12), nn.ReLU(), nn.Linear(12, 3)).double()
    symmetry = permutations_of(find_symmetry(model, (torch.ones(2, 90).double(),)))
    a, b = (
        {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(k), dtype=t.dtype)
         for n, t in model.state_dict().items()}
        for k in range(2)
    )  # fmt: skip
    with pytest.raises(Hopeless) as error:
        merge(symmetry, [a, b], align_orders)
    text = str(error.value)
    assert "model 1" in text and "expected" in text and "force=True" in text
    assert any(repr(n) in text for n in a)
    forced = merge(symmetry, [a, b], align_orders, force=True)
    assert forced.distances[1] > 0.9
    assert merge(symmetry, [a, b], align_orders, threshold=2.0).distances == forced.distances
    assert max(merge(ORDERS, planted(2, 0.2), align_orders).distances) < 0.5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"models": [BASE]}, "at least two"),
        ({"kind": "cubic"}, "kind='cubic'"),
        ({"kind": "spherical", "models": [BASE] * 3}, "great circle"),
        ({"reference": 2}, "reference=2"),
        ({"rounds": -1}, "rounds=-1"),
        ({"weights": [1.0]}, "2 positive numbers"),
        ({"weights": [1.0, 0.0]}, "positive numbers"),
        ({"models": [BASE, {**BASE, "more": torch.zeros(1)}]}, "'more'"),
        ({"models": [BASE, {n: t.float() for n, t in BASE.items()}]}, "float32"),
    ],
    ids=["one", "kind", "circle", "reference", "rounds", "few", "zero", "names", "dtypes"],
)
def test_what_cannot_be_merged_is_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError) as error:
        merge(ORDERS, **{"models": [BASE, BASE], "align": align_orders, **change})
    assert text in str(error.value) and ". Pass " in str(error.value) or "Leave" in str(error.value)


# -- what else counts ---------------------------------------------------------------------------


def test_distances_leave_out_buffers_and_rows_that_nothing_reads() -> None:
    model, tokens = Tied(), (torch.tensor([[0, 1, 2]]),)
    symmetry = find_symmetry(model, tokens)
    a = {n: t.clone() for n, t in model.state_dict().items()}
    a["head.weight"] = a["table.weight"]
    b = {n: 2 * t for n, t in a.items()}
    found = relative_distances(symmetry, a, b)
    assert {*found} == {"", "table.weight", "hidden.weight", "hidden.bias"}  # ties once
    assert found[""] == pytest.approx(0.2**0.5)  # |a − 2a| / √(1 + 4) |a|
    norm = Small()
    other = find_symmetry(norm, norm.example_inputs())
    state = dict(norm.state_dict())
    moved = {**state, "norm.running_mean": state["norm.running_mean"] + 1}
    assert relative_distances(other, state, moved)[""] == 0.0
    assert relative_distances(other, state, {**state, "norm.weight": moved["norm.bias"]})[""] > 0


class Unread(nn.Module):
    """A table of which three rows are read, and a layer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last, self.idle = nn.Embedding(5, 6), nn.Linear(6, 2), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        return self.last(torch.relu(x + self.table(torch.arange(3))))


def test_distances_leave_out_what_is_dead_and_what_is_never_read() -> None:
    model = Unread()
    symmetry = find_symmetry(model, (torch.randn(4, 3, 6),))
    a = dict(model.state_dict())
    rows = a["table.weight"].clone()
    rows[3:] += 1
    assert relative_distances(symmetry, a, {**a, "table.weight": rows})[""] == 0.0
    assert relative_distances(symmetry, a, {**a, "idle.weight": a["idle.weight"] + 1})[""] == 0.0
    rows[2] += 1
    assert relative_distances(symmetry, a, {**a, "table.weight": rows})[""] > 0


def test_integers_are_those_of_the_reference() -> None:
    model = Small()
    symmetry = permutations_of(find_symmetry(model, model.example_inputs()))
    a = dict(model.state_dict())
    b = {**a, "norm.num_batches_tracked": torch.tensor(7)}
    for reference, count in ((0, 0), (1, 7)):
        found = merge(symmetry, [a, b], align_orders, reference=reference)
        assert found.params["norm.num_batches_tracked"] == count


def test_weights_and_spherical_paths() -> None:
    a, b = planted(2, 0.1)
    heavy = merge(ORDERS, [a, b], align_orders, weights=[9, 1])
    apart = {n: heavy.aligned[1][n] - a[n] for n in BASE}
    torch.testing.assert_close(
        {n: heavy.params[n] - a[n] for n in BASE},
        {n: 0.1 * d for n, d in apart.items()},
        rtol=1e-9,
        atol=1e-12,
    )
    round_ = merge(ORDERS, [a, b], align_orders, kind="spherical", reference=1)
    for n in BASE:
        norms = [float(m[n].norm()) for m in round_.aligned]
        assert float(round_.params[n].norm()) == pytest.approx(sum(norms) / 2)
        assert float(heavy.params[n].norm()) < 0.9 * norms[0] + 0.1 * norms[1]


def test_half_precision_is_merged_in_single() -> None:
    models = [{n: t.bfloat16() for n, t in m.items()} for m in planted(3, 0.05)]
    merged = merge(ORDERS, models, align_orders)
    assert {t.dtype for t in merged.params.values()} == {torch.bfloat16}
    for n in BASE:
        wide = sum(m[n].float() / 3 for m in merged.aligned)
        torch.testing.assert_close(merged.params[n], wide.bfloat16(), rtol=0.01, atol=1e-6)


def test_half_precision_is_rounded_once() -> None:
    """Scales of units round what they move; the mean is that of what was not rounded."""
    models = [{n: t.bfloat16() for n, t in m.items()} for m in planted(2, 0.05)]
    scaled = WHOLE.sample(torch.Generator().manual_seed(7))
    models[1] = {n: t.bfloat16() for n, t in act(WHOLE, scaled, models[1]).items()}
    merged = merge(WHOLE, models)
    wide = [{n: t.float() for n, t in m.items()} for m in models]
    there = [act(WHOLE, g, m) for g, m in zip(merged.elements, wide, strict=True)]
    twice = 0
    for n in BASE:
        assert torch.equal(merged.params[n], ((there[0][n] + there[1][n]) / 2).bfloat16())
        rounded = (merged.aligned[0][n].float() + merged.aligned[1][n].float()) / 2
        twice += int((merged.params[n] != rounded.bfloat16()).sum())
    assert twice > 20  # what was printed before


# -- by activations -----------------------------------------------------------------------------


def read(params: State) -> dict:
    return readings(MODEL, ORDERS, params, X)


@pytest.mark.parametrize("count", [2, 4])
def test_alignment_by_activations_finds_planted_orders(count: int) -> None:
    models = planted(count, 0.0)
    merged = merge(ORDERS, models, align_orders, read=read)
    for m in merged.aligned:
        torch.testing.assert_close(m, models[0], rtol=1e-14, atol=0)
    assert falls(merged.objective)
    given = [read(m) for m in models]
    mean = {n: sum(g[n].values for g in given) / count for n in given[0]}
    before = sum(float((g[n].values - mean[n]).square().sum()) / count for g in given for n in mean)
    assert merged.objective[0] == pytest.approx(before)


def test_the_objective_of_readings_never_rises_either() -> None:
    models = planted(3, 0.5)
    assert falls(merge(WHOLE, models, align_at_random(1), read=read, force=True).objective)


def test_readings_of_different_layers_or_of_none_are_refused() -> None:
    models = planted(2, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        merge(ORDERS, models, align_orders, read=lambda params: {})
    with pytest.raises(ValueError, match=r"\[2, 1\]"):
        merge(ORDERS, models, align_orders,
              read=lambda p: {n: r for n, r in read(p).items() if p is not None
                              and (torch.equal(p["0.bias"], models[0]["0.bias"]) or n == "0")}
              )  # fmt: skip
