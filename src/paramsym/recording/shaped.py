"""Functions that look at numbers where shapes are enough, by their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`F.one_hot` without its look at the largest entry."""
    if num_classes < 0:
        return torch.nn.functional.one_hot(tensor)
    return tensor.new_empty((*tensor.shape, num_classes))


def _recurrent(kind: str) -> Callable[..., Any]:
    """A recurrent layer on a packed sequence, which fake tensors cannot walk; shapes of others."""
    function = getattr(torch._VF, kind)

    def run(*args: Any) -> Any:
        if isinstance(args[3], bool):  # padded
            return function(*args)
        data: torch.Tensor = args[0]
        states: list[torch.Tensor] = [*args[2]] if isinstance(args[2], (tuple, list)) else [args[2]]
        width = states[0].shape[-1] * (1 + args[8])
        return data.new_empty(data.shape[0], width), *map(torch.empty_like, states)

    return run


SHAPED: dict[str, Callable[..., Any]] = {
    "one_hot": _one_hot,
    **{kind: _recurrent(kind) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
