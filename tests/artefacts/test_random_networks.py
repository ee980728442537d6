"""Adapters of random networks along random elements: exact, or refused by name.

A second generator than that of the other tests: no model of a library, with batch norms, tied
tables, convolutions, gates, linear interfaces; restricted elements, words and inverses.
"""

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from paramsym import find_symmetry, transport
from paramsym.algebra import Permutation, SignedPermutation
from paramsym.artefacts import recognised, verify_adapter
from paramsym.artefacts.merging import lengths_of, summed

ACTIVATIONS = [torch.relu, torch.tanh, F.gelu, F.silu, torch.square, lambda h: h]
CONFIG = {"r": 2, "lora_alpha": 3, "fan_in_fan_out": False}


class Network(nn.Module):
    """Tokens, vectors or images; blocks with or without norms, gates and skips; a head."""

    def __init__(self, chance: random.Random):
        super().__init__()
        self.kind, self.width = chance.choice(["tokens", "vectors", "images"]), 5
        n, flip = self.width, lambda: chance.random() < 0.6
        self.first = {
            "tokens": lambda: nn.Embedding(9, n),
            "vectors": lambda: nn.Linear(4, n, flip()),
            "images": lambda: nn.Sequential(
                nn.Conv2d(2, n, 3, bias=flip()), nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n, 3)
            ),
        }[self.kind]()
        self.blocks, self.plan = nn.ModuleList(), []
        for _ in range(chance.randint(1, 3)):
            norm = chance.choice([nn.LayerNorm, lambda n: nn.RMSNorm(n, eps=1e-6), nn.Identity])
            block = nn.ModuleDict({"norm": norm(n), "up": nn.Linear(n, 6, flip())})
            block["down"] = nn.Linear(6, n, flip())
            if chance.random() < 0.3:
                block["gate"] = nn.Linear(n, 6, flip())
            self.blocks.append(block)
            self.plan.append((chance.choice(ACTIVATIONS), flip()))
        self.tied = self.kind == "tokens" and flip()
        self.head = nn.Linear(n, 9 if self.kind == "tokens" else 3, bias=not self.tied)
        if self.tied:
            self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.mean((2, 3)) if self.kind == "images" else x
        for block, (activation, skips) in zip(self.blocks, self.plan, strict=True):
            y = block["norm"](x)
            h = activation(block["up"](y))
            h = h * block["gate"](y) if "gate" in block else h
            x = x + block["down"](h) if skips else block["down"](h)
        return self.head(x)

    def example(self) -> torch.Tensor:
        shape = {"vectors": (4, 4), "images": (3, 2, 7, 7)}
        if self.kind == "tokens":
            return torch.arange(8).reshape(2, 4)
        return torch.randn(shape[self.kind], dtype=torch.float64)


def adapter_of(model: nn.Module, chance: random.Random) -> dict[str, torch.Tensor]:
    """Pairs on half of the modules, and some tensors that replace those of the model."""
    made: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        stem, rank = f"base_model.model.{name}.lora", chance.randint(1, 3)
        if chance.random() < 0.5:
            continue
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            outputs, *inputs = module.weight.shape
            ones = [1] * (len(inputs) - 1)
            made[f"{stem}_A.weight"] = torch.randn(rank, *inputs).double() / 2
            made[f"{stem}_B.weight"] = torch.randn(outputs, rank, *ones).double() / 2
        elif isinstance(module, nn.Embedding):
            made[f"{stem}_embedding_A"] = torch.randn(rank, 9).double() / 2
            made[f"{stem}_embedding_B"] = torch.randn(model.width, rank).double() / 2
    for name, p in model.named_parameters():
        gain = p.ndim == 1 and name.endswith("weight")
        stem = f"base_model.model.{name.rpartition('.')[0]}.lora"
        free = not any(known.startswith(stem) for known in made) or name.endswith("bias")
        if free and chance.random() < (0.05 if gain else 0.25):
            made[f"base_model.model.{name}"] = p.detach() + 0.4 * torch.randn_like(p)
    return made


def element_of(symmetry, chance: random.Random):
    """Everything, spaces alone, one part, a word of such, an inverse, or one of a subgroup."""
    generator = torch.Generator().manual_seed(chance.randint(0, 10**6))
    names = [*symmetry.spaces, *symmetry.shift_of]

    def some():
        only = chance.choice([None, [*symmetry.spaces], [chance.choice(names)]])
        return symmetry.sample(generator, only=only)

    kind = chance.choice(["plain", "word", "inverse", "subgroup"])
    if kind == "subgroup":
        group = chance.choice([Permutation, SignedPermutation])
        return symmetry.restrict(groups=group).sample(generator)
    return {"plain": some, "word": lambda: some() @ some() @ ~some(), "inverse": lambda: ~some()}[
        kind
    ]()


@settings(max_examples=20, deadline=None, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 10**6))
def test_the_pair_computes_what_it_did_or_the_move_is_refused(seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = Network(chance).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = p.ndim == 1 and name.endswith("weight")
            p.normal_(1.0 if gain else 0.0, 0.4)
    x, base = model.example(), dict(model.state_dict())
    symmetry = find_symmetry(model, (x,))
    for _ in range(3):
        tensors, g = adapter_of(model, chance), element_of(symmetry, chance)
        if not tensors:
            continue
        if chance.random() < 0.3:
            for pair in recognised(tensors, symmetry, config=CONFIG).pairs:
                if pair.A.endswith("lora_A.weight"):
                    lengths = lengths_of(pair, summed(pair, tensors, base[pair.weight]))
                    name = pair.A.replace("lora_A.weight", "lora_magnitude_vector")
                    tensors[name] = lengths * (0.5 + torch.rand_like(lengths))
        try:
            found = recognised(tensors, g.symmetry, config=CONFIG)
            moved = transport(tensors, g, base, config=CONFIG)
        except ValueError as error:
            said = str(error)
            assert any(why in said for why in ("'shift:", "in the frame of", "mixes the outputs"))
            continue
        assert verify_adapter(model, found, moved, g, (x,), base).error <= 1e-8
