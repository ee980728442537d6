"""Term (10): few entries."""

from __future__ import annotations

import torch


def sparsity(generators: torch.Tensor) -> torch.Tensor:
    """Σ |h_ij| over all generators."""
    return generators.abs().sum()
