"""The networks of `alignment.py`: pairs that differ by their seeds, are derived, or were moved.

A `Task` is an architecture with its data. `trained(task, seed)` is a network of it, a function of
the seed alone; `tuned` continues on other data; `moved` applies a random element of the symmetry.
Everything runs on one thread in at most a minute; nothing is written unless a folder is given.
"""

from __future__ import annotations

import argparse
import inspect
import pydoc_data.topics
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from paramsym import ParameterSymmetry, act, find_symmetry

State = dict[str, Tensor]
Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """An architecture with its data, and how it is trained.

    Attributes:
        make: the network at initial values, drawn from torch's own generator.
        train, other, test: inputs (examples, …) and classes (examples,), or (examples, positions)
            where every position has one; `other` is what siblings are tuned on.
        steps, batch, rate: of Adam, the rate rising and falling linearly.
        tuning: steps that make a sibling.
    """

    name: str
    make: Callable[[], nn.Module]
    train: Examples
    other: Examples
    test: Examples
    steps: int
    batch: int = 128
    rate: float = 1e-3
    tuning: int = 200

    def symmetry(self) -> ParameterSymmetry:
        """What moves the parameters without changing the function, of the network in use."""
        return find_symmetry(self.network().eval(), (self.test[0][:2],))

    def network(self, seed: int = 0) -> nn.Module:
        """At initial values of this seed; torch's own generator is left as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make()


# -- training ----------------------------------------------------------------------------------


def _fit(task: Task, model: nn.Module, data: Examples, steps: int, seed: int, rate: float) -> State:
    """Adam on the cross-entropy, batches drawn by the seed."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda k: min((k + 1) / warm, (steps - k) / max(1, steps - warm))
    )
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (task.batch,), generator=generator)
        optimiser.zero_grad()
        logits = model(data[0][chosen])
        functional.cross_entropy(logits.flatten(0, -2), data[1][chosen].flatten()).backward()
        optimiser.step()
        schedule.step()
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def trained(task: Task, seed: int, cache: Path | None = None) -> State:
    """The parameters after training from initial values of this seed.

    Args:
        task: the architecture and its data.
        seed: of the initial values and of the batches.
        cache: a folder to read them from, or to write them to.
    """
    path = cache and cache / f"{task.name}-{task.steps}-{seed}.pt"
    if path and path.exists():
        return torch.load(path, weights_only=True)
    params = _fit(task, task.network(seed), task.train, task.steps, seed, task.rate)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        torch.save(params, draft)
        draft.replace(path)
    return params


def tuned(task: Task, params: State, seed: int) -> State:
    """A sibling: `task.tuning` more steps, on `task.other`, at a third of the rate."""
    model = task.network()
    model.load_state_dict(params)
    return _fit(task, model, task.other, task.tuning, 10_000 + seed, task.rate / 3)


def moved(symmetry: ParameterSymmetry, params: State, generator: torch.Generator) -> State:
    """Equivalent parameters, at a random element of all exact spaces and shifts."""
    return act(symmetry, symmetry.sample(generator), params)


# -- measuring ---------------------------------------------------------------------------------


def measured(task: Task, params: State, examples: Examples | None = None) -> tuple[float, float]:
    """The mean cross-entropy in nats and the share of right answers, on `task.test` by default."""
    x, y = examples or task.test
    model, loss, right = task.network().eval(), 0.0, 0
    with torch.no_grad():
        for inputs, classes in zip(x.split(500), y.split(500), strict=True):
            logits = functional_call(model, params, (inputs,)).flatten(0, -2)
            loss += float(functional.cross_entropy(logits, classes.flatten(), reduction="sum"))
            right += int((logits.argmax(-1) == classes.flatten()).sum())
    return loss / y.numel(), right / y.numel()


# -- fully connected ---------------------------------------------------------------------------


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _turned(data: Examples, side: int) -> Examples:
    """The images with rows and columns exchanged: other data of the same kind."""
    images = data[0].unflatten(1, (side, side)).mT
    return images.flatten(1).contiguous(), data[1]


