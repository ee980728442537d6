"""Verdicts on pairs whose origin is known, and what is refused."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from paramsym import Comparison, ParameterSymmetry, act, compare, find_symmetry
from paramsym.geometry.same_orbit import Kind as Orbit
from paramsym.geometry.same_orbit import Verdict
from paramsym.origin.comparison import Kind

from .networks import independent, perceptron, state, trained

State = dict[str, Tensor]
MATRICES = ("0.weight", "2.weight", "4.weight")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def symmetry() -> ParameterSymmetry:
    return find_symmetry(perceptron(0), (torch.zeros(2, 64).double(),))


def moved(params: State, seed: int = 0) -> State:
    return act(symmetry(), symmetry().sample(generator(seed)), params)


def loaded(params: State) -> nn.Module:
    model = perceptron(0)
    model.load_state_dict(params)
    return model


@cache
def tuned() -> State:
    return trained(loaded(independent(1)[0]), 150, 7, other=True)


def taken(found: Comparison) -> list[str]:
    return [n for n, tensor in found.tensors.items() if tensor.taken and n in MATRICES]


def test_the_same_numbers_are_identical_and_one_other_number_is_not() -> None:
    (a,) = independent(1)
    assert compare(symmetry(), a, {n: t.clone() for n, t in a.items()}).kind is Kind.IDENTICAL
    b = {n: t.clone() for n, t in a.items()}
    b["2.weight"][3, 4] *= 1 + 1e-3
    assert compare(symmetry(), a, b).kind is Kind.DERIVED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_moved_copy_is_the_same_and_the_element_carries_it_back(
    seed: int, dtype: torch.dtype
) -> None:
    a = {n: t.to(dtype) for n, t in independent(1)[0].items()}
    b = moved(a, seed)
    found = compare(symmetry(), a, b)
    assert found.kind is Kind.SAME
    assert found.null is None and all(tensor.taken for tensor in found.tensors.values())
    back = act(symmetry(), found.element, b)
    for name, tensor in a.items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_moved_copy_with_one_weight_changed_is_not_the_same() -> None:
    (a,) = independent(1)
    b = moved(a)
    b["2.weight"][3, 4] *= 1 + 1e-4
    assert compare(symmetry(), a, b).kind is Kind.DERIVED


def test_what_may_be_one_network_is_not_called_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    """One network has one origin, too, and DERIVED says that there are two."""
    (a,) = independent(1)
    b = moved(tuned())
    sure = compare(symmetry(), a, b, null=2)
    unsure = Verdict(Orbit.UNDECIDED, symmetry().identity(), 0.1, "", "Nothing tells them apart.")
    monkeypatch.setattr("paramsym.origin.comparing.same_orbit", lambda *_: unsure)
    found = compare(symmetry(), a, b, null=2)
    assert (sure.kind, found.kind) == (Kind.DERIVED, Kind.UNDECIDED)
    assert found.reason.startswith("Nothing tells them apart;") and sure.reason in found.reason


@pytest.mark.parametrize("pair", list(combinations(range(4), 2)), ids=str)
def test_networks_from_two_seeds_are_unrelated(pair: tuple[int, int]) -> None:
    nets = independent(4)
    found = compare(symmetry(), nets[pair[0]], moved(nets[pair[1]]))
    assert found.kind is Kind.UNRELATED
    assert not taken(found)
    assert all(units.clear < 0.25 * units.count for units in found.units.values())


def test_a_fine_tuned_and_moved_copy_is_derived_with_all_its_layers() -> None:
    found = compare(symmetry(), independent(1)[0], moved(tuned()))
    assert found.kind is Kind.DERIVED
    assert taken(found) == [*MATRICES]
    assert found.null is not None and found.distance < found.null.least


def test_a_first_layer_that_was_taken_over_is_named_and_only_that() -> None:
    one, other = independent(2)
    mixed = other | {n: one[n] for n in ("0.weight", "0.bias")}
    found = compare(symmetry(), one, moved(mixed))
    assert found.kind is Kind.DERIVED
    assert taken(found) == ["0.weight"]
    # the control: a first layer of the same spectrum whose filters are others
    turn = torch.linalg.qr(torch.randn(24, 24, generator=generator(0)).double()).Q
    mixed["0.weight"] = turn @ one["0.weight"]
    assert compare(symmetry(), one, moved(mixed)).kind is not Kind.DERIVED


def test_where_the_copy_lies_on_its_orbit_does_not_matter() -> None:
    (a,) = independent(1)
    found = [compare(symmetry(), a, moved(tuned(), seed)) for seed in (1, 2)]
    assert found[0].distance == pytest.approx(found[1].distance, rel=1e-6)
    assert [u.clear for u in found[0].units.values()] == [u.clear for u in found[1].units.values()]
    assert found[0].null is not None and found[1].null is not None
    assert found[0].null.mean == pytest.approx(found[1].null.mean, rel=0.05)


def test_draws_come_from_the_generator() -> None:
    one, other = independent(2)
    default = compare(symmetry(), one, other, null=2)
    same = compare(symmetry(), one, other, null=2, generator=generator(0))
    different = compare(symmetry(), one, other, null=2, generator=generator(1))
    assert default.null == same.null != different.null


def test_checkpoints_that_are_as_near_keep_it_from_being_derived() -> None:
    """As where a task determines the weights: the 'independent' one here is no stranger."""
    (a,) = independent(1)
    b = moved(tuned())
    alone = compare(symmetry(), a, b, null=2)
    beside = compare(symmetry(), a, b, null=2, independent=[moved(a, 3), independent(2)[1]])
    assert (alone.kind, beside.kind) == (Kind.DERIVED, Kind.UNDECIDED)
    assert beside.null is not None and len(beside.null.all) == 6
    assert compare(symmetry(), a, b, null=0, independent=[independent(2)[1]]).kind is Kind.DERIVED


@pytest.mark.parametrize("related", [True, False])
def test_few_units_say_nothing_alone_and_nothing_wrong_beside_others(related: bool) -> None:
    sizes = (64, 4, 10)
    own = find_symmetry(perceptron(0, sizes), (torch.zeros(2, 64).double(),))
    a, b, third = (trained(perceptron(seed, sizes), 200, seed) for seed in (1, 2, 3))
    if related:
        b = {n: t * (1 + 0.01 * torch.sin(torch.arange(t.numel())).reshape(t.shape))
             for n, t in a.items()}  # fmt: skip
    assert compare(own, a, b).kind is Kind.UNDECIDED
    beside = compare(own, a, b, independent=[third]).kind
    assert beside is not (Kind.UNRELATED if related else Kind.DERIVED)


def test_running_statistics_belong_to_the_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4)
    ).double().eval()  # fmt: skip
    own = find_symmetry(model, (torch.zeros(3, 6).double(),))
    a = state(model) | {"1.running_mean": torch.arange(20).double() / 10}
    b = act(own, own.sample(generator(0)), a)
    assert compare(own, a, b).kind is Kind.SAME
    b["1.running_var"] = b["1.running_var"] * 2
    assert compare(own, a, b).kind is not Kind.SAME


def test_the_first_difference_is_named_and_a_tolerance_widens_equality() -> None:
    (a,) = independent(1)
    b = moved(a)
    b["2.weight"][3, 4] *= 1.01
    found = compare(symmetry(), a, b)
    assert found.kind is Kind.DERIVED and found.orbit is not None
    assert found.orbit.kind == "DIFFERENT" and found.orbit.where.startswith("2.weight[")
    assert compare(symmetry(), a, b, tol=0.5).kind is Kind.SAME
    assert compare(symmetry(), a, a).orbit is None
    with pytest.raises(ValueError, match=r"tol=0"):
        compare(symmetry(), a, b, tol=0.0)


def test_it_prints_a_table_and_tells_its_steps() -> None:
    steps: list[str] = []
    text = str(compare(symmetry(), independent(1)[0], moved(tuned()), progress=steps.append))
    assert text.startswith("derived: 24 of 24 units of ")
    assert "clear partners" in text and "taken over" in text
    assert any(step.startswith("unrelated pair 4 of 4") for step in steps)
    same = str(compare(symmetry(), independent(1)[0], moved(independent(1)[0])))
    assert same.startswith("same up to symmetry: ") and "tensor" not in same


def test_what_is_refused() -> None:
    (a,) = independent(1)
    with pytest.raises(ValueError, match=r"compare\(null=0, .*Leave null at 4"):
        compare(symmetry(), a, a, null=0)
    with pytest.raises(ValueError, match=r"'0.weight' is torch.float64 in a and .*Convert"):
        compare(symmetry(), a, {n: t.float() for n, t in a.items()})
    with pytest.raises(ValueError, match="0.weight"):
        compare(symmetry(), a, {n: t for n, t in moved(a).items() if n != "0.weight"})
    broken = moved(a)
    broken["2.weight"][0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        compare(symmetry(), a, broken)


def test_two_networks_under_other_names_or_as_modules_are_not_called_identical() -> None:
    (a,), b = independent(1), moved(independent(1)[0])
    with pytest.raises(ValueError, match=r"'0.weight' is missing in both; it, of type .*complete"):
        compare(symmetry(), *({f"module.{n}": t for n, t in each.items()} for each in (a, b)))
    with pytest.raises(ValueError, match="a is a Sequential; a dict of tensors by name was exp"):
        compare(symmetry(), loaded(a), loaded(b))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'2.weight' is missing in a; it, of type"):
        compare(symmetry(), {n: t for n, t in a.items() if n[0] == "0"}, a)
