"""Readings follow the symmetry, x(g·θ) = ρ(g) x(θ), and what does not is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, find_symmetry, readings
from paramsym.geometry.reading import Reading
from paramsym.merging import readings as module
from paramsym.merging.acting import act_reading
from paramsym.structure.axes import parse_axis, spaces_of
from paramsym.structure.symmetry import ParameterSymmetry
from tests.models import Small, Tied
from tests.tracing.zoo import build, derived, names

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

# how many layers must be read, so that a property of none is not mistaken for one of all
ENOUGH = {
    "MLP, ReLU": 2, "MLP, ReLU in place": 2, "MLP, identity": 2, "convolutions": 8,
    "TransformerEncoderLayer, norm first": 3, "GPT-2": 15, "Llama": 15, "Qwen3": 15, "Phi-3": 9,
    "GPT-NeoX": 14, "BERT": 8, "T5": 36, "ViT": 18, "ResNet": 20, "ConvNeXt": 25,
}  # fmt: skip


def doubled(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.double() if t.is_floating_point() else t for n, t in model.state_dict().items()}


def error(now: Reading, then: Reading) -> float:
    return float((now.values - then.values).norm() / then.values.norm())


def read_at(
    model: nn.Module, symmetry: ParameterSymmetry, inputs: Any, seed: int
) -> tuple[dict[str, Reading], dict[str, Reading], dict[str, Reading]]:
    """Readings before a random move of all exact spaces, moved themselves, and after it."""
    params = doubled(model)
    exact = [s.name for s in symmetry.spaces.values() if s.exact]
    g = symmetry.sample(torch.Generator().manual_seed(seed), 0.7, only=exact)
    before = readings(model, symmetry, params, inputs)
    moved = {n: act_reading(symmetry, g, r, params) for n, r in before.items()}
    return before, moved, readings(model, symmetry, act(symmetry, g, params), inputs)


@pytest.mark.parametrize("name", ENOUGH, ids=names([*ENOUGH]))
def test_readings_at_moved_parameters_are_the_moved_readings(name: str) -> None:
    model, inputs = build(name)
    symmetry = derived(name)
    before, moved, after = read_at(model, symmetry, inputs, seed=7)
    assert len(before) == ENOUGH[name]
    assert before.keys() == after.keys()
    assert max(error(moved[n], after[n]) for n in before) < 1e-9
    assert min(error(before[n], after[n]) for n in before) > 1e-3  # all of them did move
    for n, reading in before.items():
        assert reading.values.shape[1] == reading.type.size(symmetry.sizes), n
        assert any(True for _ in spaces_of(reading.type))


def test_another_element_and_another_type_would_be_seen() -> None:
    model, inputs = build("GPT-2")
    symmetry = derived("GPT-2")
    params = doubled(model)
    before = readings(model, symmetry, params, inputs)
    own, other = (symmetry.sample(torch.Generator().manual_seed(k), 0.7) for k in (1, 2))
    after = readings(model, symmetry, act(symmetry, own, params), inputs)
    name = "transformer.h.0.attn.c_attn"
    assert error(act_reading(symmetry, other, before[name], params), after[name]) > 0.1
    dual = Reading(before[name].type.T, before[name].values)
    assert error(act_reading(symmetry, own, dual, params), after[name]) > 0.1


def test_fused_axes_are_taken_whole() -> None:
    model, inputs = build("GPT-2")
    symmetry = derived("GPT-2")
    found = readings(model, symmetry, doubled(model), inputs)["transformer.h.1.attn.c_attn"]
    assert str(found.type).count("h.1.attn.head") == 3
    assert found.values.shape == (2 * 7, 3 * 16)


class Squared(nn.Linear):
    """A layer whose output scales by the square of what its weight does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


