"""Scale maps: what is exported for language models, and what is said of maps that people have.

Verdicts come from the symmetry; `Replay` knows none, and does what a tool does. Each has to say
what the other says, for the maps that are exported and for maps that are broken at random.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry, interop, twin
from paramsym.interop.exporting import AWQ, DIALECTS, SMOOTHQUANT
from paramsym.interop.maps import ScaleMap, ScaleMaps, Scales, Verdict
from paramsym.interop.parts import layers_of, module_names
from paramsym.interop.replay import Replay

Known = tuple[nn.Module, ParameterSymmetry, Any]


@cache
def known(name: str, **changes: Any) -> Known:
    """A small model of a configuration, by the name of its class."""
    config = getattr(transformers, f"{name}Config")(**changes)
    model, inputs = twin(config, kind=f"{name}ForCausalLM")
    return model, find_symmetry(model, inputs), inputs


def maps(name: str, tool: str = "awq", **changes: Any) -> dict[str, tuple[str, ...]]:
    """The readers of the first layer by who writes, both by what is behind the layer's name."""
    model, symmetry, inputs = known(name, **changes)
    made = interop.export(tool, symmetry, model, inputs)
    assert made.error is not None
    assert made.error < 1e-12
    first = "model.layers.0."
    return {
        entry.smooth.removeprefix(first): tuple(n.removeprefix(first) for n in entry.balance)
        for entry in made.entries
        if entry.smooth.startswith(first)
    }


def heads(*names: str) -> tuple[str, ...]:
    return tuple(f"self_attn.{name}_proj" for name in names)


GATED = {"mlp.up_proj": ("mlp.down_proj",)}


def test_llama_has_the_maps_that_everybody_knows() -> None:
    assert maps("Llama", num_key_value_heads=8) == {
        "input_layernorm": heads("q", "k", "v"),
        "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
        **GATED,
    }


def test_values_reach_outputs_where_each_head_has_its_own() -> None:
    assert maps("Llama")["self_attn.v_proj"] == heads("o")
    model, symmetry, inputs = known("Llama", num_key_value_heads=8)
    refused = {r.space: r for r in interop.awq(symmetry, model, inputs).refused}
    assert refused["layers.0.attn.vo"].kind == "layout"  # two queries share a value
    assert refused["layers.0.attn.qk"].kind == "two writers"


def test_a_parallel_block_has_one_norm_for_all() -> None:
    readers = maps("Cohere")["input_layernorm"]
    assert readers == (*heads("q", "k", "v"), "mlp.gate_proj", "mlp.up_proj")


def test_routers_and_all_experts_read_a_norm_and_experts_come_last() -> None:
    found = maps("Mixtral")
    readers = found["post_attention_layernorm"]
    assert readers[0] == "mlp.gate"
    experts = {f"mlp.experts.{e}.{n}_proj" for e in range(4) for n in ("gate", "up")}
    assert set(readers[1:]) == experts
    assert found["mlp.experts.3.up_proj"] == ("mlp.experts.3.down_proj",)


def test_interleaved_experts_are_taken_apart() -> None:
    model, symmetry, _ = known("GptOss")
    layers = layers_of(model, symmetry)
    experts = dict(model.named_modules())["model.layers.0.mlp.experts"]
    whole = experts.gate_up_proj
    gate = layers["model.layers.0.mlp.experts.1.gate_proj"].weight.of(whole)
    assert torch.equal(gate, whole[1, :, 0::2].T)
    assert "mlp.experts.1.gate_proj" in maps("GptOss")["post_attention_layernorm"]
    assert "model.layers.0.mlp.experts.1.gate_proj" in module_names(model)


def test_shared_experts_and_their_gate_are_readers() -> None:
    readers = maps("Qwen2Moe")["post_attention_layernorm"]
    assert {"mlp.gate", "mlp.shared_expert.gate_proj", "mlp.shared_expert_gate"} <= {*readers}


