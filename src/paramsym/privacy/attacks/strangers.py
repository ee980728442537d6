"""Networks that are no relatives: the control of attacks that compare parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def shuffled(params: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Parameters with the entries of every tensor in another order, drawn tensor by tensor.

    Sizes and distributions of entries stay, tensor by tensor; what an attack still finds it has not
    found in the network.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        name: p.reshape(-1)[torch.randperm(p.numel(), generator=generator).to(p.device)].view_as(p)
        if isinstance(p, Tensor) and p.is_floating_point() else p
        for name, p in params.items()
    }  # fmt: skip
