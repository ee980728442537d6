"""Blocks of optimisers: beside the split that people write by hand, and by training two copies."""

import copy
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from paramsym import find_symmetry, twin
from paramsym.geometry.updates import Kind
from paramsym.interop import Block, OptimizerGroups, assert_equivariant, optimizer_groups
from paramsym.recording.record import record
from paramsym.structure.axes import Piecewise, nodes_of
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.coverage.stacked import NETWORKS, STACKS
from tests.tracing.networks import TABLE, derived

pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES = {
    "GPT2LMHeadModel": transformers.GPT2Config,
    "LlamaForCausalLM": transformers.LlamaConfig,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "Qwen3MoeForCausalLM": transformers.Qwen3MoeConfig,
    "GPTNeoXForCausalLM": transformers.GPTNeoXConfig,
    "GptOssForCausalLM": transformers.GptOssConfig,
}


@cache
def small(kind: str) -> tuple[nn.Module, Any, ParameterSymmetry]:
    model, inputs = twin(CLASSES[kind](), kind=kind)
    return model, inputs, find_symmetry(model, inputs)


def by_hand(name: str, tensor: Tensor) -> tuple[str, list[Tensor]]:
    """What training code for Muon writes: by names, and by what is known of each layout."""
    if any(part in name for part in ("wte", "wpe", "embed", "lm_head")):
        return "outer", [tensor]
    if tensor.ndim < 2:
        return "vector", [*tensor.chunk(3)] if "c_attn" in name else [tensor]
    if "c_attn" in name:
        return "hidden", [*tensor.chunk(3, dim=1)]
    if "gate_up_proj" in name:
        return "hidden", [half for expert in tensor for half in expert.chunk(2)]
    return "hidden", [*tensor] if tensor.ndim == 3 else [tensor]


@pytest.mark.parametrize("kind", [*CLASSES][:4])
def test_blocks_are_those_of_hand_written_training_code(kind: str) -> None:
    model, _, symmetry = small(kind)
    found = optimizer_groups(symmetry).by_parameter
    assert {*found} == {name for name, _ in model.named_parameters()}
    for name, tensor in model.named_parameters():
        role, parts = by_hand(name, tensor)
        assert {block.role for block in found[name]} == {role}, name
        assert len(parts) == len(found[name]), name
        for block, part in zip(found[name], parts, strict=True):
            assert torch.equal(block.of(tensor), part), name


def covered(symmetry: ParameterSymmetry, heads: bool) -> None:
    for name, blocks in optimizer_groups(symmetry, heads=heads).by_parameter.items():
        seen = torch.zeros(symmetry.shape(name))
        number = torch.arange(float(seen.numel())).reshape(seen.shape)
        back = torch.full_like(number, -1.0)
        for block in blocks:
            assert block.of(number).shape == block.shape
            block.put(seen, block.of(seen) + 1)
            block.put(back, block.of(number))
        assert (seen == 1).all() and torch.equal(back, number), name


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("network", NETWORKS)
def test_slices_of_one_parameter_are_the_blocks_of_their_twins(network: str, stack: str) -> None:
    """Each block has plain types, and is a matrix where that of the twin is one."""
    torch.manual_seed(0)
    shapes = []
    for apart in (False, True):
        model = NETWORKS[network](stack, apart)
        symmetry = infer(record(model, (torch.randn(2, 5, 5),)))
        covered(symmetry, heads=True)
        blocks = optimizer_groups(symmetry, heads=True).blocks
        assert not any(
            isinstance(p, Piecewise) for b in blocks for a in b.axes for p in nodes_of(a)
        )
        shapes.append({(b.role, b.shape) for b in blocks if b.parameter[:5] in ("whole", "parts")})
    if stack in ("first", "in the middle", "last") and network != "Memory":
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("kind", CLASSES)
def test_every_entry_is_in_one_block(kind: str, heads: bool) -> None:
    covered(small(kind)[2], heads)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_entry_of_other_networks_is_in_one_block(row: Any) -> None:
    covered(derived(row), heads=True)


@pytest.mark.parametrize(("kind", "width"), [("Qwen3MoeForCausalLM", 4), ("GptOssForCausalLM", 4)])
def test_heads_are_cut_one_by_one(kind: str, width: int) -> None:
    model, _, symmetry = small(kind)
    found = optimizer_groups(symmetry, heads=True).by_parameter
    attention = model.get_submodule("model.layers.0.self_attn")
    for layer, axis in (("q_proj", 0), ("k_proj", 0), ("v_proj", 0), ("o_proj", 1)):
        weight = attention.get_submodule(layer).weight
        parts = weight.split(width, dim=axis)
        blocks = found[f"model.layers.0.self_attn.{layer}.weight"]
        assert len(blocks) == len(parts)
        assert all(torch.equal(b.of(weight), p) for b, p in zip(blocks, parts, strict=True))


