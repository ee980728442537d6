"""Streams that turn in two quick rounds: `act`, panels, inverses and files, beside plain products.

The twin is the same element with rotations that are not looked into.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paramsym import GroupElement, ParameterSymmetry, act, find_symmetry
from paramsym.algebra.woven import Woven, woven_of
from paramsym.checkpoints import transform
from paramsym.structure import legwise
from paramsym.structure.action import act_dual, act_tensor
from paramsym.structure.panels import act_panels

TOKENS = {"input_ids": torch.arange(7)[None]}


def _model(dtype: torch.dtype) -> LlamaForCausalLM:
    """A stream of 256 coordinates, with gains in whose frames it turns."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=311,
    )).eval()  # fmt: skip
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 2)
    return model.to(dtype)


@pytest.fixture(scope="module")
def symmetry() -> ParameterSymmetry:
    return find_symmetry(_model(torch.float32), TOKENS, check=False)


def _element(symmetry: ParameterSymmetry, seed: int = 0) -> GroupElement:
    generator = torch.Generator().manual_seed(seed)
    return symmetry.sample(generator, rotations="woven")


def _plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legwise, "woven_of", lambda matrix: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Woven]:
    """The woven rotations that were found and taken."""
    found: list[Woven] = []

    def spy(matrix: torch.Tensor) -> Woven | None:
        steps = woven_of(matrix)
        found.extend([] if steps is None else [steps])
        return steps

    monkeypatch.setattr(legwise, "woven_of", spy)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_act_is_that_of_the_matrix(
    symmetry: ParameterSymmetry, asked: list, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    state, g = _model(dtype).state_dict(), _element(symmetry)
    quick = act(symmetry, g, state)
    assert asked  # else there is nothing to compare
    _plainly(monkeypatch)
    slow = act(symmetry, g, state)
    level = 40 * torch.finfo(dtype if dtype != torch.bfloat16 else torch.float32).eps
    level = level if dtype != torch.bfloat16 else torch.finfo(dtype).eps
    for name, tensor in slow.items():
        scale = tensor.double().abs().max()
        assert (quick[name].double() - tensor.double()).abs().max() <= level * scale, name


def test_one_tensor_and_panels_of_it_are_those_of_act(
    symmetry: ParameterSymmetry, asked: list
) -> None:
    state, g = _model(torch.float32).state_dict(), _element(symmetry)
    moved = act(symmetry, g, state)
    for name in symmetry.signature:
        assert torch.equal(act_tensor(symmetry, g, name, state), moved[name]), name
        rows = torch.cat([panel.clone() for panel in act_panels(symmetry, g, name, state)])
        assert torch.allclose(rows, moved[name], atol=1e-6), name
    assert asked


def test_the_function_stays_and_the_inverse_leads_back(
    symmetry: ParameterSymmetry, asked: list
) -> None:
    model = _model(torch.float64)
    state, g = model.state_dict(), _element(symmetry)
    before = model(**TOKENS).logits
    moved = act(symmetry, g, state)
    after = torch.func.functional_call(model, moved, (), TOKENS).logits
    # the norms of transformers compute in float32
    assert (after - before).abs().max() < 1e-5 * before.abs().max()
    assert any(steps.rows_first for steps in asked)
    back = act(symmetry, ~g, moved)
    assert not all(steps.rows_first for steps in asked)  # the inverse is woven the other way round
    for name, tensor in back.items():
        assert torch.allclose(tensor, state[name], atol=1e-11), name
    # the control: the rotation of one tensor left out is seen
    astray = {**moved, "lm_head.weight": state["lm_head.weight"]}
    wrong = torch.func.functional_call(model, astray, (), TOKENS).logits
    assert (wrong - before).abs().max() > 1e-2 * before.abs().max()


def test_gradients_move_along(symmetry: ParameterSymmetry, asked: list) -> None:
    model = _model(torch.float64)
    state, g = model.state_dict(), _element(symmetry, 1)
    moved = act(symmetry, g, state)

    def gradient(params: dict) -> dict:
        def loss(p: dict) -> torch.Tensor:
            return torch.func.functional_call(model, p, (), TOKENS).logits.square().sum()

        return torch.func.grad(loss)(params)

    here, there = gradient(state), gradient(moved)
    for name, tensor in act_dual(symmetry, g, state, here).items():
        scale = there[name].abs().max()
        assert (tensor - there[name]).abs().max() < 1e-5 * scale, name
    assert asked


def test_a_folder_is_moved_by_woven_rotations_unless_others_are_wanted(
    symmetry: ParameterSymmetry, asked: list, tmp_path: Path
) -> None:
    model = _model(torch.float32)
    model.save_pretrained(tmp_path / "model")
    generator = torch.Generator()
    done = transform(
        tmp_path / "model", tmp_path / "haar", generator.manual_seed(0), rotations="haar"
    )
    assert done.error is not None
    assert done.error < 1e-4
    assert not asked
    done = transform(tmp_path / "model", tmp_path / "woven", generator.manual_seed(0))
    assert done.error is not None
    assert done.error < 1e-4
    assert asked
    saved = GroupElement.load(tmp_path / "woven.element.safetensors", symmetry)
    wide = [n for n, s in symmetry.spaces.items() if s.size == 256 and "Ortho" in str(s.group)]
    matrix = saved[wide[0]].matrix  # pyright: ignore[reportAttributeAccessIssue]
    assert woven_of(matrix) is not None


def test_another_kind_of_rotation_is_refused(symmetry: ParameterSymmetry) -> None:
    with pytest.raises(ValueError, match="expected one of haar, woven"):
        symmetry.sample(torch.Generator(), rotations="hadamard")  # pyright: ignore
