"""What learning gives: an action, its generators, and what was measured on fresh samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .action_network import ActionNetwork
from .fields import Fields, matrix_action
from .measures import (
    Median,
    Report,
    finite_errors,
    invariant_share,
    known_share,
)  # fmt: skip
from .objective import ASSOCIATIVITY, terms_on
from .problem import Params, Problem, Samples


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


def _laws(fields: Fields) -> dict[str, float]:
    """Each measure of associativity."""
    with torch.no_grad():
        return {name: float(measure(fields)) for name, measure in ASSOCIATIVITY.items()}


def measured(
    problem: Problem,
    network: ActionNetwork,
    generators: torch.Tensor,
    curve: Sequence[Mapping[str, float]],
    associativity: str,
    samples: Samples,
    generator: torch.Generator,
) -> Learned:
    """The result, with its report on fresh samples in float64."""
    network, h = network.double(), generators.double()
    known = problem.known if problem.known is not None and len(problem.known) else None
    with torch.no_grad():
        fields = Fields(network, h, problem, samples)
    exact = None if known is None else Fields(matrix_action, known, problem, samples)
    law = associativity
    report = Report(
        finite=finite_errors(network, h, problem, samples, generator),
        small=finite_errors(network, h, problem, samples, generator, 0.1),
        invariant=Median.of(invariant_share(problem, samples, fields.velocity)),
        known=None if known is None else Median.of(known_share(problem, samples, fields.velocity)),
        speed=Median.of(fields.velocity.norm(dim=-1)),
        terms=terms_on(network, h, problem, samples, associativity=law),
        exact=None
        if known is None
        else terms_on(matrix_action, known, problem, samples, associativity=law),
        associativity=_laws(fields),
        exact_associativity=None if exact is None else _laws(exact),
        samples=len(samples),
    )
    return Learned(problem, network, h, tuple(curve), report)
