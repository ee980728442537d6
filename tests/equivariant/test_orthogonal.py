"""Orthogonal representations: signed permutations, rotations, quaternions, sums in any basis."""

import copy
import pickle
import time
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from paramsym.equivariant import (
    EquivariantAutoencoder,
    EquivariantLinear,
    NearlyEqualError,
    NotAPermutationError,
    NotOrthogonalError,
    OrthogonalGroup,
    PermutationGroup,
    assert_equivariant,
    best_component,
    components,
    decompose,
    equivariance_error,
    image_dihedral,
    image_shift,
    loss_of,
    project,
    signed_permutation,
    symmetric_on_subsets,
)
from paramsym.equivariant.division import MULTIPLICATION
from paramsym.equivariant.forms.choice import FORMS
from paramsym.equivariant.orthogonal import as_representation
from tests.equivariant.instances import GROUPS, quaternion_group


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


MIRROR = np.diag([1.0, -1.0])
I4, J4 = MULTIPLICATION[4][1], MULTIPLICATION[4][2]  # two quaternions, multiplying from the left
CYCLE, SWAP = [1, 2, 3, 0], [1, 0, 2, 3]

# name: (irreducible representations by their generators, each with its type δ)
FAMILIES = {
    "hyperoctahedral B4": [
        ([signed_permutation(CYCLE, [1] * 4), signed_permutation(SWAP, [-1, 1, 1, 1])], 1),
        ([np.eye(1), np.eye(1)], 1),
        ([-np.eye(1), np.eye(1)], 1),
    ],
    "dihedral D5": [
        ([rotation(2 * np.pi / 5), MIRROR], 1),
        ([rotation(4 * np.pi / 5), MIRROR], 1),
        ([np.eye(1), -np.eye(1)], 1),
        ([np.eye(1), np.eye(1)], 1),
    ],
    "quaternions Q8": [([I4, J4], 4), ([np.eye(1), -np.eye(1)], 1), ([-np.eye(1), np.eye(1)], 1)],
    "rotations SO(2)": [
        ([rotation(1.0)], 2),
        ([rotation(2.0)], 2),
        ([rotation(3.0)], 2),
        ([np.eye(1)], 1),
    ],
    "rotations SO(3)": [
        ([block_diag(rotation(1.0), 1), block_diag(1, rotation(np.sqrt(2)))], 1),
        ([np.eye(1), np.eye(1)], 1),
    ],
    "Spin(3)": [
        ([np.cos(1) * np.eye(4) + np.sin(1) * I4, np.cos(2) * np.eye(4) + np.sin(2) * J4], 4)
    ],
}


def random_orthogonal(size, rng):
    return np.linalg.qr(rng.standard_normal((size, size)))[0] if size else np.zeros((0, 0))


def mixed(family, counts, rng):
    """A direct sum of copies of the irreducibles of a family, in a random basis."""
    generators = range(len(family[0][0]))
    parts = [
        block_diag(*(irreducible[g] for (irreducible, _), k in zip(family, counts, strict=True)
                     for _ in range(k)))
        for g in generators
    ]  # fmt: skip
    basis = random_orthogonal(len(parts[0]), rng)
    return OrthogonalGroup(tuple(basis @ part @ basis.T for part in parts))


def null_space_projection(source, target, matrix):
    """The slow twin: the equivariant matrices as the null space of a linear system."""
    m, n = matrix.shape
    rows = [
        np.kron(h, np.eye(n)) - np.kron(np.eye(m), g.T)
        for g, h in zip(source.arrays, target.arrays, strict=True)
    ]
    system = np.vstack(rows)
    values, vectors = np.linalg.eigh(system.T @ system)
    kernel = vectors[:, values < 1e-12]
    return (kernel @ (kernel.T @ matrix.ravel())).reshape(m, n), kernel.shape[1]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_multiplicities_and_types_are_recovered(data):
    family = FAMILIES[data.draw(st.sampled_from(sorted(FAMILIES)))]
    drawn = st.lists(st.integers(0, 2), min_size=len(family), max_size=len(family)).filter(any)
    counts, other = data.draw(drawn), data.draw(drawn)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    source, target = mixed(family, counts, rng), mixed(family, other, rng)
    d = decompose(source, target)
    expected = sorted(
        (size, len(generators[0]), k, e)
        for (generators, size), k, e in zip(family, counts, other, strict=True)
        if k or e
    )
    found = sorted((v.size, v.dimension, v.source, v.target) for v in d.isotypics)
    assert found == expected
    for basis in (d.source_basis, d.target_basis):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-13)
    matrix = rng.standard_normal(d.shape)
    twin, dimension = null_space_projection(source, target, matrix)
    assert d.dimension == dimension
    np.testing.assert_allclose(d.average(matrix), twin, atol=1e-11)
    assert d.equivariance_error(d.average(matrix)) <= 1e-13
    if dimension < matrix.size:
        assert d.equivariance_error(matrix) > 1e-6  # the control: this one does not commute


