"""Whether derivatives or batches are computed through a tensor: then its values stay unseen."""

from __future__ import annotations

import torch
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_functorch_wrapped_tensor,
)


def is_transformed(x: torch.Tensor) -> bool:
    """Whether a tensor stands for others, inside a transform of `torch.func`."""
    return is_functorch_wrapped_tensor(x)


def is_followed(x: torch.Tensor) -> bool:
    """Whether derivatives or batches are computed through a tensor."""
    return is_transformed(x) or (x.requires_grad and torch.is_grad_enabled())
