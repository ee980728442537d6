"""Derivatives of what a network computes, and not of what it lets be trained.

`detach`, `.data` and `torch.no_grad` inside a forward pass hide a dependence from autograd that is
there all the same: a table of positions that is read without gradients moves the outputs as any
other, and a straight-through estimator returns rounded numbers whose derivative is that of a
rounding. A Jacobian that is to say which parameters may move has to see through them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUTS = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
_CUTS_IN_PLACE = {torch.Tensor.detach_, torch.detach_}


class AsComputed(TorchFunctionMode):
    """A context in which nothing is cut off from the derivative of what it was computed from.

    A hand-written `torch.autograd.Function` still says of its derivative what it likes.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled and args[:1] == (False,):
            return None
        if func in _CUTS_IN_PLACE:
            return args[0]
        if func in _CUTS and args[0].requires_grad:
            return args[0].view_as(args[0])
        result = func(*args, **(kwargs or {}))
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        flat = node is not None and node.name().endswith("NotImplemented")  # as of a step
        return result.detach() if flat else result
