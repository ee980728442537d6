"""What is written is laid out like what was read: shards, nested dictionaries, prefixes."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from paramsym.checkpoints import open_checkpoint
from paramsym.checkpoints.nested import candidates, nested, select
from paramsym.checkpoints.weights import common_prefix
from tests.models import Small

SMALL = "tests.models:Small"
INDEX = "model.safetensors.index.json"


def layout(folder: Path) -> dict[str, dict[str, tuple]]:
    """File → tensor → dtype and shape, of all weights in a folder."""
    return {
        path.name: {n: (t.dtype, tuple(t.shape)) for n, t in load_file(path).items()}
        for path in sorted(folder.glob("*.safetensors"))
    }


def scatter(folder: Path) -> None:
    """Divide the shards of a folder otherwise than transformers does, under names of our own."""
    state = {n: t for p in folder.glob("*.safetensors") for n, t in load_file(p).items()}
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.json")]:
        if path.name.startswith("model"):
            path.unlink()
    table = {name: f"part-{k % 3}.safetensors" for k, name in enumerate(sorted(state))}
    for shard in set(table.values()):
        part = {n: state[n] for n in table if table[n] == shard}
        save_file(part, folder / shard, metadata={"format": "pt", "origin": shard})
    said = {"metadata": {"total_size": 0, "run": "seven"}, "weight_map": table}
    (folder / INDEX).write_text(json.dumps(said))


@pytest.mark.filterwarnings("ignore")
def test_the_shards_of_a_folder_stay_as_they_are(run, folder: Path, tmp_path: Path):
    scatter(folder)
    out = tmp_path / "moved"
    run("transform", folder, out)
    assert layout(out) == layout(folder) and len(layout(out)) == 3
    old, new = (json.loads((f / INDEX).read_text()) for f in (folder, out))
    assert old["weight_map"] == new["weight_map"]
    assert new["metadata"]["run"] == "seven" and new["metadata"]["total_size"] > 0
    with safe_open(out / "part-1.safetensors", framework="pt") as file:
        assert file.metadata()["origin"] == "part-1.safetensors"
    files = [{n: t for p in f.glob("*.safetensors") for n, t in load_file(p).items()}
             for f in (folder, out)]  # fmt: skip
    assert any(not torch.equal(files[0][n], files[1][n]) for n in files[0])
    run("inspect", out, "--json")


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_the_model_does_not_read_is_copied(run, folder: Path, tmp_path: Path):
    path = folder / "model.safetensors"
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"  # of old versions; no longer read
    save_file({**load_file(path), buffer: torch.arange(2.0)}, path, metadata={"format": "pt"})
    out = tmp_path / "moved"
    run("transform", folder, out)
    assert torch.equal(load_file(out / "model.safetensors")[buffer], torch.arange(2.0))


def mixture(path: Path) -> Path:
    """A folder whose experts are joined into one tensor when it is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import MixtralConfig, MixtralForCausalLM

        config = MixtralConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=8, vocab_size=11, num_local_experts=2, max_position_embeddings=16,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            MixtralForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.filterwarnings("ignore")
def test_names_that_reading_changes_are_written_as_they_were(tmp_path: Path):
    folder, out = mixture(tmp_path / "mixture"), tmp_path / "moved"
    scatter(folder)
    checkpoint = open_checkpoint(str(folder))
    names = {name for tensors in layout(folder).values() for name in tensors}
    assert not names >= set(checkpoint.state())  # the model has other names
    state = {name: 2 * tensor for name, tensor in checkpoint.state().items()}
    checkpoint.save(out, state)
    assert layout(out) == layout(folder) and len(layout(out)) == 3
    assert not list(out.glob(".*"))
    found = checkpoint.reload(out).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_the_shards_of_a_factory_stay_with_their_prefix(run, tmp_path: Path):
    source, out = tmp_path / "source", tmp_path / "moved"
    source.mkdir()
    state = {f"module.{n}": t for n, t in Small().state_dict().items()}
    save_file(state, source / "model.safetensors")
    scatter(source)
    run("transform", SMALL, out, "--weights", source / INDEX)
    assert layout(out) == layout(source)


# -- nested dictionaries -----------------------------------------------------------------------


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """What a training loop saves."""
    path = tmp_path / "run.pt"
    state = Small().state_dict()
    torch.save(
        {
            "net": {"ema.shadow": state, "raw": {n: 2 * t for n, t in state.items()}},
            "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1.0}]},
            "epoch": 3,
        },
        path,
    )
    return path


