"""Networks that are no relatives: the control of attacks that compare parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def shuffled(params: Mapping[str, Tensor], seed: int = 0, spread: float = 0.0) -> dict[str, Tensor]:
    """Parameters with the entries of every tensor in another order, drawn tensor by tensor.

    Sizes and distributions of entries stay, tensor by tensor; what an attack still finds it has not
    found in the network.

    Args:
        params: a state dict.
        seed: of the orders.
        spread: multiply each entry by exp(spread · N(0, 1)) besides, where an order alone would
            change nothing that is compared.
    """
    generator = torch.Generator().manual_seed(seed)

    def other(tensor: Tensor) -> Tensor:
        order = torch.randperm(tensor.numel(), generator=generator)
        factor = (spread * torch.randn(tensor.numel(), generator=generator)).exp()
        mixed = tensor.reshape(-1)[order.to(tensor.device)] * factor.to(tensor)
        return mixed.view_as(tensor)

    return {
        name: other(p) if isinstance(p, Tensor) and p.is_floating_point() else p
        for name, p in params.items()
    }
