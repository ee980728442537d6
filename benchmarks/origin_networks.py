"""The networks of `origin.py`, the seconds of training they take, and what is made of them.

Every network is trained from a seed, on the digits of scikit-learn, on MNIST, or on sequences
x ↦ a x + c (mod 23). *Other data* are other labels for images and other constants for sequences.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]
MNIST = Path(os.environ.get("PARAMSYM_DATA", "../shared/data")) / "mnist.npz"
VOCABULARY, LENGTH, MODULUS = 24, 16, 23
UNRELATED, ORBIT, DERIVED = "unrelated", "one orbit", "derived"


class Pair(NamedTuple):
    """Two checkpoints, what the second is to the first, and whether that is the truth of `kind`."""

    what: str
    truth: str
    a: State
    b: State


@dataclass(frozen=True)
class Family:
    """Networks of one shape.

    Attributes:
        make: one with initial weights from torch's generator.
        data: "digits", "images", "mnist" or "sequences".
        example: inputs to trace it with.
        steps: of Adam, in batches of 100 (64 sequences).
        long: further steps of long fine-tuning.
        decay: of weights, as AdamW has it.
    """

    make: Callable[[], nn.Module]
    data: str
    example: tuple[Tensor, ...]
    steps: int
    long: int
    decay: float = 0.0


def perceptron(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        pairs = zip(sizes, sizes[1:], strict=False)
        layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), activation())]
        return nn.Sequential(*layers[:-1])

    return make


def convolutional() -> nn.Module:
    widths, layers = (1, 12, 24, 32), list[nn.Module]()
    for k, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if k == 1 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Logits(nn.Module):
    """A language model that returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0,
        embd_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config))


_TOKENS = (torch.zeros(1, LENGTH - 1, dtype=torch.long),)
FAMILIES = {
    "64-32-32-10": Family(
        perceptron(64, 32, 32, 10), "digits", (torch.zeros(2, 64),), 600, 1800
    ),
    "64-64-10 tanh": Family(
        perceptron(64, 64, 10, activation=nn.Tanh), "digits", (torch.zeros(2, 64),), 600, 1800
    ),
    "784-64-64-10": Family(
        perceptron(784, 64, 64, 10), "mnist", (torch.zeros(2, 784),), 600, 1800
    ),
    "BN-CNN": Family(convolutional, "images", (torch.zeros(2, 1, 8, 8),), 600, 1200),
    "GPT-2": Family(gpt2, "sequences", _TOKENS, 300, 500),
    "Llama": Family(llama, "sequences", _TOKENS, 300, 500),
}  # fmt: skip


# -- training -------------------------------------------------------------------------------------


@cache
def _images(data: str) -> tuple[Tensor, Tensor]:
    if data == "mnist":
        with np.load(MNIST) as file:
            x, y = (torch.from_numpy(file[k][:20000]) for k in ("x_train", "y_train"))
        return x.reshape(-1, 784).float() / 255, y.long()
    x, y = load_digits(return_X_y=True)
    x = torch.from_numpy(x / 16).float()
    return x.reshape(-1, 1, 8, 8) if data == "images" else x, torch.from_numpy(y).long()


def _loss(model: nn.Module, data: str, generator: torch.Generator, other: bool) -> Tensor:
    if data == "sequences":
        a, c = torch.randint(1, 4, (64,), generator=generator), other
        c = torch.randint(0, 3, (64,), generator=generator) + int(other)
        x = [torch.randint(0, MODULUS, (64,), generator=generator)]
        for _ in range(LENGTH - 1):
            x.append((a * x[-1] + c) % MODULUS)
        ids = torch.stack(x, 1)
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    x, y = _images(data)
    batch = torch.randint(0, len(x), (100,), generator=generator)
    return functional.cross_entropy(model(x[batch]), 9 - y[batch] if other else y[batch])


def trained(model: nn.Module, family: Family, steps: int, seed: int, other: bool = False) -> State:
    """Train a model in place, on data in the order of a seed; its state."""
    generator = torch.Generator().manual_seed(seed)
    rule = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=family.decay)
    model.train()
    for _ in range(steps):
        rule.zero_grad()
        _loss(model, family.data, generator, other).backward()
        rule.step()
    model.eval()
    return state(model)


def fresh(family: Family, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return family.make()


def state(model: nn.Module) -> State:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


# -- pairs ----------------------------------------------------------------------------------------


def pairs(family: Family, seed: int) -> Iterator[Pair]:
    """Twenty pairs; the first network of each was trained from `seed`, `seed` + 1 or + 2."""
    models = [fresh(family, seed + k) for k in range(3)]
    nets = [trained(m, family, family.steps, seed + k) for k, m in enumerate(models)]
    for net in nets:
        yield Pair("moved copy", ORBIT, net, net)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        yield Pair("independent", UNRELATED, nets[i], nets[j])
    for k in (0, 1):
        elsewhere = trained(fresh(family, seed + 50 + k), family, family.steps, seed + 50, True)
        yield Pair("independent, other data", UNRELATED, nets[k], elsewhere)
    yield Pair("not trained", UNRELATED, nets[0], state(fresh(family, seed + 60)))
    long = family.long
    for what, steps, other in (
        ("fine-tuned, 50 steps", 50, False), ("fine-tuned, half as long", family.steps // 2, True),
        ("fine-tuned, as long", family.steps, True), ("trained on, long", long, False),
        ("fine-tuned, long", long, True),
    ):  # fmt: skip
        data = what + (" (other data)" if other else "")
        tuned = trained(copy.deepcopy(models[0]), family, steps, seed + 7, other)
        yield Pair(data, DERIVED, nets[0], tuned)
    generator = torch.Generator().manual_seed(seed + 9)
    yield Pair("noise of 10 %", DERIVED, nets[1], changed(nets[1], noisy(generator)))
    yield Pair("pruned to 50 %", DERIVED, nets[1], changed(nets[1], pruned(0.5)))
    yield Pair("pruned to 20 %", DERIVED, nets[1], changed(nets[1], pruned(0.8)))
    yield Pair("rounded to int8", DERIVED, nets[1], changed(nets[1], rounded))
    for k in (1, 2):
        new = half_new(models[k], fresh(family, seed + 70 + k))
        net = trained(new, family, family.steps // 2, seed + 71)
        yield Pair("last half new, then trained", DERIVED, nets[k], net)


def half_new(model: nn.Module, other: nn.Module) -> nn.Module:
    """A copy whose last parameters, half of all, are those of another network."""
    made = copy.deepcopy(model)
    theirs, names = state(other), [n for n, _ in made.named_parameters()]
    replaced = {n: theirs[n] for n in names[len(names) // 2 :]}
    made.load_state_dict(state(made) | replaced)
    return made


def changed(params: State, change: Callable[[Tensor], Tensor]) -> State:
    """All matrices and kernels changed; vectors and buffers as they are."""
    return {n: change(t) if t.is_floating_point() and t.ndim > 1 else t for n, t in params.items()}


def noisy(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    return lambda t: t + 0.1 * t.square().mean().sqrt() * torch.randn(t.shape, generator=generator)


def pruned(share: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        least = tensor.abs().flatten().kthvalue(max(1, int(share * tensor.numel()))).values
        return torch.where(tensor.abs() > least, tensor, 0.0)

    return change


def rounded(tensor: Tensor) -> Tensor:
    step = tensor.abs().max() / 127
    return (tensor / step).round() * step
