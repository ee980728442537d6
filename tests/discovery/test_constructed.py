"""Actions by construction: exact on the loss, and a group law where the fields commute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym.discovery.acting.action_check import Verdict
from paramsym.discovery.acting.actions import check_action
from paramsym.discovery.acting.commutators import commutator_defect, field, no_bracket, norm
from paramsym.discovery.acting.constructed import ConstructedAction, constructed_action
from paramsym.discovery.acting.inheritance import inherit
from paramsym.discovery.acting.level_sets import RankDrops
from paramsym.discovery.acting.networks import Network

Params = dict[str, Tensor]
DOUBLE = torch.float64
NETWORKS = {"sigmoid 3-3-1": (nn.Sigmoid, (3, 3, 1)), "tanh 2-2-2-1": (nn.Tanh, (2, 2, 2, 1))}
EVERY = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Sequential:
    """A network of the paper without biases, normal weights."""
    activation, widths = NETWORKS[name]
    return perceptron(activation, *widths)


def perceptron(activation: Callable[[], nn.Module], *widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for n, m in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(n, m, bias=False, dtype=DOUBLE), activation()]
    model = nn.Sequential(*layers[:-1])
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def draws(model: nn.Module, inputs: int, count: int) -> list[tuple[Params, Tensor, Tensor]]:
    """Fresh θ, X and Y of one data point."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=DOUBLE)

    return [
        ({n: normal(*p.shape) for n, p in model.named_parameters()}, normal(1, inputs), normal(1))
        for _ in range(count)
    ]


def unit(size: int, seed: int) -> Tensor:
    found = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return found / found.norm()


def last(model: nn.Module) -> str:
    return [name for name, _ in model.named_parameters()][-1]


def action_of(name: str, frame: str) -> tuple[nn.Sequential, ConstructedAction]:
    model = made(name)
    following = None if frame == "projected" else [last(model)]
    x = torch.ones(1, NETWORKS[name][1][0], dtype=DOUBLE)
    found = constructed_action(model, x, frame=frame, following=following)  # pyright: ignore
    return model, found


def apart(one: Params, other: Params) -> float:
    return float(norm({n: one[n] - other[n] for n in one}))


@EVERY
@pytest.mark.parametrize("frame", ["projected", "commuting"])
def test_the_loss_stays_where_parameters_move(name: str, frame: str) -> None:
    model, action = action_of(name, frame)
    network, kept = Network(model), 0
    for seed, (params, x, y) in enumerate(draws(model, x_width(name), 8)):
        h = unit(len(action.directions), seed)
        try:
            moved = action(h, params, x)
        except RankDrops:
            assert (name, frame) == ("tanh 2-2-2-1", "commuting")  # its chart ends somewhere
            continue
        losses = [float((network(p, x) - y).square().sum()) for p in (params, moved)]
        assert abs(losses[1] - losses[0]) <= 1e-12 * losses[0] + 1e-14
        assert apart(moved, params) > 0.3
        kept += 1
    assert kept >= 5


def x_width(name: str) -> int:
    return NETWORKS[name][1][0]


@EVERY
def test_a_straight_line_changes_the_loss(name: str) -> None:
    """The control: θ + Σ h_i v_i, where the directions are tangential at another point."""
    model, action = action_of(name, "projected")
    network, changes = Network(model), []
    for seed, (params, x, _) in enumerate(draws(model, x_width(name), 12)):
        away = unit(len(action.directions), seed) @ action.directions
        parts = away.split([p.numel() for p in params.values()])
        there = {n: p + d.view(p.shape) for (n, p), d in zip(params.items(), parts, strict=True)}
        changes.append(float((network(there, x) - network(params, x)).abs()))
    assert np.median(changes) > 1e-2


@EVERY
@pytest.mark.parametrize("frame", ["projected", "commuting"])
def test_zero_is_the_identity_to_the_bit(name: str, frame: str) -> None:
    model, action = action_of(name, frame)
    (params, x, _), *_ = draws(model, x_width(name), 1)
    moved = action(action.identity, params, x)
    assert all(torch.equal(moved[n], params[n]) for n in params)


