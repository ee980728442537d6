"""transform from files to files is act, tensor by tensor, and leaves everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from paramsym import GroupElement, act, find_symmetry
from paramsym.checkpoints import (
    Checkpoint,
    CheckpointError,
    open_checkpoint,
    plan_transform,
    transform,
)
from paramsym.structure import fast, panels
from tests.checkpoints.streaming.conftest import TOKENS, Saved, contents, llama


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint[name] for name in checkpoint}


@pytest.mark.parametrize(
    ("engine", "verify"), [("local:1", True), ("local:3", False), ("local:2:processes", False)]
)
def test_what_is_written_is_the_moved_state(
    saved: Saved, tmp_path: Path, engine: str, verify: bool
) -> None:
    before = contents(saved.path)
    done = transform(
        saved.path, tmp_path / "out", saved.element, engine=engine, verify=verify
    )  # fmt: skip
    expected, found = act(saved.symmetry, saved.element, saved.state()), state_of(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    assert contents(saved.path) == before  # the source is only read
    assert (done.error is not None and done.error < 1e-4) if verify else done.error is None
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["out", "out.element.safetensors", "out.record.json", "source"]


def test_shards_heads_metadata_and_other_files_stay(saved: Saved, tmp_path: Path) -> None:
    out = tmp_path / "out"
    transform(saved.path, out, saved.element)
    assert {p.name for p in out.iterdir()} == {p.name for p in saved.path.iterdir()}
    for path in saved.path.glob("*.safetensors"):
        head = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert (out / path.name).read_bytes()[:head] == path.read_bytes()[:head]
        assert (out / path.name).stat().st_size == path.stat().st_size
    for name in ("config.json", "README.md"):
        assert (out / name).read_bytes() == (saved.path / name).read_bytes()


def test_the_record_says_what_was_done(saved: Saved, tmp_path: Path) -> None:
    transform(saved.path, tmp_path / "a", torch.Generator().manual_seed(5), strength=0.5)
    transform(saved.path, tmp_path / "b", torch.Generator().manual_seed(6), strength=0.5)
    a, b = (json.loads((tmp_path / f"{n}.record.json").read_text()) for n in "ab")
    assert a["how"] == {"seed": 5, "strength": 0.5, "only": None} and a["input"] == b["input"]
    assert a["request"]["element"] != b["request"]["element"]
    assert a["request"]["source"] == b["request"]["source"] and [
        x for x, _ in a["xxh3_128"].values()
    ] == [x for x, _ in b["xxh3_128"].values()]
    given = GroupElement.load(tmp_path / "a.element.safetensors", saved.symmetry)
    moved = act(saved.symmetry, given, saved.state())
    for name, tensor in state_of(tmp_path / "a").items():
        torch.testing.assert_close(tensor, moved[name], rtol=1e-5, atol=1e-6)


def test_the_element_that_is_written_leads_back(saved: Saved, tmp_path: Path) -> None:
    transform(saved.path, tmp_path / "there", torch.Generator().manual_seed(5))
    given = GroupElement.load(tmp_path / "there.element.safetensors", saved.symmetry)
    transform(tmp_path / "there", tmp_path / "back", ~given)
    for name, tensor in state_of(tmp_path / "back").items():
        torch.testing.assert_close(tensor, saved.state()[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 40_000, 1 << 40])
def test_shards_of_a_chosen_size(saved: Saved, tmp_path: Path, size: int) -> None:
    out = tmp_path / "out"
    transform(saved.path, out, saved.element, shard_size=size)
    transform(saved.path, tmp_path / "same", saved.element)
    files = sorted(out.glob("*.safetensors"))
    assert all(p.stat().st_size < size + 4096 for p in files) or size == 1
    assert len(files) == {1: len(saved.state()), 40_000: len(files), 1 << 40: 1}[size]
    found, expected = state_of(out), state_of(tmp_path / "same")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with safe_open(files[0], framework="pt") as file:  # another reader reads it, too
        assert file.metadata() == {"format": "pt"}
    assert type(saved.model).from_pretrained(out)(**TOKENS).logits.shape == (1, 7, 101)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_moved_in_float32_and_stay_halves(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = Saved(tmp_path, llama().to(dtype), "1GB")
    done = transform(saved.path, tmp_path / "out", saved.element)
    assert done.error is not None and done.error < 0.2
    wide = {n: t.float() for n, t in saved.state().items()}
    exact = act(saved.symmetry, saved.element, wide)
    for name, tensor in state_of(tmp_path / "out").items():
        assert tensor.dtype == dtype
        near = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(tensor.float(), exact[name], rtol=near, atol=1e-3 * near)


def test_double_precision_is_run_in_double_precision(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=29, n_positions=16)
    GPT2LMHeadModel(config).double().save_pretrained(tmp_path / "gpt2")
    done = transform(tmp_path / "gpt2", tmp_path / "out", torch.Generator().manual_seed(1))
    assert done.error is not None and done.error < 1e-9


def test_tied_tables_are_one_tensor(tmp_path: Path) -> None:
    saved = Saved(tmp_path, llama(tie_word_embeddings=True), "1GB")
    done = transform(saved.path, tmp_path / "out", torch.Generator().manual_seed(1))
    assert "lm_head.weight" not in state_of(tmp_path / "out")
    assert done.error is not None and done.error < 1e-4


def test_weights_alone_are_moved_by_an_element_of_their_model(saved: Saved, tmp_path: Path) -> None:
    file = tmp_path / "alone.safetensors"
    save_file({f"module.{n}": t for n, t in saved.state().items()}, file, metadata={"a": "b"})
    done = transform(file, tmp_path / "out.safetensors", saved.element)
    assert done.error is None
    expected = act(saved.symmetry, saved.element, saved.state())
    for name, tensor in load_file(tmp_path / "out.safetensors").items():
        torch.testing.assert_close(tensor, expected[name.removeprefix("module.")],
                                   rtol=1e-5, atol=1e-6)  # fmt: skip
    with pytest.raises(CheckpointError, match="do not say what is computed"):
        transform(file, tmp_path / "b.safetensors", torch.Generator())
    other = {"w": torch.zeros(3)}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="none of its names"):
        transform(tmp_path / "other.safetensors", tmp_path / "b.safetensors", saved.element)
    part = dict(list(saved.state().items())[:5])
    save_file(part, tmp_path / "part.safetensors")
    with pytest.raises(CheckpointError, match="missing, which the element moves"):
        transform(tmp_path / "part.safetensors", tmp_path / "b.safetensors", saved.element)
    assert not (tmp_path / "b.safetensors").exists()


def test_a_url_is_moved_to_this_machine(saved: Saved, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name, data in contents(saved.path).items():
        memory.pipe(f"/moved/{name}", data)
    transform("memory://moved", tmp_path / "remote", saved.element)
    transform(saved.path, tmp_path / "local", saved.element)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    memory.rm("/moved", recursive=True)


def test_tensors_that_no_model_reads_are_copied_and_named(saved: Saved, tmp_path: Path) -> None:
    file = tmp_path / "more.safetensors"
    save_file({**saved.state(), "stranger": torch.ones(3)}, file)
    done = transform(file, tmp_path / "out.safetensors", saved.element)
    assert any("'stranger'" in note for note in done.notes)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["stranger"], torch.ones(3))


def test_another_function_is_not_written(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the check: a scale that is wrong somewhere."""
    true = fast._read_off

    def wrong(*arguments):
        plan = true(*arguments)
        if plan is None or plan.scale is None:
            return plan
        scale = plan.scale.clone()
        scale[0] *= 2
        return fast.AxisPlan(plan.order, scale)

    monkeypatch.setattr(fast, "_SMALL", 1)
    transform(saved.path, tmp_path / "right", saved.element)
    monkeypatch.setattr(fast, "_read_off", wrong)
    with pytest.raises(CheckpointError, match="computes another function"):
        transform(saved.path, tmp_path / "wrong", saved.element)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["right", "right.element.safetensors", "right.record.json", "source"]


