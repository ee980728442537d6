import numpy as np
import pytest
import torch

from paramsym.equivariant import (
    NoSuchComponentError,
    ShapeMismatchError,
    components,
    critical_points,
    decompose,
    equivariant_part,
    nearest_component,
    project,
    symmetric_on_subsets,
)
from tests.equivariant.instances import cycles


def middle_components(group):
    d = decompose(group)
    for rank in range(1, d.largest_rank):
        family = components(d, rank)
        if family.count:
            yield family[family.count // 2]


def test_the_projection_lies_on_the_component_and_is_idempotent(group, rng):
    matrix = rng.standard_normal((group.degree, group.degree))
    for component in middle_components(group):
        nearest = project(matrix, component)
        assert component.contains(nearest)
        assert component.decomposition.equivariance_error(nearest) <= 1e-14
        np.testing.assert_allclose(project(nearest, component), nearest, atol=1e-12)


def test_no_sampled_point_of_the_component_is_nearer(group, rng):
    matrix = rng.standard_normal((group.degree, group.degree))
    for component in list(middle_components(group))[:6]:
        nearest = project(matrix, component)
        distance = np.linalg.norm(matrix - nearest)
        decoder, encoder = component.factorise(nearest)
        for scale in (1e-3, 0.1, 1.0):
            # Other factors with the same weight sharing: move within the component.
            other = project(nearest + scale * rng.standard_normal(matrix.shape), component)
            assert np.linalg.norm(matrix - other) >= distance - 1e-12


def test_critical_points_are_as_many_as_the_ed_degree_and_orthogonal(group, rng):
    matrix = rng.standard_normal((group.degree, group.degree))
    for component in middle_components(group):
        if component.ed_degree > 60:
            continue
        points = list(critical_points(matrix, component))
        assert len(points) == component.ed_degree
        found = {tuple(np.round(p.matrix, 8).ravel()) for p in points}
        assert len(found) == len(points)
        assert points[0].distance == min(p.distance for p in points)
        np.testing.assert_allclose(points[0].matrix, project(matrix, component), atol=1e-12)
        for point in points[:6]:
            assert component.contains(point.matrix)
            # The residual is orthogonal to the tangent space, D · enc + dec · E.
            decoder, encoder = component.factorise(point.matrix)
            step = component.sample(rng)
            rest = matrix - point.matrix
            size = np.linalg.norm(rest) * np.linalg.norm(step)
            other_decoder, other_encoder = component.factorise(step)
            assert abs(np.sum(rest * (other_decoder @ encoder))) < 1e-11 * size
            assert abs(np.sum(rest * (decoder @ other_encoder))) < 1e-11 * size


def test_a_point_that_is_not_critical_is_noticed(rng):
    group = cycles(4, [[0, 1], [2, 3]])
    component = components(group, 2).component((1, 1))
    matrix, step = rng.standard_normal((4, 4)), component.sample(rng)
    wrong = component.sample(rng)
    _, encoder = component.factorise(wrong)
    decoder, _ = component.factorise(step)
    assert abs(np.sum((matrix - wrong) * (decoder @ encoder))) > 1e-6


def test_ties_still_give_a_matrix_of_the_component(group):
    """All singular values of the identity are equal; the choice must respect ℂ and ℍ."""
    for component in middle_components(group):
        nearest = project(np.eye(group.degree), component)
        assert component.contains(nearest)
        assert np.linalg.matrix_rank(nearest) == component.rank


def test_the_nearest_component_beats_all_others(group, rng):
    matrix = rng.standard_normal((group.degree, group.degree))
    d = decompose(group)
    for rank in range(1, d.largest_rank):
        family = components(d, rank)
        if 0 < family.count <= 40:
            best = nearest_component(matrix, d, rank)
            distances = {c: np.linalg.norm(matrix - project(matrix, c)) for c in family}
            assert distances[best] <= min(distances.values()) + 1e-12


def test_the_kind_of_the_argument_is_kept(rng):
    component = components([1, 2, 3, 0], 2)[0]
    matrix = torch.as_tensor(rng.standard_normal((4, 4)), dtype=torch.float32)
    nearest = project(matrix, component)
    assert isinstance(nearest, torch.Tensor) and nearest.dtype == torch.float32
    assert isinstance(project(matrix.numpy(), component), np.ndarray)
    average = equivariant_part(matrix, [1, 2, 3, 0])
    assert decompose([1, 2, 3, 0]).equivariance_error(average.numpy()) < 1e-6


def test_wrong_shapes_and_impossible_ranks(rng):
    with pytest.raises(ShapeMismatchError):
        project(np.zeros((3, 3)), components([1, 2, 3, 0], 2)[0])
    with pytest.raises(NoSuchComponentError, match="No rank vector is valid"):
        nearest_component(np.zeros((66, 66)), symmetric_on_subsets(12), 20)