def test_biases_of_experts_are_vectors_and_routers_are_matrices() -> None:
    found = optimizer_groups(small("GptOssForCausalLM")[2])
    roles = {b.parameter.removeprefix("model.layers.0.mlp."): b.role for b in found.blocks}
    assert roles["experts.down_proj_bias"] == roles["experts.gate_up_proj_bias"] == "vector"
    assert roles["router.weight"] == roles["experts.down_proj"] == "hidden"


class Scaled(nn.Module):
    """A temperature has no axes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).relu()) * self.temperature.exp()


def test_a_parameter_without_axes_is_a_vector_of_one_entry() -> None:
    symmetry = find_symmetry(Scaled(), torch.randn(5, 3))
    (block,) = optimizer_groups(symmetry).by_parameter["temperature"]
    held = torch.tensor(1.0)
    block.put(held, block.of(held) + 1)
    assert block.role == "vector" and held == 2.0
    assert assert_equivariant(torch.optim.Adam, symmetry, steps=5) < 1e-12


def test_convolutions_are_matrices_and_their_first_is_the_datas() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(),
        nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2),
    ).eval()  # fmt: skip
    found = optimizer_groups(find_symmetry(model, torch.randn(2, 3, 8, 8))).by_parameter
    assert {n: (b.role, b.shape) for n, (b,) in found.items() if n.endswith("weight")} == {
        "0.weight": ("outer", (6, 27)), "1.weight": ("vector", (6,)),
        "3.weight": ("outer", (6, 9)), "5.weight": ("hidden", (5, 54)),
        "8.weight": ("outer", (2, 20)),
    }  # fmt: skip
    assert not any("running" in name for name in found)


class Grouped(nn.Module):
    """Convolutions in two groups, with batch norms, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, groups=2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.norm(self.first(x)).relu()).relu()
        return self.head(h.mean((2, 3)))


def test_a_grouped_convolution_is_a_matrix_for_each_group() -> None:
    symmetry = find_symmetry(Grouped().eval(), torch.randn(2, 3, 9, 9))
    groups = optimizer_groups(symmetry)
    covered(symmetry, heads=False)
    blocks = groups.by_parameter["second.weight"]
    assert [(b.role, b.shape) for b in blocks] == [("hidden", (4, 36))] * 2
    assert all(Kind.MATRICES in b.updates for b in blocks)
    assert symmetry.buffers  # they are moved with the copy
    assert assert_equivariant(lambda named: Muon(named, groups), symmetry, steps=20) < 1e-12
    (block,) = groups.by_parameter["first.weight"]
    rows = tuple(Block(block.parameter, (((k, k + 4),), *block.at[1:]), block.axes, block.groups,
                       "hidden", (), (4, 27)) for k in (1, 0))  # fmt: skip
    cut = OptimizerGroups((*rows, *(b for b in groups.blocks if b is not block)))
    with pytest.raises(AssertionError, match="first.weight differs"):
        assert_equivariant(lambda named: Muon(named, cut), symmetry, steps=20)


