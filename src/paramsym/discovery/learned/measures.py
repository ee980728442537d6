"""What the objective does not tell of an action: how far it moves, at what cost, and where to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch.func import jacrev, vmap

from .fields import BatchedAction, Fields
from .problem import Problem, Samples

_KERNEL = 1e-9  # singular values of D_θF below this share of the largest count as zero


@dataclass(frozen=True)
class Median:
    """The median of fresh samples, its 95 % interval by order statistics, and the lowest tenth."""

    value: float
    low: float
    high: float
    lowest_tenth: float

    @staticmethod
    def of(numbers: torch.Tensor) -> Median:
        """Of a vector of independent numbers."""
        ordered = numbers.flatten().sort().values
        count = len(ordered)
        reach = 1.96 * sqrt(count) / 2  # the binomial count of numbers below the median
        low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach) + 1)
        return Median(
            float(ordered.median()), float(ordered[low]), float(ordered[high]),
            float(ordered.quantile(0.1)),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Finite:
    """One generator h at a finite element exp(th).

    Args:
        distance: ‖a_X(exp(th), θ) − θ‖.
        change: |L(a_X(exp(th), θ), X) − L(θ, X)| / L(θ, X).
        elsewhere: the same change after a step of the same length in a random direction: what an
            action that knows nothing would do.
    """

    distance: Median
    change: Median
    elsewhere: Median


def finite_errors(
    action: BatchedAction,
    generators: torch.Tensor,
    problem: Problem,
    samples: Samples,
    generator: torch.Generator,
    time: float = 1.0,
) -> tuple[Finite, ...]:
    """Each generator at exp(th), on samples.

    Args:
        action: a_X.
        generators: h, (k, n, n).
        problem: what the loss is.
        samples: fresh ones.
        generator: of the random directions.
        time: t.
    """
    return tuple(_finite(action, time * h, problem, samples, generator) for h in generators)


def _finite(
    action: BatchedAction,
    h: torch.Tensor,
    problem: Problem,
    samples: Samples,
    generator: torch.Generator,
) -> Finite:
    theta = samples.parameters
    element = torch.linalg.matrix_exp(h).expand(len(samples), *h.shape)
    step = action(element, theta, samples) - theta
    length = step.norm(dim=1, keepdim=True)
    other = torch.randn(theta.shape, generator=generator, dtype=torch.float64).to(theta.dtype)
    other = other / other.norm(dim=1, keepdim=True) * length
    before = problem.loss(samples).sum(1)
    changes = [
        (problem.loss(samples.at(theta + s)).sum(1) - before).abs() / before for s in (step, other)
    ]
    return Finite(Median.of(length), *(Median.of(change) for change in changes))


def invariant_share(problem: Problem, samples: Samples, directions: torch.Tensor) -> torch.Tensor:
    """The cosine between directions, (…, B, P), and the kernel of D_θF(·, X) at each sample.

    1 where the direction leaves the outputs of the sample alone to first order, 0 where it is
    normal to their level set. A direction that is zero has none, and gets NaN.
    """
    inside = directions - _onto(_row_spaces(problem, samples), directions)
    return inside.norm(dim=-1) / directions.norm(dim=-1)


def known_share(problem: Problem, samples: Samples, directions: torch.Tensor) -> torch.Tensor:
    """The cosine between directions and the span of the known generators' velocities Mθ."""
    if problem.known is None or not len(problem.known):
        raise ValueError(
            "known_share(problem): no symmetry of this problem is known, one to compare with was "
            "expected. Use invariant_share, which compares with ker D_θF(·, X)."
        )
    known = problem.known.to(directions.dtype)
    velocities = torch.einsum("qij,bj->biq", known, samples.parameters)
    return _onto(_orthonormal(velocities), directions).norm(dim=-1) / directions.norm(dim=-1)


def _row_spaces(problem: Problem, samples: Samples) -> torch.Tensor:
    """An orthonormal basis of the rows of D_θF at each sample, (B, P, r), zeros behind it."""

    def one(theta: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return problem.function(problem.parts(theta[None]), inputs[None])[0].flatten()

    rows = vmap(jacrev(one))(samples.parameters, samples.inputs)  # (B, m·k, P)
    return _orthonormal(rows.mT)


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Orthonormal bases of column spaces, (B, P, min(P, q)), with zeros for what is dependent."""
    left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
    kept = singular > _KERNEL * singular[:, :1]
    return left * kept[:, None, :]


def _onto(bases: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Directions (…, B, P) projected onto spans (B, P, r)."""
    inner = torch.einsum("bpr,...bp->...br", bases, directions)
    return torch.einsum("bpr,...br->...bp", bases, inner)


@dataclass(frozen=True)
class Report:
    """What an action does on fresh samples, and what the terms would say of the exact symmetry.

    Args:
        finite: the finite elements exp(h), one per generator.
        small: the finite elements exp(h/10).
        invariant: cosine between ξ_h and ker D_θF(·, X), over all generators.
        known: cosine between ξ_h and the span of the known generators, where there are any.
        speed: ‖ξ_h‖.
        terms: the six terms on the action itself; associativity is the one that was trained.
        exact: the terms on a(g, θ) = gθ with the known generators, with the same associativity;
            none where none is known.
        associativity: each measure of associativity on the action.
        exact_associativity: each of them on the exact action.
        samples: how many.
    """

    finite: tuple[Finite, ...]
    small: tuple[Finite, ...]
    invariant: Median
    known: Median | None
    speed: Median
    terms: Mapping[str, float]
    exact: Mapping[str, float] | None
    associativity: Mapping[str, float]
    exact_associativity: Mapping[str, float] | None
    samples: int

    def __str__(self) -> str:
        lines = [f"on {self.samples} fresh samples; medians with their 95 % intervals"]
        for name, elements in (("exp(h{})", self.finite), ("exp(h{}/10)", self.small)):
            for i, each in enumerate(elements):
                lines.append(
                    f"{name.format(i)}: θ moves by {each.distance}, the loss changes by "
                    f"{each.change} of itself; in a random direction by {each.elsewhere}"
                )
        lines.append(f"cosine to ker DF: {self.invariant}, tenth {self.invariant.lowest_tenth:.3g}")
        if self.known is not None:
            lines.append(f"cosine to what is known: {self.known}, "
                         f"tenth {self.known.lowest_tenth:.3g}")  # fmt: skip
        for name, terms in (("terms here", self.terms), ("terms on the exact", self.exact),
                            ("associativity here", self.associativity),
                            ("associativity on the exact", self.exact_associativity)):  # fmt: skip
            if terms is not None:
                lines.append(f"{name}: " + ", ".join(f"{k} {v:.3g}" for k, v in terms.items()))
        return "\n".join(lines)


def velocities(
    action: BatchedAction, generators: torch.Tensor, problem: Problem, samples: Samples
) -> torch.Tensor:
    """ξ_h of each generator at each sample, (k, B, P)."""
    return Fields(action, generators, problem, samples).velocity
