"""Ranges with a certificate, against a linear program that has a row for every weight."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from paramsym import ParameterSymmetry, Space, find_symmetry
from paramsym.algebra import PositiveScaling
from paramsym.geometry.result import Status
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.ranges import minimize_range
from paramsym.structure.axes import parse_axis
from paramsym.structure.patterns import UnknownName
from tests.quantize.range_twins import (
    MODELS,
    State,
    built,
    moved_at_random,
    scales_of,
    slow_range,
    widest,
)  # fmt: skip

exact = partial(minimize_range, slack=0.0)  # the least range, whatever its norm
pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.mark.parametrize("objective", ["max", "abs"])
@pytest.mark.parametrize("name", MODELS)
def test_the_range_is_that_of_a_linear_program_with_every_weight(name: str, objective: str) -> None:
    model, x, symmetry, params = built(name)
    result = exact(symmetry, params, objective)
    assert result.status is Status.OPTIMAL and result.gap <= 1e-9 * result.value
    assert result.value == pytest.approx(slow_range(symmetry, params, objective), rel=1e-8)
    assert result.value == pytest.approx(widest(symmetry, result.params, objective), rel=1e-12)
    assert result.before == pytest.approx(widest(symmetry, params, objective), rel=1e-14)
    with torch.no_grad():
        moved = torch.func.functional_call(model, result.params, (x,))
        assert float((moved - model(x)).abs().max()) < 1e-12 * float(model(x).abs().max())


@pytest.mark.parametrize("few", [0, 10])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_that_are_read_panel_by_panel_give_the_same_range_as_lists_of_edges(
    name: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, symmetry, params = built(name)
    start = moved_at_random(symmetry, params, 1)
    listed = exact(symmetry, start)
    monkeypatch.setattr("paramsym.quantize.incidence.FEW", few)
    monkeypatch.setattr("paramsym.quantize.passes._PANEL", 7)
    incidence = incidence_of(symmetry, start, scales_of(symmetry, start))
    assert incidence.rows and bool(len(incidence.few.slot)) == bool(few)
    result = exact(symmetry, start)
    assert result.before == pytest.approx(listed.before, rel=1e-14)
    assert result.value == pytest.approx(listed.value, rel=1e-9) and result.gap <= 1e-9
    assert result.value == pytest.approx(widest(symmetry, result.params, "max"), rel=1e-12)


# -- what is certain ---------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["max", "abs"])
@pytest.mark.parametrize("name", MODELS)
def test_every_equivalent_start_ends_at_one_value_and_none_is_below_the_bound(
    name: str, objective: str
) -> None:
    _, _, symmetry, params = built(name)
    first = exact(symmetry, params, objective)
    bound = first.value - first.gap
    for seed in range(4):
        start = moved_at_random(symmetry, params, seed)
        result = exact(symmetry, start, objective)
        assert result.before > 1.01 * first.value  # the starts do differ
        assert result.value == pytest.approx(first.value, rel=1e-9)
        assert widest(symmetry, start, objective) >= bound * (1 - 1e-12)
        beside = moved_at_random(symmetry, result.params, seed + 10)
        assert widest(symmetry, beside, objective) > 1.01 * first.value


def test_weights_in_single_precision_are_proved_in_double() -> None:
    model, x, _, _ = built("residual MLP")
    model, x = model.float(), x.float()
    symmetry, params = find_symmetry(model, (x,), check=False), dict(model.state_dict())
    result = exact(symmetry, params)
    assert all(result.params[n].dtype == torch.float32 for n in params)
    assert result.status is Status.OPTIMAL and result.gap <= 1e-9 * result.value
    wide = exact(symmetry, {n: p.double() for n, p in params.items()})
    assert result.value == pytest.approx(wide.value, rel=1e-12)
    assert widest(symmetry, result.params, "max") == pytest.approx(result.value, rel=1e-6)
    with torch.no_grad():
        error = (torch.func.functional_call(model, result.params, (x,)) - model(x)).abs().max()
    assert float(error) < 5e-6 * float(model(x).abs().max())


def test_rounds_that_end_early_say_so() -> None:
    _, _, symmetry, params = built("MLP")
    start = moved_at_random(symmetry, params, 0)
    short = exact(symmetry, start, rounds=0)
    best = exact(symmetry, start)
    assert short.status is Status.LOCAL and best.status is Status.OPTIMAL
    assert short.value - short.gap <= best.value * (1 + 1e-12) < short.value


# -- weights by hand ---------------------------------------------------------------------------


def by_hand(types: dict[str, str], **sizes: int) -> ParameterSymmetry:
    signature = {n: tuple(parse_axis(a) for a in t.split(", ")) for n, t in types.items()}
    spaces = {n: Space(n, PositiveScaling(k)) for n, k in sizes.items()}
    return ParameterSymmetry(spaces, signature)


def numbers(**values: object) -> State:
    return {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items()}


def test_one_unit_has_the_root_of_its_two_sides() -> None:
    symmetry = by_hand({"a": "h, 1", "b": "1, h*"}, h=1)
    params = numbers(a=[[4.0]], b=[[9.0]])
    for objective in ("max", "abs"):
        result = exact(symmetry, params, objective)
        assert result.value == pytest.approx(6.0, rel=1e-14)
        assert result.params["a"].item() == pytest.approx(6.0, rel=1e-14)


def test_two_scales_that_raise_together_and_powers_are_turned_into_edges() -> None:
    """m ↦ h k m with powers ½ on k: the same least value as with −k, which a network has."""
    twisted = by_hand({"a": "h*, 3", "m": "h, k^1/2", "b": "2, k^-1/2"}, h=4, k=5)
    plain = by_hand({"a": "h*, 3", "m": "h, k*", "b": "2, k"}, h=4, k=5)
    generator = torch.Generator().manual_seed(1)
    params = {n: torch.randn(s, generator=generator, dtype=torch.float64)
              for n, s in {"a": (4, 3), "m": (4, 5), "b": (2, 5)}.items()}  # fmt: skip
    result = exact(twisted, params)
    assert result.status is Status.OPTIMAL and not result.held
    assert result.value == pytest.approx(exact(plain, params).value, rel=1e-12)
    assert result.value == pytest.approx(slow_range(twisted, params, "max"), rel=1e-8)
    assert result.value < 0.99 * result.before


def test_blocks_of_one_tensor_on_the_same_scales_count_by_the_larger() -> None:
    """A fused tensor: two blocks that read one gain, under other scales or none."""
    symmetry = by_hand({"gain": "h", "fused": "h*, 2 + k + 3", "last": "k*, 2"}, h=4, k=3)
    generator = torch.Generator().manual_seed(2)
    params = {n: torch.randn(symmetry.shape(n), generator=generator, dtype=torch.float64)
              for n in symmetry.signature}  # fmt: skip
    expected = slow_range(symmetry, params, "max")
    for seed in range(6):
        result = exact(symmetry, moved_at_random(symmetry, params, seed))
        assert result.status is Status.OPTIMAL and result.rounds < 10
        assert result.value == pytest.approx(expected, rel=1e-8)


def test_what_is_no_edge_is_held_and_named() -> None:
    crowded = by_hand({"m": "h, k*, g", "a": "h*", "b": "k", "c": "g*"}, h=3, k=4, g=2)
    uneven = by_hand({"a": "h", "b": "h^-2"}, h=3)
    mixed = by_hand({"m": "h, k", "n": "h, k*"}, h=3, k=4)
    generator = torch.Generator().manual_seed(1)
    for symmetry, reason in (
        (crowded, "two other scales"), (uneven, "several powers"), (mixed, "together"),
    ):  # fmt: skip
        params = {n: torch.rand(symmetry.shape(n), generator=generator, dtype=torch.float64)
                  for n in symmetry.signature}  # fmt: skip
        result = exact(symmetry, params)
        assert [why for why in result.held.values() if reason in why], result.held
        assert result.value <= result.before


def test_dead_units_and_units_with_one_side_are_no_obstacle() -> None:
    _, x, symmetry, params = built("MLP")
    params = {n: p.clone() for n, p in params.items()}
    params["0.weight"][1], params["0.bias"][1], params["2.weight"][:, 1] = 0.0, 0.0, 0.0
    params["0.weight"][2], params["0.bias"][2] = 0.0, 0.0  # nothing comes in
    params["2.weight"][:, 3] = 0.0  # nothing goes out
    result = exact(symmetry, params)
    assert result.status is Status.OPTIMAL
    assert all(bool(p.isfinite().all()) for p in result.params.values())
    assert result.value == pytest.approx(widest(symmetry, result.params, "max"), rel=1e-12)
    assert result.value == pytest.approx(slow_range(symmetry, params, "max"), rel=1e-8)


def test_where_no_cycle_bounds_the_ranges_there_is_no_best_point() -> None:
    symmetry = by_hand({"a": "h, 2", "b": "1, h*"}, h=3)
    params = numbers(a=[[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]], b=[[0.0, 0.0, 0.0]])
    result = exact(symmetry, params)
    assert result.status is Status.UNATTAINED and "zero" in result.held["every scale"]
    assert all(torch.equal(result.params[n], params[n]) for n in params)
    params["b"] += 1.0  # one number on the other side is enough
    assert exact(symmetry, params).status is Status.OPTIMAL


def test_what_is_held_is_held() -> None:
    _, _, symmetry, params = built("MLP")
    names = scales_of(symmetry, params)
    result = exact(symmetry, params, hold=names)
    assert result.value == result.before == widest(symmetry, params, "max")
    assert all(result.held[n] == "it was asked for" for n in names)
    assert exact(symmetry, params).value < result.value


def test_bad_input_is_refused() -> None:
    _, _, symmetry, params = built("MLP")
    with pytest.raises(ValueError, match="'product'.*none of.*residual.*Pass one"):
        exact(symmetry, params, "product")
    with pytest.raises(ValueError, match="'0.bias' is missing"):
        exact(symmetry, {n: p for n, p in params.items() if n != "0.bias"})
    with pytest.raises(UnknownName, match=r"minimize_range\(hold=…\): 'nobody'"):
        exact(symmetry, params, hold="nobody")
    for bad in (math.nan, math.inf):
        broken = {**params, "0.bias": params["0.bias"].clone()}
        broken["0.bias"][1] = bad
        with pytest.raises(ValueError, match=r"minimize_range\(params\): '0.bias' holds numbers"):
            exact(symmetry, broken)
