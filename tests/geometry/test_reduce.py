"""The representative of an orbit modulo a compact group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, moment_map, reduce, same_orbit
from paramsym.geometry.compact import compact_part
from paramsym.geometry.invariants import apart
from paramsym.geometry.pair import Pair
from paramsym.geometry.reduced import _Course, unit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import State, gap, generic, moved, noisy, of_zoo
from tests.geometry.small_networks import mlp, rows

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

NETWORKS = ["MLP, ReLU", "MLP, PReLU", "convolutions", "MultiheadAttention", "Transformer", "GPT-2",
            "Llama", "Gemma", "BERT", "ResNet"]  # fmt: skip


def difference(symmetry: ParameterSymmetry, one: State, other: State) -> float:
    """By how much an invariant of the compact group differs, relative to its size."""
    first, second = reduce(symmetry, one), reduce(symmetry, other)
    assert not first.stuck and not first.held
    names = [n for n in symmetry.signature if n in first.free and n not in symmetry.dead
             and n not in symmetry.ties and first.free[n].is_floating_point()]  # fmt: skip
    compact = compact_part(symmetry, (), names)
    free = [{n: side.free[n].contiguous().clone() for n in names} for side in (first, second)]
    for name, reached in symmetry.unreached.items():
        for side in free:
            if name in side and reached:
                side[name][list(reached)] = 0
    return max(apart(Pair(compact, free[0], free[1])).values())


@pytest.mark.parametrize("name", NETWORKS)
def test_points_of_one_orbit_reduce_to_points_with_the_same_invariants(name: str) -> None:
    symmetry, params = of_zoo(name)
    assert difference(symmetry, params, moved(symmetry, params)) <= 1e-8
    other = moved(symmetry, noisy(symmetry, params, 1e-4))  # the control
    assert difference(symmetry, params, other) > 1e-7


@pytest.mark.parametrize("name", NETWORKS)
def test_the_element_leads_there(name: str) -> None:
    symmetry, params = of_zoo(name)
    before = {n: p.clone() for n, p in params.items()}
    found = reduce(symmetry, params)
    assert gap(symmetry, found.params, act(symmetry, found.element, params)) <= 1e-11
    assert all(torch.equal(before[n], params[n]) for n in params)  # what is given is only read
    assert gap(symmetry, found.params, params) > 0.01  # the control: reduction does something


@pytest.mark.parametrize("name", NETWORKS)
def test_a_reduced_point_is_its_own_representative(name: str) -> None:
    symmetry, params = of_zoo(name)
    found = reduce(symmetry, moved(symmetry, params))
    again = reduce(symmetry, found.params)
    assert gap(symmetry, found.params, again.params) <= 1e-7
    for space in symmetry.spaces:
        for part in again.element.parts:
            order = part[space].order if isinstance(part, dict) and space in part else None
            if order is not None:
                assert bool((order == torch.arange(order.shape[-1])).all())


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Phi-3"])
def test_gains_that_serve_as_frames_are_one(name: str) -> None:
    symmetry, params = of_zoo(name)
    assert symmetry.frame_parameters
    flipped = {n: -p if n in symmetry.frame_parameters else p for n, p in params.items()}
    for start in (params, flipped):
        found = reduce(symmetry, start)
        for gain in symmetry.frame_parameters:
            assert gain not in symmetry.offsets
            there = found.params[gain]
            torch.testing.assert_close(there, torch.ones_like(there), rtol=1e-9, atol=1e-9)
            assert float((start[gain] - 1).abs().max()) > 0.1  # the control


@pytest.mark.parametrize("name", ["MLP, ReLU", "MultiheadAttention", "TransformerEncoderLayer"])
def test_moments_of_scales_and_bases_vanish(name: str) -> None:
    """The norm is stationary along everything that is not compact."""
    symmetry, params = of_zoo(name)
    own = symmetry.restrict(translations=False)
    counted = {n: p for n, p in params.items()}
    found = reduce(symmetry, counted)

    def steepest(at: State) -> float:
        size = sum(float(p.square().sum()) for n, p in at.items() if n in symmetry.signature)
        return max(float(m.abs().max()) for m in moment_map(own, at).values()) / size

    assert steepest(found.params) <= 1e-9
    assert steepest(params) > 1e-4  # the control


def test_free_coordinates_of_one_orbit_have_one_norm() -> None:
    """Kempf and Ness: the least norm is a number of the orbit."""
    symmetry, params = of_zoo("Llama")
    values = []
    for seed in range(3):
        found = reduce(symmetry, moved(symmetry, params, seed))
        values.append(sum(float(p.square().sum()) for n, p in found.free.items()
                          if n in symmetry.signature))  # fmt: skip
    assert values == pytest.approx([values[0]] * 3, rel=1e-10)
    plain = [sum(float(p.square().sum()) for p in moved(symmetry, params, seed).values())
             for seed in range(3)]  # fmt: skip
    assert max(plain) > 1.001 * min(plain)  # the control


def test_numbers_that_are_not_finite_are_refused() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    broken = {**params, "2.weight": params["2.weight"] / 0}
    with pytest.raises(ValueError, match=r"reduce.*'2\.weight'.*finite"):
        reduce(symmetry, broken)


def test_a_network_of_zeros_is_reduced_to_itself() -> None:
    symmetry, params = generic(mlp(nn.ReLU()), rows())
    zero = {n: torch.zeros_like(p) for n, p in params.items()}
    assert all(torch.equal(p, zero[n]) for n, p in reduce(symmetry, zero).params.items())
    assert same_orbit(symmetry, zero, params).kind is not Kind.EQUAL
    course = _Course(symmetry, symmetry, unit(symmetry, zero), None)
    assert course._moved_from({n: p.clone() for n, p in zero.items()}) == 0
