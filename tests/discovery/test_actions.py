"""Section 3 in numbers: conditions hold on symmetries, and each is seen where it is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paramsym.discovery.acting.action_check import ActionCheck, Verdict
from paramsym.discovery.acting.actions import check_action
from paramsym.discovery.acting.commutators import Action, field

Params = dict[str, Tensor]
Generator = torch.Generator


def normal(*shape: int) -> Callable[[Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator, dtype=torch.float64)


def near_identity(n: int) -> Callable[[Generator], Tensor]:
    return lambda generator: torch.linalg.matrix_exp(0.3 * normal(n, n)(generator))


def two_layers(m: int, h: int, n: int) -> Callable[[Generator], Params]:
    return lambda generator: {"V": normal(h, n)(generator), "U": normal(m, h)(generator)}


# Linear networks: GL(2), which does not depend on the data.


def linear_loss(params: Params, x: Tensor) -> Tensor:
    return params["U"] @ params["V"] @ x


def linear(g: Tensor, params: Params, x: Tensor) -> Params:
    return {"V": g @ params["V"], "U": params["U"] @ torch.linalg.inv(g)}


LINEAR: dict[str, Any] = {
    "elements": near_identity(2),
    "directions": normal(2, 2),
    "params": two_layers(3, 2, 3),
    "data": normal(3, 4),
}

# One sample, every unit by itself: z = Vx, V ↦ gV, U ↦ Uσ(z)/σ(gz), where σ(z) ≠ 0.


def unit_loss(params: Params, x: Tensor) -> Tensor:
    return params["U"] @ torch.sigmoid(params["V"] @ x)


def by_unit(g: Tensor, params: Params, x: Tensor) -> Params:
    z = params["V"] @ x
    factor = torch.sigmoid(z) / torch.sigmoid(g * z)
    return {"V": g[:, None] * params["V"], "U": params["U"] * factor}


UNIT: dict[str, Any] = {
    "elements": lambda generator: torch.exp(0.3 * normal(3)(generator)),
    "directions": normal(3),
    "params": two_layers(2, 3, 3),
    "data": normal(3),
    "product": torch.mul,
    "identity": torch.ones(3, dtype=torch.float64),
}


def verdicts(check: ActionCheck) -> dict[str, Verdict]:
    return {row.name: row.verdict for row in check.rows}


def test_linear_symmetry_holds_and_does_not_depend_on_the_data() -> None:
    found = check_action(linear, linear_loss, **LINEAR)
    assert found.is_symmetry and found.depends_on_data is False
    assert found["infinitesimal"].value.worst < 1e-12
    assert found["loss invariance"].control.median > 0.1


def test_unit_symmetry_holds_and_depends_on_the_data() -> None:
    found = check_action(by_unit, unit_loss, **UNIT)
    assert found.is_symmetry and found.depends_on_data is True
    assert all(row.value.worst < 1e-12 for row in found.rows[:-1])
    assert all(row.control.median > 1e-3 for row in found.rows)


def test_every_row_has_an_interval_around_its_median() -> None:
    for row in check_action(by_unit, unit_loss, samples=32, **UNIT).rows:
        for value in (row.value, row.moved, row.control):
            assert value.low <= value.median <= value.high <= value.worst
            assert value.samples == 32


def wrong_sign(g: Tensor, params: Params, x: Tensor) -> Params:
    return {"V": g @ params["V"], "U": params["U"] @ g}


def from_the_right(g: Tensor, params: Params, x: Tensor) -> Params:
    return linear(torch.linalg.inv(g), params, x)


def drifting(g: Tensor, params: Params, x: Tensor) -> Params:
    return {n: 1.01 * t for n, t in linear(g, params, x).items()}


def unsettled(g: Tensor, params: Params, x: Tensor) -> Params:
    return linear(g * torch.rand((), dtype=torch.float64).add(0.5), params, x)


@pytest.mark.parametrize(
    ("action", "broken"),
    [
        (wrong_sign, {"associativity", "loss invariance", "infinitesimal"}),
        (from_the_right, {"associativity"}),
        (drifting, {"identity", "associativity", "loss invariance"}),
        (unsettled, {"identity", "associativity", "one map per batch"}),
    ],
)
def test_broken_actions_fail_where_they_are_broken(action: Action, broken: set[str]) -> None:
    torch.manual_seed(0)
    given = {k: v for k, v in LINEAR.items() if action is not unsettled or k != "directions"}
    found = verdicts(check_action(action, linear_loss, **given))
    assert {name for name, verdict in found.items() if verdict is Verdict.FAILS} == broken


def test_least_change_keeps_the_loss_and_is_no_action() -> None:
    """U + U(σ(z) − σ(gz))σ(gz)⁺ is exact on its sample and does not obey the group law."""

    def least_change(g: Tensor, params: Params, x: Tensor) -> Params:
        z = params["V"] @ x
        now, then = torch.sigmoid(z), torch.sigmoid(g @ z)
        change = torch.outer(params["U"] @ (now - then), then) / (then @ then)
        return {"V": g @ params["V"], "U": params["U"] + change}

    found = check_action(
        least_change, unit_loss, elements=near_identity(3), directions=normal(3, 3),
        params=two_layers(2, 3, 3), data=normal(3),
    )  # fmt: skip
    fails = [name for name, verdict in verdicts(found).items() if verdict is Verdict.FAILS]
    assert fails == ["associativity"]
    assert found.depends_on_data is True


def test_an_action_that_moves_nothing_has_no_verdict() -> None:
    found = check_action(lambda g, params, x: params, linear_loss, samples=8, **LINEAR)
    assert set(verdicts(found).values()) == {Verdict.UNDECIDED}
    assert not found.is_symmetry and found.depends_on_data is None


def test_a_loss_that_sees_no_parameters_has_no_verdict() -> None:
    found = check_action(linear, lambda p, x: x.sum(0), samples=8, **LINEAR)
    assert found["loss invariance"].verdict is Verdict.UNDECIDED
    assert found["associativity"].verdict is Verdict.HOLDS


# Theorem 3.1 and equations (2), (3), (4).


def test_theorem_3_1_in_coordinates() -> None:
    """(3): the sum over parameters and over the basis of the algebra, against forward mode (2)."""
    generator = torch.Generator().manual_seed(0)
    params, x = UNIT["params"](generator), UNIT["data"](generator)
    target = torch.randn(2, generator=generator, dtype=torch.float64)

    def loss(params: Params) -> Tensor:
        return (unit_loss(params, x) - target).square().sum()

    one = torch.ones(3, dtype=torch.float64)
    gradient = torch.func.grad(loss)(params)
    moves = torch.func.jacrev(lambda g: by_unit(g, params, x))(one)  # names → (shape, 3)
    h = torch.randn(3, generator=generator, dtype=torch.float64)
    terms = {n: (gradient[n][..., None] * moves[n] * h).reshape(-1) for n in params}
    size = sum(float(t.abs().sum()) for t in terms.values())
    assert abs(sum(float(t.sum()) for t in terms.values())) <= 1e-14 * size
    assert abs(float(terms["V"].sum())) > 1e-3 * size  # what U takes back

    velocity = field(by_unit, params, x, h, one)
    slope = torch.func.jvp(loss, (params,), (velocity,))[1]
    assert abs(float(slope)) <= 1e-14 * size


@pytest.mark.parametrize(("skew", "vanishes"), [(True, True), (False, False)])
def test_equation_4_for_linear_actions(skew: bool, vanishes: bool) -> None:
    """d/dt L(exp(ht)θ) = Σ ∂L/∂θ_i h_ik θ_k; zero for rotations of L = x·‖θ‖², not for others."""
    theta, drawn = torch.randn(4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    h = drawn - drawn.T if skew else drawn

    def loss(theta: Tensor) -> Tensor:
        return 1.7 * theta.square().sum()

    written = torch.einsum("i,ik,k->", torch.func.grad(loss)(theta), h, theta)
    along = torch.func.jvp(
        lambda t: loss(torch.linalg.matrix_exp(h * t) @ theta),
        (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),),
    )[1]  # fmt: skip
    torch.testing.assert_close(written, along, atol=1e-12, rtol=1e-12)
    assert (abs(float(written)) < 1e-12) == vanishes


# Example 3.3.2: σ(αx) = α^c σ(x) for α > 0.


def homogeneous_loss(c: float) -> Callable[[Params, Tensor], Tensor]:
    def loss(params: Params, x: Tensor) -> Tensor:
        z = params["w"][0] * x
        return params["w"][1] * torch.where(z > 0, 2.0, -0.5) * z.abs() ** c

    return loss


def rescaling(c: float) -> Callable[[Tensor, Params, Tensor], Params]:
    return lambda g, params, x: {"w": torch.stack([g, g.abs() ** -c]) * params["w"]}


SCALARS: dict[str, Any] = {
    "params": lambda generator: {"w": normal(2)(generator)},
    "data": normal(),
    "product": torch.mul,
    "identity": torch.ones((), dtype=torch.float64),
}


def positive(generator: Generator) -> Tensor:
    return torch.exp(0.5 * normal()(generator))


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 3.5])
def test_homogeneous_example(c: float) -> None:
    found = check_action(
        rescaling(c), homogeneous_loss(c), elements=positive, directions=normal(), **SCALARS
    )
    assert found.is_symmetry and found.depends_on_data is False


def test_homogeneous_example_with_another_power_fails() -> None:
    found = check_action(
        rescaling(1.0), homogeneous_loss(2.0), elements=positive, directions=normal(), **SCALARS
    )
    fails = [name for name, verdict in verdicts(found).items() if verdict is Verdict.FAILS]
    assert fails == ["loss invariance", "infinitesimal"]


def test_negative_numbers_of_the_group_as_printed_fail() -> None:
    """The example says R^×; homogeneity is for α > 0 alone, and −1 changes what σ reads."""
    found = check_action(
        rescaling(1.0), homogeneous_loss(1.0), elements=lambda g: -positive(g), **SCALARS
    )
    fails = [name for name, verdict in verdicts(found).items() if verdict is Verdict.FAILS]
    assert fails == ["loss invariance"]


# Proposition A.1, f′(x) = c f(x)/x.


@pytest.mark.parametrize("x", [0.7, -1.3, 1e-3, -40.0])
@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 3.0])
def test_euler_away_from_zero(c: float, x: float) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.where(x > 0, 2.0, -0.5) * x.abs() ** c

    at = torch.tensor(x, dtype=torch.float64)
    slope, expected = torch.func.grad(f)(at), c * f(at) / at
    torch.testing.assert_close(slope, expected, rtol=1e-13, atol=0)
    assert abs(float((c + 1) * f(at) / at - slope)) > 0.1 * abs(float(slope))  # another power


def test_euler_at_zero_is_no_formula() -> None:
    """f(x) = x is differentiable at 0 with slope 1, where c f(x)/x is 0/0."""
    at = torch.zeros((), dtype=torch.float64)
    assert torch.func.grad(lambda x: x)(at) == 1
    assert (at / at).isnan()


def test_homogeneity_as_printed_has_one_function_only() -> None:
    """f(αx) = α^c x, without f on the right, says f(x) = x at α = 1, and then c = 1."""
    for c in (1.0, 2.0):
        alphas = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
        by_definition = alphas**c * 1.0  # f(α · 1)
        assert torch.equal(by_definition, alphas) == (c == 1.0)


# Bad input.


def test_too_few_draws() -> None:
    with pytest.raises(ValueError, match=r"check_action\(samples=5\): at least 6 were expected"):
        check_action(linear, linear_loss, samples=5, **LINEAR)


def test_singular_elements_and_nan_are_refused_with_their_place() -> None:
    with pytest.raises(ValueError, match=r"check_action: draw 0: 'U' is not finite"):
        check_action(
            lambda g, p, x: {"V": p["V"], "U": p["U"] / 0}, linear_loss, samples=8, **LINEAR
        )
    with pytest.raises(ValueError, match=r"draw 0: the network returned \[nan"):
        check_action(linear, lambda p, x: linear_loss(p, x) * torch.nan, samples=8, **LINEAR)


def test_counts_and_nan_among_the_parameters_are_refused() -> None:
    for extra in (torch.ones(2, dtype=torch.int64), torch.tensor([torch.nan])):
        start = {**two_layers(3, 2, 3)(torch.Generator()), "extra": extra}
        with pytest.raises(ValueError, match=r"'extra' of torch\.\w+ came with numbers"):
            check_action(linear, linear_loss, samples=8, **{**LINEAR, "params": start})


def test_a_loss_of_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="of torch.int64, and finite real"):
        check_action(linear, lambda p, x: linear_loss(p, x).argmax(0), samples=8, **LINEAR)


def test_actions_that_lose_a_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match="the same names and shapes were expected"):
        check_action(lambda g, p, x: {"V": p["V"]}, linear_loss, samples=8, **LINEAR)


def test_unknown_conditions_are_named() -> None:
    given = {k: v for k, v in LINEAR.items() if k != "directions"}
    found = check_action(linear, linear_loss, samples=8, **given)
    with pytest.raises(KeyError, match="given directions"):
        found["infinitesimal"]


def test_float32_has_a_wider_tolerance() -> None:
    def single(sampler: Callable[[Generator], Tensor]) -> Callable[[Generator], Tensor]:
        return lambda generator: sampler(generator).float()

    found = check_action(
        linear, linear_loss, elements=single(near_identity(2)), data=single(normal(3, 4)),
        params=lambda g: {n: t.float() for n, t in two_layers(3, 2, 3)(g).items()},
        samples=16,
    )  # fmt: skip
    assert 1e-5 < found.tolerance < 1e-3
    assert found["associativity"].verdict is Verdict.HOLDS


def test_the_table_has_a_line_for_every_condition() -> None:
    lines = str(check_action(by_unit, unit_loss, samples=8, **UNIT)).splitlines()
    assert [line.split("  ")[0] for line in lines[1:-1]] == [
        "one map per batch", "identity", "associativity", "loss invariance", "infinitesimal",
        "data dependence",
    ]  # fmt: skip
    assert lines[-1].startswith("8 draws") and "holds" in lines[1] and "depends" in lines[-2]
