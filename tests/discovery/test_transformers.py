"""Blocks of transformers: heads, gains, and what a normalisation takes away."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.discovery import linear_symmetries

from .networks import Attention


def test_a_tensor_that_nothing_depends_on_is_reported_and_no_generator():
    found = linear_symmetries(Attention(), (torch.randn(1, 3, 3),))
    assert found.dead == ("k.bias",) and "k.bias" in found.searched
    assert found.dimension == 8  # gl₂ between queries and keys, and between values and outputs
    assert all("k.bias" not in g.targets for g in found.generators)
    assert "k.bias" not in found.shapes


def test_the_perceptron_of_a_transformer_block():
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0)
    inputs = (torch.randn(1, 3, 4),)
    # a scale of each of six units; and the same number added to all outputs, which the norm takes
    # away, at any rate that is linear in a column of the last map (4), or in its bias (4)
    for names, dimension in ((["linear1.*", "linear2.weight"], 6 + 4), ("linear*", 6 + 4 + 4)):
        found = linear_symmetries(layer, inputs, "sides", names=names)
        assert found.dimension == dimension and found.gap.largest_null < 1e-13
        assert found.gap.next >= 1e-4


def test_a_llama_block_by_sides():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=7, hidden_size=4, intermediate_size=5, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    found = linear_symmetries(model, {"input_ids": torch.tensor([[1, 2, 3]])}, "sides")
    # gains of three norms; for each head, a rotation and a scale of the plane of queries against
    # that of keys, and GL₂ of the values; a scale of each hidden unit of the perceptron
    assert found.dimension == 3 * 4 + 2 * 2 + 2 * 4 + 5
    assert found.gap.largest_null < 1e-13 and found.gap.next > 1e-9
    assert found.compare(find_symmetry(model, {"input_ids": torch.tensor([[1, 2, 3]])})).both == 29
