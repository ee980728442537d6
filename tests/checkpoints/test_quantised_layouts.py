"""What the moved codes and scales stand for is the moved weight, or the move is refused by name."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra.monomial import Monomial, Permutation
from paramsym.checkpoints import Checkpoint, CheckpointError, plan_transform, transform
from paramsym.checkpoints.streaming.quantised import StoredMove
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.checkpoints.streaming.sayable import CannotSay, stored_moves
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import GroupElement
from paramsym.structure.space import Space
from tests.checkpoints.quantised import (
    CASES,
    Case,
    Tensors,
    by_tensor,
    in_blocks,
    matrix,
    of,
    order_of_blocks,
    packed,
    read,
    scale_of_blocks,
    write,
)

EPS = {
    torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10,
    torch.float8_e8m0fnu: 0.0,
}  # fmt: skip
SHAPE = 32, 48


def moved(folder: Path, g: GroupElement, name: str = "out") -> Tensors:
    target = folder.with_name(folder.name + name)
    transform(Checkpoint.open(folder), target, g)
    return read(target)


def error(case: Case, before: Tensors, after: Tensors, g: GroupElement) -> float:
    """The largest relative difference of an entry."""
    wanted = act(matrix(*case.read(before).shape), g, {"x.weight": case.read(before)})["x.weight"]
    found = case.read(after)
    return float(((found - wanted).abs() / wanted.abs().clamp(1e-300)).max())


def orders(draw: torch.Generator, case: Case, shape: tuple[int, int]):
    """Orders of whole blocks of both axes; codes in a block may be permuted where none is packed.

    The orders of packs go round: inside a group they may be another.
    """
    free = not any(name.startswith("x.q") for name in case.make(draw, *shape))
    return tuple(order_of_blocks(draw, n, b, free) for n, b in zip(shape, case.blocks, strict=True))


def scales(draw: torch.Generator, case: Case, shape: tuple[int, int]):
    two = case.scale == torch.float8_e8m0fnu
    return tuple(scale_of_blocks(draw, n, b, two) for n, b in zip(shape, case.shared, strict=True))


@pytest.mark.parametrize("kind", CASES)
def test_orders_of_blocks_move_the_weight_exactly(
    kind: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    before = case.make(generator, *SHAPE)
    folder = write(tmp_path / "in", before, case.config)
    g = of(symmetry, orders(generator, case, SHAPE))
    after = moved(folder, g)
    assert error(case, before, after, g) == 0
    assert not torch.equal(case.read(after), case.read(before))
    assert {n: (t.dtype, t.shape) for n, t in after.items()} == {
        n: (t.dtype, t.shape) for n, t in before.items()
    }


@pytest.mark.parametrize("kind", CASES)
def test_scales_of_blocks_are_rounded_in_the_dtype_of_the_scales(
    kind: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    before = case.make(generator, *SHAPE)
    folder = write(tmp_path / "in", before, case.config)
    g = of(symmetry, orders(generator, case, SHAPE), scales(generator, case, SHAPE))
    assert error(case, before, moved(folder, g), g) <= 1.01 * EPS[case.scale] / 2
    product = g @ of(symmetry, orders(generator, case, SHAPE), scales(generator, case, SHAPE))
    after = moved(folder, product, "product")
    assert error(case, before, after, product) <= 1.01 * EPS[case.scale] / 2


@pytest.mark.parametrize("kind", ["blocks", "channels", "GPTQ", "AWQ"])
def test_a_move_and_back_is_where_it_was(
    kind: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    before = case.make(generator, *SHAPE)
    g = of(symmetry, orders(generator, case, SHAPE))
    folder = write(tmp_path / "in", before, case.config)
    there = write(tmp_path / "there", moved(folder, g), case.config)
    back = moved(there, ~g)
    assert all(torch.equal(back[n].double(), t.double()) for n, t in before.items())


@pytest.mark.parametrize("kind", CASES)
def test_panels_of_few_rows_are_the_same_files(
    kind: str, tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    g = of(symmetry, orders(generator, case, SHAPE), scales(generator, case, SHAPE))
    moved(folder, g)
    monkeypatch.setattr("paramsym.checkpoints.streaming.parts._PANEL", 100)
    transform(Checkpoint.open(folder), tmp_path / "few", g)
    names = "inout", "few"
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in names)
    assert one == other


def test_processes_write_the_same_files(tmp_path: Path, generator: torch.Generator) -> None:
    case, symmetry = CASES["GPTQ by index"], matrix(*SHAPE)
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    g = of(symmetry, orders(generator, case, SHAPE))
    wanted = moved(folder, g)
    transform(Checkpoint.open(folder), tmp_path / "two", g, engine="local:2:processes")
    assert all(torch.equal(tensor, wanted[n]) for n, tensor in read(tmp_path / "two").items())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 20), st.integers(1, 20), st.booleans(),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_blocks_of_any_size(b: int, c: int, m: int, n: int, cross: bool, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    case, symmetry = in_blocks(b, c), matrix(m, n)
    before = case.make(draw, m, n)
    found = orders(draw, case, (m, n))
    if cross:
        found = torch.randperm(m, generator=draw), found[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = write(Path(scratch) / "in", before, case.config)
        g = of(symmetry, found, scales(draw, case, (m, n)))
        if whole(found[0], b):
            assert error(case, before, moved(folder, g), g) <= 2.0**-24
        else:
            with pytest.raises(CheckpointError, match="whole blocks"):
                moved(folder, g)


def whole(order: torch.Tensor, block: int) -> bool:
    """Whether an order takes blocks to blocks, as sets."""
    old = {frozenset(range(k, min(k + block, len(order)))) for k in range(0, len(order), block)}
    new = {frozenset(order[k : k + block].tolist()) for k in range(0, len(order), block)}
    return old == new or len(old) == 1 or (block >= len(order))


# -- what is refused ---------------------------------------------------------------------------


def refusal(folder: Path, g: GroupElement) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        moved(folder, g)
    assert not folder.with_name(folder.name + "out").exists()
    return caught.value


def swapped(size: int, a: int, b: int) -> torch.Tensor:
    order = torch.arange(size)
    order[a], order[b] = b, a
    return order


@pytest.mark.parametrize("kind", ["blocks", "GPTQ", "GPTQ by index", "AWQ"])
def test_orders_across_blocks_are_refused_with_names(
    kind: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    still = torch.arange(SHAPE[0])
    said = refusal(folder, of(symmetry, (still, swapped(SHAPE[1], 0, SHAPE[1] - 1))))
    name = "'x.weight'" if kind == "blocks" else "'x.qweight'"
    assert said.came.startswith(name) and "type u, v" in said.came and "'v'" in said.came
    assert "whole" in said.came and "along axis 1" in said.came
    assert "Leave 'v' out of the element: --only with others, such as 'u'" in said.instead
    with pytest.raises(CheckpointError, match="whole"):
        plan_transform(Checkpoint.open(folder), tmp_path / "plan",
                       of(symmetry, (swapped(SHAPE[0], 0, 31), torch.arange(SHAPE[1])))
                       if kind != "AWQ" else
                       of(symmetry, (swapped(SHAPE[0], 0, 1), torch.arange(SHAPE[1]))))  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["blocks", "blocks, powers of two", "tensor", "channels", "GPTQ", "GPTQ by index"]
)
def test_scales_that_blocks_do_not_share_are_refused(
    kind: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    one = torch.ones(SHAPE[1], dtype=torch.float64)
    one[5] = 2.0
    u = torch.ones(SHAPE[0], dtype=torch.float64)
    assert "not constant on blocks" in refusal(folder, of(symmetry, None, (u, one))).came
    assert "negative" in refusal(folder, of(symmetry, None, (-u, torch.ones_like(one)))).came


def test_powers_of_two_take_no_other_scale(tmp_path: Path, generator: torch.Generator) -> None:
    case = CASES["blocks, powers of two"]
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    three = 3.0 * torch.ones(SHAPE[0], dtype=torch.float64), torch.ones(SHAPE[1]).double()
    assert "powers of two" in refusal(folder, of(matrix(*SHAPE), None, three)).came


def test_a_scale_that_leaves_the_range_of_its_dtype_is_refused(
    tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES["channels, float16"], matrix(*SHAPE)
    folder = write(tmp_path / "in", case.make(generator, *SHAPE), case.config)
    for factor in (1e6, 1e-7):
        large = factor * torch.ones(SHAPE[0]).double(), torch.ones(SHAPE[1]).double()
        said = refusal(folder, of(symmetry, None, large))
        assert "'x.weight_scale'" in said.came and "float16 cannot hold" in said.came


def test_a_last_block_that_is_not_full_stays(tmp_path: Path, generator: torch.Generator) -> None:
    case, symmetry = in_blocks(4, 4), matrix(10, 8)
    before = case.make(generator, 10, 8)
    folder = write(tmp_path / "in", before, case.config)
    last = torch.tensor([8, 9, 2, 3, 4, 5, 6, 7, 0, 1])
    assert "whole blocks of 4" in refusal(folder, of(symmetry, (last, torch.arange(8)))).came
    g = of(symmetry, (torch.tensor([4, 5, 6, 7, 0, 1, 2, 3, 9, 8]), torch.arange(8)))
    assert error(case, before, moved(folder, g), g) == 0


def test_inputs_with_a_scale_of_their_own_are_not_scaled(
    tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = by_tensor(), matrix(*SHAPE)
    before = case.make(generator, *SHAPE) | {"x.input_scale": torch.tensor([0.1])}
    folder = write(tmp_path / "in", before, case.config)
    twice = 2 * torch.ones(SHAPE[1]).double()
    said = refusal(folder, of(symmetry, None, (torch.ones(SHAPE[0]).double(), twice)))
    assert "'x.input_scale' says of the inputs" in said.came
    g = of(symmetry, orders(generator, case, SHAPE), (2 * torch.ones(32).double(), twice / 2))
    assert error(case, before, moved(folder, g), g) <= 2.0**-24


@pytest.mark.parametrize("kind, extra", [
    ("blocks", "x.outliers"), ("tensor", "x.weight_shape"), ("GPTQ", "x.perm"), ("AWQ", "x.zp"),
])  # fmt: skip
def test_unknown_tensors_beside_a_moved_weight_are_refused_by_name(
    kind: str, extra: str, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = CASES[kind], matrix(*SHAPE)
    before = case.make(generator, *SHAPE) | {extra: torch.ones(3)}
    folder = write(tmp_path / "in", before, case.config)
    g = of(symmetry, orders(generator, case, SHAPE))
    assert f"'{extra}' is unknown" in refusal(folder, g).came
    assert torch.equal(moved(folder, symmetry.identity(), "same")[extra], before[extra])


def test_blocks_whose_size_nothing_says_are_refused(
    tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = in_blocks(16, 16), matrix(*SHAPE)
    g = of(symmetry, orders(generator, case, SHAPE))
    before = case.make(generator, *SHAPE)
    folder = write(tmp_path / "in", before, {})
    assert "no config.json says how large" in refusal(folder, g).came
    wrong = write(tmp_path / "wrong", before, {"weight_block_size": [8, 8]})
    assert "blocks of 8" in refusal(wrong, g).came


@pytest.mark.parametrize("shift", [0, 99])
def test_an_index_of_groups_that_lies_is_refused(
    shift: int, tmp_path: Path, generator: torch.Generator
) -> None:
    case, symmetry = packed(16), matrix(*SHAPE)
    before = case.make(generator, *SHAPE)
    before["x.g_idx"] = before["x.g_idx"] + shift if shift else before["x.g_idx"][:-1]
    folder = write(tmp_path / "in", before, case.config)
    g = of(symmetry, orders(generator, case, SHAPE))
    assert "'x.g_idx' is no group among 3" in refusal(folder, g).came


def test_gguf_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    for source in (file, tmp_path):
        with pytest.raises(CheckpointError, match="GGUF") as caught:
            Checkpoint.open(source)
        assert "convert what comes out to GGUF again" in caught.value.instead
    with pytest.raises(CheckpointError, match="GGUF"):
        transform(str(file), tmp_path / "out", torch.Generator().manual_seed(0))


# -- a model -----------------------------------------------------------------------------------


HEADS, DIM = 4, 16
ORDERS = ["*.attn.group", "*.attn.head"]


def in_fp8(name: str, weight: torch.Tensor) -> Tensors:
    blocks = weight.reshape(-1, DIM, weight.shape[1] // DIM, DIM)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).reshape(weight.shape)
    return {name: codes.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


def from_fp8(found: Tensors, name: str) -> torch.Tensor:
    scale = found[f"{name}_scale_inv"].double().repeat_interleave(DIM, 0)
    return found[name].double() * scale.repeat_interleave(DIM, 1)


def by_gptq(name: str, weight: torch.Tensor) -> Tensors:
    draw = torch.Generator().manual_seed(len(name))
    module = name.removesuffix("weight")
    made = packed(DIM).make(draw, *weight.shape)
    made["x.scales"] = made["x.scales"] / 100
    return {module + other.removeprefix("x."): tensor for other, tensor in made.items()}


def from_gptq(found: Tensors, name: str) -> torch.Tensor:
    module = name.removesuffix("weight")
    own = {f"x.{n.removeprefix(module)}": t for n, t in found.items() if n.startswith(module)}
    return packed(DIM).read(own)


LLAMAS = {
    "fp8": (in_fp8, from_fp8, {"weight_block_size": [DIM, DIM]}),
    "gptq": (by_gptq, from_gptq, {"bits": 4, "group_size": DIM}),
}


def quantised_llama(folder: Path, kind: str = "fp8") -> Path:
    """A tiny Llama in blocks as large as a head, of all linear maps but the last."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=HEADS * DIM, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, head_dim=DIM, intermediate_size=48, vocab_size=29,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=1,
    ))  # fmt: skip
    folder.mkdir()
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if "proj" in n]:
        state |= LLAMAS[kind][0](name, state.pop(name))
    save_file({n: t.contiguous() for n, t in state.items()}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": kind, **LLAMAS[kind][2]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def outputs(folder: Path, kind: str) -> torch.Tensor:
    """What the model of a folder computes with the weights that its codes stand for."""
    from transformers import LlamaConfig, LlamaForCausalLM

    found = load_file(folder / "model.safetensors")
    config = LlamaConfig.from_pretrained(folder)
    delattr(config, "quantization_config")
    model = LlamaForCausalLM(config).double().eval()
    for name in model.state_dict():
        own = LLAMAS[kind][1](found, name) if "proj" in name else found.get(name)
        model.state_dict()[name].copy_(found["model.embed_tokens.weight"] if own is None else own)
    with torch.no_grad():
        return model(torch.arange(9)[None]).logits


@pytest.mark.parametrize("kind", LLAMAS)
def test_heads_of_a_quantised_llama_go_through(kind: str, tmp_path: Path) -> None:
    source = quantised_llama(tmp_path / "llama", kind)
    before = outputs(source, kind)
    draw = torch.Generator().manual_seed(3)
    made = transform(str(source), tmp_path / "moved", draw, only=ORDERS)
    old, new = load_file(source / "model.safetensors"), load_file(made.path / "model.safetensors")
    module = "model.layers.0.self_attn.q_proj."
    parts = [name for name in old if name.startswith(module) and "g_idx" not in name]
    for name in parts:
        assert old[name].dtype == new[name].dtype
        assert not torch.equal(old[name].float(), new[name].float())
    assert (outputs(made.path, kind) - before).abs().max() <= 1e-12 * before.abs().max()
    new[parts[1]] = old[parts[1]]  # one part that stayed: another function
    save_file(new, made.path / "model.safetensors", {"format": "pt"})
    assert (outputs(made.path, kind) - before).abs().max() >= 1e-6 * before.abs().max()


def test_the_numbers_that_codes_stand_for_are_run_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = quantised_llama(tmp_path / "llama")
    draw = torch.Generator().manual_seed(3)
    made = transform(str(source), tmp_path / "moved", draw, only=ORDERS)
    assert made.error is not None and made.error < 1e-5 and not made.notes

    def wrong(storage: Storage, element: GroupElement) -> dict[str, StoredMove]:
        moves = stored_moves(storage, element)
        return {n: move for n, move in moves.items() if "q_proj" not in n}

    monkeypatch.setattr("paramsym.checkpoints.streaming.job.stored_moves", wrong)
    with pytest.raises(CheckpointError, match="computes another function"):
        transform(str(source), tmp_path / "wrong", draw, only=ORDERS)
    assert not (tmp_path / "wrong").exists()


def test_packed_codes_are_moved_without_being_run(tmp_path: Path) -> None:
    source = quantised_llama(tmp_path / "llama", "gptq")
    draw = torch.Generator().manual_seed(3)
    made = transform(str(source), tmp_path / "moved", draw, only=ORDERS)
    assert made.error is None and "are packed, which its own kernels read" in made.notes[-1]


def test_what_a_quantised_llama_cannot_say_is_refused_with_the_spaces_to_leave_out(
    tmp_path: Path,
) -> None:
    source = quantised_llama(tmp_path / "llama")
    with pytest.raises(CheckpointError) as caught:
        transform(str(source), tmp_path / "moved", torch.Generator().manual_seed(3))
    said = caught.value
    assert "F8_E4M3 with a scale for blocks of 16 × 16" in said.came
    assert "mixes its entries" in said.came and "'residual'" in said.came
    assert "--only" in said.instead and not (tmp_path / "moved").exists()


def test_what_is_left_when_the_named_spaces_are_left_out_goes_through(tmp_path: Path) -> None:
    from paramsym.checkpoints import open_movable

    source = open_movable(str(quantised_llama(tmp_path / "llama")))
    symmetry = find_symmetry(source.model, source.inputs)
    weights = source.streamable()
    assert weights is not None
    storage = Storage(weights.checkpoint, symmetry, weights.names)
    g = symmetry.sample(torch.Generator().manual_seed(0))
    with pytest.raises(CannotSay) as caught:
        stored_moves(storage, g)
    left = [name for name in g.places if name not in caught.value.movers]
    assert {"layers.0.attn.head", "norm"} <= {*left} and "residual" not in left
    assert stored_moves(storage, symmetry.sample(torch.Generator().manual_seed(0), only=left))


def test_experts_in_one_tensor_are_moved_with_their_blocks(
    tmp_path: Path, generator: torch.Generator
) -> None:
    spaces = {"e": Space("e", Permutation(3)), "u": Space("u", Monomial(8))}
    signature = {"experts.up": (parse_axis("e"), parse_axis("u"), parse_axis("8"))}
    symmetry = ParameterSymmetry(spaces, signature)
    codes = torch.randn(3, 8, 8, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2, 2, generator=generator) + 0.5
    before = {"experts.up": codes, "experts.up_scale_inv": scales}
    folder = write(tmp_path / "in", before, {"weight_block_size": [4, 4]})
    order = torch.tensor([4, 5, 6, 7, 3, 2, 1, 0])
    g = symmetry.element({"e": torch.tensor([2, 0, 1]), "u": order})
    after = moved(folder, g)

    def numbers(found: Tensors) -> torch.Tensor:
        scale = found["experts.up_scale_inv"].double()
        return found["experts.up"].double() * scale.repeat_interleave(4, 1).repeat_interleave(4, 2)

    wanted = act(symmetry, g, {"experts.up": numbers(before)})["experts.up"]
    assert torch.equal(numbers(after), wanted) and not torch.equal(wanted, numbers(before))
