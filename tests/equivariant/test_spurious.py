"""What docs/critical-points.md says of two convolutional layers, on random filters and targets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial


def composed(a, b, stride=1):
    spread = np.zeros(stride * (len(b) - 1) + 1)
    spread[::stride] = b
    return np.convolve(a, spread)


def jacobian(a, b, stride=1):
    left = [composed(e, b, stride) for e in np.eye(len(a))]
    right = [composed(a, e, stride) for e in np.eye(len(b))]
    return np.column_stack(left + right)


def with_roots(roots, degree):
    """A filter of this degree; what is missing are roots at infinity."""
    coefficients = np.zeros(degree + 1)
    coefficients[: len(roots) + 1] = np.atleast_1d(np.poly(roots))[::-1]
    return coefficients


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_layers_compose_to_the_product_of_polynomials(strides):
    """(α_{w,s} x)_i = Σ_j w_j x_{is+j} is torch's conv1d."""
    rng = np.random.default_rng(0)
    a, b, x = rng.standard_normal(3), rng.standard_normal(4), rng.standard_normal(60)

    def convolution(signal, w, stride):
        weight = torch.as_tensor(w)[None, None]
        return torch.nn.functional.conv1d(signal, weight, stride=stride)

    signal = torch.as_tensor(x)[None]
    both = convolution(convolution(signal, a, strides[0]), b, strides[1])
    once = convolution(signal, composed(a, b, strides[0]), strides[0] * strides[1])
    torch.testing.assert_close(both, once)
    wrong = convolution(signal, composed(a, b, strides[0] + 1), strides[0] * strides[1])
    length = min(wrong.shape[-1], both.shape[-1])
    assert (wrong[..., :length] - both[..., :length]).abs().max() > 0.1


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_the_rank_falls_by_one_for_each_common_root(data):
    """im dμ = g · ℝ[x]_{d − deg g}, roots at infinity included."""
    places = st.permutations([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
    order = data.draw(places)
    shared, infinite = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    one, two = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    common, rest = list(order[:shared]), list(order[shared:])
    a = with_roots(common + rest[:one], shared + one + infinite)
    b = with_roots(common + rest[one : one + two], shared + two + infinite)
    degree, lost = len(a) + len(b) - 2, shared + infinite
    image = jacobian(a, b)
    assert np.linalg.matrix_rank(image, tol=1e-8) == degree + 1 - lost
    multiples = np.column_stack(
        [np.convolve(with_roots(common, lost), e) for e in np.eye(degree - lost + 1)]
    )
    both = np.column_stack([image, multiples])
    assert np.linalg.matrix_rank(both, tol=1e-8) == degree + 1 - lost
    if lost:  # the control: a root that moves away restores the rank
        moved = a + 0.1 * np.random.default_rng(0).standard_normal(len(a))
        assert np.linalg.matrix_rank(jacobian(moved, b), tol=1e-8) == degree + 1


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 4]))
@settings(deadline=None, max_examples=60)
def test_spurious_points_are_the_critical_points_of_one_function(seed, degree):
    """f(r) = t(r)²/‖e(r)‖²: at each of its critical points with t(r) ≠ 0 sits a spurious point."""
    t = Polynomial(np.random.default_rng(seed).standard_normal(degree + 1))
    squares = np.zeros(2 * degree + 1)
    squares[::2] = 1
    e = Polynomial(squares)
    roots = (2 * t.deriv() * e - t * e.deriv()).roots()
    real = roots[np.abs(roots.imag) < 1e-9].real
    real = real[np.abs(real) < 20]
    for r in real:
        p = t.coef - t(r) / e(r) * r ** np.arange(degree + 1)
        scale = np.abs(p).max() * max(1.0, abs(r)) ** degree
        assert abs(Polynomial(p)(r)) < 1e-9 * scale
        assert abs(Polynomial(p).deriv()(r)) < 1e-7 * scale
        rest = (Polynomial(p) // Polynomial([-r, 1]) ** 2).coef
        a, b = np.convolve(rest, [-r, 1]), np.array([-r, 1.0])
        gap = composed(a, b) - t.coef
        inside = jacobian(a, b).T @ gap
        assert np.abs(inside).max() < 1e-6 * scale  # critical in weights
        np.testing.assert_allclose(
            np.linalg.norm(gap) ** 2, t(r) ** 2 / e(r), rtol=1e-5, atol=1e-12
        )
        values = np.linalg.svd(jacobian(a, b))[1]
        assert (
            values[degree] < 1e-6 * values[0] < values[degree - 1]
        )  # by one less than the full rank
    # The control: at another root the same construction is critical nowhere.
    r = 0.3 + (real[0] if len(real) else 0.0)
    p = Polynomial(t.coef - t(r) / e(r) * r ** np.arange(degree + 1))
    slope = (2 * t.deriv() * e - t * e.deriv())(r)
    if abs(slope) > 0.1:
        assert abs(p.deriv()(r)) > 1e-6


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_without_a_common_root_a_critical_point_is_pure(seed):
    """dμ is onto, so that no gradient in functions is hidden from the weights."""
    rng = np.random.default_rng(seed)
    a, b, gap = rng.standard_normal(3), rng.standard_normal(2), rng.standard_normal(4)
    image = jacobian(a, b)
    smallest = np.linalg.svd(image)[1][3]
    assert smallest > 0 and np.linalg.norm(image.T @ gap) >= 0.99 * smallest * np.linalg.norm(gap)


def test_a_larger_stride_loses_rank_where_one_filter_is_a_multiple_of_the_other_only():
    rng = np.random.default_rng(0)
    for _ in range(50):
        b = rng.standard_normal(2)
        a = rng.standard_normal(3)
        assert np.linalg.matrix_rank(jacobian(a, b, 2), tol=1e-8) == 4
        multiple = rng.standard_normal() * np.array([b[0], 0, b[1]])
        assert np.linalg.matrix_rank(jacobian(multiple, b, 2), tol=1e-8) == 3
