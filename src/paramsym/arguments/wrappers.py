"""What wraps a model or an optimiser is opened: the inside computes, or steps, the same."""

from __future__ import annotations

from typing import Any

import torch

from .door import WrongKind
from .words import a


def module_of(model: Any) -> Any:
    """The module itself, out of torch.compile, DataParallel and DistributedDataParallel.

    It computes the same function, and its parameters have their names without a prefix.
    """
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(model, torch.nn.Module):
        inner = model._modules.get("module" if isinstance(model, parallel) else "_orig_mod")
        if inner is None:
            break
        model = inner
    return model


def optimizer_of(optimizer: Any, where: str) -> torch.optim.Optimizer:
    """The optimiser of torch, out of what holds it in `.optimizer`: accelerate's, a schedule.

    What has a state or groups of its own beside that optimiser steps in its own way, and is not
    opened.

    Raises:
        WrongKind: it is no optimiser and holds none, or it steps in its own way.
    """
    found = optimizer
    # What was never initialised as an optimiser has no hooks: a wrapper that calls itself one.
    while not (isinstance(found, torch.optim.Optimizer) and "defaults" in vars(found)):
        inner = None if isinstance(found, torch.nn.Module) else getattr(found, "optimizer", None)
        if inner is None or inner is found:
            raise WrongKind(
                f"{where}: {a(type(optimizer).__name__)} came, and a torch.optim.Optimizer was "
                "expected, or what holds one in .optimizer. Pass what calls .step() in the "
                "training loop."
            )
        for name in ("state", "param_groups"):
            own = getattr(found, name, None)
            if own is not None and own is not getattr(inner, name, None):
                raise WrongKind(
                    f"{where}: {a(type(found).__name__)} came, whose .{name} is not that of its "
                    ".optimizer; what steps as the optimiser that it holds was expected. Train "
                    "with that one alone, and pass it."
                )
        found = inner
    return found
