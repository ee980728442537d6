"""Does training in a key retrace plain training? Every optimiser, with keys that commute and not.

    python benchmarks/privacy_retracing.py [--only digits parting scales convolutions transformer
                                            lbfgs parts rounding] [--seed 0]

Prints tables in Markdown: largest ‖decoded − plain‖ / ‖plain‖ of any tensor, in float64. About
three CPU-minutes of one thread. Tables of docs/findings-privacy.md.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.privacy import Key, Retraced, retrace
from paramsym.privacy.retracing.runs import Factory

CROSS, SQUARE = nn.CrossEntropyLoss(), nn.MSELoss()


class Task(NamedTuple):
    """A network, what it is trained on, and its symmetry."""

    model: nn.Module
    inputs: Any
    targets: Tensor
    symmetry: ParameterSymmetry
    loss: Any
    outputs: Callable[[Any], Any] | None = None

    def run(self, key: Key, optimizer: Factory, steps: int, **more: Any) -> Retraced:
        options = {"batch": 64, "loss": self.loss, "outputs": self.outputs, **more}
        return retrace(self.model, (self.inputs, self.targets), key, optimizer, steps, **options)

    def key(self, seed: int, updates: Any, **more: Any) -> Key:
        loss = self.loss if isinstance(self.loss, nn.Module) else None
        return Key.generate(
            self.symmetry, torch.Generator().manual_seed(seed), updates, loss, **more
        )

    def key_for(self, seed: int, optimizer: Factory, **more: Any) -> Key:
        return self.key(seed, optimizer([*self.model.parameters()]), **more)


# -- tasks -----------------------------------------------------------------------------------------


@cache
def digits(loss: nn.Module = CROSS) -> Task:
    """A perceptron 64-32-32-10 on digits, inputs and outputs freed."""
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16), torch.tensor(y)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    ).double()
    symmetry = find_symmetry(
        model, (inputs[:8],), training=True, free_inputs=True, free_outputs=True
    )
    targets = labels if loss is CROSS else nn.functional.one_hot(labels).double()
    return Task(model, inputs, targets, symmetry, loss)


@cache
def convolutions() -> Task:
    """Two convolutions with ReLU and pooling, on digits whose 2×2 blocks are four channels."""
    x, y = load_digits(return_X_y=True)
    inputs = nn.functional.pixel_unshuffle(torch.tensor(x / 16).reshape(-1, 1, 8, 8), 2)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 10),
    ).double()  # fmt: skip
    symmetry = find_symmetry(
        model, (inputs[:8],), training=True, free_inputs={"input": 1}, free_outputs=True
    )
    return Task(model, inputs, torch.tensor(y), symmetry, CROSS)


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@cache
def transformer(tied: bool = False, sequences: int = 1024) -> Task:
    """A GPT-2 of two layers and width 16 on sequences of a Markov chain of 12 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=12, n_positions=12, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().train()
    generator = torch.Generator().manual_seed(1)
    chain = torch.softmax(3 * torch.randn(12, 12, generator=generator), -1)
    tokens = torch.randint(0, 12, (sequences, 1), generator=generator)
    for _ in range(12):
        following = torch.multinomial(chain[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], 1)
    few = {"input_ids": tokens[:3, :-1]}
    symmetry = find_symmetry(model, few, training=True, outputs=_logits)
    return Task(
        model, {"input_ids": tokens[:, :-1]}, tokens[:, 1:], symmetry, next_token, _logits
    )  # fmt: skip


def _logits(found: Any) -> Tensor:
    return found.logits


# -- tables ----------------------------------------------------------------------------------------

SMOOTH: dict[str, Factory] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "momentum, decay": lambda p: optim.SGD(p, 0.05, 0.9, weight_decay=1e-3),
    "Nesterov, decay": lambda p: optim.SGD(p, 0.05, 0.9, weight_decay=1e-3, nesterov=True),
    "momentum, dampening": lambda p: optim.SGD(p, 0.05, 0.9, dampening=0.3),
    "ASGD": lambda p: optim.ASGD(p, 0.1, t0=100),
}
ENTRYWISE: dict[str, Factory] = {
    "Adam": lambda p: optim.Adam(p, 3e-3),
    "AdamW": lambda p: optim.AdamW(p, 3e-3),
    "AMSGrad": lambda p: optim.Adam(p, 3e-3, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, 3e-3),
    "RAdam": lambda p: optim.RAdam(p, 3e-3),
    "Adamax": lambda p: optim.Adamax(p, 3e-3),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, 1e-2),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adafactor": lambda p: optim.Adafactor(p, 1e-2),
    "Rprop": lambda p: optim.Rprop(p, 1e-3, step_sizes=(1e-6, 1e-2)),
}


