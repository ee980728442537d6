"""Residual of the conservation ledger over many steps, and what its `.step()` costs.

    python benchmarks/ledger.py [--steps N] [--models mlp,cnn,gpt] [--optimizers SGD,momentum]
    python benchmarks/ledger.py --overhead [--turns K] [--threads N] [--json]

Three networks (a ReLU MLP, a CNN with batch norm in evaluation mode, a two-layer GPT-2), six
optimisers, two precisions: the largest difference between measured and predicted quantities at the
end of training on random batches, relative to the largest quantity. The overhead is that of one
`.step()` on the GPT with 11 million parameters of `moments.py`, as a share of a step of SGD with
momentum on 16 × 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.moments import BATCH, TIME, VOCABULARY, model
from paramsym import find_symmetry
from paramsym.dynamics.ledger import ConservationLedger

TARGETS = {torch.float64: 1e-12, torch.float32: 1e-4}
OVERHEAD = 0.02
RATE, DECAY = 0.02, 0.01
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "coupled decay": {"momentum": 0.9, "weight_decay": DECAY},
    "decoupled decay": {"momentum": 0.9, "decoupled": DECAY},
}
Training = tuple[nn.Module, Any, Callable[[], Tensor]]


class Convolutional(nn.Module):
    """Two convolutions around a batch norm that reads its running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x)).mean((2, 3)))


def _classifier(network: nn.Module, *shape: int) -> Callable[[torch.dtype], Training]:
    def made(dtype: torch.dtype) -> Training:
        own, count = network.to(dtype).eval(), shape[0]
        x, y = torch.randn(8 * count, *shape[1:], dtype=dtype), torch.arange(8 * count) % 4

        def loss() -> Tensor:
            some = torch.randint(0, len(x), (count,))
            return nn.functional.cross_entropy(own(x[some]), y[some])

        return own, (x[:count],), loss

    return made


def mlp() -> Callable[[torch.dtype], Training]:
    """20-32-32-4 with ReLU."""
    layers = [nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return _classifier(nn.Sequential(*layers), 32, 20)


def cnn() -> Callable[[torch.dtype], Training]:
    """1 → 8 → 8 channels on 8 × 8 pixels."""
    return _classifier(Convolutional(), 16, 1, 8, 8)


def gpt() -> Callable[[torch.dtype], Training]:
    """Two layers of GPT-2 of width 16."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=8, vocab_size=11, bos_token_id=0,
        eos_token_id=0, use_cache=False, loss_type="ForCausalLM",
    )  # fmt: skip
    network, tokens = GPT2LMHeadModel(config).eval(), torch.randint(0, 11, (32, 8))

    def made(dtype: torch.dtype) -> Training:
        own = network.to(dtype)

        def loss() -> Tensor:
            some = tokens[torch.randint(0, len(tokens), (4,))]
            return own(input_ids=some, labels=some).loss

        return own, {"input_ids": tokens[:4]}, loss

    return made


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt}


def residual(name: str, optimizer: str, dtype: torch.dtype, steps: int) -> dict[str, Any]:
    """One training run with the ledger."""
    torch.manual_seed(0)
    network, inputs, loss = MODELS[name]()(dtype)
    options = dict(OPTIMIZERS[optimizer])
    decay = options.pop("decoupled", 0.0)
    sgd = torch.optim.SGD(network.parameters(), lr=RATE, **options)
    ledger = ConservationLedger(find_symmetry(network, inputs), network, sgd, decoupled=decay)
    for _ in range(steps):
        sgd.zero_grad()
        found = loss()
        found.backward()
        if decay:
            with torch.no_grad():
                for p in network.parameters():
                    p.mul_(1.0 - RATE * decay)
        sgd.step()
        ledger.step()
    report = ledger.report()
    return {
        "model": name, "optimizer": optimizer, "dtype": str(dtype).removeprefix("torch."),
        "steps": report.steps, "relative": report.relative,
        "floor": report.floor / report.scale, "target": TARGETS[dtype],
        "loss": float(found),
    }  # fmt: skip


def overhead(turns: int) -> dict[str, Any]:
    """The median time of a step of training and of `.step()`, in turn."""
    network = model()
    tokens = torch.randint(0, VOCABULARY, (BATCH, TIME))
    symmetry = find_symmetry(network.eval(), {"input_ids": tokens[:, :8]}, check=False)
    sgd = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    ledger = ConservationLedger(symmetry, network, sgd)
    training, entering = [], []
    for _ in range(turns + 1):  # the first warms up
        start = time.perf_counter()
        sgd.zero_grad(set_to_none=True)
        network(input_ids=tokens, labels=tokens).loss.backward()
        sgd.step()
        middle = time.perf_counter()
        ledger.step()
        training.append(middle - start)
        entering.append(time.perf_counter() - middle)
    hooks = _hooks(ledger)
    step, entry = statistics.median(training[1:]) - hooks, statistics.median(entering[1:]) + hooks
    return {
        "step": step, "ledger": entry, "hooks": hooks, "share": entry / step, "target": OVERHEAD,
        "relative": ledger.report().relative, "threads": torch.get_num_threads(),
    }  # fmt: skip


def _hooks(ledger: ConservationLedger) -> float:
    """What the ledger does before and after a step of the optimiser, within that."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        ledger.before(ledger.optimizer, (), {})
        ledger.after(ledger.optimizer, (), {})
        times.append(time.perf_counter() - start)
        ledger._pending, ledger._done = None, False
    return statistics.median(times)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--models", default="mlp,cnn,gpt")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if options.overhead:
        row = overhead(options.turns)
        print(json.dumps(row) if options.json else (
            f"training step {row['step']:.3f} s, ledger {row['ledger'] * 1e3:.1f} ms "
            f"(of which hooks {row['hooks'] * 1e3:.1f}): {row['share']:.2%} "
            f"(target ≤ {row['target']:.0%}), {row['threads']} thread(s)"
        ))  # fmt: skip
        return
    for name in options.models.split(","):
        for optimizer in options.optimizers.split(","):
            for dtype in TARGETS:
                row = residual(name, optimizer, dtype, options.steps)
                print(json.dumps(row) if options.json else (
                    f"{name:4} {optimizer:16} {row['dtype']:8} {row['relative']:.1e} "
                    f"(target {row['target']:.0e}, floor {row['floor']:.0e}), "
                    f"loss {row['loss']:.3g}"
                ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