def test_without_a_key_the_error_lists_the_candidates(run, training: Path):
    shown = run("inspect", SMALL, "--weights", training, code=2).stderr
    assert "Give --key net.ema.shadow (or 'net.raw')" in shown
    assert "exp_avg" not in shown and "optimizer.state" not in shown


@pytest.mark.parametrize("key", ["net", "epoch", "net.raw.first", "nothing", "optimizer"])
def test_a_key_that_leads_nowhere(run, training: Path, key: str):
    shown = re.sub(r"\s+", " ", run("inspect", SMALL, "--weights", training, "--key", key,
                                    code=2).stderr)  # fmt: skip
    assert f"--key {key}" in shown
    assert "net.ema.shadow (9 tensors), net.raw (9 tensors)" in shown


@pytest.mark.parametrize("key", ["net.ema.shadow", "net.raw"])
def test_what_a_key_names_is_read_and_written_there(run, training: Path, tmp_path: Path, key: str):
    out = tmp_path / "moved.pt"
    result = run("transform", SMALL, out, "--weights", training, "--key", key)
    assert "'optimizer', 'epoch'" in result.stderr and "stay behind" in result.stderr
    old = torch.load(training, weights_only=True)["net"]
    new = torch.load(out, weights_only=True)
    name = key.removeprefix("net.")
    assert list(new) == ["net"] and list(new["net"]) == [name]
    assert new["net"][name].keys() == old[name].keys()
    assert any(not torch.equal(t, old[name][n]) for n, t in new["net"][name].items())
    run("inspect", SMALL, "--weights", out, "--key", key)


def test_a_nested_state_dict_becomes_a_flat_safetensors_file(run, training, tmp_path):
    out = tmp_path / "moved.safetensors"
    run("transform", SMALL, out, "--weights", training, "--key", "net.raw")
    assert set(load_file(out)) == set(Small().state_dict())


def test_a_key_needs_an_archive(run, weights: Path):
    shown = run("inspect", SMALL, "--weights", weights, "--key", "model", code=2).stderr
    assert "safetensors have no keys" in shown
    assert "--weights FILE" in run("inspect", SMALL, "--key", "model", code=2).stderr


def test_keys_with_dots_and_what_is_no_state_dict():
    tensor = torch.zeros(1)
    loaded = {"a.b": {"c": {"w": tensor}}, "a": {"b": 1}, "list": [tensor], "empty": {}}
    assert select(loaded, "a.b.c", "here")[0] == ("a.b", "c")
    assert nested(("a.b", "c"), {"w": tensor}) == {"a.b": {"c": {"w": tensor}}}
    assert candidates(loaded) == [("a.b.c", 1)]
    assert candidates([tensor]) == [] == candidates({"w": tensor})


# -- prefixes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "says"),
    [("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile"),
     ("module._orig_mod.", "'module._orig_mod.'"), ("net.inner.", "'net.inner.'")],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_prefix_is_said_and_written_back(run, tmp_path: Path, prefix, says, suffix):
    source, out = tmp_path / f"weights{suffix}", tmp_path / f"moved{suffix}"
    state = {prefix + name: t for name, t in Small().state_dict().items()}
    save_file(state, source) if suffix == ".safetensors" else torch.save(state, source)
    result = run("transform", SMALL, out, "--weights", source)
    assert says in result.stderr and "written with it" in result.stderr
    new = load_file(out) if suffix == ".safetensors" else torch.load(out, weights_only=True)
    assert set(new) == set(state)
    assert any(not torch.equal(new[n], state[n]) for n in state)


def test_a_prefix_of_some_names_only_is_none(run, tmp_path: Path):
    state = Small().state_dict()
    torn = {(f"module.{n}" if n.startswith("first") else n): t for n, t in state.items()}
    save_file(torn, tmp_path / "w.safetensors")
    shown = run("inspect", SMALL, "--weights", tmp_path / "w.safetensors", code=2).stderr
    flat = re.sub(r"\s+", " ", shown)
    assert "'first.weight', 'first.bias' missing" in flat and "unknown to the model" in flat


def test_prefixes():
    known = {"a.w", "b.w"}
    assert common_prefix(["m.a.w", "m.b.w"], known) == "m."
    assert common_prefix(["m.a.w", "m.other"], known) == "m."  # then 'other' is said to be unknown
    assert common_prefix(["a.w", "b.w"], known) == ""
    assert common_prefix(["m.a.w", "n.b.w"], known) == ""
    assert common_prefix(["m.c.w"], known) == "" == common_prefix([], known)
