import numpy as np
import pytest
import torch

from paramsym.equivariant import (
    EquivariantAutoencoder,
    EquivariantLinear,
    InvariantLinear,
    InvariantVariety,
    RankTooLargeError,
    ShapeMismatchError,
    assert_equivariant,
    components,
    decompose,
    equivariance_error,
    image_dihedral,
    image_shift,
    project,
    symmetric_on_subsets,
    weight_sharing,
)
from tests.equivariant.instances import GROUPS, cycles

F64 = torch.float64


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def some_components(group):
    d = decompose(group)
    for rank in (0, 1, d.largest_rank // 2, d.largest_rank - 1, d.largest_rank):
        family = components(d, rank)
        if family.count:
            yield family[family.count // 2]


def test_linear_layers_commute_with_the_group(group, generator):
    layer = EquivariantLinear(group, bias=True, dtype=F64, generator=generator)
    assert layer.bias is not None
    torch.nn.init.normal_(layer.bias, generator=generator)
    x = torch.randn(6, group.degree, dtype=F64, generator=generator)
    assert equivariance_error(layer, group, x) <= 1e-14
    assert_equivariant(layer, group, x)


def test_the_weights_are_the_free_parameters_only(group, generator):
    d = decompose(group)
    layer = EquivariantLinear(group, dtype=F64, generator=generator)
    assert sum(p.numel() for p in layer.parameters()) == d.dimension
    for component in some_components(group):
        network = EquivariantAutoencoder(group, component, dtype=F64, generator=generator)
        assert network.parameter_count == component.parameter_count


def test_the_fast_path_is_the_dense_matrix(group, generator, rng):
    d = decompose(group)
    layer = EquivariantLinear(group, dtype=F64, generator=generator)
    matrix = rng.standard_normal(d.shape)
    layer.load_matrix(matrix)
    np.testing.assert_allclose(layer.matrix().numpy(), d.average(matrix), atol=1e-13)
    x = torch.randn(2, 3, group.degree, dtype=F64, generator=generator)
    torch.testing.assert_close(layer(x), x @ layer.matrix().T)
    for component in some_components(group):
        bounded = EquivariantLinear(d, component=component, dtype=F64, generator=generator)
        bounded.load_matrix(matrix)
        np.testing.assert_allclose(bounded.matrix().numpy(), project(matrix, component), atol=1e-12)


def test_autoencoders_commute_and_have_exactly_the_rank(group, generator):
    x = torch.randn(6, group.degree, dtype=F64, generator=generator)
    for component in some_components(group):
        network = EquivariantAutoencoder(group, component, dtype=F64, generator=generator)
        assert equivariance_error(network, group, x) <= 1e-14
        matrix = network.matrix().numpy()
        assert np.linalg.matrix_rank(matrix, tol=1e-10 * max(1, np.abs(matrix).max())) == (
            component.rank
        )
        assert component.contains(matrix)


def test_the_code_carries_the_latent_action(group, generator):
    x = torch.randn(4, group.degree, dtype=F64, generator=generator)
    for component in some_components(group):
        network = EquivariantAutoencoder(group, component, dtype=F64, generator=generator)
        code = network.encode(x)
        assert code.shape == (4, component.rank)
        torch.testing.assert_close(network.decode(code), network(x))
        for index in range(len(group.generators)):
            action = torch.as_tensor(component.latent_action(index))
            moved = torch.as_tensor(group.act(index, x.numpy()))
            torch.testing.assert_close(network.encode(moved), code @ action.T)


@pytest.mark.parametrize(
    "hidden, activation",
    [((2,), None), ((2, 1), "norm"), ((2,), torch.tanh), ((3, 2), torch.relu)],
    ids=["deep linear", "norm", "tanh", "relu"],
)
def test_deep_networks_commute(group, hidden, activation, generator):
    component = list(some_components(group))[1]
    network = EquivariantAutoencoder(
        group, component, hidden=hidden, activation=activation, dtype=F64, generator=generator
    )
    for parameter in network.parameters():  # biases and gates away from their initial values
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    x = torch.randn(5, group.degree, dtype=F64, generator=generator)
    assert equivariance_error(network, group, x) <= 1e-14
    network(x).square().sum().backward()
    assert all(
        p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in network.parameters()
    )
    linear = activation is None
    scaled = torch.linalg.norm(network(2 * x) - 2 * network(x)) / torch.linalg.norm(network(x))
    assert (float(scaled.detach()) < 1e-12) == linear


def test_hidden_spaces_may_be_any_multiplicities(generator):
    group, _ = GROUPS["rotation 3x3"]
    component = components(group, 3).component((1, 1, 0))
    network = EquivariantAutoencoder(
        group, component, hidden=[(4, 2, 1)], activation="norm", dtype=F64, generator=generator
    )
    x = torch.randn(5, 9, dtype=F64, generator=generator)
    assert equivariance_error(network, group, x) <= 1e-14
    with pytest.raises(ValueError, match="2 multiplicities, but the group has 3"):
        EquivariantAutoencoder(group, component, hidden=[(4, 2)])
    with pytest.raises(ValueError, match="a pointwise activation needs coordinates"):
        EquivariantAutoencoder(group, component, hidden=[(4, 2, 1)], activation=torch.relu)
    with pytest.raises(ValueError, match="expected None, 'norm', or a function"):
        EquivariantAutoencoder(group, component, activation="relu")
    with pytest.raises(ValueError, match="has an activation"):
        network.matrix()
    with pytest.raises(ValueError, match="has hidden layers"):
        network.load_blocks([])


def test_a_block_that_is_missing_in_a_hidden_space_leaves_zeros_in_the_code(generator):
    group, _ = GROUPS["rotation 3x3"]
    component = components(group, 3).component((1, 1, 0))
    x = torch.randn(5, 9, dtype=F64, generator=generator)
    for hidden in ((0, 2, 1), (4, 0, 1), (0, 0, 1)):
        network = EquivariantAutoencoder(
            group, component, hidden=[hidden], dtype=F64, generator=generator
        )
        code = network.encode(x)
        carried = torch.tensor([hidden[0] > 0, hidden[1] > 0, hidden[1] > 0])
        assert torch.equal((code != 0).all(0), carried)
        assert torch.equal((code == 0).all(0), ~carried)
        torch.testing.assert_close(network.decode(code), network(x))


PAIRS = {
    "dihedral 4x4 to 2x2": (image_dihedral(4), image_dihedral(2)),
    "S5 points to pairs": (symmetric_on_subsets(5, 1), symmetric_on_subsets(5)),
    "6-cycle onto 3 points": (cycles(6, [list(range(6))]), cycles(3, [[0, 1, 2]])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_layers_between_different_spaces(name, generator):
    source, target = PAIRS[name]
    layer = EquivariantLinear(
        source, target, bias=True, in_channels=2, out_channels=3, dtype=F64, generator=generator
    )
    x = torch.randn(4, 2, source.degree, dtype=F64, generator=generator)
    assert layer(x).shape == (4, 3, target.degree)
    assert equivariance_error(layer, source, x, target) <= 1e-14


def test_invariant_layers(group, generator):
    for rank in (None, 1, 2):
        layer = InvariantLinear(group, 3, rank=rank, bias=True, dtype=F64, generator=generator)
        x = torch.randn(2, 5, group.degree, dtype=F64, generator=generator)
        y = layer(x)
        assert y.shape == (2, 5, 3)
        for index in range(len(group.generators)):
            moved = torch.as_tensor(group.act(index, x.numpy()))
            torch.testing.assert_close(layer(moved), y, rtol=1e-14, atol=1e-14)
        assert layer.bias is not None
        torch.testing.assert_close(y - layer.bias, x @ layer.matrix().T)
        variety = InvariantVariety(group, 3, min(3, group.degree) if rank is None else rank)
        assert variety.contains(layer.matrix().numpy())
        if rank is not None:
            weights = sum(p.numel() for p in layer.parameters()) - 3
            assert weights == variety.parameter_count


def test_a_dense_layer_is_noticed(group, generator):
    if len(group.orbits) == group.degree:
        pytest.skip("everything commutes with the identity")
    dense = torch.nn.Linear(group.degree, group.degree, dtype=F64)
    x = torch.randn(4, group.degree, dtype=F64, generator=generator)
    with pytest.raises(AssertionError, match="does not commute with the group"):
        assert_equivariant(dense, group, x)


def test_another_group_is_noticed(generator):
    layer = EquivariantLinear(image_shift(4, 4), dtype=F64, generator=generator)
    x = torch.randn(4, 16, dtype=F64, generator=generator)
    assert equivariance_error(layer, image_shift(4, 4, "vertical"), x) > 0.1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_derivatives_of_every_kind(generator):
    group, _ = GROUPS["Q8"]
    network = EquivariantAutoencoder(
        group,
        components(group, 5)[0],
        hidden=(2,),
        activation="norm",
        dtype=F64,
        generator=generator,
    )
    x = torch.randn(2, 8, dtype=F64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(network, (x,))
    assert torch.autograd.gradgradcheck(network, (x,))
    reverse = torch.func.vmap(torch.func.jacrev(network))(x)
    forward = torch.func.vmap(torch.func.jacfwd(network))(x)
    torch.testing.assert_close(reverse, forward)


def test_float32_and_conversion(generator):
    group = image_shift(8, 8)
    network = EquivariantAutoencoder(group, components(group, 9)[3], generator=generator)
    x = torch.randn(4, 64, generator=generator)
    assert_equivariant(network, group, x)
    assert_equivariant(network.to(F64), group, x.to(F64))


def test_saved_weights_are_the_free_parameters_and_load(generator):
    group = image_shift(6, 6)
    component = components(group, 8)[2]
    network = EquivariantAutoencoder(group, component, generator=generator)
    state = network.state_dict()
    assert sum(value.numel() for value in state.values()) == component.parameter_count
    other = EquivariantAutoencoder(group, component)
    other.load_state_dict(state)
    x = torch.randn(2, 36, generator=generator)
    torch.testing.assert_close(other(x), network(x))


def test_weight_sharing_describes_the_factors(group, generator):
    for component in some_components(group):
        encoder, decoder = weight_sharing(component)
        numbers = set(np.abs(encoder).ravel()) | set(np.abs(decoder).ravel())
        assert numbers - {0} == set(range(1, component.parameter_count + 1))
        d = component.decomposition
        rng = np.random.default_rng(0)
        matrix = component.sample(rng)
        factor = component.factorise(matrix)[1] @ d.source_basis
        assert np.abs(factor[encoder == 0]).max(initial=0) < 1e-12
        for number in np.unique(np.abs(encoder[encoder != 0])):
            where = np.abs(encoder) == number
            values = factor[where] * np.sign(encoder[where])
            assert np.ptp(values) < 1e-12


def test_errors_of_layers():
    group = image_shift(4, 4)
    with pytest.raises(ShapeMismatchError, match=r"shape \(2, 15\).*'…', 16"):
        EquivariantLinear(group)(torch.zeros(2, 15))
    with pytest.raises(ShapeMismatchError):
        InvariantLinear(group, 2)(torch.zeros(2, 15))
    with pytest.raises(RankTooLargeError):
        InvariantLinear(group, 2, rank=3)
    other = components(image_shift(4, 4, "vertical"), 3)[0]
    with pytest.raises(ValueError, match="expected the same group"):
        EquivariantAutoencoder(group, other)
    with pytest.raises(ValueError, match="expected one on both sides"):
        EquivariantLinear(group, in_channels=2).load_matrix(np.eye(16))