@pytest.mark.parametrize("name", FAMILIES)
def test_everything_above_works_on_them(name):
    """Components, projections, the optimum, networks: nothing above asks for permutations."""
    family = FAMILIES[name]
    rng = np.random.default_rng(0)
    group = mixed(family, [2] * len(family), rng)
    d = decompose(group)
    n = group.degree
    rank = d.isotypics[0].dimension
    component = next(iter(components(group, rank)))
    matrix = component.sample(rng)
    assert component.contains(matrix) and np.linalg.matrix_rank(matrix) == rank
    nearest = project(rng.standard_normal((n, n)), component)
    assert component.contains(nearest)
    encoder = component.factorise(matrix)[1]
    for index in range(len(group.generators)):
        action = component.latent_action(index)
        np.testing.assert_allclose(action.T @ action, np.eye(rank), atol=1e-12)
        np.testing.assert_allclose(encoder @ group.matrix(index), action @ encoder, atol=1e-12)
    samples = rng.standard_normal((3 * n, n))
    best = best_component(samples.T @ samples / len(samples), group, rank)
    assert loss_of(best.matrix, samples.T @ samples / len(samples)) == pytest.approx(best.loss)
    assert best.lower_bound <= best.loss
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, n, dtype=torch.float64, generator=generator)
    network = EquivariantAutoencoder(
        group, component, hidden=(2,), activation="norm", dtype=torch.float64, generator=generator
    )
    assert_equivariant(network, group, x, tolerance=1e-13)
    layer = EquivariantLinear(group, bias=True, dtype=torch.float64, generator=generator)
    assert layer.bias is not None
    trivial = [all((g == 1).all() for g in generators) for generators, _ in family]
    assert layer.bias.numel() == 2 * sum(trivial)
    torch.nn.init.normal_(layer.bias, generator=generator)
    assert_equivariant(layer, group, x, tolerance=1e-13)
    dense = torch.nn.Linear(n, n, dtype=torch.float64)
    assert equivariance_error(dense, group, x) > 1e-2
    with pytest.raises(AssertionError, match="does not commute"):
        assert_equivariant(dense, group, x)


