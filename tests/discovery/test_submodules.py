"""What enters a submodule, and who sees its parameters: hooks, noise, keywords, signs and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery.acting.constructed import constructed_action
from paramsym.discovery.acting.inheritance import inherit, on_units, with_appended

DOUBLE = torch.float64
Params = dict[str, Tensor]


def made(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model.double().eval()


def part() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


X = normal(2, 3, seed=5)


def change(model: nn.Module, action: Any, size: float = 0.5) -> tuple[float, float]:
    """How far outputs and parameters move."""
    params = {n: t.detach() for n, t in model.state_dict().items()}
    k = len(action.action.identity)
    moved = action(size * normal(k, seed=3), params, X)
    outputs = [torch.func.functional_call(model, p, (X,)) for p in (moved, params)]
    way = max(float((moved[n] - params[n]).abs().max()) for n in params)
    return float((outputs[0] - outputs[1]).abs().max()), way


class Whole(nn.Module):
    """b somewhere in a network."""

    def __init__(self, inner: nn.Module, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.b, self.run = inner, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@pytest.mark.parametrize("after", [False, True])
def test_hooks_of_the_user_are_part_of_the_submodule(after: bool) -> None:
    inner = part()
    if after:
        inner.register_forward_hook(lambda module, args, output: output * 2 + 1)
    else:
        inner.register_forward_pre_hook(lambda module, args: (args[0] * 2 + 1,))
    model = made(nn.Sequential(inner))
    action = inherit(constructed_action(inner, X), model, "0", X)
    apart, way = change(model, action)
    assert apart < 1e-12 and way > 0.1


def noise_before(m: Any, x: Tensor) -> Tensor:
    return m.b(x + torch.randn_like(x))


def dropout_before(m: Any, x: Tensor) -> Tensor:
    return m.b(nn.functional.dropout(x, 0.5, training=m.training))


@pytest.mark.parametrize("run", [noise_before, dropout_before])
def test_networks_that_draw_before_the_submodule_are_refused(run: Any) -> None:
    model = made(Whole(part(), run))
    with pytest.raises(ValueError, match="two runs of the network gave two answers"):
        inherit(lambda g, params, s: params, model, "b", X, training=True)
    if run is dropout_before:  # the control
        inherit(lambda g, params, s: params, model, "b", X)


def test_no_state_of_a_generator_is_left() -> None:
    model = made(Whole(part(), dropout_before))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    inherit(lambda g, params, s: params, model, "b", X)
    assert torch.equal(before, torch.get_rng_state())


def sign(m: Any, x: Tensor) -> Tensor:
    return m.b(x) + m.b[2].weight.sign().sum()


def large(m: Any, x: Tensor) -> Tensor:
    return m.b(x) + (m.b[2].weight.norm() > 50).to(x)


def small(m: Any, x: Tensor) -> Tensor:
    return m.b(x) + (m.b[2].weight.norm() < 0.1).to(x)


@pytest.mark.parametrize("run", [sign, large, small])
def test_signs_and_norms_that_are_read_elsewhere_are_seen(run: Any) -> None:
    with pytest.raises(ValueError, match="reads its parameters elsewhere too"):
        inherit(lambda g, params, s: params, made(Whole(part(), run)), "b", X)


class Scaled(nn.Module):
    """A module with a second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = part()

    def forward(self, x: Tensor, k: float = 1.0, *, shift: float = 0.0) -> Tensor:
        return self.inner(k * x) + shift