def test_latent_attention_has_its_norms() -> None:
    found = maps("DeepseekV3")
    assert found["self_attn.q_a_layernorm"] == ("self_attn.q_b_proj",)
    assert found["self_attn.kv_a_layernorm"] == ("self_attn.kv_b_proj",)


def test_norms_that_store_less_one_go_to_tools_that_convert_them() -> None:
    assert "input_layernorm" in maps("Gemma2")
    assert "input_layernorm" not in maps("Gemma2", "quark")
    model, symmetry, inputs = known("Gemma2")
    refused = interop.quark(symmetry, model, inputs).refused
    assert any(r.kind == "offset" for r in refused)


class Gated(nn.Module):
    """One of two layers with modules of the same names; in the second the gate reads `a`, too."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.a, self.gate, self.b = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        gate = self.gate(h if self.both else h.new_ones(6))
        return x + self.b(h) * gate.mean(-1, keepdim=True)


class Stack(nn.Module):
    def __init__(self, *kinds: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated(both) for both in kinds)
        self.head = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sin()


@pytest.mark.parametrize("kinds", [(False, False), (True, True), (False, True)])
def test_a_map_is_repeated_where_every_layer_of_these_names_has_it(kinds: tuple[bool, ...]) -> None:
    model, inputs = Stack(*kinds), torch.randn(3, 5)
    symmetry = find_symmetry(model, inputs)
    made = interop.quark(symmetry, model, inputs)
    assert made.layers == "layers"
    said = [(one["prev_op"], one["layers"]) for one in made.recipe()["scaling_layers"]]
    if kinds[0] == kinds[1]:
        assert said == [("a", ["gate", "b"] if kinds[0] else ["b"])]
        assert interop.check(symmetry, model, made.recipe(), inputs).sound
    else:  # what is right for the second is no map of the first, whose gate reads ones
        assert said == []
        assert sum(r.kind == "layer" for r in made.refused) == 2


def test_a_tied_head_leaves_no_map_for_the_last_norm() -> None:
    for tied, expected in ((False, True), (True, False)):
        model, symmetry, inputs = known("Llama", tie_word_embeddings=tied)
        entries = interop.smoothquant(symmetry, model, inputs).entries
        assert any(e.smooth == "model.norm" for e in entries) is expected
        assert all(e.smooth != "model.norm" for e in interop.awq(symmetry, model).entries)


def test_weights_stored_by_columns_are_refused_by_name() -> None:
    model, inputs = twin(transformers.GPT2Config(), kind="GPT2LMHeadModel")
    symmetry = find_symmetry(model, inputs)
    made = interop.awq(symmetry, model, inputs)
    assert not made.entries
    assert {r.kind for r in made.refused} == {"format"}
    assert "Conv1D" in made.refused[0].reason


BROKEN = {
    "missing reader": ("input_layernorm", heads("q", "k")),
    "reads another space": ("input_layernorm", (*heads("q", "k", "v"), "mlp.gate_proj")),
    "layout": ("self_attn.v_proj", heads("o")),
    "no symmetry": ("self_attn.o_proj", ("mlp.up_proj",)),
    "unknown module": ("input_norm", heads("q", "k", "v")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_named(kind: str) -> None:
    model, symmetry, inputs = known("Llama", num_key_value_heads=8)
    smooth, readers = (f"model.layers.0.{BROKEN[kind][0]}", BROKEN[kind][1])
    entry = (tuple(f"model.layers.0.{r}" for r in readers), smooth)
    (found,) = interop.check(symmetry, model, [entry], inputs).maps
    assert found.verdict.kind == kind
    assert not found.sound
    if kind == "missing reader":
        assert found.verdict.parameters == ("model.layers.0.self_attn.v_proj.weight",)
        assert found.corrected is not None
        assert found.corrected.balance[-1].endswith("v_proj")
    if found.change is not None:
        assert found.change > 1e-3


def mutated(entry: ScaleMap, layers: list[str], chance: random.Random) -> ScaleMap:
    """A map with a reader less, one more, or another writer."""
    readers, smooth = list(entry.balance), entry.smooth
    what = chance.randrange(4)
    if what == 0 and len(readers) > 1:
        readers.pop(chance.randrange(len(readers)))
    elif what == 1:
        readers.append(chance.choice(layers))
    elif what == 2:
        readers[chance.randrange(len(readers))] = chance.choice(layers)
    elif what == 3:
        smooth = chance.choice(layers)
    return ScaleMap(smooth, tuple(dict.fromkeys(readers)))


@pytest.mark.parametrize("tool", ["awq", "smoothquant"])
@pytest.mark.parametrize("name", ["Llama", "Cohere", "Phi", "Qwen2Moe", "DeepseekV3", "Gemma2"])
def test_verdicts_are_those_of_the_replay(name: str, tool: str) -> None:
    model, symmetry, inputs = known(name)
    dialect = DIALECTS[tool]
    scales, replay = Scales(symmetry, model, dialect), Replay(model, symmetry, inputs, dialect)
    entries = scales.maps().entries
    for entry in entries:
        assert replay.error([entry]) < 1e-10
    chance = random.Random(name + tool)
    layers = [n for n, layer in layers_of(model, symmetry).items() if not layer.is_table]
    sound = 0
    for _ in range(40):
        entry = mutated(chance.choice(entries), layers, chance)
        if entry.smooth in entry.balance or any(scales.layers[n].weight.expert >= 0 for n in
                                                (entry.smooth, *entry.balance)):  # fmt: skip
            continue  # an expert may see no token, and then nothing shows
        verdict, change = scales.verdict(entry), replay.error([entry])
        if verdict.kind != "unknown module":
            assert (verdict.kind == "sound") == (change < 1e-8), (entry, verdict, change)
        sound += verdict.kind == "sound"
    assert sound < 40


def test_smoothquant_takes_no_part_of_a_writer() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.out = nn.Linear(5, 8, bias=False), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, value = self.both(x).chunk(2, -1)
            return self.out(gate.tanh() * value)

    model, inputs = Fused(), (torch.randn(7, 5),)
    symmetry = find_symmetry(model, inputs)
    fused = ScaleMap("both", ("out",))
    assert Scales(symmetry, model, AWQ).verdict(fused).kind == "sound"
    assert Scales(symmetry, model, SMOOTHQUANT).verdict(fused).kind == "layout"
    assert Replay(model, symmetry, inputs, AWQ).error([fused]) < 1e-12
    assert Replay(model, symmetry, inputs, SMOOTHQUANT).error([fused]) == float("inf")


def test_a_model_on_meta_is_exported_without_a_replay() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2))
        inputs = {"input_ids": torch.zeros(2, 7, dtype=torch.long)}
    made = interop.awq(find_symmetry(model, inputs), model, inputs)
    assert made.error is None
    assert "not replayed" in made.note
    assert len(made.entries) == 8


def test_experts_that_are_routed_in_groups_have_maps_of_their_own() -> None:
    groups = {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
    model, symmetry, inputs = known("DeepseekV3", **groups)
    entries = {e.smooth: e.balance for e in interop.awq(symmetry, model, inputs).entries}
    experts = [n for n in layers_of(model, symmetry) if "experts." in n and n.endswith("up_proj")]
    assert len(experts) == 4 + 1  # and those that all tokens share
    for name in experts:
        assert entries[name] == (name.replace("up_proj", "down_proj"),)


class Twice(nn.Module):
    """Two pairs of layers whose readers lie in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(5, 6)
        parts = {name: nn.Linear(6, 4) for name in ("a", "b", "c", "d")}
        self.inner = nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        h, g = self.first(x).relu(), self.second(x).relu()
        return (self.inner["a"](h) * self.inner["b"](h)).sin() + self.inner["c"](g).cos() * (
            self.inner["d"](g).sin()
        )


