"""Folders whose tensors are windows on those of the model move from files to files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from paramsym import GroupElement, ParameterSymmetry, act, find_symmetry
from paramsym.algebra import AbstractMonomial
from paramsym.checkpoints import CheckpointError, compared, plan_transform, transform
from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.quieting import quiet
from paramsym.checkpoints.sources import open_movable
from paramsym.checkpoints.streaming import finding, layout, running
from paramsym.checkpoints.streaming.windows import Joins
from paramsym.origin.comparison import Kind
from tests.checkpoints.streaming.conftest import contents, llama
from tests.checkpoints.streaming.test_comparing import compare
from tests.checkpoints.streaming.test_resuming import killed, moved

_EXPERTS = {"intermediate_size": 12, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": {**_EXPERTS, "num_local_experts": 3},
    "Qwen2Moe": {**_EXPERTS, "num_experts": 3, "moe_intermediate_size": 8,
                 "shared_expert_intermediate_size": 8},
    "Olmoe": {**_EXPERTS, "num_experts": 3},
    "DeepseekV3": {**_EXPERTS, "num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 2,
                   "topk_group": 1, "moe_intermediate_size": 8, "q_lora_rank": 8,
                   "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
                   "v_head_dim": 4, "first_k_dense_replace": 1},
    "GPTNeoX": {"intermediate_size": 12},
    "ViT": {"intermediate_size": 12, "image_size": 8, "patch_size": 4},
}  # fmt: skip
STACKED = ["Mixtral", "Qwen2Moe", "Olmoe", "DeepseekV3"]
_COMMON = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 29, "max_position_embeddings": 16,
}  # fmt: skip


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}
    return {"input_ids": torch.arange(14).view(2, 7)}


@cache
def built(name: str) -> tuple[Any, ParameterSymmetry]:
    """A tiny model with random weights, and its symmetry."""
    kind = f"{name}For{'ImageClassification' if name == 'ViT' else 'CausalLM'}"
    config = getattr(transformers, f"{name}Config")(**{**_COMMON, **MODELS[name]})
    config._experts_implementation = "batched_mm"
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
    return model, find_symmetry(model, inputs_of(name))


class Folder:
    """A model in a folder, in shards; as the fixture `Saved` of a Llama."""

    def __init__(self, place: Path, name: str):
        self.path, self.name = place / "source", name
        self.model, self.symmetry = built(name)
        self.save(self.path, self.model.state_dict())
        self.element = self.symmetry.sample(torch.Generator().manual_seed(3))

    def save(self, path: Path, state: dict[str, torch.Tensor]) -> None:
        """What transformers itself writes for some weights."""
        whole = {n: t.clone() for n, t in self.model.state_dict().items()}
        self.model.load_state_dict(state)
        with quiet():
            self.model.save_pretrained(path, max_shard_size=6000)
        self.model.load_state_dict(whole)

    def outputs(self, path: Path) -> torch.Tensor:
        with quiet(), torch.no_grad():
            return type(self.model).from_pretrained(path).eval()(**inputs_of(self.name)).logits


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return dict(Checkpoint.open(path))


def orders(folder: Folder) -> GroupElement:
    """Orders and scales; experts come to other places."""
    found = folder.symmetry.spaces.items()
    only = [name for name, space in found if isinstance(space.group, AbstractMonomial)]
    return folder.symmetry.sample(torch.Generator().manual_seed(3), 1.0, only)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_what_transformers_writes_for_the_moved_weights(
    tmp_path: Path, name: str
) -> None:
    folder = Folder(tmp_path, name)
    weights = open_movable(str(folder.path)).streamable()
    assert weights is not None and bool(weights.windows) == (name in STACKED)
    done = transform(folder.path, tmp_path / "out", folder.element)
    assert done.error is not None and done.error < 1e-4 and not done.notes
    folder.save(tmp_path / "twin", act(folder.symmetry, folder.element, folder.model.state_dict()))
    found, expected = tensors(tmp_path / "out"), tensors(tmp_path / "twin")
    assert found.keys() == expected.keys()
    for file, tensor in expected.items():
        torch.testing.assert_close(found[file], tensor, rtol=1e-5, atol=1e-5)
    before, after = (folder.outputs(tmp_path / each) for each in ("source", "out"))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
    for path in folder.path.glob("*.safetensors"):  # names, shapes, shards and metadata stay
        head = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert (tmp_path / "out" / path.name).read_bytes()[:head] == path.read_bytes()[:head]


@pytest.mark.parametrize("name", STACKED)
def test_orders_and_scales_of_experts_are_equal_to_the_last_bit(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path, name)
    element = orders(folder)
    transform(folder.path, tmp_path / "out", element, verify=False)
    folder.save(tmp_path / "twin", act(folder.symmetry, element, folder.model.state_dict()))
    before, found = tensors(folder.path), tensors(tmp_path / "out")
    for file, tensor in tensors(tmp_path / "twin").items():
        assert torch.equal(found[file], tensor), file
    experts = [file for file in before if ".experts." in file]
    assert experts and not any(torch.equal(before[file], found[file]) for file in experts)


def test_a_move_of_the_wrong_window_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the check: an expert is read from where it is, and not from its source."""
    folder = Folder(tmp_path, "Mixtral")
    monkeypatch.setattr(Joins, "files", property(lambda joins: _Rotated(joins)))
    with pytest.raises(CheckpointError, match="computes another function"):
        transform(folder.path, tmp_path / "out", orders(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


class _Rotated(dict):
    """Each window of a tensor for the one after it."""

    def __init__(self, joins: Joins):
        for model, parts in joins.parts.items():
            alike: dict[Any, list[str]] = {}
            for file, window in parts.items():
                alike.setdefault(window.box[1:], []).append(file)
            for files in alike.values():
                for file, other in zip(files, [*files[1:], files[0]], strict=True):
                    self[model, parts[file]] = other


def test_windows_that_nothing_is_read_off_are_cut_from_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, "Mixtral")
    transform(folder.path, tmp_path / "out", folder.element, verify=False)
    monkeypatch.setattr("paramsym.checkpoints.streaming.job.windowed", lambda *_: None)
    transform(folder.path, tmp_path / "slow", folder.element)
    found, expected = tensors(tmp_path / "out"), tensors(tmp_path / "slow")
    for file, tensor in expected.items():
        torch.testing.assert_close(found[file], tensor, rtol=1e-5, atol=1e-5)
    records = [(tmp_path / f"{each}.record.json").read_text() for each in ("out", "slow")]
    assert len({text.split('"input"')[1].split(",")[0] for text in records}) == 1


def test_a_run_that_was_killed_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE", 1 << 12)
    folder: Any = Folder(tmp_path, "Mixtral")
    moved(folder, tmp_path / "once")
    assert killed(folder, tmp_path / "out", 20)
    moved(folder, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "once")
    one, two = ((tmp_path / f"{each}.record.json").read_text() for each in ("once", "out"))
    assert one.split('"xxh3_128"')[1] == two.split('"xxh3_128"')[1]


def test_a_plan_and_the_check_read_experts_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, "Mixtral")
    monkeypatch.setattr(running, "_ROWS", 100)
    plan = plan_transform(folder.path, tmp_path / "out", folder.element)
    assert {*plan.tensors} == {*tensors(folder.path)}
    done = transform(folder.path, tmp_path / "out", folder.element)
    assert done.error is not None and done.error < 1e-4


