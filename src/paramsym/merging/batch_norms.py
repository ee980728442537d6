"""Running statistics of batch norms, recomputed on data for parameters that were averaged."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paramsym.merging.evaluation import Inputs, returned_at
from paramsym.merging.states import State

_MOMENTS, _COUNT = ("running_mean", "running_var"), "num_batches_tracked"


def reset_batch_norms(
    model: nn.Module, params: State, batches: Iterable[Inputs]
) -> dict[str, Tensor]:
    """The running means and variances of batch norms at given parameters, from data alone.

    The statistics of averaged weights are not the averages of statistics. As after stochastic
    weight averaging, all batches are run with batch norms in training mode and everything else in
    evaluation mode; each statistic is the plain mean over batches of that of the batch, variances
    without bias.

    They are returned by themselves, because they come from data and not from the parents:
    `{**params, **reset_batch_norms(model, params, batches)}` is no longer what was interpolated.

    Args:
        model: it keeps its mode and its state.
        params: a complete state dict, which is only read.
        batches: inputs as the model takes them, each with several samples.

    Returns:
        By name the buffers that are new, `….running_mean` and `….running_var`; empty for a model
        without batch norms that track statistics.

    Raises:
        ValueError: no batches, or a state dict that is not that of the model.

    Source: Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging weights leads to wider
    optima and better generalization" (2018), section 3.2; for merged networks Jordan et al. (2023).
    """
    norms = _tracking(model)
    names = [
        f"{name}.{buffer}" if name else buffer for name in norms for buffer in (*_MOMENTS, _COUNT)
    ]
    if missing := [n for n in names if n not in params]:
        raise ValueError(
            f"reset_batch_norms(model, params): {missing[:3]} are missing, and all buffers of "
            "batch norms were expected. Pass the complete state_dict() of this architecture."
        )
    state = {**params, **{n: torch.zeros_like(params[n]) for n in names}}

    def prepare() -> None:
        for norm in norms.values():
            norm.training = True
            norm.momentum = None  # a plain mean over batches

    count = 0
    for batch in batches:
        returned_at(model, state, batch, "reset_batch_norms", None, prepare, names)
        count += 1
    if not count:
        raise ValueError(
            "reset_batch_norms(batches=…): no batches came, and without data there are no "
            "statistics. Pass a list of inputs, for example [(x,)]."
        )
    return {n: state[n] for n in names if n.endswith(_MOMENTS)}


def _tracking(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that track statistics, by path."""
    return {
        name: module for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }  # fmt: skip
