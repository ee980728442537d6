"""A program written by `torch.export` has the symmetry of the module that it came from."""

from __future__ import annotations

import warnings

import pytest
import torch

from paramsym import find_symmetry
from paramsym.recording.record import split_inputs
from tests.tracing.zoo import build, errors, without_cache

NAMES = [
    "GPT-2", "Llama", "Qwen3", "GPT-NeoX", "Phi-3", "BERT", "ViT", "ResNet", "ConvNeXt",
    "MultiheadAttention", "TransformerEncoderLayer, norm first", "LSTM", "convolutions",
    "MLP, PReLU", "MLP, ReLU in place", "T5",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_both_readers_agree(name: str) -> None:
    model, inputs = build(name)
    inputs = without_cache(model, inputs)
    expected = find_symmetry(model, inputs)
    args, kwargs = split_inputs(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, args, kwargs, strict=False).module()
    found = find_symmetry(program, inputs)
    assert not found.unknown
    ours = {n: tuple(map(str, axes)) for n, axes in expected.signature.items()}
    theirs = {n: tuple(map(str, axes)) for n, axes in found.signature.items()}
    for parameter in ours.keys() & theirs.keys():
        assert theirs[parameter] == ours[parameter], parameter
    assert sum(map(found.dimension, found.spaces)) == sum(map(expected.dimension, expected.spaces))
    assert found.log_order() == pytest.approx(expected.log_order())
    shifts = [s.dimension for s in expected.shifts]
    assert sorted(s.dimension for s in found.shifts) == sorted(shifts)


def test_an_exported_batch_norm_without_gain_keeps_its_statistics_apart() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4, affine=False), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 3, 1),
    ).eval()  # fmt: skip
    inputs = (torch.randn(2, 2, 6, 6),)
    program = torch.export.export(model, inputs, strict=False).module()
    symmetry = find_symmetry(program, inputs)
    assert str(symmetry) == str(find_symmetry(model, inputs))
    assert errors(model, symmetry, inputs)["everything"] < 1e-12
