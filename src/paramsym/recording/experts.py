"""Stacks of experts, recorded as a sum over all experts instead of over those that were hit.

A mixture of k experts adds, for each token t, the outputs of those that its router chose:

    y_t = Σ_j w_tj f_{i_tj}(x_t) = Σ_e g_te f_e(x_t),    g_te = Σ_j w_tj [i_tj = e].

The left side sorts tokens, groups them, or visits the experts that some token hit, none of which
has a shape before the numbers are known; the right side is two contractions with an expert axis,
and one gate of the router. In finite numbers both are equal. They differ only where an expert that
nobody chose overflows, since 0 · ∞ is no zero.

The stacks of transformers say what they compute in one vocabulary, so that any of several
implementations may run them (`use_experts_implementation`); here is one more, that is put in their
place while the model is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

_FLAGS = ("has_gate", "has_bias", "is_transposed")
_NORMED = "has_post_expert_norm"  # which older releases do not say, and do not have
_DISPATCHED = "use_experts_implementation"  # the decorator that lets implementations be exchanged


@contextmanager
def dense_experts(model: nn.Module) -> Iterator[None]:
    """Run a block in which every stack of experts computes all of them, weighted by gates.

    An attribute of the module takes the place of its method, and is taken away afterwards.
    """
    stacks = [module for module in model.modules() if is_stack(module)]
    for module in stacks:
        module.__dict__["forward"] = MethodType(_dense, module)
    try:
        yield
    finally:
        for module in stacks:
            module.__dict__.pop("forward", None)


def is_stack(module: nn.Module) -> bool:
    """Whether a module is a stack of experts that says what it computes, on one device."""
    forward = type(module).forward
    if "forward" in module.__dict__ or not _is_dispatched(forward):
        return False
    if not all(isinstance(getattr(module, flag, None), bool) for flag in _FLAGS):
        return False
    if getattr(module, "_is_expert_parallel", False) or not isinstance(
        getattr(module, "num_experts", None), int
    ):
        return False
    first, second = stacked_weights(module)
    stacked = (isinstance(w, Tensor) and w.ndim == 3 for w in (first, second))
    return all(stacked) and first.shape[0] == second.shape[0] == module.num_experts


def _is_dispatched(forward: Any) -> bool:
    code = getattr(forward, "__code__", None)
    return code is not None and _DISPATCHED in code.co_qualname


def stacked_weights(module: Any) -> tuple[Any, Any]:
    """The tensors of a stack that read the stream, and that write it: (expert, …, …) each."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    return getattr(module, first, None), getattr(module, "down_proj", None)


def _dense(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Σ_e g_te f_e(x_t) for tokens in rows, in the precision of the weights."""
    first, second = stacked_weights(self)
    biases = (None, None)
    if self.has_bias:
        name = "gate_up_proj_bias" if self.has_gate else "up_proj_bias"
        biases = getattr(self, name), self.down_proj_bias
    gates = torch.zeros(
        (*top_k_weights.shape[:-1], self.num_experts),
        dtype=top_k_weights.dtype, device=top_k_weights.device,
    ).scatter_add(-1, top_k_index, top_k_weights)  # fmt: skip
    hidden = torch.einsum(
        "td,edh->teh" if self.is_transposed else "td,ehd->teh", hidden_states, first
    )
    hidden = hidden if biases[0] is None else hidden + biases[0]
    hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
    out = torch.einsum("teh,ehd->ted" if self.is_transposed else "teh,edh->ted", hidden, second)
    out = out if biases[1] is None else out + biases[1]
    out = self.post_expert_norm(out) if getattr(self, _NORMED, False) else out
    summed = torch.einsum("te,ted->td", gates.to(out.dtype), out)
    return summed.to(hidden_states.dtype)
