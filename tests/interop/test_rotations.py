"""Rotation maps, replayed; and what makes them wrong: a reader less, a mean less, a tied head."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import nn

from paramsym import find_symmetry, interop, twin
from paramsym.interop.replay import Replay
from paramsym.interop.spinning import SPINQUANT, block_of, replayed
from paramsym.structure.symmetry import ParameterSymmetry

pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,  # biases in front of values
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "Phi3ForCausalLM": transformers.Phi3Config,
    "DeepseekV3ForCausalLM": transformers.DeepseekV3Config,
    "MixtralForCausalLM": transformers.MixtralConfig,
    "Gemma2ForCausalLM": transformers.Gemma2Config,
    "OPTForCausalLM": transformers.OPTConfig,
    "GPT2LMHeadModel": transformers.GPT2Config,
}


def small(kind: str) -> tuple[nn.Module, Any, ParameterSymmetry]:
    model, inputs = twin(CLASSES[kind](), kind=kind)
    model = interop.untied(model)
    return model, inputs, find_symmetry(model, inputs)


def turnable(kind: str) -> tuple[interop.RotationExport, Replay]:
    model, inputs, symmetry = small(kind)
    return interop.spinquant(symmetry, model, inputs), Replay(model, symmetry, inputs, SPINQUANT)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_rotation_alone_and_all_together_keep_the_function(kind: str) -> None:
    made, replay = turnable(kind)
    assert made.error is not None and made.error < 1e-10
    for each in made.rotations:
        assert replayed(replay, [each], made.folds) < 1e-10, each
    assert replayed(replay, [], made.folds) < 1e-10


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
def test_whoever_is_left_out_changes_the_function(kind: str) -> None:
    made, replay = turnable(kind)
    (stream,) = (r for r in made.rotations if r.space == "residual")
    for k in range(len(stream.readers)):
        less = replace(stream, readers=stream.readers[:k] + stream.readers[k + 1 :])
        assert replayed(replay, [less], made.folds) > 1e-4, stream.readers[k]
    for k in range(len(stream.writers)):
        less = replace(stream, writers=stream.writers[:k] + stream.writers[k + 1 :])
        assert replayed(replay, [less], made.folds) > 1e-4, stream.writers[k]
    assert replayed(replay, [stream], ()) > 1e-4  # gains that are not folded
    less = [replace(made.folds[0], linears=made.folds[0].linears[1:]), *made.folds[1:]]
    assert replayed(replay, [], less) > 1e-4


def test_the_stream_of_llama_is_that_of_the_paper() -> None:
    made, _ = turnable("LlamaForCausalLM")
    stream, *heads = made.rotations
    layers = [f"model.layers.{k}" for k in range(2)]
    assert {*stream.writers} == {
        "model.embed_tokens", *(f"{x}.self_attn.o_proj" for x in layers),
        *(f"{x}.mlp.down_proj" for x in layers),
    }  # fmt: skip
    assert {*stream.readers} == {
        "lm_head", *(f"{x}.self_attn.{p}_proj" for x in layers for p in "qkv"),
        *(f"{x}.mlp.{p}_proj" for x in layers for p in ("gate", "up")),
    }  # fmt: skip
    assert [(h.writers, h.readers) for h in heads] == [
        ((f"{x}.self_attn.v_proj",), (f"{x}.self_attn.o_proj",)) for x in layers
    ]
    assert {f.norm: len(f.linears) for f in made.folds} == {
        **{f"{x}.input_layernorm": 3 for x in layers},
        **{f"{x}.post_attention_layernorm": 2 for x in layers}, "model.norm": 1,
    }  # fmt: skip
    assert [(r.kind, r.space) for r in made.refused] == [("centring", "residual")]


def test_centring_what_a_stream_begins_with_changes_the_function() -> None:
    made, replay = turnable("LlamaForCausalLM")
    name = "model.embed_tokens.weight"

    def centred(state: Any) -> None:
        state[name] = state[name] - state[name].mean(-1, keepdim=True)

    assert replay.change(centred) > 1e-3


@pytest.mark.parametrize(
    ("kind", "space", "reason"),
    [
        ("MixtralForCausalLM", "residual", "mlp.gate.weight is no weight of a Linear"),
        ("OPTForCausalLM", "residual", "only rotations that fix the vector of ones"),
        ("Phi3ForCausalLM", "layers.0.attn.vo", "carries it in"),
        ("Gemma2ForCausalLM", "residual", "its group is Permutation"),
    ],
)
def test_what_cannot_be_turned_is_named(kind: str, space: str, reason: str) -> None:
    made, _ = turnable(kind)
    assert reason in next(r.reason for r in made.refused if r.space == space)
    assert space not in {r.space for r in made.rotations}


def test_a_tied_head_is_refused_and_untying_makes_a_copy() -> None:
    config = transformers.LlamaConfig(tie_word_embeddings=True)
    tied, inputs = twin(config, kind="LlamaForCausalLM")
    made = interop.spinquant(find_symmetry(tied, inputs), tied, inputs)
    assert "derive this for untied(model)" in next(
        r.reason for r in made.refused if r.space == "residual"
    )
    free = interop.untied(tied)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert free.lm_head.weight is not free.model.embed_tokens.weight
    assert torch.equal(free.lm_head.weight, tied.lm_head.weight)
    again = interop.spinquant(find_symmetry(free, inputs), free, inputs)
    assert again.rotations[0].space == "residual"


class Shared(nn.Module):
    """Two modules with one weight, around an interface of width four."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 6)
        self.c, self.d = nn.Linear(5, 4), nn.Linear(4, 6)
        if shared:
            self.c.weight, self.d.weight = self.a.weight, self.b.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)).sin() * self.d(self.c(x)).cos()


