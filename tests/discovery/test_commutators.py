"""The infinitesimal group law: exact on actions, seen on what is none, and the published term."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.discovery.acting.commutators import (
    commutator_defect,
    commutator_residual,
    field,
    matrix_bracket,
    no_bracket,
    norm,
    published_associativity,
)

Params = dict[str, Tensor]
HYPERBOLIC = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))[None]


def linear(g: Tensor, params: Params, data: object) -> Params:
    """(V, U) ↦ (gV, Ug⁻¹), the group of a linear network."""
    return {"V": g @ params["V"], "U": params["U"] @ torch.linalg.inv(g)}


def backwards(g: Tensor, params: Params, data: object) -> Params:
    """The same from the right, where the order of products turns round."""
    return linear(torch.linalg.inv(g), params, data)


def rescaling(g: Tensor, params: Params, data: object) -> Params:
    """(w₁, w₂) ↦ ρ(g)(w₁, w₂), example 3.3.2 with g already a matrix."""
    return {"w": g @ params["w"]}


def units(n: int) -> Tensor:
    return torch.eye(n * n, dtype=torch.float64).reshape(n * n, n, n)


def drawn(seed: int, *columns: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    inner, outer = columns
    return {
        "V": torch.randn(2, inner, generator=generator, dtype=torch.float64),
        "U": torch.randn(outer, 2, generator=generator, dtype=torch.float64),
    }


def scalars(seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(2, generator=generator, dtype=torch.float64)}


def test_field_of_a_linear_action() -> None:
    params, a = drawn(0, 3, 4), units(2)[1]
    found = field(linear, params, None, a)
    torch.testing.assert_close(found["V"], a @ params["V"])
    torch.testing.assert_close(found["U"], -params["U"] @ a)


def test_field_is_the_derivative_of_finite_elements() -> None:
    params, a = drawn(1, 3, 4), torch.randn(2, 2, dtype=torch.float64)
    step = 1e-5
    ends = [linear(torch.linalg.matrix_exp(t * a), params, None) for t in (step, -step)]
    found = field(linear, params, None, a)
    for name in params:
        slope = (ends[0][name] - ends[1][name]) / (2 * step)
        torch.testing.assert_close(found[name], slope, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_actions_have_no_defect(seed: int) -> None:
    assert commutator_defect(linear, drawn(seed, 3, 4), None, units(2)).max() <= 1e-14
    assert commutator_defect(rescaling, scalars(seed), None, HYPERBOLIC).max() <= 1e-14


@given(st.integers(1, 4), st.integers(0, 2**16))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_actions_by_conjugation_have_no_defect(n: int, seed: int) -> None:
    """A nonlinear picture of a linear action: θ ↦ φ(g φ⁻¹(θ)) with φ = sinh."""

    def bent(g: Tensor, params: Params, data: object) -> Params:
        return {"w": torch.sinh(g @ torch.asinh(params["w"]))}

    generator = torch.Generator().manual_seed(seed)
    params = {"w": torch.randn(n, 2, generator=generator, dtype=torch.float64)}
    a, b = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    found = commutator_residual(bent, params, None, a, b)
    size = norm(field(bent, params, None, a)) * norm(field(bent, params, None, b))
    assert norm(found) <= 1e-12 * (1 + size)
    flipped = commutator_residual(bent, params, None, a, b, bracket=lambda a, b: b @ a - a @ b)
    twice = norm(field(bent, params, None, 2 * matrix_bracket(a, b)))
    torch.testing.assert_close(norm(flipped), twice, rtol=1e-9, atol=1e-11)


def test_the_bracket_of_a_product_is_that_of_its_order() -> None:
    """log(exp εB exp εA) = ε(A + B) + ½ε²[B, A] + …; A.2 prints [A, B]."""
    a, b = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-3
    product = torch.linalg.matrix_exp(step * b) @ torch.linalg.matrix_exp(step * a)
    away = product - torch.eye(3, dtype=torch.float64)
    second = (away - away @ away / 2 - step * (a + b)) / step**2  # of the logarithm
    bracket = matrix_bracket(b, a) / 2
    assert (second - bracket).abs().max() < 0.05 * bracket.abs().max()
    assert (second + bracket).abs().max() > 1.9 * bracket.abs().max()


def test_an_action_from_the_right_is_seen() -> None:
    params = drawn(0, 3, 4)
    found = commutator_defect(backwards, params, None, units(2))
    a, b = units(2)[1], units(2)[2]
    twice = norm(field(linear, params, None, 2 * matrix_bracket(a, b)))
    torch.testing.assert_close(found[1, 2], twice)
    torch.testing.assert_close(found, found.T)


def test_a_wrong_bracket_is_seen() -> None:
    params = drawn(0, 3, 4)
    found = commutator_defect(linear, params, None, units(2), bracket=no_bracket)
    assert found[1, 2] > 0.1
    assert found[0, 3] <= 1e-14  # these commute


def test_fields_that_do_not_close_are_seen() -> None:
    def bent(g: Tensor, params: Params, data: object) -> Params:
        w = params["w"]
        return {"w": torch.stack([w[0] + g[0], w[1] + g[1] * w[0]])}

    found = commutator_defect(
        bent, scalars(0), None, torch.eye(2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64), no_bracket,
    )  # fmt: skip
    torch.testing.assert_close(found[0, 1], torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("nested", [False, True])
def test_the_published_term_is_the_norm_of_theta_on_the_exact_rescaling(nested: bool) -> None:
    for seed in range(5):
        params = scalars(seed)
        found = published_associativity(rescaling, params, None, HYPERBOLIC, nested=nested)
        torch.testing.assert_close(found[0, 0], norm(params), rtol=1e-15, atol=0)


def mean_published(samples: int) -> tuple[Tensor, Tensor]:
    """The term on linear GL(2), network 1-2-1, by ordered pair: means and standard errors."""
    generator = torch.Generator().manual_seed(0)
    thetas = {
        "V": torch.randn(samples, 2, 1, generator=generator, dtype=torch.float64),
        "U": torch.randn(samples, 1, 2, generator=generator, dtype=torch.float64),
    }
    found = torch.func.vmap(lambda p: published_associativity(linear, p, None, units(2)))(thetas)
    return found.mean(0), found.std(0) / samples**0.5


def test_the_published_term_on_linear_gl2() -> None:
    """7.4 over pairs of different generators, 17.2 over all ordered ones: nowhere near zero."""
    mean, error = mean_published(4000)
    twin = torch.zeros(4, 4, dtype=torch.float64)  # ‖(H_B H_A − ½[H_A, H_B])θ‖ with dense matrices
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(4, 4000, generator=generator, dtype=torch.float64)
    dense = [torch.block_diag(a, -a.T) for a in units(2)]
    for i, a in enumerate(dense):
        for j, b in enumerate(dense):
            twin[i, j] = ((b @ a - (a @ b - b @ a) / 2) @ theta).norm(dim=0).mean()
    assert ((mean - twin).abs() <= 6 * error + 1e-14).all()
    assert abs(float(mean.triu(1).sum()) - 7.4) < 0.2
    assert abs(float(mean.sum()) - 17.2) < 0.4


def test_both_terms_run_under_vmap_and_have_gradients() -> None:
    weight = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def learned(g: Tensor, params: Params, x: Tensor) -> Params:
        return {"w": params["w"] + torch.tanh(weight @ (g @ params["w"]) + x)}

    thetas = {"w": torch.randn(5, 2, dtype=torch.float64)}
    data = torch.randn(5, 2, dtype=torch.float64)
    for term in (commutator_defect, published_associativity):
        found = torch.func.vmap(lambda p, x, term=term: term(learned, p, x, units(2)))(thetas, data)
        assert found.shape == (5, 4, 4)
        (slope,) = torch.autograd.grad(found.sum(), weight)
        assert torch.isfinite(slope).all() and slope.abs().max() > 0


def test_velocities_that_an_action_states_are_used() -> None:
    class Stated:
        def __call__(self, g: Tensor, params: Params, data: object) -> Params:
            raise AssertionError("it is not called")

        def velocity(self, direction: Tensor, params: Params, data: object) -> Params:
            return {"w": direction @ params["w"]}

    generators = units(2)
    assert commutator_defect(Stated(), scalars(0), None, generators).max() <= 1e-14


def test_the_identity_of_other_groups_must_be_told() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"shape \(3,\) came without an identity") as error:
        field(linear, drawn(0, 3, 4), None, zero)
    assert "torch.zeros(k)" in str(error.value)
    with pytest.raises(ValueError, match=r"shape \(3,\) came for a direction of shape \(2,\)"):
        field(linear, drawn(0, 3, 4), None, zero[:2], zero)


def test_residuals_have_the_shapes_of_the_parameters() -> None:
    params = drawn(0, 3, 4)
    found = commutator_residual(linear, params, None, units(2)[1], units(2)[2])
    assert {n: t.shape for n, t in found.items()} == {n: t.shape for n, t in params.items()}
