"""What may come in: every number, matrix and second moment passes one door."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paramsym.equivariant import (
    BadNumberError,
    Component,
    EquivariantAutoencoder,
    EquivariantError,
    EquivariantLinear,
    InvariantLinear,
    InvariantVariety,
    NotASecondMomentError,
    NotFiniteError,
    PermutationGroup,
    ShapeMismatchError,
    assert_equivariant,
    best_component,
    best_on_component,
    components,
    critical_points,
    decompose,
    dense_loss,
    equivariance_error,
    equivariant_part,
    image_rotation,
    image_shift,
    loss_of,
    nearest_component,
    project,
    symmetric_on_subsets,
)
from paramsym.equivariant.images import randomly_shifted, second_moment
from paramsym.equivariant.study import (
    DenseAutoencoder,
    closed_form_table,
    reconstruction_loss,
    train,
)

SHIFT = image_shift(2, 3)
FAMILY = components(SHIFT, 2)
COMPONENT = FAMILY[0]
IDENTITY = np.eye(6)
IMAGES = np.ones((4, 2, 3), dtype=np.float32)
VARIETY = InvariantVariety(SHIFT, 2, 1)

# What takes a second moment, with the matrix as its argument.
MOMENTS = {
    "best_component": lambda c: best_component(c, SHIFT, 2).loss,
    "best_on_component": lambda c: best_on_component(c, COMPONENT).loss,
    "dense_loss": lambda c: dense_loss(c, 2),
    "loss_of": lambda c: loss_of(IDENTITY / 2, c),
    "closed_form_table, train": lambda c: (
        closed_form_table(c, IDENTITY, decompose(SHIFT), 2)[0].train
    ),
    "closed_form_table, test": lambda c: (
        closed_form_table(IDENTITY, c, decompose(SHIFT), 2)[0].test
    ),
}
# What takes any matrix.
MATRICES = {
    "project": lambda m: project(m, COMPONENT),
    "critical_points": lambda m: list(critical_points(m, COMPONENT)),
    "nearest_component": lambda m: nearest_component(m, SHIFT, 2),
    "equivariant_part": lambda m: equivariant_part(m, SHIFT),
    "blocks": lambda m: decompose(SHIFT).blocks(m),
    "equivariance_error": lambda m: decompose(SHIFT).equivariance_error(m),
    "contains": lambda m: COMPONENT.contains(m),
    "block_ranks": lambda m: COMPONENT.block_ranks(m),
    "factorise": lambda m: COMPONENT.factorise(m),
    "load_matrix": lambda m: EquivariantLinear(SHIFT).load_matrix(m),
    "loss_of": lambda m: loss_of(m, IDENTITY),
    "variety": lambda m: VARIETY.project(m[:2]),
    "variety contains": lambda m: VARIETY.contains(m[:2]),
}
# What takes an integer, with one that is taken.
INTEGERS = {
    "components": (lambda k: components(SHIFT, k), 2),
    "best_component": (lambda k: best_component(IDENTITY, SHIFT, k), 2),
    "nearest_component": (lambda k: nearest_component(IDENTITY, SHIFT, k), 2),
    "dense_loss": (lambda k: dense_loss(IDENTITY, k), 2),
    "component": (lambda k: FAMILY.component((2, k)), 0),
    "ranks": (lambda k: Component(decompose(SHIFT), (2, k)), 0),
    "nearest": (lambda k: FAMILY.nearest((1, 1), k), 2),
    "rows": (lambda k: InvariantVariety(SHIFT, k, 0), 2),
    "rank": (lambda k: InvariantVariety(SHIFT, 2, k), 1),
    "out_features": (lambda k: InvariantLinear(SHIFT, k), 2),
    "in_channels": (lambda k: EquivariantLinear(SHIFT, in_channels=k), 2),
    "hidden": (lambda k: EquivariantAutoencoder(SHIFT, COMPONENT, hidden=((2, k),)), 1),
    "degree": (lambda k: PermutationGroup.from_cycles([[0, 1]], degree=k), 2),
    "height": (lambda k: image_shift(k, 3), 2),
    "size": (lambda k: image_rotation(k), 2),
    "channels": (lambda k: image_shift(2, 3, channels=k), 2),
    "points": (lambda k: symmetric_on_subsets(k, 1), 2),
    "subset": (lambda k: symmetric_on_subsets(3, k), 2),
    "chunk": (lambda k: second_moment(IMAGES, k), 2),
    "dense": (lambda k: DenseAutoencoder(6, k), 2),
    "epochs": (lambda k: train(DenseAutoencoder(6, 2), IMAGES, k, torch.Generator()), 1),
    "batch": (lambda k: reconstruction_loss(DenseAutoencoder(6, 2), IMAGES, k), 2),
}
TOLERANCES = {
    "contains": lambda t: COMPONENT.contains(IDENTITY, t),
    "block_ranks": lambda t: COMPONENT.block_ranks(IDENTITY, t),
    "is_singular": lambda t: FAMILY.is_singular(IDENTITY * 0, t),
    "variety": lambda t: VARIETY.contains(IDENTITY[:2] * 0, t),
    "assert_equivariant": lambda t: assert_equivariant(
        EquivariantLinear(SHIFT), SHIFT, torch.zeros(1, 6), tolerance=t
    ),
    "fraction": lambda t: randomly_shifted(IMAGES, t, np.random.default_rng(0)),
}


@pytest.mark.parametrize("name", MOMENTS)
@settings(deadline=None, max_examples=40)
@given(hnp.arrays(np.float64, (6, 6), elements=st.floats(-10, 10)))
@example(np.full((6, 6), 2.19454574e-162))  # its squares have lost all digits but one
def test_no_loss_is_below_zero(name, matrix):
    """A second moment gives a loss of at least zero; anything else is refused."""
    tiny = np.finfo(np.float64).tiny
    assert MOMENTS[name](matrix @ matrix.T) >= -1e-9 * np.abs(matrix @ matrix.T).max() - tiny
    skew = np.abs(matrix - matrix.T).max()
    lowest = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
    wrong = 1e-3 * np.abs(matrix).max() + 2 * tiny
    if skew > wrong or lowest < -wrong:
        with pytest.raises(NotASecondMomentError, match="expected a second moment.*Compute"):
            MOMENTS[name](matrix)


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize(
    "matrix, error, says",
    [
        (-6 * IDENTITY, NotASecondMomentError, "eigenvalue -6"),
        (np.triu(np.ones((6, 6))), NotASecondMomentError, "C − Cᵀ"),
        (np.where(IDENTITY == 1, math.nan, 0), NotFiniteError, "6 of 36 entries NaN"),
        (np.full((6, 6), math.inf), NotFiniteError, "NaN or infinite"),
        (IDENTITY * 1j, NotFiniteError, "complex"),
        (IDENTITY[:5], ShapeMismatchError, r"\(5, 6\)"),
        ([[1.0], [2.0, 3.0]], NotFiniteError, "different lengths"),
    ],
)
def test_what_is_no_second_moment_is_refused(name, matrix, error, says):
    with pytest.raises(error, match=says):
        MOMENTS[name](matrix)


@pytest.mark.parametrize("name", MOMENTS)
def test_rounding_is_no_reason_to_refuse(name):
    samples = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    rounded = samples.T @ samples / 3  # of rank 3: three eigenvalues are rounding errors
    noise = 1e-8 * np.random.default_rng(1).standard_normal((6, 6))
    assert MOMENTS[name](torch.as_tensor(rounded + noise)) >= 0


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_with_nan_is_refused(name):
    MATRICES[name](IDENTITY)
    for bad in (math.nan, math.inf):
        matrix = IDENTITY.copy()
        matrix[1, 2] = bad
        with pytest.raises(NotFiniteError, match="1 of .* entries NaN or infinite.*Look for NaN"):
            MATRICES[name](matrix)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5, 2.0, True, "2", None, -3])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_integers(name, bad):
    take, good = INTEGERS[name]
    take(good)
    take(np.int64(good))
    with pytest.raises(EquivariantError, match="expected|ranks|rank -3"):
        take(bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9, "small", 1j])
@pytest.mark.parametrize("name", TOLERANCES)
def test_tolerances_are_finite_and_not_negative(name, bad):
    TOLERANCES[name](1e-3)
    with pytest.raises(BadNumberError, match="expected a finite number, at least 0"):
        TOLERANCES[name](bad)


def test_a_network_of_nan_does_not_pass_as_equivariant():
    class Broken(torch.nn.Module):
        def forward(self, x):
            return x * math.nan

    x = torch.ones(2, 6)
    assert math.isnan(equivariance_error(Broken(), SHIFT, x))
    with pytest.raises(AssertionError, match="nan"):
        assert_equivariant(Broken(), SHIFT, x)
    assert_equivariant(torch.nn.Identity(), SHIFT, x)
