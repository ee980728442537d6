"""What is measured of one network: what is wrong, what is held, and what is unexplained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paramsym import ParameterSymmetry, audit, find_symmetry
from tests.tracing.zoo import errors, randomise


@dataclass(frozen=True)
class Measured:
    """One network in numbers, in float64 at generic weights.

    `error` is the largest relative change of the function under everything that was found, together
    and one by one; `refuted` names what the Jacobian denies; `unexplained` counts the directions
    that leave the function unchanged and that nothing found accounts for, in all `explained` more.
    """

    symmetry: ParameterSymmetry
    error: float
    refuted: tuple[str, ...]
    explained: int
    unexplained: int


def measured(model: nn.Module, inputs: Any, seed: int = 0, **options: Any) -> Measured:
    """Derive, move, and audit a network; its parameters are made generic in place."""
    model = randomise(model, seed)
    symmetry = find_symmetry(model, inputs, **options)
    moved = errors(model, symmetry, inputs)
    worst = max((value for name, value in moved.items() if name in _claims(symmetry)), default=0.0)
    generator = torch.Generator().manual_seed(seed)
    found = audit(model, inputs, symmetry=symmetry, generator=generator)
    return Measured(symmetry, worst, tuple(found.refuted), found.explained, found.unexplained)


def _claims(symmetry: ParameterSymmetry) -> set[str]:
    exact = {name for name, space in symmetry.spaces.items() if space.exact}
    shifts = {shift.name for shift in symmetry.shifts}
    return exact | shifts | ({"everything"} if len(exact) == len(symmetry.spaces) else set())
