"""The least norm of an orbit as a penalty: its value, its gradient, and where it has a kink."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, Space, act, act_dual, balance, find_symmetry
from paramsym.algebra import GeneralLinear, PositiveScaling
from paramsym.geometry.result import Status
from paramsym.structure.axes import parse_axis
from paramsym.training.penalty import orbit_penalty
from tests.tracing.zoo import build

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, Tensor]
WIDE = torch.float64


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).square()


def by_hand(spaces: dict[str, Space], types: dict[str, str]) -> ParameterSymmetry:
    signature = {n: tuple(parse_axis(a) for a in t.split(", ")) for n, t in types.items()}
    return ParameterSymmetry(spaces, signature)


def normal(seed: int, **shapes: tuple[int, ...]) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator, dtype=WIDE) for n, s in shapes.items()}


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> tuple:
    """A symmetry with normal parameters."""
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b), activation()]
    model = nn.Sequential(*layers[:-1]).double()
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    return find_symmetry(model, (normal(9, x=(2, widths[0]))["x"],)), normal(0, **shapes)


def interface(middle: int = 4) -> tuple[ParameterSymmetry, State]:
    symmetry = by_hand(
        {"m": Space("m", GeneralLinear(middle))}, {"first": "m, 6", "second": "5, m*"}
    )
    return symmetry, normal(1, first=(middle, 6), second=(5, middle))


def network(name: str) -> tuple[ParameterSymmetry, State]:
    model, inputs = build(name)
    params = {n: p.double() if p.is_floating_point() else p for n, p in model.state_dict().items()}
    return find_symmetry(model, inputs, check=False), params


def with_gradient(
    symmetry: ParameterSymmetry, params: State, objective: str = "l2"
) -> tuple[Tensor, State]:
    """R and its gradient by parameter, zero for what it does not depend on."""
    own = {n: p for n, p in params.items() if n not in symmetry.ties}
    leaves = {n: p.detach().clone().requires_grad_(p.is_floating_point()) for n, p in own.items()}
    tied = {n: leaves[other] for n, other in symmetry.ties.items()}
    value = orbit_penalty(symmetry, leaves | tied, objective)
    value.backward()
    found = {n: p for n, p in leaves.items() if p.is_floating_point()}
    slope = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in found.items()}
    return value.detach(), slope


def norm(params: State) -> float:
    return float(sum(p.square().sum() for p in params.values())) ** 0.5


CASES = ("ReLU", "squared ReLU", "basis", "convolutions", "MultiheadAttention")


def case(name: str) -> tuple[ParameterSymmetry, State]:
    if name == "basis":
        return interface()
    if name in ("ReLU", "squared ReLU"):
        return perceptron(4, 5, 3, 2, activation=nn.ReLU if name == "ReLU" else SquaredReLU)
    return network(name)


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("objective", "power"), [("l2", 2), ("l1", 1)])
def test_two_layers_cost_products_of_norms(objective: str, power: int) -> None:
    symmetry, params = perceptron(4, 6, 3)
    value, slope = with_gradient(symmetry, params, objective)
    w, b, v, c = (params[n].clone().requires_grad_() for n in params)
    into = torch.cat([w, b[:, None]], 1).abs().pow(power).sum(1)
    closed = 2 * (into * v.abs().pow(power).sum(0)).sqrt().sum() + c.abs().pow(power).sum()
    closed.backward()
    assert float(value) == pytest.approx(float(closed.detach()), rel=1e-13)
    for name, leaf in zip(params, (w, b, v, c), strict=True):
        torch.testing.assert_close(slope[name], leaf.grad, rtol=1e-5, atol=1e-6)


def test_squared_relu_weighs_the_sides_by_their_degrees() -> None:
    """min_s s²a + s⁻⁴b = 3 (a/2)^⅔ b^⅓ of a unit with squared norms a and b."""
    symmetry, params = perceptron(4, 6, 3, activation=SquaredReLU)
    w, b, v, c = params.values()
    into, out = w.square().sum(1) + b.square(), v.square().sum(0)
    closed = 3 * ((into / 2) ** (2 / 3) * out ** (1 / 3)).sum() + c.square().sum()
    assert float(orbit_penalty(symmetry, params)) == pytest.approx(float(closed), rel=1e-12)


def test_a_linear_interface_costs_the_nuclear_norm_with_its_gradient() -> None:
    symmetry, params = interface()
    value, slope = with_gradient(symmetry, params)
    u, s, vh = torch.linalg.svd(params["second"] @ params["first"], full_matrices=False)
    u, s, vh = u[:, :4], s[:4], vh[:4]  # of rank four
    assert float(value) == pytest.approx(2 * float(s.sum()), rel=1e-12)
    torch.testing.assert_close(slope["first"], 2 * params["second"].mT @ u @ vh)
    torch.testing.assert_close(slope["second"], 2 * u @ vh @ params["first"].mT)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_what_balance_counts_is_counted(name: str) -> None:
    """Tied weights once, buffers not at all, gains as they act."""
    symmetry, params = network(name)
    expected = balance(symmetry, params, shifts=False).value
    assert float(orbit_penalty(symmetry, params)) == pytest.approx(expected, rel=1e-12)


# -- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "objective"), [*((n, "l2") for n in CASES), ("ReLU", "l1"), ("convolutions", "l1")]
)
def test_the_gradient_is_that_of_finite_differences(name: str, objective: str) -> None:
    symmetry, params = case(name)
    _, slope = with_gradient(symmetry, params, objective)
    generator, step = torch.Generator().manual_seed(3), 1e-6
    for _ in range(3):
        way = {n: torch.randn(s.shape, generator=generator, dtype=WIDE) for n, s in slope.items()}
        plus, minus = (
            orbit_penalty(
                symmetry, params | {n: params[n] + k * step * way[n] for n in way}, objective
            )
            for k in (1, -1)
        )
        expected = sum(float((slope[n] * way[n]).sum()) for n in way)
        measured = float(plus - minus) / (2 * step)
        assert measured == pytest.approx(expected, abs=1e-5 * norm(slope))
        at_the_point = {n: 2 * p if objective == "l2" else p.sign() for n, p in params.items()}
        plain = sum(float((at_the_point[n] * way[n]).sum()) for n in way)
        assert plain != pytest.approx(expected, abs=1e-3 * norm(slope))  # the control


@pytest.mark.parametrize("name", CASES)
def test_equivalent_points_have_one_value_and_dual_gradients(name: str) -> None:
    symmetry, params = case(name)
    value, slope = with_gradient(symmetry, params)
    movable = [n for n, s in symmetry.spaces.items() if s.exact]
    g = symmetry.sample(torch.Generator().manual_seed(1), only=movable)
    moved = act(symmetry, g, params)
    there, slope_there = with_gradient(symmetry, moved)
    assert float(there) == pytest.approx(float(value), rel=1e-9)
    counted = {n: p for n, p in slope.items() if n not in symmetry.buffers}
    carried = act_dual(symmetry, g, params, slope)
    off = norm({n: carried[n] - slope_there[n] for n in counted})
    assert off < 1e-5 * norm(slope_there)
    # the control: the sum of squares at the point has neither property
    squares, squares_there = (norm({n: p[n] for n in counted}) for p in (params, moved))
    assert abs(squares_there / squares - 1) > 1e-3
    plain = act_dual(symmetry, g, params, {n: 2 * params[n] for n in slope})
    assert norm({n: plain[n] - 2 * moved[n] for n in counted}) > 1e-2 * squares_there


def test_single_precision_keeps_its_gradients() -> None:
    symmetry, params = perceptron(4, 5, 3, 2)
    narrow = {n: p.float() for n, p in params.items()}
    value, slope = with_gradient(symmetry, narrow)
    wide, wide_slope = with_gradient(symmetry, params)
    assert float(value) == pytest.approx(float(wide), rel=1e-6)
    assert all(p.dtype is torch.float32 for p in slope.values())
    assert norm({n: slope[n] - wide_slope[n] for n in slope}) < 1e-5 * norm(wide_slope)


# -- where there is no least point -------------------------------------------------------------


def dead() -> tuple[ParameterSymmetry, State, State]:
    """A network whose unit 1 of the second layer leads nowhere, and unit 3 of the first only to
    it; and where neither is there."""
    symmetry, params = perceptron(6, 5, 4, 3)
    params["4.weight"][:, 1] = 0.0
    params["2.weight"][[0, 2, 3], 3] = 0.0
    without = {n: p.clone() for n, p in params.items()}
    for name, at in (("0.weight", 3), ("0.bias", 3), ("2.weight", 1), ("2.bias", 1)):
        without[name][at] = 0.0
    return symmetry, params, without


def test_what_leads_nowhere_costs_nothing_and_has_no_gradient() -> None:
    symmetry, params, without = dead()
    value, slope = with_gradient(symmetry, params)
    expected, slope_without = with_gradient(symmetry, without)
    assert balance(symmetry, params).status is Status.UNATTAINED
    assert balance(symmetry, without).status is Status.OPTIMAL
    assert float(value) == pytest.approx(float(expected), rel=1e-13)
    for name in slope:
        torch.testing.assert_close(slope[name], slope_without[name])
    assert not slope["0.weight"][3].any() and not slope["2.weight"][1].any()
    assert slope["0.weight"][[0, 1, 2, 4]].all()
    assert balance(symmetry, params).value > float(value) + 0.1  # which leaves them as they are


def test_the_infimum_is_what_live_units_approach_and_equal_on_the_orbit() -> None:
    symmetry, params, _ = dead()
    value = float(orbit_penalty(symmetry, params))
    gaps = []
    for size in (1e-2, 1e-4, 1e-6):
        live = params | {"4.weight": params["4.weight"].clone()}
        live["4.weight"][:, 1] = size
        gaps.append(float(orbit_penalty(symmetry, live)) - value)
    assert 0 < gaps[2] < 0.1 * gaps[1] < 0.01 * gaps[0]
    g = symmetry.sample(torch.Generator().manual_seed(1), strength=2.0)
    moved = act(symmetry, g, params)
    assert float(orbit_penalty(symmetry, moved)) == pytest.approx(value, rel=1e-11)
    left = [balance(symmetry, p).value for p in (params, moved)]
    assert abs(left[1] / left[0] - 1) > 1e-3  # the control: what balance leaves is not invariant


def test_no_descent_from_dead_units() -> None:
    """Zero is a subgradient: R grows along whatever wakes a dead unit."""
    symmetry, params, _ = dead()
    value, slope = with_gradient(symmetry, params)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        way = torch.zeros_like(params["4.weight"])
        way[:, 1] = torch.randn(3, generator=generator, dtype=WIDE)
        there = params | {"4.weight": params["4.weight"] + 1e-4 * way}
        assert float(orbit_penalty(symmetry, there)) > float(value)
    assert not slope["4.weight"][:, 1].any()


def test_a_cycle_that_nothing_leaves_costs_its_own_least_norm() -> None:
    spaces = {n: Space(n, PositiveScaling(2)) for n in "ab"}
    symmetry = by_hand(spaces, {"into": "a, 3", "there": "b, a*", "back": "a, b*"})
    params = normal(0, into=(2, 3), there=(2, 2), back=(2, 2))
    value, slope = with_gradient(symmetry, params)
    alone = balance(symmetry, params | {"into": torch.zeros(2, 3, dtype=WIDE)})
    assert alone.status is Status.OPTIMAL
    assert float(value) == pytest.approx(alone.value, rel=1e-12)
    assert not slope["into"].any() and slope["there"].all()


def test_an_adapter_that_starts_at_zero_costs_nothing() -> None:
    symmetry, params = interface(2)
    params["second"].zero_()
    value, slope = with_gradient(symmetry, params)
    assert float(value) == 0.0 and not norm(slope)


def test_null_directions_are_refused_and_may_be_held() -> None:
    symmetry, params = interface(6)
    with pytest.raises(ValueError, match=r"'m' have 1 null direction.*hold=\['m'\]"):
        orbit_penalty(symmetry, params)
    value = orbit_penalty(symmetry, params, hold=["m"])
    assert float(value) == pytest.approx(norm(params) ** 2)


def test_an_unknown_objective_is_refused() -> None:
    symmetry, params = interface()
    with pytest.raises(ValueError, match="objective='l3'"):
        orbit_penalty(symmetry, params, "l3")


# -- training ----------------------------------------------------------------------------------


def test_it_is_stationary_along_the_orbit() -> None:
    """Decay by R never moves along the orbit to first order; decay of the point does."""
    symmetry, params = perceptron(4, 5, 3, 2)
    _, slope = with_gradient(symmetry, params)
    velocity = symmetry.sample(torch.Generator().manual_seed(0), strength=1e-6)
    moved = act(symmetry, velocity, params)
    along = {n: moved[n] - params[n] for n in params}
    pairing = sum(float((slope[n] * along[n]).sum()) for n in params)
    assert abs(pairing) < 1e-6 * norm(slope) * norm(along)
    plain = sum(float((2 * params[n] * along[n]).sum()) for n in params)
    assert abs(plain) > 1e-3 * norm(params) * norm(along)