def test_commuting_frames_obey_the_group_law_and_projected_ones_do_not() -> None:
    for frame, bound in [("commuting", (0, 1e-12)), ("projected", (1e-4, 1))]:
        model, action = action_of("sigmoid 3-3-1", frame)
        size = len(action.directions)
        for seed, (params, x, _) in enumerate(draws(model, 3, 3)):
            g, h = unit(size, seed), unit(size, seed + 100)
            both = action(h, action(g, params, x), x)
            defect = apart(both, action(g + h, params, x))
            assert bound[0] <= defect <= bound[1]
            back = action(-h, action(h, params, x), x)
            assert apart(back, params) < 1e-10  # every line acts, in both frames


@EVERY
def test_defects_of_the_fields(name: str) -> None:
    for frame, bound in [("commuting", (0, 1e-13)), ("projected", (1e-3, 10))]:
        model, action = action_of(name, frame)
        (params, x, _), *_ = draws(model, x_width(name), 1)
        generators = torch.eye(len(action.directions), dtype=DOUBLE)[:3]
        defect = commutator_defect(action, params, x, generators, action.identity, no_bracket)
        assert bound[0] <= defect.max() <= bound[1]


@pytest.mark.parametrize("frame", ["projected", "commuting"])
def test_fields_are_derivatives_of_the_action(frame: str) -> None:
    model, action = action_of("tanh 2-2-2-1", frame)
    (params, x, _), *_ = draws(model, 2, 1)
    h = unit(len(action.directions), 3)
    found = field(action, params, x, h)
    ends = [action(t * h, params, x) for t in (1e-4, -1e-4)]
    for name in params:
        slope = (ends[0][name] - ends[1][name]) / 2e-4
        torch.testing.assert_close(found[name], slope, atol=1e-6, rtol=1e-6)
    slope = torch.func.jvp(lambda p: Network(model)(p, x), (params,), (found,))[1]
    assert slope.abs().max() < 1e-14


def by_small_steps(action: ConstructedAction, h: Tensor, params: Params, x: Tensor) -> Params:
    """The obvious way: many steps of order four with a pseudoinverse, nothing corrected."""
    shapes = {n: p.shape for n, p in params.items()}

    def unpacked(vector: np.ndarray) -> Params:
        parts = torch.from_numpy(vector).split([s.numel() for s in shapes.values()])
        return {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}

    straight = (h @ action.directions).numpy()

    def velocity(vector: np.ndarray) -> np.ndarray:
        held = {n: p.clone().requires_grad_() for n, p in unpacked(vector).items()}
        value = x @ held["0.weight"].T
        out = torch.sigmoid(value) @ held["2.weight"].T
        slopes = torch.autograd.grad(out.sum(), list(held.values()))
        row = torch.cat([s.reshape(-1) for s in slopes]).numpy()[None]
        return straight - np.linalg.pinv(row) @ (row @ straight)

    at, steps = torch.cat([p.reshape(-1) for p in params.values()]).numpy(), 100
    for _ in range(steps):
        one = velocity(at)
        two = velocity(at + one / (2 * steps))
        three = velocity(at + two / (2 * steps))
        four = velocity(at + three / steps)
        at = at + (one + 2 * two + 2 * three + four) / (6 * steps)
    return unpacked(at)


def test_the_flow_is_that_of_small_steps() -> None:
    model, action = action_of("sigmoid 3-3-1", "projected")
    for seed, (params, x, _) in enumerate(draws(model, 3, 2)):
        h = unit(len(action.directions), seed)
        assert apart(action(h, params, x), by_small_steps(action, h, params, x)) < 1e-8


def checked(model: nn.Module, action: ConstructedAction, inputs: int, **more: Any) -> Any:
    start = [(n, p.shape) for n, p in model.named_parameters()]
    size = len(action.directions)

    def normal(generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=DOUBLE)

    return check_action(
        action, model, product=torch.add, identity=action.identity, samples=6,
        elements=lambda g: 0.1 * normal(g, size), directions=lambda g: normal(g, size),
        params=lambda g: {n: normal(g, *shape) for n, shape in start},
        data=lambda g: normal(g, 1, inputs), **more,
    )  # fmt: skip


def test_commuting_frames_are_symmetries_that_depend_on_the_data() -> None:
    model, action = action_of("sigmoid 3-3-1", "commuting")
    found = checked(model, action, 3)
    assert found.is_symmetry and found.depends_on_data is True


