"""Rows of features, and the matrix of a key on them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramsym import find_symmetry
from paramsym.privacy import Key, NotApplicable
from paramsym.privacy.attacks.features import (
    features_of,
    map_on_input,
    mixed,
    pseudo_inverse,
    rows_of,
)
from paramsym.structure.interfaces import act_inputs
from tests.privacy.attacks.jobs import convolutional, job, perceptron
from tests.privacy.attacks.keys import gaussian, key, seeded


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 99))
def test_a_map_along_the_feature_axis_maps_each_row(samples, size, axis, seed):
    generator = seeded(seed)
    shape = [samples, 2, 3]
    shape[axis] = size
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    matrix = gaussian(size, size, generator)
    moved = torch.tensordot(x, matrix, ([axis], [1])).movedim(-1, axis)
    assert torch.allclose(features_of(moved, axis), features_of(x, axis) @ matrix.T)
    assert torch.equal(features_of(x, axis - 3), features_of(x, axis))


def test_positions_are_samples():
    images = torch.arange(24.0).reshape(2, 3, 2, 2)
    rows = features_of(images, 1)
    assert rows.shape == (8, 3) and rows.dtype == torch.float64
    assert torch.equal(rows[5], images[1, :, 0, 1].double())


def test_integers_and_missing_axes_are_refused():
    with pytest.raises(ValueError, match="int64 came, and real numbers were expected"):
        features_of(torch.arange(6).reshape(2, 3), -1)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) came, and an axis 2 was expected"):
        features_of(torch.ones(2, 3), 2)


@pytest.mark.parametrize("build, shape, axis", [
    (perceptron, (9, 5), -1), (perceptron, (4, 2, 5), -1), (convolutional, (6, 3, 4, 4), 1)
])  # fmt: skip
def test_the_matrix_of_an_element_moves_the_rows_as_the_element_does(build, shape, axis, generator):
    model = build(shape[axis])
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), free_inputs={"input": axis})
    (feature,) = symmetry.inputs.values()
    element = symmetry.sample(generator, dtype=torch.float64)
    matrix = map_on_input(symmetry, element, x.dim(), model.state_dict())
    sent = features_of(act_inputs(symmetry, element, x, model.state_dict()), feature)
    rows = features_of(x, feature)
    assert torch.allclose(rows @ matrix.T, sent, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(rows @ matrix, sent, rtol=1e-2)  # not its transpose


def test_a_symmetry_without_freed_inputs_is_refused(generator):
    model = perceptron(5)
    symmetry = find_symmetry(model, (gaussian(9, 5, generator),))
    with pytest.raises(ValueError, match="frees 0 inputs"):
        map_on_input(symmetry, symmetry.sample(generator), 2)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
def test_rounding_is_no_direction(precision, generator):
    thin = gaussian(20, 3, generator) @ gaussian(3, 8, generator)
    rounded = thin.to(precision).double()
    inverse = pseudo_inverse(rounded, precision)
    assert torch.linalg.matrix_rank(inverse, rtol=1e-3) == 3
    assert torch.linalg.norm(inverse) < 10 * torch.linalg.norm(torch.linalg.pinv(thin, rtol=1e-9))
    if precision == torch.float32:  # what is taken for exact is inverted, rounding and all
        assert torch.linalg.norm(pseudo_inverse(rounded)) > 1e3 * torch.linalg.norm(inverse)


def test_a_key_of_the_tests_is_what_it_says(generator):
    for kind in ("orthogonal", "signed permutation"):
        matrix = key(kind, 6, generator)
        assert torch.allclose(matrix @ matrix.T, torch.eye(6).double())
    assert 3 < torch.linalg.cond(key("general linear", 64, generator)) < 30


def test_a_job_is_read_on_both_sides(generator):
    images = torch.rand(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    own = job(convolutional(3), images, "general linear", axis=1)
    rows = rows_of(own)
    matrix = own.key.element["input"].matrix
    assert rows.plain.shape == (80, 3) and rows.samples == 5 and rows.size == 3
    assert torch.allclose(rows.sent, rows.plain @ matrix.T)
    assert torch.allclose(mixed(images, rows.feature, matrix), own.view.inputs)
    assert rows_of(own, 3).samples == 3
    assert rows.some(7)[0].shape[0] <= 7


def test_a_job_without_one_real_input_that_moves_is_passed_over(generator):
    own = job(perceptron(4), torch.randn(30, 4, generator=generator), "orthogonal")
    still = find_symmetry(own.model, (own.inputs,))
    with pytest.raises(NotApplicable, match="frees 0 inputs"):
        rows_of(replace(own, key=Key.generate(still, generator)))
    with pytest.raises(NotApplicable, match="int64, and this needs real numbers"):
        rows_of(replace(own, inputs=own.inputs.long()))
