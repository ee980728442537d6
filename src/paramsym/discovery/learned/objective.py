"""Objective (11): the six terms, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite

import torch

from .commutator import commutator
from .fields import BatchedAction, Fields
from .identity import identity
from .invariance import invariance
from .orthogonality import orthogonality
from .problem import Problem, Samples
from .published_associativity import published_associativity
from .second_order import second_order
from .size import size
from .sparsity import sparsity

ASSOCIATIVITY: Mapping[str, Callable[[Fields], torch.Tensor]] = {
    "published": published_associativity,
    "commutator": commutator,
    "second-order": second_order,
}


@dataclass(frozen=True)
class Weights:
    """γ₁, …, γ₆ of objective (11), in its order; γ₃ is not told in the paper."""

    invariance: float = 10.0
    identity: float = 1.0
    associativity: float = 1.0
    size: float = 1.0
    orthogonality: float = 1.0
    sparsity: float = 0.1

    def total(self, terms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Σ γ · term, over the terms that there are."""
        mine = asdict(self)
        parts = [mine[name] * value for name, value in terms.items() if mine[name]]
        return torch.stack(parts).sum()


HOMOGENEOUS = Weights()
DATA_DEPENDENT = Weights(invariance=1.0, identity=10.0, size=10.0)


def require_associativity(name: str, here: str) -> None:
    """The name of a term that there is."""
    if name not in ASSOCIATIVITY:
        raise ValueError(
            f"{here}: associativity={name!r} was expected to be one of {sorted(ASSOCIATIVITY)}. "
            'Pass "commutator" for the condition that actions satisfy, "published" for term (7).'
        )


def regularisers(fields: Fields, signed: bool, beta: float) -> dict[str, torch.Tensor]:
    """The terms (8) to (10), which are no conditions: they choose among symmetries."""
    return {
        "size": size(fields, beta),
        "orthogonality": orthogonality(fields.generators, signed),
        "sparsity": sparsity(fields.generators),
    }


def six_terms(
    fields: Fields, associativity: str, signed: bool = True, beta: float = 1.0
) -> dict[str, torch.Tensor]:
    """The terms (5) to (10) by name, as numbers with a graph."""
    return {
        "invariance": invariance(fields),
        "identity": identity(fields),
        "associativity": ASSOCIATIVITY[associativity](fields),
        **regularisers(fields, signed, beta),
    }


def terms_on(
    action: BatchedAction,
    generators: torch.Tensor,
    problem: Problem,
    samples: Samples,
    *,
    associativity: str = "published",
    signed: bool = True,
    beta: float = 1.0,
) -> dict[str, float]:
    """The six terms of objective (11) on any action, for example an exact one.

    A term that means an axiom must vanish where the axiom holds. On exact symmetries the published
    associativity does not: for the scalar linear net and h = diag(1, −1), on gθ, it is E ‖θ‖.

    Args:
        action: a_X(g, θ), batched: g (B, n, n), θ (B, P) and samples to (B, P); `matrix_action`
            is gθ, exact for `problem.known`.
        generators: h, (k, n, n).
        problem: what the loss is.
        samples: where the expectations are taken, for example `problem.draw(…)`.
        associativity: "published", "commutator" or "second-order".
        signed: False for |cos| in place of the published cos.
        beta: β, the length that fields are to have.

    Returns:
        invariance, identity, associativity, size, orthogonality, sparsity, unweighted.

    Raises:
        ValueError: generators that are no (k, n, n), an unknown associativity, an action that gives
            another shape, or a term that is not finite.

    Source: "Finding symmetry in neural network parameter spaces", equations (5) to (10).
    """
    here = "terms_on(action, generators, …)"
    require_associativity(associativity, here)
    if generators.ndim != 3 or generators.shape[1] != generators.shape[2] or not len(generators):
        raise ValueError(
            f"{here}: generators of shape {tuple(generators.shape)} came, (k, n, n) with k ≥ 1 was "
            "expected: k square matrices. Pass h[None] for a single one."
        )
    with torch.no_grad():
        fields = Fields(action, generators, problem, samples)
        if fields.at_identity.shape != samples.parameters.shape:
            raise ValueError(
                f"{here}: the action gave {tuple(fields.at_identity.shape)}, the shape (B, P) = "
                f"{tuple(samples.parameters.shape)} of θ was expected. Wrap an action of one "
                "sample in torch.func.vmap."
            )
        terms = six_terms(fields, associativity, signed, beta)
    found = {name: float(value) for name, value in terms.items()}
    if wrong := [name for name, value in found.items() if not isfinite(value)]:
        raise ValueError(
            f"{here}: {wrong[0]} is {found[wrong[0]]}, a finite number was expected. Look for NaN "
            "in the samples and the generators, or for where the action is not defined."
        )
    return found
