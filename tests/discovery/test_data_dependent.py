"""GL_h in traced models: the outputs on the batch stay, and teleports climb by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import find_symmetry, teleport
from paramsym.discovery.general_linear.data_dependent import (
    DataDependentAction,
    data_dependent_action,
)
from paramsym.discovery.general_linear.degenerate import Degenerate
from paramsym.discovery.general_linear.frames import NearJump
from paramsym.discovery.general_linear.layers import move_two_layers
from paramsym.tracing.pointwise import NotPointwise

from .dispatched import Largest

ACTIVATIONS = {
    "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "leaky ReLU": nn.LeakyReLU(0.1), "GELU": nn.GELU(),
}  # fmt: skip


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def element(h: int, seed: int) -> Tensor:
    return torch.matrix_exp(0.3 * normal(h, h, seed=seed))


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def drawn(model: nn.Module, seed: int = 0, size: float = 1.0) -> nn.Module:
    """With parameters that are normal, in float64."""
    model.double()
    for k, p in enumerate(model.parameters()):
        p.data = size * normal(*p.shape, seed=100 * seed + k)
    return model


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def value(model: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.func.functional_call(model, params, (x,))


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(error(one[n], other[n]) for n in other)


def perceptron(activation: nn.Module, *sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), activation]
    return drawn(nn.Sequential(*layers[:-1]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("samples", "form", "frame"),
    [(1, "cocycle", "spherical"), (1, "cocycle", "householder"), (4, "cocycle", "householder"),
     (4, "least-change", "householder")],
)  # fmt: skip
def test_several_spaces_move_at_once_and_by_a_group(
    activation: str, samples: int, form: str, frame: str
) -> None:
    model = perceptron(ACTIVATIONS[activation], 3, 7, 6, 2)
    x, params = normal(samples, 3, seed=9), state_of(model)
    symmetry = find_symmetry(model, (x,), check=False)
    action = data_dependent_action(
        model, [*symmetry.spaces], (x,), symmetry, form=form, frame=frame
    )
    sizes = {n: s.size for n, s in symmetry.spaces.items()}
    g, h = ({n: element(k, seed + k) for n, k in sizes.items()} for seed in (10, 20))
    wanted, there = value(model, params, x), action(g, params)
    largest = max(action.condition(g, params).values())
    assert error(value(model, there, x), wanted) <= 1e-15 * largest + 1e-12
    assert error(value(model, there, x + 1), value(model, params, x + 1)) > 1e-6
    assert all(torch.equal(params[n], t) for n, t in model.state_dict().items())
    half = {n: there[n] if n in ("0.weight", "0.bias") else params[n] for n in params}
    assert error(value(model, half, x), wanted) > 1e-3  # V without U
    product = {n: h[n] @ g[n] for n in g}
    apart = distance(action(h, there), action(product, params))
    assert apart <= 1e-9 if form == "cocycle" else apart > 1e-3


def test_one_space_moves_as_by_the_formula_and_nothing_else_does() -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2)))
    x, params, g = normal(1, 3, seed=9), state_of(model), element(5, 1)
    symmetry = find_symmetry(model, (x,), check=False)
    action = data_dependent_action(model, next(iter(symmetry.spaces)), (x,))
    moved = action(g, params)
    outer, inner = move_two_layers(g, params["2.weight"], params["0.weight"], x[0], torch.tanh)
    assert error(moved["0.weight"], inner) <= 1e-15
    assert moved["2.bias"] is params["2.bias"]
    # another frame, another U; the same on the sample
    assert (
        error(moved["2.weight"] @ torch.tanh(inner @ x[0]), outer @ torch.tanh(inner @ x[0]))
        < 1e-14
    )
    assert error(action(torch.eye(5).double(), params)["2.weight"], params["2.weight"]) <= 1e-14


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
def test_512_traced_units_make_no_square_matrix(form: str) -> None:
    model = drawn(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 32)), size=0.2)
    x, params, g = normal(1, 64, seed=9), state_of(model), element(512, 1)
    space = next(iter(find_symmetry(model, (x,), check=False).spaces))
    action = data_dependent_action(model, space, (x,), form=form)
    with Largest() as largest:
        moved = action(g, params)
    assert largest.entries < 512 * 512
    assert error(value(model, moved, x), value(model, params, x)) <= 1e-12


def test_another_batch_takes_the_place_of_the_first() -> None:
    model = perceptron(nn.Tanh(), 3, 7, 2)
    x, other, params = normal(2, 3, seed=9), normal(3, 3, seed=8), state_of(model)
    space = next(iter(find_symmetry(model, (x,), check=False).spaces))
    action, g = data_dependent_action(model, space, (x,)), element(7, 1)
    moved = action.on((other,))(g, params)
    assert error(value(model, moved, other), value(model, params, other)) <= 1e-12
    assert error(value(model, moved, x), value(model, params, x)) > 1e-4
    assert distance(action.on((x,))(g, params), action(g, params)) == 0
    with pytest.raises(Degenerate, match="a batch of 8 samples"):
        action.on((normal(8, 3),))(g, params)


class Block(nn.Module):
    """A transformer block with an MLP of width 32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.reshape(*x.shape[:2], 2, 4).transpose(1, 2)
            for t in self.qkv(self.first(x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def test_the_mlp_of_a_transformer_block_moves_with_its_tokens() -> None:
    model = drawn(Block(), size=0.5)
    x, params = normal(3, 6, 8, seed=9), state_of(model)  # 18 samples for 32 units
    symmetry = find_symmetry(model, (x,), check=False)
    (space,) = [n for n, s in symmetry.spaces.items() if s.size == 32]
    for form in ("cocycle", "least-change"):
        action = data_dependent_action(model, space, (x,), symmetry, form=form)
        g = element(32, 1)
        moved = action(g, params)
        assert {n for n in params if moved[n] is not params[n]} == {
            "up.weight", "up.bias", "down.weight",
        }  # fmt: skip
        assert error(value(model, moved, x), value(model, params, x)) <= 1e-10
        assert distance(moved, params) > 0.5
    with pytest.raises(Degenerate, match="a batch of 36 samples came for 32 units"):
        data_dependent_action(model, space, (normal(6, 6, 8),), symmetry)


@pytest.mark.parametrize("size", [1, 2])
def test_positions_of_convolutions_are_samples(size: int) -> None:
    model = drawn(nn.Sequential(nn.Conv2d(2, 9, 3), nn.Sigmoid(), nn.Conv2d(9, 3, size)))
    x, params = normal(1, 2, 4, 5, seed=9), state_of(model)  # 6 positions for 9 channels
    (space,) = find_symmetry(model, (x,), check=False).spaces
    g = element(9, 1)
    moved = data_dependent_action(model, space, (x,))(g, params)
    assert error(value(model, moved, x), value(model, params, x)) <= 1e-10
    other = normal(1, 2, 4, 5, seed=10)
    assert error(value(model, moved, other), value(model, params, other)) > 1e-3
    with pytest.raises(Degenerate, match="12 samples came for 9 units"):
        data_dependent_action(model, space, (normal(2, 2, 4, 5),))


def test_another_batch_of_another_length_is_read_off_again() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Parameter(normal(5, 6, seed=1))
            self.u = nn.Parameter(normal(6, 2, seed=2))

        def forward(self, x: Tensor) -> Tensor:
            steps = torch.stack([torch.tanh(x[:, t]) for t in range(x.shape[1])])
            return torch.tanh(steps.sum(0) @ self.v) @ self.u

    model, x, longer = Steps(), normal(3, 2, 5, seed=3), normal(3, 4, 5, seed=4)
    params = state_of(model)
    (space,) = [s for s, each in find_symmetry(model, (x,)).spaces.items() if each.size == 6]
    moved = data_dependent_action(model, space, (x,)).on((longer,))(element(6, 1), params)
    assert error(value(model, moved, longer), value(model, params, longer)) <= 1e-10
    assert error(value(model, moved, x), value(model, params, x)) > 1e-3


def test_a_float32_model_stays_to_its_own_rounding() -> None:
    model = perceptron(nn.Tanh(), 3, 7, 2).float()
    x = normal(3, 3, seed=9).float()
    params = state_of(model)
    symmetry = find_symmetry(model, (x,), check=False)
    moved = data_dependent_action(model, [*symmetry.spaces], (x,), symmetry)(
        dict.fromkeys(symmetry.spaces, element(7, 1)), params
    )
    assert all(t.dtype == torch.float32 for t in moved.values())
    assert error(value(model, moved, x), value(model, params, x)) <= 1e-4


def small(seed: int) -> tuple[nn.Sequential, Tensor, Callable[[Tensor], Tensor]]:
    """5-6-7-8 with leaky ReLU and a batch of 4, as in the how-to and the benchmark."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((5, 6), (6, 7), (7, 8)):
        layers += [nn.Linear(before, after, bias=False), nn.LeakyReLU(0.1)]
    model = nn.Sequential(*layers[:-1]).double()
    for p in model.parameters():
        p.data = torch.rand(p.shape, generator=generator, dtype=torch.float64)
    x, y = (torch.rand(4, n, generator=generator, dtype=torch.float64) for n in (5, 8))
    return model, x, lambda found: (found - y).square().sum(1).mean()


def both(model: nn.Module, x: Tensor, form: str) -> DataDependentAction:
    symmetry = find_symmetry(model, (x,), check=False)
    return data_dependent_action(model, [*symmetry.spaces], (x,), symmetry, form=form)


def last_loss(seed: int, form: str | None) -> float:
    model, x, loss = small(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(50):
        if epoch == 5 and form is not None:
            found = teleport(model, both(model, x, form), loss, (x,), optimizer)
            assert found.loss_change <= 1e-12
            assert found.steps >= 1
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return float(loss(model(x)).detach())


def test_a_teleport_by_the_least_change_leaves_little_of_the_loss() -> None:
    plain = [last_loss(seed, None) for seed in range(5)]
    moved = [last_loss(seed, "least-change") for seed in range(5)]
    assert sum(moved) <= 0.15 * sum(plain)
    assert all(b < 0.3 * a for a, b in zip(plain, moved, strict=True))


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
def test_slopes_are_those_of_differences(form: str) -> None:
    model, x, _ = small(0)
    action, state = both(model, x, form), state_of(model)
    covector = {n: normal(*t.shape, seed=k) for k, (n, t) in enumerate(state.items())}
    slopes = action.slopes(state, covector)
    assert slopes.shape == (36 + 49,)
    for seed in range(3):
        c = normal(85, seed=50 + seed)
        ends = [action.moved(state, s * 1e-6 * c) for s in (1, -1)]
        pairs = [sum(float((e[n] * covector[n]).sum()) for n in e) for e in ends]
        assert (pairs[0] - pairs[1]) / 2e-6 == pytest.approx(float(slopes @ c), rel=1e-6)


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
def test_momentum_moves_as_the_gradient_does(form: str) -> None:
    model, x, loss = small(1)
    action, state = both(model, x, form), state_of(model)

    def gradient(state: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {n: t.clone().requires_grad_() for n, t in state.items()}
        total = loss(torch.func.functional_call(model, leaves, (x,)))
        return dict(zip(leaves, torch.autograd.grad(total, [*leaves.values()]), strict=True))

    c = 0.1 * normal(85, seed=5)
    moments: dict[str, dict[str, Any]] = {
        n: {"momentum_buffer": g} for n, g in gradient(state).items()
    }
    carried = action.carried(state, c, moments)
    wanted = gradient(action.moved(state, c))
    for name, held in carried.items():
        assert error(held["momentum_buffer"], wanted[name]) <= 1e-8
        assert error(moments[name]["momentum_buffer"], wanted[name]) > 1e-2


def test_what_no_moments_can_follow_is_held() -> None:
    model, x, loss = small(0)
    action, state = both(model, x, "least-change"), state_of(model)
    first, second = action.places
    assert action.holding(["4.weight"], {}).held == {second}
    assert action.holding(["2.weight"], {}).held == {first, second}
    assert action.holding([], {"0.weight": {"exp_avg_sq": state["0.weight"]}}).held == {
        first,
        second,
    }
    kept = action.holding(["4.weight"], {})
    slopes = kept.slopes(state, state)
    assert bool(slopes[:36].any()) and not bool(slopes[36:].any())
    there = kept.moved(state, torch.ones(85).double())
    assert torch.equal(there["4.weight"], state["4.weight"]) and not torch.equal(
        there["0.weight"], state["0.weight"]
    )
    with pytest.raises(ValueError, match="averages of gradients were expected"):
        action.carried(state, torch.ones(85).double(), {"0.weight": {"square_avg": x}})
    still = action.holding(["0.weight", "4.weight"], {})
    assert not bool(still.slopes(state, state).any())
    optimizer = torch.optim.Adam(model.parameters())
    loss(model(x)).backward()
    optimizer.step()
    assert teleport(model, action, loss, (x,), optimizer).steps == 0


def test_steps_that_end_at_a_jump_or_nowhere_have_no_numbers() -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2)))
    x = normal(1, 3, seed=9)
    action = both(model, x, "cocycle")
    # half a turn in the plane of two units leads odd functions of them to the other side
    z = model[0](x)[0].detach()
    plane = torch.stack([z / z.norm(), normal(5, seed=3)])
    plane[1] -= plane[1] @ plane[0] * plane[0]
    plane[1] /= plane[1].norm()
    turn = torch.pi * (torch.outer(plane[1], plane[0]) - torch.outer(plane[0], plane[1]))
    assert bool(action.moved(state_of(model), turn.flatten())["2.weight"].isnan().all())
    with pytest.raises(NearJump):
        action(torch.matrix_exp(turn), state_of(model))
    fine = action.moved(state_of(model), 0.8 * turn.flatten())
    assert bool(fine["2.weight"].isfinite().all())


def test_bad_input_is_refused() -> None:
    model = perceptron(nn.Tanh(), 3, 5, 4, 2)
    x, params = normal(2, 3, seed=9), state_of(model)
    symmetry = find_symmetry(model, (x,), check=False)
    first, second = symmetry.spaces
    one = data_dependent_action(model, first, (x,), symmetry)
    with pytest.raises(ValueError, match=r"space '.*': g of shape \(4, 4\) came; \(5, 5\)"):
        one(element(4, 0), params)
    two = data_dependent_action(model, [first, second], (x,), symmetry)
    with pytest.raises(ValueError, match="a table for several"):
        two(element(5, 0), params)
    with pytest.raises(ValueError, match=r"g of spaces \['nowhere'\] came"):
        two({"nowhere": element(5, 0)}, params)
    with pytest.raises(ValueError, match="came without '2.weight'"):
        one(element(5, 0), {n: t for n, t in params.items() if n != "2.weight"})
    with pytest.raises(Degenerate, match="singular values from"):
        one(torch.ones(5, 5).double(), params)
    with pytest.raises(Degenerate, match="not finite"):
        one(torch.full((5, 5), torch.nan).double(), params)
    with pytest.raises(ValueError, match="one column was expected"):
        data_dependent_action(model, first, (x,), symmetry, frame="spherical")
    with pytest.raises(ValueError, match="a form of"):
        data_dependent_action(model, first, (x,), symmetry, form="nearest")
    with pytest.raises(KeyError, match="it is no space"):
        data_dependent_action(model, "nowhere", (x,), symmetry)
    twice = torch.cat([x[:1], x[:1]])
    with pytest.raises(Degenerate, match="condition number"):
        data_dependent_action(model, first, (twice,), symmetry)
    softmax = drawn(nn.Sequential(nn.Linear(3, 5), nn.Softmax(1), nn.Linear(5, 2)))
    spaces = [*find_symmetry(softmax, (x,), check=False).spaces]
    with pytest.raises(NotPointwise):
        data_dependent_action(softmax, spaces, (x,))
    closed = perceptron(nn.ReLU(), 3, 5, 2)
    closed[0].bias.data -= 100
    space = next(iter(find_symmetry(closed, (x,), check=False).spaces))
    with pytest.raises(Degenerate, match="at sample 0.*on which the layer is closed"):
        data_dependent_action(closed, space, (x,))