CALLS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Any]] = {
    "one": (lambda m, x: m.b(x), X),
    "two": (lambda m, x: m.b(x, 2.0), (X, 2.0)),
    "mixed": (lambda m, x: m.b(x, k=2.0), {"x": X, "k": 2.0}),
    "named": (lambda m, x: m.b(x=x, shift=1.0), {"x": X, "shift": 1.0}),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_enters_is_what_a_constructed_action_takes(name: str) -> None:
    run, data = CALLS[name]
    model: Any = made(Whole(Scaled(), run))
    seen: list[Any] = []

    def spying(g: Tensor, params: Params, entering: Any) -> Params:
        seen.append(entering)
        return params

    inherit(spying, model, "b", X)(torch.zeros(1), dict(model.state_dict()), X)
    torch.testing.assert_close(seen[0], data)
    apart, way = change(model, inherit(constructed_action(model.b, data), model, "b", X))
    assert apart < 1e-12 and way > 0.1


def test_the_attention_of_a_transformer_layer_keeps_its_answer() -> None:
    block: Any = made(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True))
    x = normal(1, 1, 4, seed=6)
    weights = {"out_proj.weight": block.self_attn.out_proj.weight}
    data = {"query": x, "key": x, "value": x, "need_weights": False}
    action = constructed_action(
        lambda p, d: torch.func.functional_call(block.self_attn, p, (), d)[0], data, weights
    )
    params = {n: t.detach() for n, t in block.state_dict().items()}
    moved = inherit(action, block, "self_attn", x)(0.5 * normal(len(action.identity)), params, x)
    outputs = [torch.func.functional_call(block, p, (x,)) for p in (moved, params)]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-12
    name = "self_attn.out_proj.weight"
    assert (moved[name] - params[name]).abs().max() > 0.1


def test_an_action_keeps_the_answers_of_the_mode_that_the_network_runs_in() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model, x = made(nn.Sequential(inner, nn.Tanh())), normal(3, 3, seed=2)
    params = {n: t.detach() for n, t in model.state_dict().items()}
    for training in (False, True):
        action = constructed_action(inner, x, training=training)
        moved = inherit(action, model, "0", x, training)(
            0.5 * normal(len(action.identity)), params, x
        )
        model.train(training)
        with torch.no_grad():
            found = [torch.func.functional_call(model, dict(p), (x,)) for p in (moved, params)]
        assert (found[0] - found[1]).abs().max() < 1e-12
        model.eval()
        with pytest.raises(ValueError, match=f"keeps answers .* training={training}"):
            inherit(action, model, "0", x, not training)


def test_arguments_without_a_name_beside_keywords_are_refused() -> None:
    class Starred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = part()

        def forward(self, *x: Tensor, k: float = 1.0) -> Tensor:
            return self.inner(k * x[0])

    model = made(Whole(Starred(), lambda m, x: m.b(x, k=2.0)))
    with pytest.raises(ValueError, match="with keywords and with 'x', which has no name"):
        inherit(lambda g, params, s: params, model, "b", X)


def test_what_is_no_network_and_no_unit_is_refused() -> None:
    not_a_module: Any = lambda x: x  # noqa: E731
    with pytest.raises(ValueError, match="a function came for the network"):
        inherit(lambda g, params, s: params, not_a_module, "b", X)
    units: Any
    for units in ([1.5], ["a"], [torch.tensor(0.5)]):
        with pytest.raises(ValueError, match="different units counted from 0"):
            on_units(lambda g, params, s: params, {"V": 0}, units)
    with pytest.raises(ValueError, match="an axis by tensor"):
        on_units(lambda g, params, s: params, {}, [0])
    with pytest.raises(ValueError, match=r"\(2, 3\) came for 'V', and more than 0 units along ax"):
        on_units(lambda g, params, s: params, {"V": 3}, [0])(X, {"V": X}, X)


def test_points_that_are_written_into_the_batch_are_not_the_batch() -> None:
    seen: list[Tensor] = []

    def spying(g: Tensor, params: Params, batch: Tensor) -> Params:
        seen.append(batch)
        return params

    batch = X.clone()
    with_appended(spying, lambda b: b.mul_(2))(X, {}, batch)
    assert torch.equal(batch, X)
    assert torch.equal(seen[0], torch.cat([X, 2 * X]))
    no_points: Any = lambda b: None  # noqa: E731
    with pytest.raises(ValueError, match="a NoneType came back, and a tensor of points"):
        with_appended(spying, no_points)(X, {}, X)
    with pytest.raises(ValueError, match="a tuple came, and one tensor was expected"):
        with_appended(spying, lambda b: b)(X, {}, (X, X))
