"""Networks run as they are judged: in evaluation mode, and left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from paramsym.ensembles.members import MemberEnsemble


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a block with a model in evaluation mode; modes and buffers are as before afterwards.

    Buffers, too, since a module may count or average what it sees in evaluation mode as well.
    """
    modes = [(module, module.training) for module in model.modules()]
    # what members own is stacked and only read: a copy of it would double an ensemble
    network = model.model if isinstance(model, MemberEnsemble) else model
    buffers = [(buffer, buffer.detach().clone(), buffer._version) for buffer in network.buffers()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before, version in buffers:
                if buffer._version != version:
                    buffer.copy_(before)