def test_two_maps_of_one_modifier_with_one_parent_are_told() -> None:
    model, inputs = Twice(), torch.randn(3, 5)
    symmetry = find_symmetry(model, inputs)
    made = interop.awq(symmetry, model, inputs)
    assert [len(each) for each in made.rounds] == [1, 1] and {*made.parents} == {"inner"}
    found = interop.check(symmetry, model, made.recipe(), inputs)
    assert found.sound and not found.note
    mappings = [{"smooth_layer": e.smooth, "balance_layers": [*e.balance]} for e in made.entries]
    found = interop.check(symmetry, model, {"AWQModifier": {"mappings": mappings}}, inputs)
    assert found.sound and "'inner': llm-compressor 0.14 stops there" in found.note


def test_each_modifier_has_its_own_list_of_objects() -> None:
    model, symmetry, inputs = known("DeepseekV3")
    (quark,) = interop.quark(symmetry, model, inputs).objects()
    made = interop.smoothquant(symmetry, model, inputs)
    (pairs,) = made.objects()
    assert pairs == [([*e.balance], e.smooth) for e in made.entries] and quark


def test_a_map_that_is_wrong_is_left_out_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A defect of the derivation is made here: a map that lost a reader."""
    model, symmetry, inputs = known("Llama")
    right = interop.awq(symmetry, model, inputs).entries
    first, *rest = right
    lost = ScaleMap(first.smooth, first.balance[1:])
    monkeypatch.setattr(Scales, "maps", lambda _: ScaleMaps((lost, *rest), ()))
    made = interop.awq(symmetry, model, inputs)
    assert made.entries == tuple(rest) and len(made.parents) == len(rest)
    assert made.error is not None and made.error < 1e-10
    assert [(r.space, r.kind) for r in made.refused] == [(first.smooth, "not proved")]


def test_what_is_wrong_only_together_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    model, symmetry, inputs = known("Llama")
    monkeypatch.setattr(Replay, "error", lambda _, maps: 1.0 if len([*maps]) > 1 else 0.0)
    with pytest.raises(interop.NotProved, match="several together"):
        interop.awq(symmetry, model, inputs)


class Skipped(nn.Module):
    """A linear layer inside a skip: y + W y is (1 + W) y, which no scale of W alone moves."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.inner, self.down = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(y + self.inner(y))


