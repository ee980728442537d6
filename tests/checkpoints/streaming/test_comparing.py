"""Checkpoints in files are one up to symmetry where an element read off samples carries them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from paramsym import act, find_symmetry
from paramsym.checkpoints import (
    Checkpoint,
    CheckpointError,
    compare_checkpoints,
    compared,
    open_alike,
    transform,
)
from paramsym.checkpoints.source import Weights
from paramsym.checkpoints.streaming import finding
from paramsym.checkpoints.streaming.comparing import compare_files
from paramsym.engines import engine_of
from paramsym.origin.comparison import Kind
from tests.checkpoints.streaming.conftest import TOKENS, Saved, llama


@pytest.fixture(autouse=True)
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing fitted into memory."""
    monkeypatch.setattr(compared, "IN_MEMORY", 0)
    monkeypatch.setattr(finding, "_SAMPLE", 16)


def compare(a: Path, b: Path, **settings: object):
    pair = open_alike([str(a), str(b)], lazily=True)
    found = compare_checkpoints(pair, **settings)
    assert not any(c.has_weights for c in pair.checkpoints)  # nothing was loaded
    return found.comparison


def spread(saved: Saved, only: list[str] | None, out: Path, seed: int = 2) -> Path:
    generator = torch.Generator().manual_seed(seed)
    element = saved.symmetry.sample(generator, 0.5, only)
    transform(saved.path, out, element, verify=False)
    return out


ELEMENTS = {
    "units": ["*.mlp", "*.mlp.scale"],
    "heads": ["*.attn.*"],
    "gains": ["*layernorm", "norm"],
    "orders and scales": ["*layernorm", "norm", "*.attn.head", "*.attn.qk", "*.mlp*"],
    "stream": ["residual"],
    "everything": None,
}


@pytest.mark.parametrize("kind", ELEMENTS)
def test_a_moved_checkpoint_is_the_same_and_the_element_is_found(
    saved: Saved, tmp_path: Path, kind: str
) -> None:
    moved = spread(saved, ELEMENTS[kind], tmp_path / "moved")
    found = compare(saved.path, moved)
    assert found.kind is Kind.SAME, found.reason
    b = {n: t for p in moved.glob("*.safetensors") for n, t in load_file(p).items()}
    back = act(saved.symmetry, found.element, b)
    for name, tensor in saved.state().items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-3, atol=1e-3)


