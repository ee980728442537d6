"""Masses read from weights against masses kept, turns on aggregates against turns that reread."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.geometry.balance import balance
from paramsym.geometry.costs import cost_along_scales
from paramsym.geometry.masses import Diagonal, Mass, norm_power, power_sum
from paramsym.geometry.means import _regular, _root_of_mean
from paramsym.geometry.movers import movers_of
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.terms import Factor, Term
from paramsym.geometry.turns import Turns
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, torch.Tensor]


def weights(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# -- sums and products -------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("summed", [(), (0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_sums_in_their_own_precision(summed: tuple[int, ...], power: float) -> None:
    for dtype, close in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        x = weights(7, 30, 11, dtype=dtype)
        expected, before = power_sum(x, power, summed), x.clone()
        out = torch.empty(expected.shape, dtype=dtype)
        for found in (norm_power(x, power, summed), norm_power(x, power, summed, out)):
            torch.testing.assert_close(found.double(), expected, rtol=close, atol=0)
            assert found.dtype == dtype
        assert torch.equal(out, found) and torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_million_equal_weights_are_added_up_in_double_precision(dtype: torch.dtype) -> None:
    x = torch.full((1000, 1000), 0.1, dtype=dtype)
    exact = 1e6 * float(x[0, 0]) ** 2
    assert float(power_sum(x, 2, [0, 1])) == pytest.approx(exact, rel=1e-12)
    assert abs(float(x.square().sum()) / exact - 1) > 1e-9  # in their own precision they are not


@pytest.mark.parametrize("power", [1.0, 2.0, 1.5])
@pytest.mark.parametrize("summed", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_sums_in_pieces_are_those_of_the_whole(power: float, summed: tuple[int, ...]) -> None:
    for x in (weights(3, 200, 150), weights(150, 200, 3).permute(2, 1, 0), weights(4, 2, 2)):
        expected = x.abs().pow(power).sum(summed) if summed else x.abs().pow(power)
        torch.testing.assert_close(power_sum(x, power, summed), expected, rtol=1e-12, atol=0)
        rotated = torch.polar(x.abs(), x)
        torch.testing.assert_close(power_sum(rotated, power, summed), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
def test_products_read_from_weights_are_those_of_the_matrix(
    dtype: torch.dtype, turned: bool
) -> None:
    source = weights(500, 300, dtype=dtype)
    source = source.mT if turned else source
    left, right = weights(len(source), seed=1), weights(source.shape[1], seed=2)
    for power, matrix in ((None, source.double()), (2.0, source.double().square())):
        mass = Mass(source, power)
        expected = matrix @ right, matrix.mT @ left
        for found in ((mass.times(right), mass.transposed(left)), mass.both(left, right)):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-11)
    diagonal = Diagonal(right)
    assert torch.equal(diagonal.times(right), diagonal.transposed(right))
    torch.testing.assert_close(diagonal.both(right, right)[0], torch.diag(right) @ right)


def test_a_term_read_from_weights_is_the_term_of_its_mass() -> None:
    w = weights(300, 20, 15)
    factors = (Factor("a", (0,), -2.0), Factor("b", (2, 1), 2.0))
    shapes = {"b": (15, 20), "a": (300,)}
    read = Posynomial(shapes, [Term(w, factors, 2.0)])
    kept = Posynomial(shapes, [Term(w.square(), factors)])
    assert read.terms[0].mass is w
    y, v = 0.1 * weights(2, kept.size, seed=3)
    one, other = read.at(y), kept.at(y)
    assert one.value == pytest.approx(other.value, rel=1e-13)
    for found, expected in (
        (one.gradient, other.gradient),
        (one.hessian(v), other.hessian(v)),
        (read.pulls("b", y)[2.0], kept.pulls("b", y)[2.0]),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-9)
    moved = Posynomial(shapes, [Term(w, factors, 2.0)], origin=y)
    assert moved.here.value == pytest.approx(one.value, rel=1e-14) != read.here.value
    back = Term(w.square() * w.new_tensor(2.0), factors).as_from(kept.split(y))
    assert Posynomial(shapes, [back], origin=y).here.value == pytest.approx(
        2 * float(w.square().sum()), rel=1e-12
    )


def test_large_masses_are_the_weights_themselves() -> None:
    model = nn.Sequential(nn.Linear(8, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(),
                          nn.Linear(1500, 2))  # fmt: skip
    params = {n: p.detach() for n, p in model.named_parameters()}
    symmetry = find_symmetry(model, (torch.randn(2, 8),), check=False)
    cost = cost_along_scales(symmetry, params, [*symmetry.spaces], 2.0)
    shared = [t for t in cost.terms if t.mass.data_ptr() == params["2.weight"].data_ptr()]
    assert len(shared) == 1 and shared[0].power == 2
    assert sum(t.mass.numel() for t in cost.terms if t is not shared[0]) < 10_000
    assert cost.here.value == pytest.approx(
        sum(float(p.double().square().sum()) for p in params.values()), rel=1e-13
    )


# -- bases -------------------------------------------------------------------------------------


def test_the_mean_of_regular_matrices_is_that_by_eigenvalues() -> None:
    a, b = weights(6, 9), weights(6, 8, seed=1)
    found = _regular(a @ a.mT, b @ b.mT)
    assert found is not None
    torch.testing.assert_close(found, _root_of_mean(a @ a.mT, b @ b.mT), rtol=1e-9, atol=1e-10)
    g, back = found @ a, torch.linalg.inv(found).mT @ b
    torch.testing.assert_close(g @ g.mT, back @ back.mT)
    a[5] = a[4] + 1e-7 * a[5]  # too near to a singular one to be sure
    assert _regular(a @ a.mT, b @ b.mT) is None


# -- turns -------------------------------------------------------------------------------------


class Rereading(Turns):
    """The obvious twin: every tensor is moved in double precision and read again each turn."""

    def _coupled(self) -> list[str]:
        return [n for n in self.symmetry.signature if n not in self.symmetry.ties
                and self.params[n].is_floating_point()]  # fmt: skip


def given(name: str) -> tuple[ParameterSymmetry, State, Callable[[int], State]]:
    model, _ = build(name)
    symmetry = derived(name)
    params = {
        n: p.detach().double() if p.is_floating_point() else p
        for n, p in model.state_dict().items()
    }
    movers = movers_of(symmetry, 2.0, (), (), False)

    def start(seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        return act(symmetry, symmetry.sample(generator, only=movers.scales + movers.bases), params)

    return symmetry, params, start


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("name", ["MLP, ReLU", "MultiheadAttention", "convolutions", "GPT-2"])
def test_turns_on_aggregates_lead_where_turns_lead_that_reread(name: str, shifts: bool) -> None:
    symmetry, _, start = given(name)
    params = start(0)

    def run(kind: type[Turns], rounds: int) -> tuple[float, State]:
        movers = movers_of(symmetry, 2.0, (), (), shifts)
        turns = kind(symmetry, params, 2.0, movers, 1e-12)
        turns.settle(rounds, None)
        return turns.found().value, turns.moved()

    (value, moved), (expected, twin) = run(Turns, 3), run(Rereading, 3)
    # with shifts the third turn is not yet the last, and shows where the first scales stopped
    assert value == pytest.approx(expected, rel=1e-8 if shifts else 1e-12)
    for n, p in twin.items():
        if p.is_floating_point():
            error = float((moved[n] - p).abs().max()) if p.numel() else 0.0
            assert error <= (1e-4 if shifts else 1e-7) * max(
                float(p.abs().max()), 1.0
            )  # flat directions are loose
    counted = (p for n, p in moved.items() if n in symmetry.signature
               and n not in symmetry.buffers and n not in symmetry.ties)  # fmt: skip
    if not symmetry.offsets:  # the value is that of the parameters that come out
        assert value == pytest.approx(sum(float(p.square().sum()) for p in counted), rel=1e-12)


@pytest.mark.parametrize("name", ["MLP, ReLU", "convolutions", "MultiheadAttention"])
def test_ten_equivalent_starts_have_one_value(name: str) -> None:
    symmetry, params, start = given(name)
    least = balance(symmetry, params, shifts=False)
    for seed in range(10):
        result = balance(symmetry, start(seed), shifts=False)
        assert result.status == least.status == "OPTIMAL"
        assert result.before > 1.001 * least.value
        assert result.value == pytest.approx(least.value, rel=1e-9)
