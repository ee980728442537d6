"""What learning gives: an action, its generators, and what was measured on fresh samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .action_network import ActionNetwork
from .fields import matrix_action
from .measures import (
    Median,
    Report,
    finite_errors,
    invariant_share,
    known_share,
    velocities,
)  # fmt: skip
from .objective import ASSOCIATIVITY, terms_on
from .problem import Params, Problem, Samples

_FRESH = 2000


@dataclass(frozen=True)
class Learned:
    """A learned action with its generators.

    Args:
        problem: what it was learned for.
        network: a_X(g, θ), batched, in float64.
        generators: h, (k, n, n), in float64.
        curve: the objective and its terms, every so many steps.
        report: what it does on fresh samples.
    """

    problem: Problem
    network: ActionNetwork
    generators: torch.Tensor
    curve: tuple[Mapping[str, float], ...]
    report: Report

    def action(
        self, g: torch.Tensor, params: Mapping[str, torch.Tensor], data: tuple[torch.Tensor, ...]
    ) -> Params:
        """a_X(g, θ) at one point, in the form of `check_action`.

        Args:
            g: (n, n).
            params: θ by name.
            data: X, (n, k), and Y, (m, k): this action reads targets as well.

        Returns:
            θ′ by name, float64.
        """
        batched = {name: params[name].double()[None] for name in self.problem.shapes}
        theta = self.problem.flat(batched)
        inputs, targets = (part.double()[None] for part in data)
        moved = self.network(g.double()[None], theta, Samples(theta, inputs, targets))
        return {name: part[0] for name, part in self.problem.parts(moved).items()}


def measured(
    problem: Problem,
    network: ActionNetwork,
    generators: torch.Tensor,
    curve: tuple[Mapping[str, float], ...],
    associativity: str,
    generator: torch.Generator,
) -> Learned:
    """The result, with its report on samples that training has not seen."""
    network, h = network.double(), generators.double()
    samples = problem.draw(_FRESH, generator, torch.float64)
    fields = velocities(network, h, problem, samples)
    known = problem.known if problem.known is not None and len(problem.known) else None
    kinds = {a: terms_on(network, h, problem, samples, associativity=a) for a in ASSOCIATIVITY}
    exact = {} if known is None else {
        a: terms_on(matrix_action, known, problem, samples, associativity=a) for a in ASSOCIATIVITY
    }  # fmt: skip
    report = Report(
        finite=finite_errors(network, h, problem, samples, generator),
        invariant=Median.of(invariant_share(problem, samples, fields)),
        known=None if known is None else Median.of(known_share(problem, samples, fields)),
        speed=Median.of(fields.norm(dim=-1)),
        terms=kinds[associativity],
        exact=exact.get(associativity),
        associativity={a: terms["associativity"] for a, terms in kinds.items()},
        exact_associativity={a: t["associativity"] for a, t in exact.items()} or None,
        samples=_FRESH,
    )
    return Learned(problem, network, h, curve, report)