class Cut(nn.Linear):
    """A layer that returns less than it computes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., 1:]


@pytest.mark.parametrize(("layer", "width"), [(nn.Linear, 5), (Squared, 5), (Cut, 4)])
def test_what_does_not_follow_its_type_is_left_out(layer: type[nn.Linear], width: int) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 6), nn.Linear(width, 2)
    model = nn.Sequential(first, nn.ReLU(), layer(6, 5), nn.ReLU(), last).double()
    symmetry = find_symmetry(model, (torch.ones(3, 4),))
    assert [*spaces_of(symmetry.signature["2.weight"][0])]  # it does carry a space
    found = readings(model, symmetry, doubled(model), (torch.randn(9, 4).double(),))
    assert [*found] == (["0", "2"] if layer is nn.Linear else ["0"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_wrong_candidate_is_left_out_in_every_precision(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = build("MLP, ReLU")
    symmetry = derived("MLP, ReLU")
    params = {n: t.to(dtype) for n, t in model.state_dict().items()}
    right = readings(model, symmetry, params, inputs)
    assert [*right] == ["0", "2"]
    assert {r.values.dtype for r in right.values()} == {dtype}
    wrong = {"0": [parse_axis("7")], "2": [parse_axis("mlp.2*"), parse_axis("mlp")]}
    monkeypatch.setattr(module, "_candidates", lambda *_: wrong)
    assert readings(model, symmetry, params, inputs) == {}
    wrong["2"].append(parse_axis("mlp.2"))  # the first that fits is taken
    assert [*readings(model, symmetry, params, inputs)] == ["2"]


def test_approximate_spaces_are_in_no_type() -> None:
    model, inputs = build("BERT")
    symmetry = derived("BERT")
    approximate = {s.name for s in symmetry.spaces.values() if not s.exact}
    carried = {s for axes in symmetry.signature.values() for axis in axes for s in spaces_of(axis)}
    assert approximate & carried
    for reading in readings(model, symmetry, doubled(model), inputs).values():
        assert not approximate & {*spaces_of(reading.type)}


def test_a_frame_with_a_zero_keeps_its_space_out_and_all_others_in() -> None:
    model, inputs = build("Llama")
    symmetry = derived("Llama")
    params = doubled(model)
    (gain, *_) = sorted(symmetry.frame_parameters)
    params[gain] = params[gain].clone()
    params[gain][3] = 0.0
    found = readings(model, symmetry, params, inputs)
    assert found
    assert "residual" not in {s for r in found.values() for s in spaces_of(r.type)}
    assert "model.layers.0.mlp.gate_proj" in found


def test_rows_are_samples_and_positions_in_order_and_calls_one_after_the_other() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv1d(2, 4, 1), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.first(x)) + torch.relu(self.first(x + 1))
            return self.last(y.movedim(1, -1))

    model = Twice().double()
    x = torch.randn(3, 2, 5).double()
    symmetry = find_symmetry(model, (x,))
    values = readings(model, symmetry, doubled(model), (x,))["first"].values
    assert values.shape == (2 * 3 * 5, 4)
    first = model.first(x).movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(values[:15], first.detach())
    second = model.first(x + 1).movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(values[15:], second.detach())
    thinned = readings(model, symmetry, doubled(model), (x,), most=4)["first"].values
    assert torch.equal(thinned, values[[0, 10, 19, 29]])


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {n: t.clone() for n, t in model.state_dict().items()} | {
        f"{n}:{what}": (m.training, len(m._forward_hooks)) for n, m in model.named_modules()
        for what in ("mode",)
    }  # fmt: skip


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[n], b[n]) if isinstance(a[n], Tensor) else a[n] == b[n] for n in a
    )


def test_nothing_is_left_in_the_model_and_nothing_that_came_is_changed() -> None:
    model = Small().train()
    calls = []
    model.first.register_forward_hook(lambda *_: calls.append(1))
    inputs = model.example_inputs()
    symmetry = find_symmetry(model, inputs)
    params = {n: t.clone() for n, t in model.state_dict().items()}
    kept, before, x = {n: t.clone() for n, t in params.items()}, snapshot(model), inputs[0].clone()
    found = readings(model, symmetry, params, inputs)
    assert {*found} == {"first", "norm"}
    assert same(before, snapshot(model))
    assert same(params, kept)
    assert torch.equal(inputs[0], x)
    assert calls  # the model's own hooks did run
    model.norm.train(False)
    assert not same(before, snapshot(model))


def test_activations_are_copies_that_later_layers_do_not_write_to() -> None:
    model, inputs = build("MLP, ReLU in place")
    symmetry = derived("MLP, ReLU in place")
    assert float(readings(model, symmetry, doubled(model), inputs)["0"].values.min()) < 0


def test_a_tied_table_is_read_where_it_embeds() -> None:
    model = Tied()
    inputs = (torch.arange(5)[None],)
    symmetry = find_symmetry(model, inputs)
    found = readings(model, symmetry, doubled(model), inputs)
    assert "head" not in found
    assert {"hidden"} <= {*found}


def test_numbers_that_are_not_finite_and_no_samples_are_refused() -> None:
    model, inputs = build("MLP, ReLU")
    symmetry = derived("MLP, ReLU")
    with pytest.raises(ValueError, match="most=0"):
        readings(model, symmetry, doubled(model), inputs, most=0)
    with pytest.raises(ValueError, match="'0' returned numbers that are not finite"):
        readings(model, symmetry, doubled(model), (inputs[0] * float("inf"),))
    params = doubled(model)
    del params["4.weight"]
    with pytest.raises(ValueError, match="missing"):
        readings(model, symmetry, params, inputs)