def orthogonalised(matrix: Tensor) -> Tensor:
    """A polynomial that is near the polar factor, and zero where a gradient has no rank."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_the_gates_of_a_recurrent_cell_are_one_matrix() -> None:
    model = nn.LSTM(5, 6)
    found = optimizer_groups(find_symmetry(model, torch.randn(3, 2, 5))).by_parameter
    assert [b.shape for b in found["weight_hh_l0"]] == [(24, 6)]


def test_each_space_is_moved_although_orders_of_two_are_often_none() -> None:
    widths = [(4, 2), (2, 2), (2, 2), (2, 3)]
    layers = [part for size in widths for part in (nn.Linear(*size), nn.ReLU())][:-1]
    symmetry = find_symmetry(nn.Sequential(*layers).double(), torch.randn(5, 4).double())

    class Partial(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # pyright: ignore
            for group in self.param_groups:
                for name, p in zip(group["param_names"], group["params"], strict=True):
                    if p.grad is not None and name == "0.weight":
                        p.grad[0] *= 3
            super().step()

    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        with pytest.raises(AssertionError, match="Guilty: mlp"):
            assert_equivariant(
                lambda named: Partial(named, lr=0.1), symmetry, steps=3, generator=generator
            )


class Muon(torch.optim.Optimizer):
    """Momentum, then nearly the nearest matrix with orthonormal rows, block by block."""

    def __init__(self, named: Iterable[Any], groups: OptimizerGroups, lr: float = 0.02) -> None:
        super().__init__([*named], {"lr": lr})
        self.blocks = groups.by_parameter

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        for group in self.param_groups:
            for name, p in zip(group["param_names"], group["params"], strict=True):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad)
                update = momentum.clone()
                for block in self.blocks[name]:
                    own = block.of(momentum)
                    block.put(update, orthogonalised(own) if block.role == "hidden" else own)
                p.sub_(group["lr"] * update)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("kind", CLASSES)
def test_orthogonalised_blocks_commute_and_adam_does_not(kind: str, heads: bool) -> None:
    symmetry = small(kind)[2]
    groups = optimizer_groups(symmetry, heads=heads)
    assert assert_equivariant(lambda named: Muon(named, groups), symmetry, steps=20) < 1e-12
    with pytest.raises(AssertionError, match=r"vo \(Orthogonal\(\d+\)\)"):
        assert_equivariant(torch.optim.Adam, symmetry, steps=20)


def test_queries_keys_and_values_cut_at_the_wrong_places_do_not_commute() -> None:
    """GPT-NeoX keeps them head by head, and not one third after the other."""
    symmetry = small("GPTNeoXForCausalLM")[2]
    right = optimizer_groups(symmetry)

    def thirds(block: Block) -> list[Block]:
        rows = symmetry.shape(block.parameter)[0]
        cuts = [((k * rows // 3, (k + 1) * rows // 3),) for k in range(3)]
        made = [(cut, *block.at[1:]) for cut in cuts]
        shape = (rows // 3, *symmetry.shape(block.parameter)[1:])
        return [Block(block.parameter, at, block.axes, block.groups, block.role, (), shape)
                for at in made]  # fmt: skip

    wrong = []
    for name, blocks in right.by_parameter.items():
        fused = name.endswith("query_key_value.weight")
        wrong.extend(thirds(blocks[0]) if fused else blocks)
    groups = OptimizerGroups(tuple(wrong))
    with pytest.raises(AssertionError, match="query_key_value.weight differs"):
        assert_equivariant(lambda named: Muon(named, groups), symmetry, steps=5)


def test_steps_of_orders_alone_commute_with_all() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    symmetry = find_symmetry(model, torch.randn(5, 4).double())
    for block in optimizer_groups(symmetry).blocks:
        assert Kind.ENTRYWISE in block.updates
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        assert assert_equivariant(kind, symmetry) < 1e-12


def test_a_twin_pair_of_real_models_stays_a_pair() -> None:
    model, _, symmetry = small("GPT2LMHeadModel")
    generator = torch.Generator().manual_seed(3)
    model = copy.deepcopy(model).double().eval()
    params = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3
        for name, p in model.named_parameters()
    }
    tokens = torch.arange(14).reshape(2, 7)

    def loss(at: dict[str, Tensor]) -> Tensor:
        run = {"input_ids": tokens, "use_cache": False}
        logits = torch.func.functional_call(model, at, (), run).logits
        target = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype)
        return (logits.flatten() - target).square().mean()

    gradient = torch.func.grad(loss)
    groups = optimizer_groups(symmetry)
    muon = assert_equivariant(lambda named: Muon(named, groups, 1e-3), symmetry, params, gradient)
    assert muon < 1e-12
    with pytest.raises(AssertionError, match="Guilty"):
        assert_equivariant(torch.optim.Adam, symmetry, params, gradient, steps=20)


def test_where_nothing_moves_the_question_is_refused() -> None:
    linear = nn.Linear(3, 2)
    symmetry = find_symmetry(linear, torch.randn(4, 3))
    with pytest.raises(ValueError, match="no element of this symmetry"):
        assert_equivariant(torch.optim.Adam, symmetry)


def test_the_document_says_every_block() -> None:
    groups = optimizer_groups(small("GPT2LMHeadModel")[2])
    found = json.loads(groups.text())
    assert found["format"] == "paramsym/optimizer-blocks" and found["version"] == 1
    value = found["parameters"]["transformer.h.0.attn.c_attn.weight"][2]
    assert value["shape"] == [8, 8] and value["at"] == [[[0, 8]], [[16, 24]]]
    assert value["groups"][1]["h.0.attn.vo"] == "GeneralLinear(4)" and value["role"] == "hidden"
    assert groups.named("outer") == ["transformer.wte.weight", "transformer.wpe.weight"]


@pytest.mark.parametrize("rate", [1e-3, 1e-6])
def test_small_steps_hide_nothing(rate: float) -> None:
    """The difference of two copies is measured by how far they went, not by how large they are."""
    symmetry = small("LlamaForCausalLM")[2]
    with pytest.raises(AssertionError, match="differs by"):
        assert_equivariant(lambda named: torch.optim.Adam(named, lr=rate), symmetry, steps=20)


def test_steps_that_are_rounding_are_refused() -> None:
    symmetry = small("LlamaForCausalLM")[2]
    with pytest.raises(ValueError, match="would be rounding"):
        assert_equivariant(lambda named: torch.optim.Adam(named, lr=1e-12), symmetry, steps=20)
    for step in (lambda named: torch.optim.SGD(named, lr=0.0), lambda named: torch.optim.SGD([
        nn.Parameter(torch.ones(1))], lr=0.1)):  # fmt: skip
        with pytest.raises(ValueError, match="moved no parameter"):
            assert_equivariant(step, symmetry, steps=3)
    for wrong in ({"steps": 0}, {"tolerance": 0.0}, {"tolerance": float("inf")}):
        with pytest.raises(ValueError, match="expected at least one step"):
            assert_equivariant(torch.optim.Adam, symmetry, **wrong)
