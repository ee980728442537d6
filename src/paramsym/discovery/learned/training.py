"""An action and its generators, trained together on objective (11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .action_network import HIDDEN, ActionNetwork
from .fields import Fields
from .integrated import integrated
from .learned import Learned, measured
from .objective import HOMOGENEOUS, Weights, regularisers, require_associativity, six_terms
from .problem import Problem, Samples

_RECORDED = 50  # steps between two rows of the training curve


@dataclass(frozen=True)
class Schedule:
    """How long, and how fast.

    Args:
        steps: of Adam.
        batch: samples per step; the paper does not tell it, nor the optimiser.
        samples: drawn once, before the first step.
        rate: learning rate at the start.
        decay: its factor every `decay_every` steps; 1 for none.
        decay_every: steps.
        fresh: samples of the report, which training has not seen.
    """

    steps: int = 3000
    batch: int = 128
    samples: int = 10_000
    rate: float = 1e-3
    decay: float = 0.6
    decay_every: int = 1000
    fresh: int = 2000


def _require(
    here: str,
    generators: int,
    size: int | None,
    associativity: str,
    objective: str,
    schedule: Schedule,
) -> None:
    """Options that there are, and counts that are positive."""
    require_associativity(associativity, here)
    if objective not in ("infinitesimal", "integrated"):
        raise ValueError(
            f'{here}: objective={objective!r} was expected to be "infinitesimal" or "integrated". '
            "Pass one of them."
        )
    counts = {
        "generators": generators, "size": 1 if size is None else size, "steps": schedule.steps,
        "batch": schedule.batch, "samples": schedule.samples, "fresh": schedule.fresh,
        "decay_every": schedule.decay_every,
    }  # fmt: skip
    if wrong := [name for name, count in counts.items() if count < 1]:
        raise ValueError(
            f"{here}: {wrong[0]}={counts[wrong[0]]} came, a positive number was expected. Pass at "
            "least 1."
        )
    if schedule.batch > schedule.samples:
        raise ValueError(
            f"{here}: batches of {schedule.batch} out of {schedule.samples} samples came, no more "
            "than there are were expected. Pass a smaller Schedule(batch=…)."
        )


def _require_function(here: str, problem: Problem, samples: Samples) -> None:
    """Outputs of the shape of the targets, finite, for every row by itself."""
    found = problem.outputs_at(samples)
    if found.shape != samples.targets.shape:
        raise ValueError(
            f"{here}: its function gave outputs {tuple(found.shape)} for two samples, "
            f"{tuple(samples.targets.shape)} were expected. It must map tensors (B, *shape) and "
            "inputs (B, n, k) to (B, m, k); wrap a function of one sample in torch.func.vmap."
        )
    if not found.isfinite().all():
        raise ValueError(
            f"{here}: its function gave numbers that are not finite at standard normal parameters, "
            "finite ones were expected. Rescale it, or restrict where it is defined."
        )


def _recorded(
    here: str, step: int, total: torch.Tensor, terms: dict[str, torch.Tensor]
) -> dict[str, float]:
    """A row of the training curve; an objective that is not finite ends the training."""
    row = {"step": float(step), "objective": total.item()}
    row |= {name: value.item() for name, value in terms.items()}
    if not torch.isfinite(total):
        worst = next((n for n, v in terms.items() if not torch.isfinite(v)), "their sum")
        raise ValueError(
            f"{here}: {worst} is {row.get(worst, row['objective'])} at step {step}, a finite "
            "number was expected. Lower Schedule(rate=…), or the weight of that term."
        )
    return row


def learn(
    problem: Problem,
    *,
    generator: torch.Generator,
    generators: int = 1,
    size: int | None = None,
    weights: Weights = HOMOGENEOUS,
    associativity: str = "commutator",
    objective: str = "infinitesimal",
    signed: bool = True,
    beta: float = 1.0,
    schedule: Schedule | None = None,
    hidden: Sequence[int] = HIDDEN,
) -> Learned:
    """Learn k generators and the action of their group, with no more than the loss to go by.

    min over h and a of γ₁ invariance + γ₂ identity + γ₃ associativity + γ₄ size + γ₅ orthogonality
    + γ₆ sparsity, objective (11), or with the first three integrated, of exponentials; without the
    others the action that moves nothing is optimal there. What comes out is an approximate action:
    read `report` before using it, and prefer one that is invariant by construction.

    Args:
        problem: the network; `layered` makes those of the paper.
        generator: of everything that is drawn.
        generators: k.
        size: n, of the n × n matrices h; P where not given.
        weights: γ₁ to γ₆: `HOMOGENEOUS`, `DATA_DEPENDENT` or others.
        associativity: "commutator" for [ξ_A, ξ_B] = −ξ_[A,B], "second-order" for all of the second
            order, "published" for term (7), which exact actions violate.
        objective: "infinitesimal" for (5) to (10), "integrated" for A.3.
        signed: False for |cos| in place of the published cos of generators, which opposite ones
            minimise.
        beta: β, the length that fields are to have.
        schedule: steps, batch, samples and learning rate.
        hidden: widths of the action network.

    Returns:
        The action, its generators, the training curve, and what was measured on fresh samples.

    Raises:
        ValueError: an unknown option, a count below one, a batch larger than the samples, a
            function that does not fit its shapes, or an objective that is no longer finite.

    Source: "Finding symmetry in neural network parameter spaces", section 5, A.2 and A.3.
    """
    schedule = schedule or Schedule()
    here = f"learn(problem with P = {problem.size})"
    _require(here, generators, size, associativity, objective, schedule)
    data = problem.draw(schedule.samples, generator, torch.float32)
    _require_function(here, problem, data[:2])
    n = size or problem.size
    network = ActionNetwork(problem, n, generator, hidden)
    first = torch.randn(generators, n, n, generator=generator, dtype=torch.float64)
    h = (first / n**0.5).float().requires_grad_()  # of spectral radius one
    optimizer = torch.optim.Adam([*network.parameters(), h], lr=schedule.rate)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, schedule.decay_every, schedule.decay)
    curve: list[dict[str, float]] = []
    for step in range(schedule.steps):
        rows = torch.randint(schedule.samples, (schedule.batch,), generator=generator)
        fields = Fields(network, h, problem, data[rows])
        if objective == "infinitesimal":
            terms = six_terms(fields, associativity, signed, beta)
        else:
            times = 2 * torch.rand(schedule.batch, generator=generator) - 1
            terms = integrated(network, h, problem, data[rows], times)
            terms |= regularisers(fields, signed, beta)
        total = weights.total(terms)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        rates.step()
        if step % _RECORDED == 0 or step == schedule.steps - 1:
            curve.append(_recorded(here, step, total, terms))
    network.requires_grad_(False)
    samples = problem.draw(schedule.fresh, generator, torch.float64)
    return measured(problem, network, h.detach(), curve, associativity, samples, generator)