def table(title: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table in Markdown, row by row as it is found."""
    heads, start = [*heads], time.process_time()
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for row in rows:
        cells = (f"{x:.1e}" if isinstance(x, float) else str(x) for x in row)
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{time.process_time() - start:.0f} CPU-seconds.")


def commuting(seed: int) -> None:
    """1,000 steps with keys that commute."""

    def rows() -> Iterable[Iterable[object]]:
        for name, optimizer in {**SMOOTH, **ENTRYWISE}.items():
            found = []
            for loss in (CROSS, SQUARE):
                task = digits(loss)
                key = task.key_for(seed, optimizer)
                # Rprop takes signs of gradients of all samples, while these are more than rounding:
                # by step 200 it has brought cross-entropy to where they are
                short = name == "Rprop"
                run = task.run(key, optimizer, 150 if short else 1000, batch=None if short else 64)
                found += [run.largest, run.travelled]
            yield name, key.acting.spaces["input"].group, *found

    table(
        "Digits 64-32-32-10, 1,000 steps of 64 samples (Rprop: 150 of all), keys that commute",
        ["optimiser", "inputs", "classes", "travelled", "regression", "travelled"], rows(),
    )  # fmt: skip


def parting(seed: int) -> None:
    """The same net with keys that do not commute, 1,000 steps."""
    task = digits(SQUARE)
    pairs: list[tuple[str, Any, Factory]] = [("orthogonal", "sgd", f) for f in ENTRYWISE.values()]
    pairs += [("invertible", None, f) for f in SMOOTH.values()]

    def rows() -> Iterable[Iterable[object]]:
        names = [*ENTRYWISE, *SMOOTH]
        for name, (kind, updates, optimizer) in zip(names, pairs, strict=True):
            run = task.run(task.key(seed, updates), optimizer, 1000, every=10)
            drift = dict(run.drift)
            yield name, kind, drift[10], drift[100], run.largest, run.expected.name.lower()

    table(
        "The same with keys that do not commute (regression)",
        ["optimiser", "key", "10 steps", "100 steps", "1,000 steps", "expected"], rows(),
    )  # fmt: skip


def scales(seed: int) -> None:
    """Keys with positive scales, and the rates that undo them."""
    task = digits(SQUARE)

    def rows() -> Iterable[Iterable[object]]:
        chosen = ("SGD", "momentum, decay", "Adam", "AMSGrad", "NAdam", "RMSprop", "Adagrad")
        for name in chosen:
            optimizer = {**SMOOTH, **ENTRYWISE}[name]
            key = task.key_for(seed, optimizer, scalings=True)
            untold = Key.of(key.symmetry, {n: key.element[n] for n in key.acting.spaces})
            told, not_told = (task.run(each, optimizer, 1000).largest for each in (key, untold))
            yield name, told, not_told

    table(
        "Keys with positive scales, 1,000 steps (regression)",
        ["optimiser", "rates told", "rates not told"], rows(),
    )  # fmt: skip


def other_networks(seed: int, which: str) -> None:
    """400 steps of convolutions or of transformers."""
    tasks = (
        {"convolutions": convolutions()}
        if which == "convolutions"
        else {"GPT-2 untied": transformer(False), "GPT-2 tied": transformer(True)}
    )
    momentum: Factory = lambda p: optim.SGD(p, 0.05, 0.9, weight_decay=1e-4)  # noqa: E731
    adam: Factory = lambda p: optim.Adam(p, 1e-3)  # noqa: E731
    plain: Factory = lambda p: optim.SGD(p, 0.05)  # noqa: E731

    def rows() -> Iterable[Iterable[object]]:
        for name, task in tasks.items():
            for kind, updates, optimizer in (
                ("momentum, orthogonal", momentum, momentum),
                ("Adam, signed permutations", adam, adam),
                ("Adam, orthogonal", momentum, adam),
                ("momentum with decay, orthogonal and translations", plain, momentum),
            ):
                key = task.key_for(seed, updates)
                run = task.run(key, optimizer, 400, batch=32, rounding=True)
                yield name, kind, run.largest, run.rounding, run.travelled, run.worst

    table(
        "400 steps of 32 samples",
        ["network", "pair", "difference", "rounding alone", "travelled", "worst tensor"], rows(),
    )  # fmt: skip


def lbfgs(seed: int) -> None:
    """Where the implementation of L-BFGS leaves inner products."""
    task = digits(SQUARE)
    exact = {"tolerance_grad": 0.0, "tolerance_change": 0.0}
    kinds: dict[str, dict[str, Any]] = {
        "as it is": {},
        "tolerances 0": exact,
        "strong Wolfe": {"line_search_fn": "strong_wolfe"},
        "strong Wolfe, tolerances 0": {"line_search_fn": "strong_wolfe", **exact},
    }

    def rows() -> Iterable[Iterable[object]]:
        for name, options in kinds.items():
            optimizer = partial(optim.LBFGS, lr=1.0, max_iter=4, **options)
            for scale in (1.0, 1e-3):
                loss = partial(_scaled, scale=scale)
                found = [
                    task.run(task.key(seed, u), optimizer, 10, loss=loss, batch=None).largest
                    for u in ("sgd", "adam")
                ]
                yield name, scale, _sum_of_entries(task, loss), *found

    table(
        "L-BFGS of torch, 10 steps of 4 iterations on all samples",
        ["options", "loss times", "‖g‖₁ at first", "orthogonal", "signed permutations"], rows(),
    )  # fmt: skip


def _scaled(y: Tensor, t: Tensor, scale: float) -> Tensor:
    return scale * SQUARE(y, t)


def _sum_of_entries(task: Task, loss: Callable[[Tensor, Tensor], Tensor]) -> float:
    value = loss(task.model(task.inputs), task.targets)
    found = torch.autograd.grad(value, [*task.model.parameters()])
    return float(sum(g.abs().sum() for g in found))


def parts(seed: int) -> None:
    """Clipping, fused steps and Muon."""
    task = digits(SQUARE)
    descent: Factory = lambda p: optim.SGD(p, 0.5, 0.9)  # noqa: E731
    clips: dict[str, tuple[Factory, Any]] = {
        "clip by norm": (descent, partial(clip_grad_norm_, max_norm=0.02)),
        "clip by norm, foreach": (descent, partial(clip_grad_norm_, max_norm=0.02, foreach=True)),
        "clip by largest entry": (
            descent, partial(clip_grad_norm_, max_norm=0.002, norm_type=float("inf"))
        ),
        "clip by sum of entries": (descent, partial(clip_grad_norm_, max_norm=0.2, norm_type=1.0)),
        "clip by value": (descent, partial(clip_grad_value_, clip_value=0.002)),
        "SGD, foreach": (lambda p: optim.SGD(p, 0.05, 0.9, foreach=True), None),
        "SGD, fused": (lambda p: optim.SGD(p, 0.05, 0.9, fused=True), None),
        "Adam, foreach": (lambda p: optim.Adam(p, 3e-3, foreach=True), None),
        "Adam, fused": (lambda p: optim.Adam(p, 3e-3, fused=True), None),
    }  # fmt: skip
    muon: Factory = lambda p: optim.Muon(p, lr=1e-2)  # noqa: E731
    matrices = [name for name, p in task.model.named_parameters() if p.ndim == 2]

    def rows() -> Iterable[Iterable[object]]:
        for name, (optimizer, clip) in clips.items():
            keys = [task.key(seed, updates) for updates in ("sgd", "adam")]
            yield name, *(task.run(key, optimizer, 200, clip=clip).largest for key in keys)
        keys = [
            task.key(seed, updates, trainable=matrices, inexact=True)
            for updates in ("muon", "adam")
        ]
        yield "Muon, matrices alone", *(task.run(key, muon, 200).largest for key in keys)

    table(
        "Parts of a step, 200 steps (regression)",
        ["step", "orthogonal", "signed permutations"], rows(),
    )  # fmt: skip


def rounding(seed: int) -> None:
    """Where training is chaotic: the same network on few sequences, which it learns by heart."""

    def rows() -> Iterable[Iterable[object]]:
        for sequences in (64, 1024):
            task = transformer(False, sequences)
            for rate in (1e-3, 3e-3):
                key = task.key(seed, "adam")
                optimizer: Factory = partial(optim.Adam, lr=rate)
                run = task.run(key, optimizer, 400, batch=32, rounding=True, every=100)
                drift = dict(run.drift)
                yield sequences, f"{rate:g}", drift[100], drift[200], run.largest, run.rounding

    table(
        "GPT-2 untied, Adam, signed permutations, 400 steps",
        ["sequences", "rate", "100 steps", "200 steps", "400 steps", "rounding alone"], rows(),
    )  # fmt: skip


TABLES: dict[str, Callable[[int], None]] = {
    "digits": commuting,
    "parting": parting,
    "scales": scales,
    "convolutions": partial(other_networks, which="convolutions"),
    "transformer": partial(other_networks, which="transformer"),
    "lbfgs": lbfgs,
    "parts": parts,
    "rounding": rounding,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[*TABLES], default=[*TABLES])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for name in arguments.only:
        TABLES[name](arguments.seed)


if __name__ == "__main__":
    main()