def test_projected_frames_lack_the_group_law_and_nothing_else() -> None:
    model, action = action_of("sigmoid 3-3-1", "projected")
    found = checked(model, action, 3)
    fails = [row.name for row in found.rows if row.verdict is Verdict.FAILS]
    assert fails == ["associativity"]
    model, whole = action_of("sigmoid 3-3-1", "projected")
    x = torch.ones(1, 3, dtype=DOUBLE)
    line = constructed_action(model, x, directions=whole.directions[:1])
    assert checked(model, line, 3).is_symmetry  # R acts, whatever the field


# Batches, types and names.


@pytest.mark.parametrize("frame", ["projected", "commuting"])
@pytest.mark.parametrize("count", [3, 6])
def test_batches_with_several_outputs(frame: Any, count: int) -> None:
    """r = 6 one row at a time, and r = 12 by vmap."""
    model = perceptron(nn.GELU, 3, 5, 2)
    x = torch.randn(count, 3, dtype=DOUBLE)
    action = constructed_action(model, x, frame=frame)
    assert action.rank == 2 * count
    assert action.directions.shape == (25 - 2 * count, 25)
    params = {n: p.detach() for n, p in model.named_parameters()}
    moved = action(0.2 * unit(25 - 2 * count, 0), params, x)
    network = Network(model)
    torch.testing.assert_close(network(moved, x), network(params, x), rtol=1e-13, atol=1e-13)
    assert apart(moved, params) > 0.1


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 3),
    st.sampled_from([nn.Tanh, nn.GELU, nn.Softplus]), st.integers(0, 2**16),
)  # fmt: skip
@settings(max_examples=20, deadline=None, derandomize=True)
def test_random_networks_keep_their_answers(
    widths: list[int], count: int, activation: Callable[[], nn.Module], seed: int
) -> None:
    model = perceptron(activation, *widths)
    (params, _, _), *_ = draws(model, 1, 1)
    x = torch.randn(
        count, widths[0], generator=torch.Generator().manual_seed(seed), dtype=DOUBLE
    )  # fmt: skip
    size = sum(p.numel() for p in params.values())
    try:
        action = constructed_action(model, x, params)
    except ValueError as error:
        reasons = ("nothing is left to move", "some outputs follow from others")
        assert any(reason in str(error) for reason in reasons)
        level_rank = min(widths) < widths[-1] or count * widths[-1] >= size or count > 1
        assert level_rank  # a single point with outputs of full rank is never refused
        return
    assert len(action.directions) == size - count * widths[-1]
    try:
        moved = action(0.3 * unit(len(action.directions), seed), params, x)
    except RankDrops:
        return
    now, then = (Network(model)(p, x) for p in (params, moved))
    torch.testing.assert_close(then, now, rtol=1e-9, atol=1e-11)


def test_both_ways_to_a_jacobian_agree() -> None:
    model, action = action_of("tanh 2-2-2-1", "projected")
    level = action.reference
    one, other = level.numbers(level.start()), level.jacobian(level.start())
    torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-15)


def test_single_precision_moves_in_double() -> None:
    model = perceptron(nn.Sigmoid, 3, 3, 1).float()
    x = torch.ones(1, 3)
    action = constructed_action(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    moved = action(unit(11, 0), params, x)
    assert all(t.dtype == torch.float32 for t in moved.values())
    network = Network(model)
    assert abs(float(network(moved, x) - network(params, x))) < 1e-6


def test_complete_state_dicts_keep_ties_and_what_rests() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1)
    ).double()
    model[3].weight = model[1].weight
    model[4].weight.requires_grad_(False)
    model.eval()
    state = {n: t.clone() for n, t in model.state_dict().items()}
    x = torch.randn(1, 3, dtype=DOUBLE)
    action = constructed_action(model, x)
    moved = action(unit(len(action.directions), 0), state, x)
    assert torch.equal(moved["1.weight"], moved["3.weight"])
    assert not torch.equal(moved["1.weight"], state["1.weight"])
    for rests in ("4.weight", "0.running_mean"):
        assert torch.equal(moved[rests], state[rests])
    network = Network(model)
    torch.testing.assert_close(network(moved, x), network(state, x), rtol=1e-12, atol=1e-13)
    velocity = action.velocity(unit(len(action.directions), 0), state, x)
    assert torch.equal(velocity["1.weight"], velocity["3.weight"])
    assert not velocity["4.weight"].any() and not velocity["0.running_var"].any()


