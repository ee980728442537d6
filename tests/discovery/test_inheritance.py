"""Section 4: actions on a part become actions on the whole, where the whole sees only the part."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.discovery.acting.action_check import Verdict
from paramsym.discovery.acting.actions import check_action
from paramsym.discovery.acting.commutators import commutator_defect
from paramsym.discovery.acting.inheritance import inherit, on_units, with_appended
from paramsym.discovery.acting.networks import Network
from paramsym.discovery.general_linear.data_dependent import data_dependent_action
from paramsym.discovery.general_linear.layers import move_two_layers

Params = dict[str, Tensor]
DOUBLE = torch.float64


def normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator, dtype=DOUBLE)


def by_unit(g: Tensor, params: Params, s: Tensor) -> Params:
    """b + Uσ(Vs + a) at one data point: every unit by itself, exact, and not without the data."""
    z = s.reshape(-1) @ params["0.weight"].T + params["0.bias"]
    factor = torch.nn.functional.gelu(z) / torch.nn.functional.gelu(g * z)
    return {
        **params,
        "0.weight": g[:, None] * params["0.weight"],
        "0.bias": g * params["0.bias"],
        "2.weight": params["2.weight"] * factor,
    }


def perceptron(n: int, h: int, m: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n, h), nn.GELU(), nn.Linear(h, m))


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mlp = perceptron(4, 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def near(model: nn.Module) -> Callable[[torch.Generator], Params]:
    """Parameters around those of a model, fresh at every draw."""
    start = {n: p.detach() for n, p in model.named_parameters()}
    return lambda generator: {n: p + 0.3 * normal(*p.shape)(generator) for n, p in start.items()}


def scales(size: int) -> dict[str, Any]:
    return {
        "elements": lambda generator: torch.exp(0.3 * normal(size)(generator)),
        "directions": normal(size),
        "product": torch.mul,
        "identity": torch.ones(size, dtype=DOUBLE),
        "samples": 12,
    }


def made(module: nn.Module) -> Any:
    return module.double().eval()


def test_a_transformer_block_inherits_from_its_perceptron() -> None:
    torch.manual_seed(0)
    block, x = made(Block()), torch.randn(1, 1, 4, dtype=DOUBLE)
    inherited = inherit(by_unit, block, "mlp", x)
    found = check_action(
        inherited, Network(block), params=near(block), data=normal(1, 1, 4), **scales(6)
    )
    assert found.is_symmetry and found.depends_on_data is True
    assert found["loss invariance"].control.median > 1e-2


def test_the_data_of_the_block_is_not_that_of_its_perceptron() -> None:
    """The control: the old action given X instead of what enters the submodule."""
    torch.manual_seed(0)
    block, x = made(Block()), torch.randn(1, 1, 4, dtype=DOUBLE)

    def unaware(g: Tensor, params: Params, x: Tensor) -> Params:
        inner = {n.removeprefix("mlp."): t for n, t in params.items() if n.startswith("mlp.")}
        return {**params, **{f"mlp.{n}": t for n, t in by_unit(g, inner, x).items()}}

    found = check_action(
        unaware, Network(block), params=near(block), data=normal(1, 1, 4), **scales(6)
    )
    assert found["loss invariance"].verdict is Verdict.FAILS
    assert found["associativity"].verdict is Verdict.HOLDS
    inherited = inherit(by_unit, block, "mlp", x)
    g = torch.full((6,), 1.5, dtype=DOUBLE)
    params = near(block)(torch.Generator().manual_seed(0))
    change = (Network(block)(inherited(g, params, x), x) - Network(block)(params, x)).abs().max()
    assert change < 1e-13


def general_linear(g: Tensor, params: Params, s: Tensor) -> Params:
    """GL_h on b + Uσ(Vs + a) at all tokens, by its closed form: V, a ↦ gV, ga and U ↦ U c⁻¹."""
    tokens = s.reshape(-1, s.shape[-1]).T
    inputs = torch.cat([tokens, torch.ones_like(tokens[:1])])
    inner = torch.cat([params["0.weight"], params["0.bias"][:, None]], 1)
    outer, moved = move_two_layers(
        g, params["2.weight"], inner, inputs, torch.nn.functional.gelu, limit=1e9
    )
    return {**params, "0.weight": moved[:, :-1], "0.bias": moved[:, -1], "2.weight": outer}


def test_a_transformer_block_inherits_the_general_linear_group() -> None:
    """Six units, three tokens; the old action given other tokens is the control."""
    torch.manual_seed(0)
    block, x = made(Block()), torch.randn(1, 3, 4, dtype=DOUBLE)
    given: dict[str, Any] = {
        "elements": lambda generator: torch.linalg.matrix_exp(0.1 * normal(6, 6)(generator)),
        "directions": normal(6, 6),
        "params": near(block),
        "data": normal(1, 3, 4),
        "samples": 12,
        "tolerance": 1e-8,
    }
    found = check_action(inherit(general_linear, block, "mlp", x), block, **given)
    assert found.is_symmetry and found.depends_on_data is True

    def elsewhere(g: Tensor, params: Params, s: Tensor) -> Params:
        return general_linear(g, params, s.flip(-1))

    found = check_action(inherit(elsewhere, block, "mlp", x), block, **given)
    assert found["associativity"].verdict is Verdict.HOLDS
    assert found["loss invariance"].verdict is Verdict.FAILS


def test_actions_of_one_batch_are_inherited_by_making_one_for_what_enters() -> None:
    """`data_dependent_action` is bound to a batch: here to the tokens, at every run."""
    torch.manual_seed(0)
    block = made(Block())
    x, other = torch.randn(1, 3, 4, dtype=DOUBLE), torch.randn(1, 3, 4, dtype=DOUBLE)
    symmetry = find_symmetry(block.mlp, (x,))
    (space,) = symmetry.spaces

    def bound(g: Tensor, params: Params, s: Tensor) -> Params:
        return data_dependent_action(block.mlp, space, (s,), symmetry)(g, params)

    inherited = inherit(bound, block, "mlp", x)
    params = {n: p.detach() for n, p in block.named_parameters()}
    g, h = (torch.linalg.matrix_exp(0.1 * torch.randn(6, 6, dtype=DOUBLE)) for _ in range(2))
    moved, network = inherited(g, params, x), Network(block)
    torch.testing.assert_close(network(moved, x), network(params, x), rtol=1e-9, atol=1e-9)
    assert (network(moved, other) - network(params, other)).abs().max() > 1e-3
    twice, at_once = inherited(h, moved, x), inherited(h @ g, params, x)
    for name in params:
        torch.testing.assert_close(twice[name], at_once[name], rtol=1e-9, atol=1e-9)


def test_the_state_dict_may_be_complete_and_the_model_stays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), perceptron(3, 4, 2)).double().eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    x = torch.randn(1, 3, dtype=DOUBLE)
    moved = inherit(by_unit, model, "1", x)(torch.full((4,), 2.0, dtype=DOUBLE), before, x)
    assert moved.keys() == before.keys()
    changed = {n for n in before if not torch.equal(moved[n], before[n])}
    assert changed == {"1.0.weight", "1.0.bias", "1.2.weight"}
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert not model[1]._forward_pre_hooks and not model[1]._forward_hooks
    torch.testing.assert_close(Network(model)(moved, x), Network(model)(before, x))


def test_training_does_not_write_into_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), perceptron(3, 4, 2)).double()
    x = torch.randn(5, 3, dtype=DOUBLE)
    state = {n: t.clone() for n, t in model.state_dict().items()}
    held = {n: t.clone() for n, t in state.items()}
    identity = inherit(lambda g, params, s: params, model, "1", x, training=True)
    identity(torch.ones(4), state, x)
    assert all(torch.equal(held[n], t) for n, t in state.items())
    assert all(torch.equal(held[n], t) for n, t in model.state_dict().items())


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_deeper_networks_inherit_from_every_layer(layer: int) -> None:
    """Corollary 4.3."""
    torch.manual_seed(1)
    layers = [perceptron(3, 4, 3), nn.Tanh(), perceptron(3, 4, 3), nn.Tanh(), perceptron(3, 4, 3)]
    deep = made(nn.Sequential(*layers))
    inherited = inherit(by_unit, deep, str(layer), torch.randn(1, 3, dtype=DOUBLE))
    found = check_action(
        inherited, Network(deep), params=near(deep), data=normal(1, 3), **scales(4)
    )
    assert found.is_symmetry and found.depends_on_data is True


def test_inheritance_composes() -> None:
    """Some units of the perceptron of a block."""
    torch.manual_seed(0)
    block = made(Block())
    axes = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
    inner = on_units(by_unit, axes, [1, 4])
    inherited = inherit(inner, block, "mlp", torch.randn(1, 1, 4, dtype=DOUBLE))
    found = check_action(
        inherited, Network(block), params=near(block), data=normal(1, 1, 4), **scales(2)
    )
    assert found.is_symmetry


# Corollary 4.2.


def linear(g: Tensor, params: Params, x: Tensor) -> Params:
    return {"V": g @ params["V"], "U": params["U"] @ torch.linalg.inv(g)}


def two_layers(h: int) -> Callable[[torch.Generator], Params]:
    return lambda generator: {"V": normal(h, 3)(generator), "U": normal(2, h)(generator)}


def layer(function: Callable[[Tensor], Tensor]) -> Callable[[Params, Tensor], Tensor]:
    return lambda params, x: params["U"] @ function(params["V"] @ x)


def one_sample(g: Tensor, params: Params, x: Tensor) -> Params:
    """Every unit by itself at one sample of UΣ(Vx), Σ = sigmoid."""
    z = (params["V"] @ x).squeeze(-1)
    return {
        "V": g[:, None] * params["V"],
        "U": params["U"] * torch.sigmoid(z) / torch.sigmoid(g * z),
    }


MATRICES: dict[str, Any] = {
    "elements": lambda generator: torch.linalg.matrix_exp(0.3 * normal(2, 2)(generator)),
    "directions": normal(2, 2),
    "samples": 12,
}
AXES = {"V": 0, "U": 1}


@pytest.mark.parametrize("units", [[0, 1], [4, 2]])
def test_wider_layers_inherit(units: list[int]) -> None:
    inherited = on_units(linear, AXES, units)
    found = check_action(
        inherited, layer(lambda z: z), params=two_layers(5), data=normal(3, 4), **MATRICES
    )
    assert found.is_symmetry
    found = check_action(
        on_units(one_sample, AXES, units), layer(torch.sigmoid), params=two_layers(5),
        data=normal(3, 1), **scales(2),
    )  # fmt: skip
    assert found.is_symmetry and found.depends_on_data is True


def test_only_the_named_units_move() -> None:
    params = two_layers(5)(torch.Generator().manual_seed(0))
    g = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=DOUBLE)
    moved = on_units(linear, AXES, [1, 3])(g, params, None)
    rest = [0, 2, 4]
    assert torch.equal(moved["V"][rest], params["V"][rest])
    assert torch.equal(moved["U"][:, rest], params["U"][:, rest])
    torch.testing.assert_close(moved["V"][[1, 3]], g @ params["V"][[1, 3]])


def test_wider_is_the_sum_of_two_narrower_ones() -> None:
    """Equation (15), which is what the corollary rests on; functions across units break it."""
    params, x = two_layers(5)(torch.Generator().manual_seed(0)), torch.randn(3, 4, dtype=DOUBLE)
    halves = [
        {"V": params["V"][part], "U": params["U"][:, part]} for part in (slice(2), slice(2, 5))
    ]
    for function, holds in [
        (torch.tanh, True), (lambda z: z.softmax(1), True), (lambda z: z.softmax(0), False)
    ]:  # fmt: skip
        both = layer(function)(halves[0], x) + layer(function)(halves[1], x)
        assert torch.allclose(layer(function)(params, x), both, atol=1e-12) == holds


def test_a_function_across_units_does_not_inherit() -> None:
    """Rescaling of a narrow softmax layer at one sample, by its own answer: not of a wider one."""

    def one_softmax(g: Tensor, params: Params, x: Tensor) -> Params:
        z = (params["V"] @ x).squeeze(-1)
        factor = torch.softmax(z, 0) / torch.softmax(g * z, 0)
        return {"V": g[:, None] * params["V"], "U": params["U"] * factor}

    loss = layer(lambda z: z.softmax(0))
    for width, verdict in [(2, Verdict.HOLDS), (5, Verdict.FAILS)]:
        found = check_action(
            on_units(one_softmax, AXES, [0, 1]), loss, params=two_layers(width), data=normal(3, 1),
            **scales(2),
        )  # fmt: skip
        assert found["loss invariance"].verdict is verdict


def test_the_printed_proof_moves_the_wrong_block() -> None:
    """It calls the first h units θ₁ and the other h′ − h units θ₂, and lets G act on θ₂.

    The symmetry that is assumed is one of h units; the block θ₂ has h′ − h of them, and what acts
    there is not known. A layer with one more unit already has no action of GL(2) on it.
    """
    params, x = two_layers(3)(torch.Generator().manual_seed(0)), torch.randn(3, 4, dtype=DOUBLE)
    g = torch.tensor([[1.0, 2.0], [0.5, 3.0]], dtype=DOUBLE)
    with pytest.raises(RuntimeError):
        on_units(linear, AXES, [2])(g, params, x)
    moved = on_units(linear, AXES, [0, 1])(g, params, x)
    loss = layer(lambda z: z)
    torch.testing.assert_close(loss(moved, x), loss(params, x))


def test_velocities_are_inherited() -> None:
    class Stated:
        def __call__(self, g: Tensor, params: Params, data: object) -> Params:
            raise AssertionError("it is not called")

        def velocity(self, direction: Tensor, params: Params, data: object) -> Params:
            return {"V": direction @ params["V"], "U": -params["U"] @ direction}

    generators = torch.eye(4, dtype=DOUBLE).reshape(4, 2, 2)
    params = two_layers(5)(torch.Generator().manual_seed(0))
    defects = [
        commutator_defect(on_units(action, AXES, [0, 3]), params, None, generators)
        for action in (Stated(), linear)
    ]
    assert max(float(defect.max()) for defect in defects) < 1e-14


# Proposition 4.4.


def pair_action(g: Tensor, params: Params, batch: Tensor) -> Params:
    """Uσ(Vx) at two points with as many units: V moves by g, U follows by the values at both."""
    z = params["V"] @ batch  # (2, 2)
    before, after = torch.sigmoid(z), torch.sigmoid(g @ z)
    return {"V": g @ params["V"], "U": params["U"] @ before @ torch.linalg.inv(after)}


FIXED = torch.tensor([[0.3], [-1.0], [0.7]], dtype=DOUBLE)


@pytest.mark.parametrize("append", [lambda x: FIXED, lambda x: x.flip(0) + x.square()])
def test_smaller_batches_inherit(append: Callable[[Tensor], Tensor]) -> None:
    inherited = with_appended(pair_action, append, axis=1)
    found = check_action(
        inherited, layer(torch.sigmoid), params=two_layers(2), data=normal(3, 1), **MATRICES
    )
    assert found.is_symmetry and found.depends_on_data is True


def test_random_points_give_no_map() -> None:
    """As published: the loss stays, and neither a map nor a group law is left."""
    torch.manual_seed(1234)  # not that of the data, whose numbers would come twice

    def published(g: Tensor, params: Params, x: Tensor) -> Params:
        return pair_action(g, params, torch.cat([x, torch.randn(3, 1, dtype=DOUBLE)], 1))

    given = {k: v for k, v in MATRICES.items() if k != "directions"}
    found = check_action(
        published, layer(torch.sigmoid), params=two_layers(2), data=normal(3, 1), tolerance=1e-7,
        **given,
    )  # fmt: skip
    fails = {row.name for row in found.rows if row.verdict is Verdict.FAILS}
    assert fails == {"one map per batch", "associativity"}
    assert found["loss invariance"].verdict is Verdict.HOLDS


def test_random_points_are_refused() -> None:
    params, x = two_layers(2)(torch.Generator().manual_seed(0)), torch.randn(3, 1, dtype=DOUBLE)
    g = torch.eye(2, dtype=DOUBLE)
    counter = count()
    for append in (torch.randn_like, lambda x: x + next(counter)):
        with pytest.raises(ValueError, match="two calls on one batch gave different points"):
            with_appended(pair_action, append, axis=1)(g, params, x)
    with pytest.raises(ValueError, match="the same sizes but for axis 0"):
        with_appended(pair_action, lambda x: x[:, :2])(g, params, x.T)


# What is refused.


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


class Spied(nn.Module):
    """The network reads weights of the submodule: before it, or after it."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.inner, self.before = perceptron(3, 4, 3), before

    def forward(self, x: Tensor) -> Tensor:
        norm = next(self.inner.parameters()).norm()
        return self.inner(x * norm) if self.before else self.inner(x) * norm


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = perceptron(3, 4, 3), perceptron(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x)