def test_numbers_that_are_not_finite_are_named(saved: Saved, tmp_path: Path) -> None:
    shard = sorted(saved.path.glob("*.safetensors"))[1]
    tensors = load_file(shard)
    name = next(n for n, t in tensors.items() if t.ndim == 2)
    tensors[name][2, 3] = float("nan")
    save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name}' holds nan"):
        transform(saved.path, tmp_path / "out", saved.element)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_an_element_that_makes_finite_weights_overflow_is_blamed(
    saved: Saved, tmp_path: Path
) -> None:
    huge = saved.symmetry.sample(torch.Generator().manual_seed(3), 300.0)
    with pytest.raises(CheckpointError, match="the move makes it overflow float32") as caught:
        transform(saved.path, tmp_path / "out", huge)
    assert "--strength" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_a_plan_names_what_moves_and_makes_no_file(saved: Saved, tmp_path: Path) -> None:
    before = contents(tmp_path)
    plan = plan_transform(saved.path, tmp_path / "out", torch.Generator(), only=["*.mlp*"])
    assert contents(tmp_path) == before
    moving = [n for n in saved.state() if ".mlp." in n]
    assert sorted(plan.tensors) == sorted(moving) and plan.seconds is not None
    done = transform(saved.path, tmp_path / "out", torch.Generator(), only=["*.mlp*"])
    sizes = {n: len(data) for n, data in contents(tmp_path / "out").items()}
    assert sizes == plan.files and done.changed == sum(saved.state()[n].numel() for n in moving)
    assert "tensors would move: " in str(plan)


