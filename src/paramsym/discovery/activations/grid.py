"""The range of arguments that a search answers for."""

from __future__ import annotations

import torch
from torch import Tensor

REACH = 64.0  # centres and features are looked for in [−REACH, REACH]
FINE = 0.01  # and features no narrower than this


def stratified(generator: torch.Generator) -> Tensor:
    """One random point in each cell of a grid over [−REACH, REACH]."""
    count = round(2 * REACH / FINE)
    inside = torch.rand(count, generator=generator, dtype=torch.float64)
    return -REACH + FINE * (torch.arange(count, dtype=torch.float64) + inside)