def test_comparing_finds_orders_of_experts_and_of_their_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "IN_MEMORY", 0)
    folder = Folder(tmp_path, "Mixtral")
    only = ["*.mlp.attn.head", "*channels*"]
    element = folder.symmetry.sample(torch.Generator().manual_seed(3), 0.5, only)
    transform(folder.path, tmp_path / "out", element, verify=False)
    found = compare(folder.path, tmp_path / "out")
    assert found.kind is Kind.SAME and found.distance < 1e-6


def test_buffers_that_the_model_computes_are_copied(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "GPTNeoX")
    extra = "gpt_neox.layers.0.attention.rotary_emb.inv_freq"
    path = tmp_path / "one"
    with quiet():
        folder.model.save_pretrained(path)
    state = {**load_file(path / "model.safetensors"), extra: torch.ones(4)}
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    done = transform(path, tmp_path / "out", folder.element)
    assert torch.equal(tensors(tmp_path / "out")[extra], torch.ones(4))
    assert any(extra in note for note in done.notes)
    assert done.error is not None and done.error < 1e-4


def test_what_windows_do_not_say_is_loaded_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Folder(tmp_path, "Mixtral")
    transform(one.path, tmp_path / "out", one.element, verify=False)
    monkeypatch.setattr("paramsym.checkpoints.folder.windows_of", lambda *_: None)
    done = transform(one.path, tmp_path / "whole", one.element)
    assert any("all weights are loaded" in note for note in done.notes)
    found, expected = tensors(tmp_path / "out"), tensors(tmp_path / "whole")
    for file, tensor in expected.items():
        torch.testing.assert_close(found[file], tensor, rtol=1e-5, atol=1e-5)
    with pytest.raises(CheckpointError, match="weights have to be loaded"):
        transform(one.path, tmp_path / "again", one.element, resume=True)


def test_tied_tensors_that_are_both_stored_move_alike(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with quiet():
        model.save_pretrained(tmp_path / "source")
    save_file(state, tmp_path / "source" / "model.safetensors", metadata={"format": "pt"})
    transform(tmp_path / "source", tmp_path / "out", torch.Generator().manual_seed(1))
    found = tensors(tmp_path / "out")
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    assert not torch.equal(found["lm_head.weight"], state["lm_head.weight"])


def test_a_unit_of_one_expert_that_differs_at_a_small_scale_is_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are less than rounding beside those of the others; the copy is the control."""
    monkeypatch.setattr(compared, "IN_MEMORY", 0)
    monkeypatch.setattr(finding, "_SAMPLE", 3)  # what is changed below is not among them
    folder: Any = Folder(tmp_path, "Mixtral")
    start = {name: t.clone() for name, t in folder.model.state_dict().items()}
    up, down = (start[f"model.layers.0.mlp.experts.{n}_proj"] for n in ("gate_up", "down"))
    width = down.shape[2]
    up[1, width + 3] /= 1e6
    down[1, :, 3] *= 1e6
    folder.save(tmp_path / "one", start)
    up[1, width + 2] *= 2
    down[1, :, 2] /= 2
    folder.save(tmp_path / "copy", start)
    up[1, width + 3, 0] *= 3
    folder.save(tmp_path / "other", start)
    assert compare(tmp_path / "one", tmp_path / "copy").kind is Kind.SAME
    assert compare(tmp_path / "one", tmp_path / "other").kind is Kind.UNDECIDED