def test_a_function_of_one_number_is_for_permuted_coordinates():
    """A control: it does not commute with a sign, so a network with it would not either."""
    signed = OrthogonalGroup((signed_permutation([1, 2, 0], [1, 1, -1]),))
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert equivariance_error(torch.relu, signed, x) > 0.1
    options = {"hidden": (2,), "activation": torch.relu, "dtype": torch.float64}
    with pytest.raises(ValueError, match="changes their signs.*Pass activation='norm'"):
        EquivariantAutoencoder(signed, components(signed, 1)[0], **options)
    permuted = OrthogonalGroup((np.eye(3)[[1, 2, 0]],))
    network = EquivariantAutoencoder(permuted, components(permuted, 1)[0], **options)
    assert_equivariant(network, permuted, x)


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_autoencoder_is_its_dense_matrix_in_every_form(name, form):
    """An orbit that is no grid keeps the product, whichever form is named."""
    family = FAMILIES[name]
    rng = np.random.default_rng(1)
    group = mixed(family, [3] * len(family), rng)
    d = decompose(group)
    assert all(c.fourier is None for c in d.source_classes)
    ranks = [1 + i % 2 for i in range(len(d.isotypics))]  # unequal, so that blocks are padded
    rank = sum(v.dimension * r for v, r in zip(d.isotypics, ranks, strict=True))
    component = components(d, rank).component(ranks)
    matrix = component.sample(rng)
    network = EquivariantAutoencoder(group, component, dtype=torch.float64, form=form)
    network.load_blocks(d.blocks(matrix))
    x = torch.as_tensor(rng.standard_normal((5, group.degree)))
    expected = x @ torch.as_tensor(matrix).T
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(network.decode(network.encode(x)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(network.matrix(), torch.as_tensor(matrix), rtol=0, atol=1e-12)
    with torch.no_grad():  # the control: another weight is another matrix
        network.core.layers[0].weight[0] += 1
    assert float((network(x) - expected).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_a_grid_in_every_form_is_the_same_group_given_by_matrices(form):
    grid = image_shift(4, 6, "both")
    matrices = OrthogonalGroup(tuple(grid.matrix(i) for i in range(2)))
    rng = np.random.default_rng(2)
    dense = next(iter(components(grid, 7))).sample(rng)
    x = torch.as_tensor(rng.standard_normal((5, 24)))
    for group in (grid, matrices):
        layer = EquivariantLinear(group, dtype=torch.float64, form=form)
        layer.load_matrix(dense)
        found = layer(x)
        torch.testing.assert_close(found, x @ torch.as_tensor(dense).T, rtol=0, atol=1e-12)
        used = [type(part.form) for part in layer.network.source.parts]
        assert used == [FORMS[form if group is grid else "product"]]


@pytest.mark.parametrize("name", GROUPS)
def test_matrices_and_permutations_agree(name):
    """The closed form and the general method give the same blocks and the same projection."""
    group, expected = GROUPS[name]
    as_matrices = OrthogonalGroup(tuple(group.matrix(i) for i in range(len(group.generators))))
    d = decompose(as_matrices)
    assert sorted((v.size, v.dimension, v.source) for v in d.isotypics) == sorted(expected)
    matrix = np.random.default_rng(0).standard_normal(d.shape)
    np.testing.assert_allclose(d.average(matrix), decompose(group).average(matrix), atol=1e-12)
    mixed_sides = decompose(group, as_matrices)
    np.testing.assert_allclose(mixed_sides.average(matrix), d.average(matrix), atol=1e-12)
    np.testing.assert_allclose(
        decompose(as_matrices, group).average(matrix), d.average(matrix), atol=1e-12
    )


def test_a_field_that_changes_its_sign_under_reflection():
    """A pseudoscalar image: pixels move, and reflections flip signs."""
    pixels = image_dihedral(4)
    turn, mirror = (pixels.matrix(i) for i in range(2))
    pseudo = decompose([turn, -mirror])
    assert pseudo.dimension == decompose(pixels).dimension  # signs cancel from both sides
    between = decompose(pixels, [turn, -mirror])
    assert 0 < between.dimension < pseudo.dimension
    matrix = np.random.default_rng(0).standard_normal((16, 16))
    twin, dimension = null_space_projection(
        OrthogonalGroup((turn, mirror)), OrthogonalGroup((turn, -mirror)), matrix
    )
    assert between.dimension == dimension
    np.testing.assert_allclose(between.average(matrix), twin, atol=1e-12)
    # A scalar's network is none for a pseudoscalar.
    scalar = torch.as_tensor(decompose(pixels).average(matrix))
    x = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert equivariance_error(lambda z: z @ scalar.T, pixels, x) < 1e-14
    assert equivariance_error(lambda z: z @ scalar.T, pixels, x, [turn, -mirror]) > 0.1


def test_a_plain_list_of_generators_is_a_group():
    group = symmetric_on_subsets(4)
    images = [list(g) for g in group.generators]
    matrices = [group.matrix(i) for i in range(2)]
    for generators in (
        images,
        tuple(map(tuple, images)),
        [np.array(g) for g in images],
        matrices,
        [torch.as_tensor(m) for m in matrices],
        [images[0], matrices[1]],
        list(group.sympy().generators),
    ):
        assert decompose(generators) == decompose(group)
        assert components(generators, 3) == components(group, 3)
    assert as_representation([1, 2, 0]) == PermutationGroup.from_images([1, 2, 0])
    assert as_representation([[1, 2, 0]]) == PermutationGroup.from_images([1, 2, 0])
    assert as_representation(np.eye(3)[[1, 2, 0]]).degree == 3
    signed = as_representation([images[0], -matrices[1]])
    assert isinstance(signed, OrthogonalGroup)
    np.testing.assert_array_equal(signed.matrix(0), matrices[0])


def test_orthogonal_groups_are_values():
    group = mixed(FAMILIES["quaternions Q8"], (1, 1, 0), np.random.default_rng(0))
    for other in (copy.deepcopy(group), pickle.loads(pickle.dumps(group))):
        assert other == group and hash(other) == hash(group)
        assert decompose(other) == decompose(group)
    assert OrthogonalGroup((-np.eye(2),)) != OrthogonalGroup((np.eye(2),))
    assert OrthogonalGroup((-np.eye(2),)) != OrthogonalGroup((-np.eye(3),))
    assert OrthogonalGroup((np.eye(3),)) != PermutationGroup(((0, 1, 2),))
    assert repr(group) == "<OrthogonalGroup on 5 coordinates, 2 generators>"
    with pytest.raises(ValueError, match="read-only"):
        group.matrix(0)[0, 0] = 3


@pytest.mark.parametrize(
    "generators, says",
    [
        ([np.array([[1.0, 0.1], [0, 1]])], "up to 0.1 came; expected an orthogonal matrix"),
        ([2 * np.eye(2)], "up to 3 came.*divide columns"),
        ([rotation(1.0).astype(np.float32)], "Round less"),
        ([np.full((2, 2), np.nan)], "up to nan"),
        ([rotation(1.0)[:, :1]], r"shape \(2, 1\).*a square matrix"),
        ([rotation(1.0), -np.eye(3)], r"sizes \[2, 3\] came"),
        ([1j * np.eye(2)], "real numbers"),
    ],
)
def test_a_generator_that_is_not_orthogonal_is_refused(generators, says):
    with pytest.raises(NotOrthogonalError, match=f"OrthogonalGroup.*{says}"):
        decompose(generators)


@pytest.mark.parametrize("difference, told_apart", [(1e-3, True), (1e-5, True), (0.0, False)])
def test_angles_that_differ_are_told_apart(difference, told_apart):
    d = decompose([block_diag(rotation(1.0), rotation(1.0 + difference))])
    assert [v.source for v in d.isotypics] == ([1, 1] if told_apart else [2])
    matrix = d.average(np.random.default_rng(0).standard_normal(d.shape))
    assert d.equivariance_error(matrix) <= 1e-11


def test_angles_that_differ_by_rounding_are_refused():
    with pytest.raises(NearlyEqualError, match="expected a group.*Compute them in one way"):
        decompose([block_diag(rotation(1.0), rotation(1.0 + 1e-8))])


def test_other_mistakes():
    with pytest.raises(NotOrthogonalError, match="no generator came"):
        OrthogonalGroup(())
    with pytest.raises(NotOrthogonalError, match="each 1 or -1"):
        signed_permutation([1, 0], [1, 2])
    with pytest.raises(NotAPermutationError):
        signed_permutation([1, 1], [1, 1])
    with pytest.raises(NotAPermutationError):
        decompose([[1, 1, 0]])
    with pytest.raises(ValueError, match="1 generators act on the source and 2 on the target"):
        decompose([rotation(1.0)], FAMILIES["quaternions Q8"][0][0])


def test_two_hundred_coordinates_take_seconds():
    rng = np.random.default_rng(0)
    family = FAMILIES["hyperoctahedral B4"] + [
        ([np.kron(a, c), np.kron(b, d)], 1)
        for (a, b), (c, d) in product([FAMILIES["hyperoctahedral B4"][0][0]], repeat=2)
    ]
    group = mixed(family, (10, 20, 20, 8), rng)
    assert group.degree == 208
    start = time.perf_counter()
    d = decompose(group)
    assert time.perf_counter() - start < 20
    matrix = d.average(rng.standard_normal(d.shape))
    assert d.equivariance_error(matrix) <= 1e-13
    # 4 ⊗ 4 = 1 + 3 (the squares) + 6 (symmetric) + 6 (skew).
    found = sorted((v.dimension, v.source) for v in d.isotypics)
    assert found == [(1, 20), (1, 28), (3, 8), (4, 10), (6, 8), (6, 8)]


def test_the_quaternion_group_by_permutations_has_the_same_block():
    permuted = decompose(quaternion_group(), [np.asarray(I4), np.asarray(J4)])
    (block,) = [v for v in permuted.isotypics if v.target]
    assert (block.size, block.dimension, block.source, block.target) == (4, 4, 1, 1)
