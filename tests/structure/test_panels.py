"""Panels of a moved tensor are that tensor, and ask for no more rows than they need."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.structure import fast, panels
from paramsym.structure.panels import act_panels

TOKENS = {"input_ids": torch.arange(7)[None]}


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=12, vocab_size=29,
    )).eval()  # fmt: skip


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=29, n_positions=16)
    return GPT2LMHeadModel(config).eval()


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(45, 9), torch.nn.ReLU(), torch.nn.Linear(9, 2),
    ).eval()  # fmt: skip


MODELS = {
    "llama": (llama, TOKENS), "gpt2": (gpt2, TOKENS), "mlp": (mlp, (torch.randn(2, 3, 5, 5),)),
}  # fmt: skip


class Read:
    """A tensor in a file: says how many rows were asked for at once."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self.most = tensor, 0
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, rows: slice) -> torch.Tensor:
        found = self.tensor[rows] if self.shape else self.tensor
        self.most = max(self.most, found.shape[0] if self.shape else 1)
        return found.clone()


def moved_by_panels(
    symmetry: ParameterSymmetry, element, state: dict[str, torch.Tensor], name: str
) -> torch.Tensor:
    tensors = {n: Read(tensor) for n, tensor in state.items()}
    made = [panel.clone() for panel in act_panels(symmetry, element, name, tensors)]
    return torch.cat(made) if state[name].shape else made[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("small", [1, 1 << 16], ids=["fast", "general"])
@pytest.mark.parametrize("kind", MODELS)
def test_panels_are_the_moved_tensor(
    kind: str, small: int, dtype: torch.dtype, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(fast, "_SMALL", small)
    monkeypatch.setattr(fast, "_PANEL", 32)
    monkeypatch.setattr(panels, "PANEL", 200)
    build, inputs = MODELS[kind]
    model = build()
    symmetry = find_symmetry(model, inputs)
    names = [*symmetry.spaces, *symmetry.shift_of]
    for only in (None, names[::2], names[1::3]):
        element = symmetry.sample(generator, only=only)
        element = element @ symmetry.sample(generator, only=names[::3])
        state = {n: t.to(dtype) if t.is_floating_point() else t
                 for n, t in model.state_dict().items()}  # fmt: skip
        expected = act(symmetry, element, state)
        for name in symmetry.signature:
            found = moved_by_panels(symmetry, element, state, name)
            wanted = expected[name]
            if kind == "mlp" or not wanted.is_floating_point():  # no matrix is multiplied
                assert torch.equal(found, wanted), (name, only)
                continue
            # a product of matrices is summed in another order where it has other rows
            near = 64 * torch.finfo(dtype).eps * float(wanted.abs().max())
            torch.testing.assert_close(found, wanted, rtol=0, atol=near)


def test_a_table_in_a_rotated_stream_is_read_some_rows_at_a_time(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "PANEL", 200)
    model = llama()
    symmetry = find_symmetry(model, TOKENS)
    element, state = symmetry.sample(generator), model.state_dict()
    table, mixed = "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"
    for name, whole in ((table, False), (mixed, True)):
        read = {n: Read(tensor) for n, tensor in state.items()}
        for _ in act_panels(symmetry, element, name, read):
            pass
        assert (read[name].most == state[name].shape[0]) is whole, name
