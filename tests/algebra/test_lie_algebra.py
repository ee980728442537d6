"""Lie algebras: coordinates, the exponential map, and the infinitesimal action."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from paramsym.algebra import (
    AbstractMonomial,
    ComplexScaling,
    GeneralLinear,
    Group,
    OrthogonalFixingOnes,
    Tangent,
    UnitComplex,
    Wreath,
)
from tests.instances import GROUPS

every_group = pytest.mark.parametrize("group", GROUPS, ids=str)
batched = pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=["single", "batch", "batch2"])
DOUBLE = torch.float64


def velocity_matrix(group: Group, a: Tangent, dtype: torch.dtype) -> Tensor:
    """The dense matrix of an algebra element, read off what it does to the basis vectors."""
    batch = a.batch_shape
    eye = torch.eye(group.size, dtype=dtype).expand(*batch, group.size, group.size)
    return group.infinitesimal(a, eye, len(batch)).expand_as(eye)


@every_group
@batched
def test_exponential_lands_in_the_group(group: Group, batch, dtype):
    generator = torch.Generator().manual_seed(3)
    g = group.exp(group.random_algebra(generator, batch, dtype))
    assert group.contains(g)
    if group.dimension:
        assert g.batch_shape == torch.Size(batch)


@every_group
def test_exponential_is_a_one_parameter_group(group: Group, dtype, tolerance, generator):
    a = group.random_algebra(generator, dtype=dtype).scaled(0.5)
    sum_first = group.exp(a.scaled(3.0))
    product = group.compose(group.exp(a), group.exp(a.scaled(2.0)))
    assert torch.allclose(
        group.matrix(sum_first, dtype), group.matrix(product, dtype), atol=tolerance, rtol=tolerance
    )
    zero = group.exp(a.scaled(0.0))
    assert torch.allclose(
        group.matrix(zero, dtype), torch.eye(group.size, dtype=dtype), atol=tolerance
    )


@every_group
@batched
def test_exponential_is_the_matrix_exponential(group: Group, batch, dtype, tolerance, generator):
    a = group.random_algebra(generator, batch, dtype)
    dense = torch.linalg.matrix_exp(velocity_matrix(group, a, dtype))
    fast = group.matrix(group.exp(a), dtype).expand_as(dense)
    assert torch.allclose(fast, dense, atol=10 * tolerance, rtol=10 * tolerance)


def powers_of(group: Group) -> list[int | Fraction]:
    return [1, 0, 2, -1, Fraction(1, 3)] if isinstance(group, AbstractMonomial) else [1]


@every_group
@batched
def test_infinitesimal_action_is_the_derivative_of_the_action(group: Group, batch, generator):
    a = group.random_algebra(generator, batch, DOUBLE)
    x = torch.randn(*batch, 3, group.size, 2, generator=generator, dtype=DOUBLE)
    axis = len(batch) + 1
    for power in powers_of(group):
        if isinstance(group, AbstractMonomial) and group.signs and power != int(power):
            continue
        for act, derivative in (
            (group.apply, group.infinitesimal),
            (group.apply_dual, group.infinitesimal_dual),
        ):

            def along_the_curve(t: Tensor, act=act, power=power) -> Tensor:
                return act(group.exp(a.scaled(t)), x, axis, power)

            zero, one = torch.zeros((), dtype=DOUBLE), torch.ones((), dtype=DOUBLE)
            expected = torch.func.jvp(along_the_curve, (zero,), (one,))[1]
            actual = derivative(a, x, axis, power)
            assert actual.shape == x.shape
            assert torch.allclose(actual, expected, atol=1e-11)
            step = 1e-5 * one
            difference = (along_the_curve(step) - along_the_curve(-step)) / 2e-5
            assert torch.allclose(actual, difference, atol=1e-7)


@every_group
@batched
def test_infinitesimal_dual_is_minus_the_transpose(group: Group, batch, generator):
    a = group.random_algebra(generator, batch, DOUBLE)
    dense = velocity_matrix(group, a, DOUBLE)
    dual = velocity_matrix(group, group.dual_tangent(a), DOUBLE)
    assert torch.allclose(dual, -dense.mT, atol=1e-12)


@every_group
def test_coordinates_are_orthonormal(group: Group):
    basis = group.tangent(torch.eye(group.dimension, dtype=DOUBLE))
    if not group.dimension:
        assert basis.batch_shape == torch.Size() or basis.batch_shape == torch.Size([0])
        return
    vectors = velocity_matrix(group, basis, DOUBLE).flatten(1)
    assert torch.allclose(vectors @ vectors.mT, torch.eye(group.dimension, dtype=DOUBLE))


@every_group
@batched
def test_coordinates_invert_tangent(group: Group, batch, dtype, tolerance, generator):
    if not group.dimension:
        assert group.coordinates(group.tangent(torch.zeros(*batch, 0))).numel() == 0
        return
    coordinates = torch.randn(*batch, group.dimension, generator=generator, dtype=dtype)
    again = group.coordinates(group.tangent(coordinates))
    assert again.shape == coordinates.shape
    assert torch.allclose(again, coordinates, atol=tolerance)


@every_group
@batched
def test_coordinates_of_any_matrix_are_its_orthogonal_projection(group: Group, batch, generator):
    any_matrix = torch.randn(*batch, group.size, group.size, generator=generator, dtype=DOUBLE)
    coordinates = group.coordinates(Tangent(matrix=any_matrix))
    assert coordinates.shape == (*batch, group.dimension)
    if group.dimension:
        basis = velocity_matrix(group, group.tangent(torch.eye(group.dimension).double()), DOUBLE)
        expected = torch.einsum("...ij,kij->...k", any_matrix, basis)
        assert torch.allclose(coordinates, expected, atol=1e-12)


@every_group
def test_dimension_counts_the_directions_that_move(group: Group, generator):
    """The rank of the derivative at t = 0 of exp, on generic vectors enough to tell them apart."""
    if not group.dimension:
        return
    x = torch.randn(group.size, group.size + 1, generator=generator, dtype=DOUBLE)

    def moved(coordinates: Tensor) -> Tensor:
        return group.apply(group.exp(group.tangent(coordinates)), x, 0).flatten()

    zero = torch.zeros(group.dimension, dtype=DOUBLE)
    jacobian = torch.func.jacfwd(moved)(zero)
    assert torch.linalg.matrix_rank(jacobian) == group.dimension


@pytest.mark.parametrize(
    ("group", "dimension"),
    [
        (OrthogonalFixingOnes(8), 21),
        (OrthogonalFixingOnes(1), 0),
        (ComplexScaling(8), 8),
        (UnitComplex(8), 4),
        (Wreath(GeneralLinear(4), 2), 32),
    ],
    ids=str,
)
def test_dimensions_of_the_architecture_table(group: Group, dimension: int):
    assert group.dimension == dimension


def test_a_velocity_outside_the_algebra_leaves_the_group(generator):
    """The negative control of the exponential: a symmetric velocity does not rotate."""
    group = OrthogonalFixingOnes(5)
    a = torch.randn(5, 5, generator=generator, dtype=DOUBLE)
    assert not group.contains(group.exp(Tangent(matrix=a + a.mT)))
    assert not group.contains(group.exp(Tangent(matrix=a - a.mT))), "skew, but it moves 1"


@every_group
def test_the_action_can_be_differentiated_in_the_coordinates(group: Group, generator):
    """What a moment map needs: the gradient of ½‖exp(t a) x‖² at t = 0, in the coordinates."""
    if not group.dimension:
        return
    x = torch.randn(group.size, 2, generator=generator, dtype=DOUBLE)
    coordinates = torch.zeros(group.dimension, dtype=DOUBLE, requires_grad=True)
    moved = group.apply(group.exp(group.tangent(coordinates)), x, 0)
    (gradient,) = torch.autograd.grad(moved.square().sum() / 2, coordinates)
    assert torch.allclose(gradient, group.coordinates(Tangent(matrix=x @ x.mT)), atol=1e-12)
