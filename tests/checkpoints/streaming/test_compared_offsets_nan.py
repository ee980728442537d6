"""Comparing in files: gains that are stored as γ − 1, and NaN in the first of two."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM

from paramsym.checkpoints import compare_checkpoints, compared, open_alike, transform
from paramsym.checkpoints.errors import CheckpointError


@pytest.fixture
def gemma(tmp_path, monkeypatch):
    monkeypatch.setattr(compared, "IN_MEMORY", 0)
    torch.manual_seed(0)
    config = Gemma2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, intermediate_size=24, vocab_size=31,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if "norm" in name else 0.25)
    model.save_pretrained(tmp_path / "a")
    return tmp_path / "a"


def _compared(one, two):
    return compare_checkpoints(open_alike([str(one), str(two)], lazily=True)).comparison


def test_gains_stored_minus_one_are_read_off_samples(gemma):
    moved = gemma.with_name("b")
    transform(gemma, moved, torch.Generator().manual_seed(1), strength=0.3)
    found = _compared(gemma, moved)
    assert found.kind == "same up to symmetry", found.reason


def test_nan_in_the_first_of_two_is_no_equal_number(gemma):
    other = gemma.with_name("b")
    other.mkdir()
    for path in gemma.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    tensors = load_file(gemma / "model.safetensors")
    tensors["model.embed_tokens.weight"][12, 3] = torch.nan  # not among the first rows
    save_file(tensors, gemma / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="nan"):
        _compared(gemma, other)
