"""The nearest equivalent: planted orders and scales, noise, and what must hold for every answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from paramsym import GroupElement, ParameterSymmetry, act, align
from paramsym.algebra import Element
from paramsym.geometry.reading import Reading
from paramsym.recording.precision import converted_inputs, functional
from paramsym.structure.axes import parse_axis, powers_of
from tests.geometry.orbits import (
    State,
    counted,
    drawn,
    gap,
    generator,
    generic,
    moved,
    noisy,
    of_zoo,
)
from tests.geometry.small_networks import mlp, rows
from tests.tracing.zoo import build

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

SMALL = ["MLP, ReLU", "MLP, tanh", "convolutions", "MultiheadAttention", "Llama"]


def apart(symmetry: ParameterSymmetry, one: State, other: State) -> float:
    """‖a − b‖ / √(‖a‖² + ‖b‖²) over parameters."""
    names = [n for n in counted(symmetry) if n not in symmetry.buffers]
    squares = [sum(float(x[n].square().sum()) for n in names) for x in (one, other)]
    between = sum(float((one[n] - other[n]).square().sum()) for n in names)
    return (between / sum(squares)) ** 0.5


# -- what holds for every pair -------------------------------------------------------------------

PAIRS: dict[str, Callable[[ParameterSymmetry, State], State]] = {
    "one orbit": lambda s, a: moved(s, a),
    "10 % noise": lambda s, a: moved(s, noisy(s, a, 0.1)),
    "50 % noise": lambda s, a: moved(s, noisy(s, a, 0.5)),
    "100 % noise": lambda s, a: moved(s, noisy(s, a, 1.0)),
    "independent": lambda s, a: drawn(a, 11),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", SMALL)
def test_the_objective_never_falls_and_the_element_is_the_answer(name: str, pair: str) -> None:
    symmetry, params = of_zoo(name)
    other = PAIRS[pair](symmetry, params)
    result = align(symmetry, params, other)
    steps = [b - a for a, b in zip(result.objective, result.objective[1:], strict=False)]
    assert all(step >= -1e-12 for step in steps) and result.objective[-1] <= 1 + 1e-9
    assert (result.distance <= 1e-8) == (pair == "one orbit")  # the control in the table
    again = act(symmetry, result.element, other)
    assert gap(symmetry, result.params, again) <= 1e-12
    assert {*result.distances} <= {*counted(symmetry)}


@pytest.mark.parametrize("name", SMALL)
def test_the_function_of_the_one_that_moves_is_kept(name: str) -> None:
    model, given = build(name)
    symmetry, params = of_zoo(name)
    args, kwargs = converted_inputs(given, torch.float64)
    other = moved(symmetry, noisy(symmetry, params, 0.5))
    result = align(symmetry, params, other)

    def output(weights: State) -> Tensor:
        with torch.no_grad():
            return functional(model, weights, args, kwargs)[0]

    before = output(other)
    size = float(before.abs().max())
    assert float((output(result.params) - before).abs().max()) <= 1e-9 * size
    wrong = output(noisy(symmetry, result.params, 1e-3))  # the control
    assert float((wrong - before).abs().max()) > 1e-6 * size


@pytest.mark.parametrize("name", SMALL)
def test_a_network_is_its_own_nearest(name: str) -> None:
    symmetry, params = of_zoo(name)
    result = align(symmetry, params, params)
    assert gap(symmetry, params, result.params) <= 1e-9
    assert result.distance <= 1e-9 and len(result.objective) == 1


@pytest.mark.parametrize("name", SMALL)
def test_where_on_its_orbit_the_other_one_stands_does_not_matter(name: str) -> None:
    symmetry, params = of_zoo(name)
    other = noisy(symmetry, params, 0.1)
    one, two = (align(symmetry, params, moved(symmetry, other, seed)) for seed in (1, 2))
    assert gap(symmetry, one.params, two.params) <= 1e-6
    assert one.distance == pytest.approx(two.distance, rel=1e-6)
    assert gap(symmetry, one.params, params) > 1e-3  # the control: not for want of a difference


@pytest.mark.parametrize("name", ["MLP, ReLU", "MLP, tanh", "convolutions", "GPT-2", "Llama"])
def test_a_noisy_copy_is_brought_as_near_as_it_was(name: str) -> None:
    """With 10 % noise at most 1.01 times the distance of the noisy copy that has not moved."""
    symmetry, params = of_zoo(name)
    other = noisy(symmetry, params, 0.1)
    still = align(symmetry, params, other).distance
    result = align(symmetry, params, moved(symmetry, other))
    assert 0.01 < result.distance <= 1.01 * still


def test_restarts_never_make_it_worse_and_can_be_repeated() -> None:
    symmetry, params = of_zoo("MLP, tanh")
    other = drawn(params, 11)
    found = [
        align(symmetry, params, other, restarts=count, generator=generator(4)).objective[-1]
        for count in (0, 2, 4, 4)
    ]
    assert found[0] <= found[1] + 1e-12 and found[1] <= found[2] + 1e-12
    assert found[2] == found[3]


# -- planted -------------------------------------------------------------------------------------


def order_of(element: GroupElement, space: str) -> Tensor:
    """The order of a space in an element."""
    value = element[space]
    assert isinstance(value, Element) and value.order is not None
    return value.order


Planted = tuple[ParameterSymmetry, State, State, State, GroupElement]


def planted(activation: nn.Module, share: float, seed: int) -> Planted:
    """A network, a noisy copy, and that moved; with the element that moved it."""
    layers = [nn.Linear(20, 32), activation, nn.Linear(32, 24), activation, nn.Linear(24, 10)]
    symmetry, params = generic(nn.Sequential(*layers), (torch.zeros(2, 20),), seed)
    element = symmetry.sample(generator(seed + 1), 0.5)
    still = noisy(symmetry, params, share, seed + 2)
    return symmetry, params, still, act(symmetry, element, still), element


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=["relu", "tanh"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_planted_orders_signs_and_scales_are_recovered(share: float, activation: nn.Module) -> None:
    for seed in range(0, 30, 10):
        symmetry, params, still, other, element = planted(activation, share, seed)
        result = align(symmetry, params, other)
        both = result.element @ element
        for space in symmetry.spaces:
            value = both[space]
            assert isinstance(value, Element) and value.order is not None
            assert torch.equal(value.order, torch.arange(len(value.order))), (space, seed)
            assert value.diagonal is not None and bool((value.diagonal > 0).all())
        unmoved = align(symmetry, params, still)
        assert gap(symmetry, unmoved.params, result.params) <= 1e-9
        moved_orders = [order_of(element, space) for space in symmetry.spaces]  # the control
        assert not all(torch.equal(o, torch.arange(len(o))) for o in moved_orders)


def test_at_twice_the_noise_most_of_what_was_planted_is_recovered() -> None:
    """Not all: noise of 200 % makes some other unit the nearest."""
    found, wanted = 0, 0
    for seed in range(0, 30, 10):
        symmetry, params, _, other, element = planted(nn.ReLU(), 2.0, seed)
        both = align(symmetry, params, other).element @ element
        for space in symmetry.spaces:
            order = order_of(both, space)
            found += int((order == torch.arange(len(order))).sum())
            wanted += len(order)
    assert found >= 0.5 * wanted


# -- every element, one by one -------------------------------------------------------------------


def signed_orders(n: int) -> Tensor:
    """All signed permutation matrices, of shape (2ⁿ n!, n, n)."""
    eye = torch.eye(n, dtype=torch.float64)
    orders = torch.stack([eye[list(order)] for order in permutations(range(n))])
    signs = torch.tensor([*product((1.0, -1.0), repeat=n)], dtype=torch.float64)
    return (signs[:, None, :, None] * orders).reshape(-1, n, n)


def best_product(a: State, b: State, n: int, m: int) -> float:
    """max ⟨a, g b⟩ over all signed orders of two hidden layers, by trying all."""
    one, two = signed_orders(n), signed_orders(m)
    first = torch.einsum("ij,gik,kj->g", a["0.weight"], one, b["0.weight"])
    first = first + torch.einsum("i,gik,k->g", a["0.bias"], one, b["0.bias"])
    last = torch.einsum("oi,gik,ok->g", a["4.weight"], two, b["4.weight"])
    last = last + torch.einsum("i,gik,k->g", a["2.bias"], two, b["2.bias"])
    half = torch.einsum("ij,gjl,kl->gik", a["2.weight"], one, b["2.weight"])
    middle = torch.einsum("gik,hik->gh", half, two)
    both = first[:, None] + last[None, :] + middle
    return float(both.max()) + float(a["4.bias"] @ b["4.bias"])


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 3), (4, 4)])
def test_the_objective_against_all_orders_and_signs(n: int, m: int) -> None:
    layers = [nn.Linear(2, n), nn.Tanh(), nn.Linear(n, m), nn.Tanh(), nn.Linear(m, 2)]
    symmetry, a = generic(nn.Sequential(*layers), (torch.zeros(3, 2),))
    reached = 0
    for seed in range(6):
        pairs = [moved(symmetry, a, seed), moved(symmetry, noisy(symmetry, a, 0.5, seed), seed),
                 drawn(a, 20 + seed)]  # fmt: skip
        for kind, b in enumerate(pairs):
            size = float(sum(x.square().sum() for x in a.values())) ** 0.5
            size *= float(sum(x.square().sum() for x in b.values())) ** 0.5
            best = best_product(a, b, n, m) / size
            start = sum(float((a[k] * b[k]).sum()) for k in a) / size
            result = align(symmetry, a, b)
            own = sum(float((a[k] * result.params[k]).sum()) for k in a) / size
            assert result.objective[-1] == pytest.approx(own, abs=1e-12)
            assert own <= best + 1e-12
            if kind == 0:
                assert own == pytest.approx(best, abs=1e-12) and start < best - 1e-3
            else:
                assert own >= start - 1e-12
                reached += own >= best - 1e-12
    assert reached >= 3  # of twelve: a local optimum, but no bad one


# -- a part of the group -------------------------------------------------------------------------


def matched(a: State, b: State, orders: list[Tensor], sweeps: int) -> float:
    """Weight matching of two hidden layers by hand, from given orders; what it ends at."""

    def total() -> float:
        p, q = orders
        return float(
            (a["0.weight"] * b["0.weight"][p]).sum() + (a["0.bias"] * b["0.bias"][p]).sum()
            + (a["2.weight"] * b["2.weight"][q][:, p]).sum()
            + (a["2.bias"] * b["2.bias"][q]).sum()
            + (a["4.weight"] * b["4.weight"][:, q]).sum() + (a["4.bias"] * b["4.bias"]).sum()
        )  # fmt: skip

    for _ in range(sweeps):
        p, q = orders
        scores = a["0.weight"] @ b["0.weight"].mT + torch.outer(a["0.bias"], b["0.bias"])
        scores = scores + a["2.weight"].mT @ b["2.weight"][q]
        orders[0] = torch.as_tensor(linear_sum_assignment(scores.numpy(), maximize=True)[1])
        p = orders[0]
        scores = a["2.weight"] @ b["2.weight"][:, p].mT + torch.outer(a["2.bias"], b["2.bias"])
        scores = scores + a["4.weight"].mT @ b["4.weight"]
        orders[1] = torch.as_tensor(linear_sum_assignment(scores.numpy(), maximize=True)[1])
    return total()


def test_orders_alone_are_a_weight_matching() -> None:
    symmetry, a = generic(mlp(nn.ReLU()), rows())
    for seed in range(5):
        b = moved(symmetry, noisy(symmetry, a, 0.5, seed), seed)
        result = align(symmetry, a, b, spaces="permutations")
        orders = [order_of(result.element, n) for n in ("mlp", "mlp.2")]
        for n in b:  # nothing is scaled
            assert torch.equal(
                result.params[n].flatten().sort().values, b[n].flatten().sort().values
            )
        assert torch.equal(result.params["0.bias"], b["0.bias"][orders[0]])
        size = [float(sum(x.square().sum() for x in side.values())) ** 0.5 for side in (a, b)]
        own = result.objective[-1] * size[0] * size[1]
        assert own == pytest.approx(matched(a, b, list(orders), 0), abs=1e-12)
        assert own == pytest.approx(matched(a, b, list(orders), 3), abs=1e-12)  # nothing is gained
        start = [torch.randperm(len(o), generator=generator(seed)) for o in orders]
        assert matched(a, b, list(start), 0) < own - 1e-3  # the control


def test_what_is_not_named_does_not_move() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    other = moved(symmetry, params)
    result = align(symmetry, params, other, spaces=["mlp"])
    touched = {name for part in result.element.parts for name in part}  # type: ignore[union-attr]
    assert touched == {"mlp"}
    for name in ("2.bias", "4.weight", "4.bias"):
        assert torch.equal(result.params[name], other[name])
    assert not torch.equal(result.params["0.weight"], other["0.weight"])  # the control
    assert result.distance > 0.01
    both = align(symmetry, params, other, spaces=["mlp*"])
    assert gap(symmetry, params, both.params) <= 1e-10


def test_heads_alone() -> None:
    symmetry, params = of_zoo("Llama")
    heads = [name for name in symmetry.spaces if "head" in name]
    assert heads
    other = moved(symmetry, params, only=heads)
    result = align(symmetry, params, other, spaces=["*head*"])
    touched = {name for part in result.element.parts for name in part}  # type: ignore[union-attr]
    gains = {n for name in symmetry.frame_parameters for axis in symmetry.signature[name]
             for n, _ in powers_of(axis)}  # fmt: skip
    assert touched <= {*heads} | gains  # gains that serve as frames are those of a afterwards
    assert gap(symmetry, params, result.params) <= 1e-10


# -- by activations ------------------------------------------------------------------------------


def test_a_planted_order_is_found_from_activations_alone() -> None:
    """The weights of b are another network's: nothing but the readings tells the order."""
    symmetry, a = generic(mlp(nn.Tanh()), rows())
    b = drawn(a, 5)
    x = torch.randn(40, 5, generator=generator(1), dtype=torch.float64)
    hidden = torch.tanh(x @ a["0.weight"].mT + a["0.bias"])
    order = torch.randperm(7, generator=generator(2))
    sign = torch.where(torch.rand(7, generator=generator(3)) < 0.5, -1.0, 1.0).double()
    noise = 0.05 * torch.randn(40, 7, generator=generator(4), dtype=torch.float64)
    axis = parse_axis("mlp")
    readings = (
        {"1": Reading(axis, hidden)},
        {"1": Reading(axis, ((hidden + noise) * sign)[:, order])},
    )
    result = align(symmetry, a, b, readings)
    expected = b["0.bias"][order.argsort()] * sign
    assert torch.equal(result.params["0.bias"], expected)
    assert result.objective[-1] > 0.99
    by_weights = align(symmetry, a, b)  # the control
    assert not torch.equal(by_weights.params["0.bias"], expected)
    assert by_weights.objective[-1] < 0.9
