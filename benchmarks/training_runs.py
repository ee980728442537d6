"""One run of `training.py`: training with a hook, and what is measured of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional
from training_methods import OPTIMISERS, Hook, hook
from training_networks import Case

LOOKS = 15  # points of a curve
_LARGEST = 1e15  # of a weight in training that has not diverged
EXAMPLES = 24  # of the test set, for the Jacobian
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One setting; its seeds are kept in one file."""

    network: str
    optimiser: str
    method: str
    start: str
    rate: float

    @property
    def file(self) -> str:
        parts = (self.network, self.optimiser, self.method, self.start, f"{self.rate:g}")
        return "-".join(part.replace(" ", "_") for part in parts) + ".json"


# -- measuring -----------------------------------------------------------------------------------


@torch.no_grad()
def loss_and_accuracy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The mean cross-entropy in nats and the share of right answers, norms as in evaluation."""
    training = model.training
    logits = model.eval()(x)
    model.train(training)
    loss = float(functional.cross_entropy(logits, y))
    return loss, float((logits.argmax(-1) == y).double().mean())


def spectrum(model: nn.Module, x: Tensor) -> tuple[float, float]:
    """The largest eigenvalue of J Jᵀ over the number of examples, and its ratio to the median.

    J is the Jacobian of all logits of the examples by all parameters, so that J Jᵀ has the nonzero
    eigenvalues of the Gauss–Newton matrix JᵀJ of the squared error. The Hessian of the
    cross-entropy between them is left out: it fades as the network grows confident, at one speed
    for all equivalent parameters, and says nothing of the parametrisation. Double precision.
    """
    model.eval()
    wide = {n: p.detach().double() for n, p in model.named_parameters()}
    held = {n: b.double() if b.is_floating_point() else b for n, b in model.named_buffers()}

    def logits(params: dict[str, Tensor]) -> Tensor:
        return functional_call(model, {**params, **held}, (x.double(),)).flatten()

    blocks = jacrev(logits)(wide)
    gram = sum((b.flatten(1) @ b.flatten(1).mT for b in blocks.values()), torch.zeros(()))
    if not bool(gram.isfinite().all()):
        return math.nan, math.nan
    values = torch.linalg.eigvalsh(gram)
    return float(values[-1]) / len(x), float(values[-1] / values[len(values) // 2])


# -- training ------------------------------------------------------------------------------------


@dataclass
class Training:
    """A network with its optimiser and a hook; batches are drawn by the seed.

    `penalty` is added to the loss of every batch.
    """

    case: Case
    model: nn.Sequential
    optimiser: torch.optim.Optimizer
    after: Hook
    seed: int
    penalty: Callable[[], Tensor | float] = lambda: 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def go(self, steps: int) -> bool:
        """Train on; False if the loss is no number any more. Only this is timed."""
        x, y = self.case.train
        self.model.train()
        start, loss = time.process_time(), torch.zeros(())
        for _ in range(steps):
            chosen = torch.randint(len(x), (self.case.batch,), generator=self.generator)
            self.optimiser.zero_grad()
            loss = functional.cross_entropy(self.model(x[chosen]), y[chosen])
            if not math.isfinite(float(loss.detach())):
                break
            (loss + self.penalty()).backward()
            self.after.before()
            self.optimiser.step()
            self.after.after()
        self.seconds += time.process_time() - start
        return math.isfinite(float(loss.detach())) and all(
            bool(p.isfinite().all()) for p in self.model.parameters()
        )


def run(case: Case, cell: Cell, seed: int) -> Record:
    """Train from the start of a cell; the curve and what holds at the end."""
    model = case.started(seed, cell.start)
    probes = case.test[0][:EXAMPLES]
    optimiser = OPTIMISERS[cell.optimiser](model.parameters(), lr=cell.rate)
    training = Training(case, model, optimiser, hook(cell.method, case, model, optimiser), seed)
    part = tuple(t[:600] for t in case.train)
    curve = [loss_and_accuracy(model, *part)[0]]
    for _ in range(LOOKS):
        if not _goes(training, case.steps // LOOKS):
            break
        curve.append(loss_and_accuracy(model, *part)[0])
    record: Record = {**asdict(cell), "seed": seed, "curve": curve, "seconds": training.seconds,
                      "diverged": len(curve) <= LOOKS}  # fmt: skip
    if not record["diverged"]:
        record["loss"] = loss_and_accuracy(model, *case.train)[0]
        record["accuracy"] = loss_and_accuracy(model, *case.test)[1]
        record["top"], record["condition"] = spectrum(model, probes)
        with torch.no_grad():
            record["norm"] = float(sum(p.square().sum() for p in model.parameters()))
    return record


def _goes(training: Training, steps: int) -> bool:
    """Whether training goes on: what can no longer be balanced has diverged as well."""
    try:
        return training.go(steps)
    except ValueError:
        if all(float(p.detach().abs().max()) < _LARGEST for p in training.model.parameters()):
            raise
        return False


def records(case: Case, cell: Cell, seeds: Sequence[int], folder: Path) -> list[Record]:
    """A cell's records, read where they were written before."""
    path = folder / cell.file
    found = {r["seed"]: r for r in json.loads(path.read_text())} if path.exists() else {}
    for seed in seeds:
        if seed not in found:
            found[seed] = run(case, cell, seed)
            written(path, [*found.values()])
    return [found[seed] for seed in seeds]


def written(path: Path, content: object) -> None:
    """JSON under a temporary name first, so that a file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.replace(path)