def test_kinks_are_crossed_on_the_level_set() -> None:
    model = perceptron(nn.ReLU, 3, 8, 1)
    x = torch.ones(1, 3, dtype=DOUBLE)
    action, network = constructed_action(model, x), Network(model)
    params = {n: p.detach() for n, p in model.named_parameters()}
    h = 3 * unit(len(action.directions), 2)
    moved = action(h, params, x)
    assert abs(float(network(moved, x) - network(params, x))) < 1e-12
    signs = [(p["0.weight"] @ x[0]) > 0 for p in (params, moved)]
    assert not torch.equal(*signs)


def test_a_block_inherits_from_a_perceptron_on_all_of_its_tokens() -> None:
    """Three tokens and gelu, where no data-independent continuous symmetry is left."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.mlp(self.norm2(x))

    torch.manual_seed(0)
    block = Block().double().eval()
    x = torch.randn(1, 3, 4, dtype=DOUBLE)
    inner = constructed_action(block.mlp, torch.randn(1, 3, 4, dtype=DOUBLE), frame="commuting")
    inherited = inherit(inner, block, "mlp", x)
    params = {n: p.detach() for n, p in block.named_parameters()}
    g, h = (0.2 * unit(len(inner.directions), seed) for seed in (0, 1))
    moved = inherited(g, params, x)
    network = Network(block)
    torch.testing.assert_close(network(moved, x), network(params, x), rtol=1e-12, atol=1e-12)
    assert apart(moved, params) > 0.1
    assert apart(inherited(h, moved, x), inherited(g + h, params, x)) < 1e-10
    other = torch.randn(1, 3, 4, dtype=DOUBLE)
    assert apart(inherited(g, params, other), moved) > 1e-3
    assert (network(moved, other) - network(params, other)).abs().max() > 1e-3
    velocity = field(inherited, params, x, g)
    assert norm(velocity) > 0.1 and not velocity["norm1.weight"].any()


# Where curves end.


def product(params: Params, data: Tensor) -> Tensor:
    return data * params["w"][0] * params["w"][1]


def circle(params: Params, data: Tensor) -> Tensor:
    return data * params["w"].square().sum()


def vector(*entries: float) -> Params:
    return {"w": torch.tensor(entries, dtype=DOUBLE)}


ONE = torch.ones((), dtype=DOUBLE)


def test_a_curve_stops_where_the_rank_drops() -> None:
    """w₁w₂ = 0 along the axis, up to the crossing at 0."""
    start = vector(1.0, 0.0)
    action = constructed_action(product, ONE, start, directions=torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(action(-0.9 * ONE[None], start, ONE)["w"], vector(0.1, 0)["w"])
    with pytest.raises(RankDrops, match="drops in rank"):
        action(-1.1 * ONE[None], start, ONE)


def test_a_chart_ends_where_the_projection_goes_on() -> None:
    """The circle as a graph over w₂, which goes no farther than 1."""
    start, up = vector(1.0, 0.0), torch.tensor([[0.0, 1.0]])
    chart = constructed_action(circle, ONE, start, directions=up, frame="commuting")
    moved = chart(0.6 * ONE[None], start, ONE)["w"]
    torch.testing.assert_close(moved, vector(0.8, 0.6)["w"], rtol=1e-14, atol=1e-14)
    with pytest.raises(RankDrops):
        chart(1.5 * ONE[None], start, ONE)
    round_it = constructed_action(circle, ONE, start, directions=up)(1.5 * ONE[None], start, ONE)
    assert abs(float(round_it["w"].norm()) - 1) < 1e-14


def test_gradients_that_turn_bit_by_bit_do_not_stop_a_curve() -> None:
    """Half round a small circle in one element, where the gradient turns by more than 180°."""
    start, up = vector(0.1, 0.0), torch.tensor([[0.0, 1.0]])
    action = constructed_action(lambda p, x: x * (p["w"][0] ** 4 + p["w"][1] ** 2), ONE, start,
                                directions=up, tolerance=1e-3)  # fmt: skip
    moved = action(0.3 * ONE[None], start, ONE)["w"]
    assert abs(float(moved[0] ** 4 + moved[1] ** 2) - 1e-4) < 1e-14


# What is refused.


def refusal(function: Any, data: Any, params: Params | None = None, **more: Any) -> str:
    with pytest.raises(ValueError) as error:
        constructed_action(function, data, params, **more)
    return str(error.value)


def test_batches_that_fix_every_parameter_are_refused() -> None:
    model = perceptron(nn.Sigmoid, 3, 3, 1)
    assert constructed_action(model, torch.randn(11, 3, dtype=DOUBLE)).directions.shape == (1, 12)
    for count in (12, 40):
        said = refusal(model, torch.randn(count, 3, dtype=DOUBLE))
        assert "nothing is left to move" in said and "Take fewer data points" in said


def test_outputs_that_follow_from_others_are_refused() -> None:
    model = perceptron(nn.Sigmoid, 3, 3, 1)
    twice = torch.ones(2, 3, dtype=DOUBLE)
    assert "with rank 1, 1 on those that follow" in refusal(model, twice)
    dead = refusal(lambda p, x: torch.stack([p["w"].sum(), x]), ONE, vector(1.0, 2.0))
    assert "a dead or detached output" in dead
    detached = refusal(lambda p, x: p["w"].detach().sum(), ONE, vector(1.0, 2.0))
    assert "with rank 0" in detached
    rounded = refusal(lambda p, x: p["w"].round().sum(), ONE, vector(1.0, 2.0))
    assert "with rank 0" in rounded
    start = {**vector(1.0, 2.0), "v": torch.ones(2, dtype=DOUBLE)}
    idle = refusal(lambda p, x: p["w"].sum(), ONE, start, following=["v"])
    assert "with rank 1, 0 on those that follow" in idle


def test_what_is_no_function_of_numbers_is_refused() -> None:
    model = perceptron(nn.Sigmoid, 3, 3, 1)
    x = torch.ones(1, 3, dtype=DOUBLE)
    assert "the network returned [nan]" in refusal(model, x * torch.nan)
    broken = {n: p.detach() * torch.nan for n, p in model.named_parameters()}
    assert "'0.weight' of torch.float64 holds numbers that are not" in refusal(model, x, broken)
    assert "a tuple came back" in refusal(lambda p, x: (p["w"], x), ONE, vector(1.0, 2.0))
    assert "of torch.int64" in refusal(lambda p, x: p["w"].argmax(), ONE, vector(1.0, 2.0))
    assert "two runs of the network gave two answers" in refusal(
        lambda p, x: p["w"].sum() * torch.rand(()), ONE, vector(1.0, 2.0)
    )
    assert "no parameters came" in refusal(lambda p, x: x, ONE)

    class NoDerivative(torch.autograd.Function):
        @staticmethod
        def forward(w: Tensor) -> Tensor:
            return w.sum()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    said = refusal(lambda p, x: NoDerivative.apply(p["w"]), ONE, vector(1.0, 2.0))
    assert "the derivative of the network failed" in said


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = perceptron(nn.Sigmoid, 3, 3, 1)
    x = torch.ones(1, 3, dtype=DOUBLE)
    assert "frame='curved'" in refusal(model, x, frame="curved")
    assert "tolerance=1e-20" in refusal(model, x, tolerance=1e-20)
    assert "'5.weight' does not move" in refusal(model, x, following=["5.weight"])
    assert "(k, 12) was expected" in refusal(model, x, directions=torch.ones(2, 11))
    same = torch.randn(1, 12, dtype=DOUBLE).repeat(2, 1)
    assert "dependent along the level set" in refusal(model, x, directions=same)
    action = constructed_action(model, x)
    params = {n: p.detach() for n, p in model.named_parameters()}
    with pytest.raises(ValueError, match=r"shape \(3,\) came, and finite coordinates"):
        action(torch.zeros(3), params, x)
    with pytest.raises(ValueError, match=r"nothing came for '0.weight'"):
        action(action.identity, {}, x)
    with pytest.raises(ValueError, match="not real and finite"):
        action(action.identity, {n: p / 0 for n, p in params.items()}, x)


def test_too_many_parameters_are_refused() -> None:
    wide = {"w": torch.ones(5000, dtype=DOUBLE)}
    assert "5000 entries move, and at most 4000" in refusal(lambda p, x: p["w"].sum(), ONE, wide)
