"""A small sharded Llama in a folder, its symmetry and an element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.checkpoints.streaming import layout

TOKENS = {"input_ids": torch.arange(7)[None]}


def llama(**settings: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**{
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 101, **settings,
    })  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1, 0.1)
            else:
                parameter.normal_(0, 0.2)
    return model


@cache
def derived() -> ParameterSymmetry:
    """The symmetry of the model that most tests start from, derived once."""
    return find_symmetry(llama(), TOKENS)


class Saved:
    """A model in a folder, and what moves it."""

    def __init__(
        self,
        folder: Path,
        model: LlamaForCausalLM,
        shard: str,
        symmetry: ParameterSymmetry | None = None,
    ):
        self.path = folder / "source"
        model.save_pretrained(self.path, max_shard_size=shard)
        (self.path / "README.md").write_text("about the model")
        self.model, self.symmetry = model, symmetry or find_symmetry(model, TOKENS)
        self.element = self.symmetry.sample(torch.Generator().manual_seed(3))

    def state(self) -> Mapping[str, torch.Tensor]:
        return self.model.state_dict()


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    """Four shards, in pieces of a few tensors."""
    monkeypatch.setattr(layout, "PIECE", 1 << 14)
    return Saved(tmp_path, llama(), "60KB", derived())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, or a file alone."""
    if folder.is_file():
        return {"": folder.read_bytes()}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