@pytest.fixture(params=["gpt2", "vit"])
def sliding(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    """A model with biases and centred norms; the second has an approximate scale besides."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 32}
    if request.param == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**sizes, vocab_size=101, n_positions=20))
        inputs = TOKENS
    else:
        model = ViTForImageClassification(
            ViTConfig(**sizes, intermediate_size=48, image_size=8, patch_size=4)
        )
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = parameter.ndim == 1 and "bias" not in name
            parameter.normal_(1, 0.1) if gain else parameter.normal_(0, 0.2)
    return Saved(tmp_path, model.eval(), "60KB", find_symmetry(model, inputs))


@pytest.mark.parametrize("only", ["shifts", "everything"])
def test_shifts_are_read_off_as_well(sliding: Saved, tmp_path: Path, only: str) -> None:
    shifts = [shift.name for shift in sliding.symmetry.shifts]
    moved = spread(sliding, shifts if only == "shifts" else None, tmp_path / "moved")
    found = compare(sliding.path, moved)
    assert found.kind is Kind.SAME, found.reason
    b = type(sliding.model).from_pretrained(moved)
    back = act(sliding.symmetry, found.element, b.state_dict())
    for name, tensor in sliding.state().items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-3, atol=1e-3)


def test_a_bias_that_no_shift_moves_is_found(sliding: Saved, tmp_path: Path) -> None:
    """The control: one entry of one bias, and all others moved along the shifts."""
    moved = spread(sliding, [shift.name for shift in sliding.symmetry.shifts], tmp_path / "moved")
    changed = type(sliding.model).from_pretrained(moved)
    (bias,) = (
        p
        for n, p in changed.named_parameters()
        if n.endswith(("1.mlp.c_fc.bias", "1.mlp.fc1.bias"))
    )
    with torch.no_grad():
        bias[5] += 0.05
    changed.save_pretrained(moved, max_shard_size="60KB")
    assert compare(sliding.path, moved).kind is Kind.UNDECIDED


def rescale(model, unit: int, factor: float) -> None:
    """Trade the scale of one unit of the first layer between the weights around it."""
    up, down = (getattr(model.model.layers[0].mlp, f"{n}_proj").weight for n in ("up", "down"))
    with torch.no_grad():
        up[unit] *= factor
        down[:, unit] /= factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_unit_that_differs_at_a_small_scale_is_no_copy(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """A unit whose numbers are less than rounding beside the others; the copy is the control."""
    model = llama().to(dtype)
    rescale(model, 3, 1e-6)
    one = Saved(tmp_path / "one", model, "60KB")
    rescale(model, 5, 2)
    copy = Saved(tmp_path / "copy", model, "60KB")
    up = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        up[3] = up[3].flip(0)
    other = Saved(tmp_path / "other", model, "60KB")
    assert compare(one.path, copy.path).kind is Kind.SAME
    assert compare(one.path, other.path).kind is Kind.UNDECIDED


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e12), (torch.bfloat16, 1e8)])
def test_a_unit_at_a_large_scale_hides_no_other_tensor(
    tmp_path: Path, dtype: torch.dtype, scale: float
) -> None:
    """Beside which a head of logits is small; the copy is the control."""
    model = llama().to(dtype)
    rescale(model, 3, scale)
    one = Saved(tmp_path / "one", model, "60KB")
    rescale(model, 5, 2)
    copy = Saved(tmp_path / "copy", model, "60KB")
    with torch.no_grad():
        model.lm_head.weight.neg_()
    other = Saved(tmp_path / "other", model, "60KB")
    assert compare(one.path, copy.path).kind is Kind.SAME
    assert compare(one.path, other.path).kind is Kind.UNDECIDED


def test_halves_are_the_same_within_their_rounding(tmp_path: Path) -> None:
    saved = Saved(tmp_path, llama().bfloat16(), "60KB")
    moved = spread(saved, ELEMENTS["orders and scales"], tmp_path / "moved")
    found = compare(saved.path, moved)
    assert found.kind is Kind.SAME and 0 < found.distance < 0.01


def test_equal_files_are_identical(saved: Saved, tmp_path: Path) -> None:
    same = tmp_path / "same"
    transform(saved.path, same, saved.symmetry.identity(), verify=False)
    assert compare(saved.path, same).kind is Kind.IDENTICAL


@pytest.mark.parametrize("change", [1e-2, 1.0])
def test_a_number_that_no_element_changes_is_found(
    saved: Saved, tmp_path: Path, change: float
) -> None:
    """The control: one entry of one tensor."""
    moved = spread(saved, ELEMENTS["units"], tmp_path / "moved")
    for shard in moved.glob("*.safetensors"):
        tensors = load_file(shard)
        name = "model.layers.1.mlp.down_proj.weight"
        if name in tensors:
            tensors[name][3, 5] += change
            save_file(tensors, shard, metadata={"format": "pt"})
    found = compare(saved.path, moved)
    assert found.kind is Kind.UNDECIDED and "no element was read off" in found.reason


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (torch.tensor([2**24, 3]), torch.tensor([2**24 + 1, 3])),
        (torch.tensor([2**60, 3]), torch.tensor([2**60 + 1, 3])),
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.tensor([1 + 1j, 2.0]), torch.tensor([1 - 1j, 2.0])),
    ],
    ids=["whole", "long", "truth", "complex"],
)
def test_whole_and_complex_numbers_are_compared_as_they_are(
    saved: Saved, tmp_path: Path, mine: torch.Tensor, theirs: torch.Tensor
) -> None:
    """A tensor that nothing moves, and that differs where float32 would not show it."""
    found = []
    for name, other in (("a", mine), ("b", theirs), ("c", mine.clone())):
        extra = torch.cat([torch.zeros(20).to(other), other])  # behind the rows that are read first
        save_file({**saved.state(), "other": extra}, tmp_path / f"{name}.safetensors")
        names = {n: n for n in saved.state()}
        found.append(Weights(Checkpoint.open(tmp_path / f"{name}.safetensors"), names))
    settings = (None, engine_of("local:1"), lambda _: None)
    kinds = [compare_files(saved.symmetry, found[0], b, *settings).kind for b in found[1:]]
    assert kinds == [Kind.UNDECIDED, Kind.IDENTICAL]


def test_another_network_is_undecided(saved: Saved, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = llama()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
    other.save_pretrained(tmp_path / "other", max_shard_size="60KB")
    assert compare(saved.path, tmp_path / "other").kind is Kind.UNDECIDED


def test_files_of_other_tensors_are_refused(saved: Saved, tmp_path: Path) -> None:
    llama(intermediate_size=40).save_pretrained(tmp_path / "other", max_shard_size="60KB")
    with pytest.raises(CheckpointError, match="mlp"):
        compare(saved.path, tmp_path / "other")
    llama().bfloat16().save_pretrained(tmp_path / "half", max_shard_size="60KB")
    with pytest.raises(CheckpointError, match="bfloat16"):
        compare(saved.path, tmp_path / "half")
