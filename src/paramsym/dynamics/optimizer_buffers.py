"""The gradients and the momentum of a step, as PyTorch leaves them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .changes import sampled
from .descent import Groups, LedgerError
from .recursion import Scheme

Params = Mapping[str, Tensor]


def momentum_of(optimizer: torch.optim.Optimizer, params: Params) -> dict[str, Tensor]:
    """The momentum buffers of all parameters, or none.

    Raises:
        LedgerError: some have one, and others have not.
    """
    state = optimizer.state
    found = {
        n: state[p]["momentum_buffer"] for n, p in params.items()
        if p in state and state[p].get("momentum_buffer") is not None
    }  # fmt: skip
    if found and len(found) < len(params):
        missing = next(n for n in params if n not in found)
        raise LedgerError(
            f"optimizer.step(): {missing!r} has no momentum, and {next(iter(found))!r} has; "
            "momenta of all or none were expected, which began together. Freeze what gets no "
            "gradients before the optimiser is made."
        )
    return found


def gradients_of(params: Params, scale: float = 1.0) -> dict[str, Tensor]:
    """The gradients, without the factor that a fused step takes off; zero where there is none."""
    return {
        n: p.detach().new_zeros(()).expand(p.shape) if p.grad is None
        else p.grad if scale == 1.0 else p.grad / scale
        for n, p in params.items()
    }  # fmt: skip


def require_complete(params: Params, scheme: Scheme) -> None:
    """Refuse gradients of which a step makes something else than of others.

    Raises:
        LedgerError: one is sparse, or missing where there is momentum or decay.
    """
    for name, p in params.items():
        if p.grad is not None and p.grad.layout != torch.strided:
            raise LedgerError(
                f"optimizer.step(): the gradient of {name!r} is sparse; a dense one was "
                "expected. Build the embedding with sparse=False."
            )
        if p.grad is None and (scheme.momentum is not None or scheme.coupled[name]):
            raise LedgerError(
                f"optimizer.step(): {name!r} has no gradient, so that PyTorch leaves out its "
                "momentum and its decay in this step, unlike those of others. A gradient for "
                "each trained parameter was expected. Freeze it, or use "
                "optimizer.zero_grad(set_to_none=False)."
            )


class UsedGradients:
    """The gradients that a step has used, kept so that new ones cannot take their place.

    `zero_grad()` only lets go of them; what writes into them is found out.

    Args:
        params: whose gradients, just after the step.
    """

    def __init__(self, params: Params):
        self.grads = gradients_of(params)
        self.writes = {n: g._version for n, g in self.grads.items()}

    def read(self) -> dict[str, Tensor]:
        """The gradients, as the step left them.

        Raises:
            LedgerError: something has been written into them since.
        """
        for name, grad in self.grads.items():
            if grad._version != self.writes[name]:
                raise LedgerError(
                    f"ledger.step(): the gradient of {name!r} was written since the step; that of "
                    "the step was expected, because without momentum, or with Nesterov's, a step "
                    "is made of it. Call ledger.step() after optimizer.step() and before "
                    "optimizer.zero_grad(set_to_none=False) or another backward()."
                )
        return self.grads


def looked_ahead(
    scheme: Scheme, grads: Mapping[str, Tensor], momentum: Mapping[str, Tensor],
    before: Mapping[str, Tensor], places: Mapping[str, Tensor], groups: Groups,
) -> set[str]:  # fmt: skip
    """Names of which .grad is what Nesterov's step went along.

    PyTorch's foreach form looks ahead in place, g ← g + βv, where it has no copy of g. What v was
    before tells which of the two is there, all parameters of a group together.

    Args:
        scheme: the step.
        grads: after the step.
        momentum: after the step.
        before: a few entries of the momentum before the step, at `places`; none in the first.
        places: which entries.
        groups: of the parameters.
    """
    if not scheme.nesterov or scheme.sign < 0.0:
        return set()
    plain = [n for n in places if not scheme.coupled.get(n, 1.0)]
    beta, after, group = scheme.momentum or 0.0, sampled(momentum, places), groups.group_of
    grad = sampled(grads, places)
    closer = dict.fromkeys(group.values(), 0.0)
    for name in plain:
        own = after[name] - (beta * before[name] if before else 0.0)
        far = (grad[name] - own).abs() - (grad[name] - own - beta * after[name]).abs()
        closer[group[name]] += float(far.sum())
    return {n for n in plain if closer[group[n]] > 0.0}
