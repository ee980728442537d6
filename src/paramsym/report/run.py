"""What a report says of the run that it was made with: who was called, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def calls_of(model: torch.nn.Module) -> Iterator[list[str]]:
    """The names of the modules of a model, in the order in which they are first called inside."""
    names = {id(module): name for name, module in model.named_modules()}
    order: dict[str, None] = {}

    def note(module: torch.nn.Module, _: Any) -> None:
        if id(module) in names:
            order.setdefault(names[id(module)])
            called[:] = order

    called: list[str] = []
    hook = register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        hook.remove()


def input_texts(inputs: Any) -> Iterator[str]:
    """Each input with its name, dtype and shape."""
    named = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    for name, value in named:
        if isinstance(value, Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            yield f"{name}: {dtype}, {' × '.join(map(str, value.shape)) or 'scalar'}"
        else:
            yield f"{name}: {type(value).__name__}"