def digits(widths: tuple[int, ...] = (64, 128, 128, 10), steps: int = 300) -> Task:
    """scikit-learn's digits, 1,200 to train on and 597 to measure on."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(images).float()[order] / 16, torch.from_numpy(classes).long()[order]
    fitted = (x[:1200], y[:1200])
    return Task(
        "digits " + "-".join(map(str, widths)), lambda: perceptron(*widths), fitted,
        _turned(fitted, 8), (x[1200:], y[1200:]), steps, 64, 3e-3, steps // 4,
    )  # fmt: skip


def mnist(path: Path, widths: tuple[int, ...] = (784, 256, 256, 10), steps: int = 2000) -> Task:
    """MNIST: `path` has x_train, y_train, x_test, y_test as in the Keras file."""
    data = np.load(path)
    x, held = (
        (torch.from_numpy(data[k]).float().flatten(1) / 255 - 0.1307) / 0.3081
        for k in ("x_train", "x_test")
    )
    y, truth = (torch.from_numpy(data[k]).long() for k in ("y_train", "y_test"))
    return Task(
        "MNIST " + "-".join(map(str, widths)), lambda: perceptron(*widths), (x, y),
        _turned((x, y), 28), (held, truth), steps, tuning=300,
    )  # fmt: skip


# -- convolutional -----------------------------------------------------------------------------


def convolutional(widths: tuple[int, ...] = (3, 32, 32, 64, 64, 64)) -> nn.Sequential:
    """Convolution – batch norm – ReLU five times, a mean over the image, a linear layer."""
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(zip(widths, widths[1:], strict=False)):
        stride = 2 if k in (0, 2, 4) else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return nn.Sequential(*layers, *head)


def cifar(path: Path, steps: int = 1000) -> Task:
    """A part of CIFAR-10: 8,068 images to train on, 1,017 to measure on."""
    data = np.load(path)
    x, held = (torch.from_numpy(data[k]).float() / 64 - 2 for k in ("x_train", "x_test"))
    y, truth = (torch.from_numpy(data[k]).long() for k in ("y_train", "y_test"))
    x, y = torch.cat([x, x.flip(-1)]), torch.cat([y, y])
    upside_down = (x.flip(-2), y)
    return Task(
        "CIFAR CNN", convolutional, (x, y), upside_down, (held, truth), steps, 64, 3e-3, 150
    )


# -- transformer -------------------------------------------------------------------------------

CONTEXT, CHARACTERS = 64, 128  # the texts are ASCII up to a few characters


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a layer norm and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.joined = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        states = self.before_attention(x)
        q, k, v = (
            layer(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, head, place, ·)
            for layer in (self.query, self.key, self.value)
        )
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(read.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_feed(x))))


class Transformer(nn.Module):
    """Two blocks of width 64 over characters with learned positions."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def _windows(text: str) -> Examples:
    """All of a text, cut into windows, and the characters that follow."""
    codes = torch.tensor([min(ord(c), CHARACTERS - 1) for c in text])
    cut = codes.unfold(0, CONTEXT + 1, CONTEXT)
    return cut[:, :-1].contiguous(), cut[:, 1:].contiguous()


def text(steps: int = 1200) -> Task:
    """The next character of Python's own manual; siblings are tuned on Python source."""
    manual = "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))
    x, y = _windows(manual)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held, kept = order[:250], order[500:]  # what lies between is left for other measurements
    other = _windows(inspect.getsource(argparse))
    test = x[held], y[held]
    return Task(
        "transformer", Transformer, (x[kept], y[kept]), other, test, steps, 32, 3e-3, 150
    )  # fmt: skip


SEEDS = {"mlp": 12, "wide": 12, "cnn": 6, "transformer": 6, "digits": 12}
FILES = {"mlp": "mnist.npz", "wide": "mnist.npz", "cnn": "cifar10_subset.npz"}


def tasks(data: Path, names: Collection[str] | None = None) -> Iterator[tuple[str, Task]]:
    """Those of these names; by default all but the digits whose files are in the folder."""
    for name, make in {
        "digits": digits,
        "mlp": lambda: mnist(data / FILES["mlp"]),
        "wide": lambda: mnist(data / FILES["wide"], (784, 512, 512, 512, 10)),
        "cnn": lambda: cifar(data / FILES["cnn"]),
        "transformer": text,
    }.items():
        missing = name in FILES and not (data / FILES[name]).exists()
        if names is None and missing:
            print(f"left out: {name}: {data / FILES[name]} is not there")
        elif name in names if names is not None else name != "digits":
            yield name, make()


def quicker(task: Task, steps: int) -> Task:
    """The same with so many steps, and at most a quarter of them to tune."""
    return replace(task, steps=steps, tuning=min(task.tuning, max(1, steps // 4)))
