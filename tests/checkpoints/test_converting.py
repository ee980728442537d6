"""A move as a converter: driven as compressed-tensors drives its own, with shards and partners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.checkpoints import Checkpoint, CheckpointError, SymmetryConverter
from paramsym.structure.axes import Fixed
from paramsym.structure.shift import Factor, Shift, Term, Window

Tensors = dict[str, torch.Tensor]


class Halved:
    """A quantiser that follows: it needs the gate beside `up`, and stores both in bfloat16."""

    def process(self, tensors: Tensors) -> Tensors:
        return {n: t.to(torch.bfloat16) if "_proj" in n else t for n, t in tensors.items()}

    def validate(self, tensors: Tensors) -> Tensors:
        return self.process(tensors)

    def update_config(self, config: Any) -> Any:
        return {"bits": 16}

    def get_dependencies(self, weight_name: str) -> set[str]:
        return set()


def closed(name: str, converters: Sequence[Any], found: set[str]) -> set[str]:
    for converter in converters:
        for other in converter.get_dependencies(name) - found:
            found.add(other)
            closed(other, converters, found)
    return found


def converted(shards: Sequence[Tensors], converters: Sequence[Any]) -> list[Tensors]:
    """The files of a checkpoint after some converters, as `convert_checkpoint` makes them.

    A tensor that another one depends on is loaded beside it, from whatever shard, and nowhere else.
    """
    state = {name: tensor for shard in shards for name, tensor in shard.items()}
    needs = {name: closed(name, converters, set()) for name in state}
    assert all(name not in others for name, others in needs.items())
    partners = set().union(*needs.values())
    jobs: dict[int, dict[str, None]] = defaultdict(dict)
    for k, shard in enumerate(shards):
        for name in shard:
            if name not in partners:
                jobs[k] |= dict.fromkeys([name, *needs[name]])
    for verb in ("validate", "process"):
        made = []
        for job in jobs.values():
            device = "meta" if verb == "validate" else "cpu"
            tensors = {name: state[name].to(device) for name in job}
            for converter in converters:
                tensors = getattr(converter, verb)(tensors)
            made.append(tensors)
    return made


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=12, vocab_size=29, bos_token_id=0, eos_token_id=1,
    )).eval()  # fmt: skip


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=29, n_positions=16, bos_token_id=0,
        eos_token_id=1,
    )).eval()  # fmt: skip


def in_files(model: torch.nn.Module, symmetry: ParameterSymmetry) -> Tensors:
    """The state dict, each tied tensor once."""
    return {n: t.detach() for n, t in model.state_dict().items() if n not in symmetry.ties}


@pytest.mark.parametrize("shards", [1, 3, 7])
@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_converter_moves_every_tensor_once(build: Any, shards: int) -> None:
    model = build()
    symmetry = find_symmetry(model, {"input_ids": torch.arange(7)[None]})
    g = symmetry.sample(torch.Generator().manual_seed(1))
    state = in_files(model, symmetry)
    names = list(state)
    parts = [{n: state[n] for n in names[k::shards]} for k in range(shards)]
    made = converted(parts, [SymmetryConverter(symmetry, g, names)])
    counted = [name for file in made for name in file]
    assert sorted(counted) == sorted(names)
    wanted = act(symmetry, g, state)
    found = {n: t for file in made for n, t in file.items()}
    assert all(torch.equal(found[name], wanted[name]) for name in names)
    assert any(not torch.equal(found[name], state[name]) for name in names)


def test_a_move_and_a_quantiser_share_one_pass() -> None:
    model = llama()
    symmetry = find_symmetry(model, {"input_ids": torch.arange(7)[None]})
    g = symmetry.sample(torch.Generator().manual_seed(1))
    state = in_files(model, symmetry)
    move, halved = SymmetryConverter(symmetry, g, state), Halved()
    (made,) = converted([state], [move, halved])
    wanted = halved.process(act(symmetry, g, state))
    assert all(torch.equal(made[n], wanted[n]) for n in wanted)
    assert halved.update_config(move.update_config(None)) == {"bits": 16}
    assert move.update_config(config := {"old": 1}) is config
    assert move.update_model_config(config) is config


def test_names_with_a_prefix_are_those_of_the_model() -> None:
    model = llama()
    symmetry = find_symmetry(model, {"input_ids": torch.arange(7)[None]})
    g = symmetry.sample(torch.Generator().manual_seed(1))
    state = in_files(model, symmetry)
    named = {f"module.{n}": t for n, t in state.items()} | {"module.unknown": torch.ones(2)}
    (made,) = converted([named], [SymmetryConverter(symmetry, g, named)])
    wanted = act(symmetry, g, state)
    assert all(torch.equal(made[f"module.{n}"], wanted[n]) for n in state)
    assert torch.equal(made["module.unknown"], torch.ones(2))


def converter() -> tuple[SymmetryConverter, Tensors]:
    model = llama()
    symmetry = find_symmetry(model, {"input_ids": torch.arange(7)[None]})
    g = symmetry.sample(torch.Generator().manual_seed(1))
    state = in_files(model, symmetry)
    return SymmetryConverter(symmetry, g, state), state


def test_codes_are_refused_on_meta_already() -> None:
    move, state = converter()
    name = "model.layers.0.mlp.up_proj.weight"
    codes = {**state, name: state[name].to(torch.float8_e4m3fn)}
    with pytest.raises(CheckpointError, match="dequantises before this one"):
        move.validate(codes)
    beside = {**state, f"{name}_scale": torch.ones(1)}
    with pytest.raises(CheckpointError, match="up_proj.weight_scale"):
        move.validate(beside)


def test_what_is_missing_is_named() -> None:
    move, state = converter()
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match="post_attention_layernorm.weight' is missing"):
        move.process({name: state[name]})
    with pytest.raises(CheckpointError, match="missing among"):
        SymmetryConverter(move.symmetry, move.element, [name])
    wrong = {n: t[:-1] if n == name else t for n, t in state.items()}
    with pytest.raises(CheckpointError, match="shape"):
        move.validate(wrong)


def test_tensors_that_need_each_other_are_refused() -> None:
    def by(target: str, read: str) -> Shift:
        windows = [Window(name, "i", (3,), (1,)) for name in (target, read)]
        return Shift(f"{target} by {read}", "f", "i", (3,), (Term(windows[0], 1.0, (
            Factor(windows[1]),
        )),))  # fmt: skip

    signature = {name: (Fixed(3),) for name in "ab"}
    symmetry = ParameterSymmetry({}, signature, (by("a", "b"), by("b", "a")))
    one = symmetry.element({"a by b": torch.ones(3)})
    assert SymmetryConverter(symmetry, one).get_dependencies("a") == {"b"}
    both = symmetry.element({"a by b": torch.ones(3), "b by a": torch.ones(3)})
    with pytest.raises(CheckpointError, match="'a', 'b' need each other"):
        SymmetryConverter(symmetry, both)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_itself_drives_it(tmp_path: Path) -> None:
    convert = pytest.importorskip("compressed_tensors.entrypoints.convert")
    model = llama()
    symmetry = find_symmetry(model, {"input_ids": torch.arange(7)[None]})
    g = symmetry.sample(torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "in", max_shard_size=4000)
    before = Checkpoint.open(tmp_path / "in")
    move = SymmetryConverter(symmetry, g, list(before))
    convert.convert_checkpoint(str(before.place.path), str(tmp_path / "out"), move, device="cpu")
    after, wanted = Checkpoint.open(tmp_path / "out"), act(symmetry, g, model.state_dict())
    assert len(before.files) > 2 and {*after} == {*before}
    assert all(torch.equal(after[name], wanted[name]) for name in before)
