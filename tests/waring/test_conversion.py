"""Multilayer perceptrons go into the class and come back, number for number."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from paramsym.waring import Polynomial, RectifiedMonomial
from paramsym.waring.conversion import Powers, from_activation, from_relu, to_mlp, to_relu

from .examples import bias_of, generator_of, normal, random_network, relative_error, whole

SEEDS = range(20)


class SquaredReLU(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.relu(z).square()


class Activation(nn.Module):
    """Σ c_j z^j, power by power."""

    def __init__(self, *c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, z: Tensor) -> Tensor:
        return sum(c * z**j for j, c in enumerate(self.c))  # pyright: ignore[reportReturnType]


def perceptron(seed: int, activation: nn.Module, bias: bool = True) -> nn.Sequential:
    """Two to four linear layers in float64 around an activation."""
    generator = generator_of(seed)
    widths = [whole(generator, 1, 6) for _ in range(whole(generator, 3, 5))]
    modules: list[nn.Module] = []
    for inner, outer in zip(widths, widths[1:], strict=False):
        linear = nn.Linear(inner, outer, bias, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(normal(generator, outer, inner) / inner**0.5)
            if bias:
                linear.bias.copy_(0.5 * normal(generator, outer))
        modules += [linear, activation]
    return nn.Sequential(*modules[:-1])


def points(model: nn.Sequential, seed: int) -> Tensor:
    first = model[0]
    assert isinstance(first, (nn.Linear, Polynomial))
    return normal(generator_of(seed), 50, first.in_features)


# -- rectifiers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
def test_rectifiers_go_there_and_back_with_the_same_numbers(seed: int, bias: bool) -> None:
    for activation, power in (
        (nn.ReLU(), None),
        (SquaredReLU(), 2),
        (RectifiedMonomial(1.5), None),
    ):
        model = perceptron(seed, activation, bias)
        converted = from_relu(model, power)
        assert _equal(converted.state_dict(), model.state_dict())
        x = points(model, seed)
        assert relative_error(converted(x), model(x)) < 1e-12
        back = to_relu(converted)
        assert _equal(back.state_dict(), model.state_dict())
        assert relative_error(back(x), model(x)) < 1e-12


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return [*one] == [*other] and all(torch.equal(one[name], other[name]) for name in one)


def test_another_power_is_another_function() -> None:
    model = perceptron(0, SquaredReLU())
    converted = from_relu(model, 2)
    cubes = nn.Sequential(
        *(RectifiedMonomial(3) if isinstance(m, RectifiedMonomial) else m for m in converted)
    )
    x = points(model, 0)
    assert relative_error(cubes(x), model(x)) > 1e-3


def test_an_optimiser_goes_on_in_the_class() -> None:
    model = perceptron(3, nn.ReLU())
    x = points(model, 3)

    def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (network(x) - 1).square().mean().backward()
        optimizer.step()

    adam = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(5):
        step(model, adam)
    converted = from_relu(model)
    other = torch.optim.Adam(converted.parameters(), 0.01)
    fresh = copy.deepcopy(converted)
    forgetful = torch.optim.Adam(fresh.parameters(), 0.01)
    other.load_state_dict(copy.deepcopy(adam.state_dict()))
    for _ in range(5):
        step(model, adam)
        step(converted, other)
        step(fresh, forgetful)
    assert _close(converted, model) < 1e-12
    assert _close(fresh, model) > 1e-3  # without its state


def _close(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def test_names_and_modes_are_kept() -> None:
    model = nn.Sequential()
    model.add_module("up", nn.Linear(2, 3))
    model.add_module("relu", nn.ReLU())
    model.add_module("down", nn.Linear(3, 1))
    up = model[0]
    assert isinstance(up, nn.Linear)
    bias_of(up).requires_grad_(False)
    converted = from_relu(model.eval())
    assert [name for name, _ in converted.named_children()] == ["up", "relu", "down"]
    assert [p.requires_grad for p in converted.parameters()] == [True, False, True, True]
    assert not converted.training
    assert next(converted.parameters()).data_ptr() != up.weight.data_ptr()


def test_several_terms_of_degree_one_are_added_up() -> None:
    network = nn.Sequential(
        Polynomial(3, 4, [1, 1], dtype=torch.float64),
        RectifiedMonomial(2),
        Polynomial(4, 1, [1], dtype=torch.float64),
    )
    x = points(network, 1)
    assert relative_error(to_relu(network)(x), network(x)) < 1e-12


# -- polynomial activations ----------------------------------------------------------------------

COEFFICIENTS = {
    "square": [0, 0, 1],
    "minus a square": [0, 0, -1],
    "cube": [0, 0, 0, 1],
    "linear": [0, 1],
    "constant": [2.0],
    "GELU to degree 4": [0.0, 0.5, 0.398942, 0.0, -0.066490],
    "all": [0.3, -0.7, 0.2, -0.1, 0.05],
}


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_polynomial_activations_go_there_and_back(name: str) -> None:
    c = COEFFICIENTS[name]
    for seed in range(6):
        model = perceptron(seed, Activation(*c), bias=bool(seed % 2))
        converted = from_activation(model, c)
        x = points(model, seed)
        wanted = model(x)
        size = max(1.0, float(wanted.detach().abs().max()))
        assert float((converted(x) - wanted).detach().abs().max()) / size < 1e-12
        back = to_mlp(converted)
        assert float((back(x) - wanted).detach().abs().max()) / size < 1e-12


def test_each_weight_is_a_term() -> None:
    model = perceptron(0, Activation(0.3, 0.0, 0.2, -0.1))
    converted = from_activation(model, [0.3, 0.0, 0.2, -0.1])
    linear = [m for m in model if isinstance(m, nn.Linear)]
    layers = [m for m in converted if isinstance(m, Polynomial)]
    for at, (old, new) in enumerate(zip(linear, layers, strict=True)):
        last = new is layers[-1]
        assert new.out_features == (1 if last else 2) * old.out_features
        assert new.in_features == (2 if at else 1) * old.in_features
        terms = 2 * old.in_features + 1 if at else 1
        assert all(len(row) == terms for row in new.degrees)


def test_a_weight_that_is_zero_is_exact() -> None:
    model = perceptron(4, Activation(0, 0, 1, 1))
    with torch.no_grad():
        [*model.parameters()][2][0] = 0.0
    x = points(model, 4)
    assert relative_error(from_activation(model, [0, 0, 1, 1])(x), model(x)) < 1e-12


# -- out of the class ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_network_is_linear_layers_and_powers(seed: int) -> None:
    network = random_network(seed)
    x = points(network, seed)
    written = to_mlp(network)
    assert {type(m) for m in written} <= {nn.Linear, Powers, nn.ReLU, RectifiedMonomial}
    assert relative_error(written(x), network(x)) < 1e-12
    free = [p for p in written.parameters() if p.requires_grad]
    assert sum(p.numel() for p in free) == sum(p.numel() for p in network.parameters())
    fixed = {float(v) for p in written.parameters() if not p.requires_grad for v in p.unique()}
    assert fixed <= {-1.0, 0.0, 1.0}


def test_powers_are_those_of_each_unit() -> None:
    z = torch.tensor([[-2.0, -2.0, 3.0, -3.0]])
    assert torch.equal(Powers([1, 2, 3, 3])(z), torch.tensor([[-2.0, 4.0, 27.0, -27.0]]))
    assert "1 × z^1 + 1 × z^2 + 2 × z^3" in repr(Powers([1, 2, 3, 3]))


# -- bad input -----------------------------------------------------------------------------------


def _between(module: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), module, nn.Linear(3, 1))


_SHARED = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "an nn.Sequential of nn.Linear and activations"),
        (nn.Sequential(), "0 modules came"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "2 modules came"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "module '0' is a ReLU, where nn.Linear"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "module '1' is a Linear, where an act"),
        (_between(nn.Tanh()), "module '1' is a Tanh; nn.ReLU or RectifiedMonomial was expected"),
        (_between(nn.BatchNorm1d(3)), "module '1' is a BatchNorm1d; nn.ReLU"),
        (
            nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)),
            "module '2' is a ReLU, where nn.Linear was expected.*Fold a batch norm",
        ),
        (nn.Sequential(_SHARED, nn.ReLU(), _SHARED), "2 linear layers share weights"),
        (nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)), "weights of torch.complex64"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_models_that_do_not_convert(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_relu(model)  # pyright: ignore[reportArgumentType]


_TRIED = [
    (nn.Tanh(), "its values at numbers from -3 to 3 are others"),
    (nn.BatchNorm1d(3), "it has parameters or buffers of its own"),
    (nn.PReLU(), "it has parameters or buffers"),
    (nn.Dropout(0.5), "its values"),
    (nn.MaxPool2d(2), "it fails with"),
]


@pytest.mark.parametrize(("module", "why"), _TRIED, ids=[type(m).__name__ for m, _ in _TRIED])
def test_activations_are_tried_on_numbers(module: nn.Module, why: str) -> None:
    with pytest.raises(ValueError, match=rf"does not compute Σ c_j z\^j with .*{why}"):
        from_activation(_between(module), [0, 0, 1])
    with pytest.raises(ValueError, match=rf"does not compute max\(z, 0\)\^2: {why}"):
        from_relu(_between(module), power=2)


def test_a_batch_norm_keeps_its_running_mean() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="does not compute"):
        from_relu(_between(norm), power=2)
    assert [float(b.abs().max()) for b in norm.buffers()] == [0, 1, 0]


def test_a_rectifier_is_no_polynomial_and_its_square_no_cube() -> None:
    with pytest.raises(ValueError, match="module '1', a ReLU, does not compute Σ c_j z"):
        from_activation(_between(nn.ReLU()), [0, 1])
    with pytest.raises(ValueError, match=r"a SquaredReLU, does not compute max\(z, 0\)\^3"):
        from_relu(_between(SquaredReLU()), power=3)


@pytest.mark.parametrize("given", [[], "012", [1, "2"], [float("nan")], [1j], 2.0], ids=repr)
def test_coefficients_are_real_numbers(given: object) -> None:
    with pytest.raises(ValueError, match=r"a list of finite real numbers c_0, c_1"):
        from_activation(_between(Activation(0, 1)), given)  # pyright: ignore[reportArgumentType]


def test_degrees_above_one_are_no_rectifier_network() -> None:
    network = nn.Sequential(Polynomial(2, 2, [1]), RectifiedMonomial(), Polynomial(2, 1, [1, 3]))
    with pytest.raises(ValueError, match=r"layer '2' has a term of degree 3; degree 1 was"):
        to_relu(network)
    with pytest.raises(ValueError, match=r"to_mlp\(network=…\): module '0' is a Linear"):
        to_mlp(_between(nn.ReLU()))
