"""Polarity masks: σₛ(z) = S σ(S z) keeps the function, and other masks do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.privacy.inference.polarity import Polarity, Turned

from .served import MASKED, Served, served


def polarity_of(case: Served) -> Polarity:
    given = case.example if isinstance(case.example, dict) else (case.example,)
    return Polarity.of(case.model, case.symmetry, given)


def answered(network: nn.Module, case: Served) -> Tensor:
    with torch.inference_mode():
        example = case.example
        return network(**example) if isinstance(example, dict) else network(example)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", MASKED)
def test_masked_networks_compute_the_same_and_stale_masks_do_not(name: str) -> None:
    case = served(name)
    polarity = polarity_of(case)
    generator = torch.Generator().manual_seed(3)
    masks, stale = polarity.sample(generator), polarity.sample(generator)
    assert polarity.places and {*polarity.places} | {*polarity.refused} == {*case.symmetry.spaces}
    flipped = polarity.flip(state(case.model), masks)
    wanted = case.outputs()
    assert apart(answered(polarity.evaluator(flipped, masks), case), wanted) <= 1e-12
    # the same parameters without masks, and with those of another session
    plain = Polarity(case.model, {}, {}).evaluator(flipped, {})
    assert apart(answered(plain, case), wanted) > 1e-3
    assert apart(answered(polarity.evaluator(flipped, stale), case), wanted) > 1e-3


def test_a_mask_moves_the_parameters_that_write_and_read_its_units_as_a_matrix_would() -> None:
    case = served("relu")
    polarity = polarity_of(case)
    masks = polarity.sample(torch.Generator().manual_seed(1))
    before, after = state(case.model), polarity.flip(state(case.model), masks)
    signs = [torch.diag(mask.double()) for mask in masks.values()]
    torch.testing.assert_close(after["0.weight"], signs[0] @ before["0.weight"])
    torch.testing.assert_close(after["0.bias"], signs[0] @ before["0.bias"])
    torch.testing.assert_close(after["2.weight"], signs[1] @ before["2.weight"] @ signs[0])
    torch.testing.assert_close(after["4.weight"], before["4.weight"] @ signs[1])
    assert all(torch.equal(polarity.flip(after, masks)[n], t) for n, t in before.items())


def test_modules_are_turned_by_hooks_and_calls_by_counting() -> None:
    modules = {name: [p.module for p in polarity_of(served(name)).places.values()]
               for name in ("relu", "one-module-twice", "swish")}  # fmt: skip
    assert modules == {"relu": ["1", "3"], "one-module-twice": [None, None], "swish": [None]}


def test_one_pass_of_a_rectifier_is_what_two_multiplications_make() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape, axis in (((5, 9), 1), ((2, 9, 3, 4), 1), ((2, 3, 9), 2)):
        z = torch.randn(shape, generator=generator)
        z.view(-1)[::7] = 0.0
        turned = Turned(1 - 2 * torch.randint(2, (9,), generator=generator), axis)
        signs = turned.signs(z)
        assert torch.equal(turned.rectified(z), signs * torch.relu(signs * z))
        assert not torch.equal(turned.rectified(z), torch.relu(z))


def test_the_model_itself_is_left_as_it_was() -> None:
    case = served("relu")
    before = state(case.model)
    polarity = polarity_of(case)
    masks = polarity.sample(torch.Generator().manual_seed(0))
    polarity.evaluator(polarity.flip(before, masks), masks)
    assert all(torch.equal(t, before[n]) for n, t in case.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in case.model.modules())


def test_spaces_with_signs_of_their_own_and_pooled_units_get_no_masks() -> None:
    assert "signs move already" in polarity_of(served("tanh")).refused["mlp"]
    pooled = nn.Sequential(
        nn.Conv1d(3, 6, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 2, 3)
    ).double()
    x = torch.randn(2, 3, 14, dtype=torch.float64)
    found = Polarity.of(pooled, find_symmetry(pooled, (x,), free_inputs={"input": 1}), (x,))
    assert not found.places  # a maximum does not pass signs


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        ({"mlp": torch.ones(7, dtype=torch.int8)}, "shape \\(7,\\)"),
        ({"mlp": torch.zeros(8, dtype=torch.int8)}, "1 or -1 for each of 8 units"),
        ({"nowhere": torch.ones(8)}, "cannot be masked"),
    ],
)
def test_other_masks_are_refused(masks: dict[str, Tensor], said: str) -> None:
    case = served("relu")
    with pytest.raises(ValueError, match=said):
        polarity_of(case).flip(state(case.model), masks)


def test_a_network_that_leaves_a_masked_call_out_is_refused_when_it_does() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            z = self.a(x)
            return self.b(torch.relu(z) if x.shape[0] > 1 else z.clamp(min=0))

    model = Sometimes().double()
    x = torch.randn(3, 4, dtype=torch.float64)
    polarity = Polarity.of(model, find_symmetry(model, (x,), free_inputs=True), (x,))
    masks = polarity.sample(torch.Generator().manual_seed(0))
    network = polarity.evaluator(polarity.flip(state(model), masks), masks)
    torch.testing.assert_close(network(x), model(x))
    with pytest.raises(RuntimeError, match="were not met"):
        network(x[:1])


def test_signs_that_are_not_sent_follow_from_answers_of_one_hidden_layer() -> None:
    # S max(S z, 0) = (z + S|z|)/2, so that f(x) = U(z + S|z|)/2 + c is linear in the signs:
    # who holds the turned parameters and gets h/m answers of m numbers solves for them.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    polarity = Polarity.of(model, find_symmetry(model, (x,), free_inputs=True), (x,))
    masks = polarity.sample(torch.Generator().manual_seed(2))
    turned = polarity.flip(state(model), masks)

    def solved(queries: Tensor) -> Tensor:
        z = queries @ turned["0.weight"].T + turned["0.bias"]
        rest = answered_by(model, queries) - turned["2.bias"] - z @ turned["2.weight"].T / 2
        rows = turned["2.weight"] * z.abs()[:, None] / 2  # (queries, outputs, units)
        return torch.linalg.lstsq(rows.reshape(-1, 8), rest.reshape(-1, 1)).solution[:, 0]

    torch.testing.assert_close(solved(x), masks["mlp"].double())
    assert not torch.allclose(solved(x[:2]), masks["mlp"].double(), atol=1e-3)  # 6 numbers, 8 signs


def answered_by(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(True), nn.SiLU(True), nn.ELU(inplace=True), nn.Threshold(0.1, 0.0, True), nn.SiLU()],
    ids=["relu", "silu", "elu", "threshold", "silu-not-in-place"],
)
def test_what_an_activation_writes_over_its_input_is_there_for_who_reads_that(
    activation: nn.Module,
) -> None:
    class Ignoring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 2)
            self.activation = activation

        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(x)
            given = self.activation(h)
            return self.outer(h if getattr(activation, "inplace", False) else given)

    torch.manual_seed(5)
    model, x = Ignoring().double().eval(), torch.randn(7, 6, dtype=torch.float64)
    polarity = Polarity.of(model, find_symmetry(model, (x,), free_inputs=True), (x,))
    ((space, place),) = polarity.places.items()
    assert place.module == "activation"
    masks = {space: torch.tensor([1, -1, -1, 1, -1], dtype=torch.int8)}
    flipped = polarity.flip(state(model), masks)
    with torch.inference_mode():
        wanted, found = model(x), polarity.evaluator(flipped, masks)(x)
        without = Polarity(model, {}, {}).evaluator(flipped, {})(x)
    assert apart(found, wanted) <= 1e-12
    assert apart(without, wanted) > 1e-3