def tied() -> nn.Module:
    one, other = perceptron(3, 3, 3), nn.Linear(3, 3)
    other.weight = next(one.parameters())
    return nn.Sequential(one, other)


def noisy() -> nn.Module:
    return nn.Sequential(perceptron(3, 4, 3), Noise())


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + next(TICK)


TICK = count()
REFUSED = [
    (Twice, "inner", "it ran 2 times in one run"),
    (Unused, "inner", "it ran 0 times in one run"),
    (lambda: Spied(True), "inner", "what enters it depends on its own parameters"),
    (lambda: Spied(False), "inner", "reads its parameters elsewhere too"),
    (tied, "0", r"its parameters are also \['1.weight'\], outside of it"),
    (noisy, "0", "two runs of the network gave two answers"),
    (lambda: nn.Sequential(perceptron(3, 4, 3), nn.Tanh()), "1", "Tanh has no parameters"),
    (lambda: perceptron(3, 4, 3), "7", "Sequential has no such submodule"),
]


@pytest.mark.parametrize(
    ("model", "name", "message"), REFUSED, ids=["twice", "unused", "before", "after", "tied",
    "noisy", "empty", "missing"],
)  # fmt: skip
def test_networks_that_see_more_are_refused(
    model: Callable[[], nn.Module], name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        inherit(by_unit, made(model()), name, torch.randn(1, 3, dtype=DOUBLE))


def test_a_projection_of_attention_is_no_call() -> None:
    with pytest.raises(ValueError, match="weights that another module reads"):
        inherit(by_unit, made(Block()), "attention.out_proj", torch.randn(1, 2, 4, dtype=DOUBLE))


def test_missing_parameters_and_units_are_named() -> None:
    block, x = made(Block()), torch.randn(1, 1, 4, dtype=DOUBLE)
    g = torch.ones(6, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"params has no 'mlp.0.weight'"):
        inherit(by_unit, block, "mlp", x)(g, {}, x)
    params = two_layers(2)(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"\(2, 3\) came for 'V', and more than 2 units"):
        on_units(linear, AXES, [0, 2])(g, params, x)
    with pytest.raises(ValueError, match="nothing came for 'W'"):
        on_units(linear, {"W": 0}, [0])(g, params, x)
    for units in ([], [1, 1], [-1]):
        with pytest.raises(ValueError, match="different units counted from 0"):
            on_units(linear, AXES, units)