def test_large_models_are_run_on_some_layers_and_say_so(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paramsym.checkpoints.streaming import running

    whole = transform(saved.path, tmp_path / "whole", saved.element)
    monkeypatch.setattr(running, "BUDGET", 60_000)
    monkeypatch.setattr(running, "_ROWS", 1_000)
    some = transform(saved.path, tmp_path / "some", saved.element)
    assert not whole.notes and any("2 of 3 layers" in note for note in some.notes)
    assert some.error is not None and 0 < some.error < 1e-4


def test_rows_are_read_in_panels(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform(saved.path, tmp_path / "whole", saved.element)
    monkeypatch.setattr(fast, "_SMALL", 1)
    monkeypatch.setattr(fast, "_PANEL", 64)
    monkeypatch.setattr(fast, "_MIXED", 256)
    monkeypatch.setattr(panels, "PANEL", 512)
    transform(saved.path, tmp_path / "panels", saved.element)
    for name, tensor in state_of(tmp_path / "whole").items():
        found = Checkpoint.open(tmp_path / "panels")[name]
        torch.testing.assert_close(found, tensor, rtol=1e-5, atol=1e-6)


def test_modules_that_read_each_other_s_weights_are_run_as_a_whole(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        vocab_size=31, max_position_embeddings=16,
    )).eval()  # fmt: skip
    model.save_pretrained(tmp_path / "bert")
    done = transform(tmp_path / "bert", tmp_path / "out", torch.Generator().manual_seed(1))
    assert done.error is not None and done.error < 1e-4 and not done.notes


def test_a_folder_is_one_whatever_its_name(saved: Saved, tmp_path: Path) -> None:
    named = saved.path.rename(tmp_path / "model.safetensors")
    done = transform(named, tmp_path / "out", torch.Generator().manual_seed(0))
    assert done.error is not None
    with pytest.raises(CheckpointError, match="a URL, from which no model is built"):
        open_checkpoint("s3://bucket/model")


def test_a_source_that_has_to_be_loaded_takes_no_options_of_a_pass(tmp_path: Path) -> None:
    source = open_checkpoint("tests.models:Small")
    for option, given in (("--resume", {"resume": True}), ("--shard-size", {"shard_size": 100})):
        with pytest.raises(CheckpointError, match=option):
            transform(source, tmp_path / "o.safetensors", torch.Generator(), **given)


def test_an_element_of_another_model_is_refused(saved: Saved, tmp_path: Path) -> None:
    other = llama(intermediate_size=40)
    element = find_symmetry(other, TOKENS).sample(torch.Generator().manual_seed(0))
    element.save(tmp_path / "g.safetensors")
    with pytest.raises(CheckpointError, match="belongs to"):
        transform(saved.path, tmp_path / "out", tmp_path / "g.safetensors")
    with pytest.raises(ValueError, match="belongs to another symmetry"):
        transform(saved.path, tmp_path / "out", element)