@pytest.mark.parametrize("tool", ["awq", "smoothquant", "quark", "spinquant"])
def test_a_layer_inside_a_skip_is_told_nowhere_with_and_without_a_replay(tool: str) -> None:
    model, inputs = Skipped(), torch.randn(3, 6)
    symmetry = find_symmetry(model, inputs)
    for run in (inputs, None):
        made: Any = interop.export(tool, symmetry, model, run)
        assert not (made.rotations if tool == "spinquant" else made.entries)
        assert "offset" in {r.kind for r in made.refused}
        assert all(r.kind != "not proved" for r in made.refused)
    if tool == "spinquant":
        return
    entries = [(["inner"], "up"), (["down", "inner"], "up"), (["down"], "inner")]
    for run in (inputs, None):
        found = interop.check(symmetry, model, entries, run, tool)
        assert {each.verdict.kind for each in found.maps} == {"offset"}
        assert all(each.change is None or each.change > 1e-3 for each in found.maps)


def test_what_a_replay_denies_is_not_called_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Skipped(), torch.randn(3, 6)
    symmetry = find_symmetry(model, inputs)
    monkeypatch.setattr(Scales, "verdict", lambda *_: Verdict("sound"))
    monkeypatch.setattr(Scales, "maps", lambda _: ScaleMaps((), ()))
    (found,) = interop.check(symmetry, model, [(["inner"], "up")], inputs).maps
    assert not found.sound and "the replay denies it" in found.verdict.reason