def test_two_modules_with_one_weight_would_be_turned_twice() -> None:
    inputs = torch.randn(3, 5)
    for shared in (False, True):
        model = Shared(shared)
        made = interop.spinquant(find_symmetry(model, inputs), model, inputs)
        assert made.error is not None and made.error < 1e-12
        assert len(made.rotations) == (0 if shared else 2)
        assert any(r.kind == "tied" for r in made.refused) is shared


class Transposed(nn.Module):
    """A bias that writes what its weight reads: the tool would turn both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x @ self.a.weight + self.a.bias).sin()


def test_a_weight_and_a_bias_that_carry_different_things_are_refused() -> None:
    model, inputs = Transposed(), torch.randn(3, 8)
    made = interop.spinquant(find_symmetry(model, inputs), model, inputs)
    assert not made.rotations and made.error is not None and made.error < 1e-12
    assert any("rows of a.weight do not carry it" in r.reason for r in made.refused)


def test_the_recipe_says_all_and_leaves_the_roles_of_the_tool_empty() -> None:
    made, _ = turnable("DeepseekV3ForCausalLM")
    (stage,) = yaml.safe_load(made.text()).values()
    said = stage["rotation_modifiers"]["SpinQuantModifier"]
    assert said["mappings"]["embedding"] == "re:(?!)" and len(said["norm_mappings"]) == 7
    groups = said["transform_config"]["config_groups"]
    assert {scheme["head_dim"] for scheme in groups.values()} == {4, 8}  # of 12 and of 8
    turned = [arg["targets"] for scheme in groups.values() for arg in scheme["apply"]]
    assert {name for names in turned for name in names} == {
        name for r in made.rotations for name in (*r.writers, *r.readers)
    }


def test_blocks_are_the_largest_powers_of_two() -> None:
    assert [block_of(n) for n in (2, 12, 896, 4096, 4608)] == [2, 4, 128, 4096, 512]


class Registered(nn.Module):
    """One network whose first layer is registered first or last."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        if not late:
            self.i = nn.Linear(3, 6)
        self.n, self.up, self.down = nn.RMSNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.n2, self.o = nn.RMSNorm(6), nn.Linear(6, 2)
        if late:
            self.i = nn.Linear(3, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.i(x)
        h = h + self.down(torch.relu(self.up(self.n(h))))
        return self.o(self.n2(h))


def test_the_order_of_registration_says_nothing() -> None:
    found = []
    for late in (False, True):
        model, inputs = Registered(late), torch.randn(4, 3)
        made = interop.spinquant(find_symmetry(model, inputs), model, inputs)
        assert made.error is not None and made.error < 1e-10
        (turn,) = made.rotations
        found.append(({*turn.writers}, {*turn.readers}, {fold.norm for fold in made.folds}))
    assert found[0] == found[1] == ({"i", "down"}, {"up", "o"}, {"n", "n2"})


class Behind(nn.Module):
    """A norm behind a writer of the stream: its gain stands on the rows, and is folded nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.up, self.down = nn.Linear(3, 6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.post, self.n, self.o = nn.RMSNorm(6), nn.RMSNorm(6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.i(x)
        h = h + self.post(self.down(torch.relu(self.up(self.n(h)))))
        return self.o(self.n(h))


def test_a_gain_behind_a_writer_is_not_folded() -> None:
    model, inputs = Behind(), torch.randn(4, 3)
    symmetry = find_symmetry(model, inputs)
    for run in (inputs, None):
        assert not interop.spinquant(symmetry, model, run).rotations
