"""A model at other parameters, run so that nothing is left in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paramsym.merging.states import State, has_values
from paramsym.recording.precision import converted_inputs, lifted
from paramsym.recording.record import Inputs
from paramsym.recording.running import call_at, exclusive, places_of, preserved, seeded

Hook = Callable[[Tensor], Tensor | None]
Hooks = Mapping[nn.Module, Hook]


def returned_at(
    model: nn.Module,
    params: State,
    inputs: Inputs,
    caller: str,
    hooks: Hooks | None = None,
    prepare: Callable[[], None] | None = None,
    written: Collection[str] = (),
) -> Any:
    """What a model returns at other parameters, in evaluation mode and in their precision.

    The model keeps its mode, its state and its hooks. What it draws at random are the same numbers
    in every run.

    Args:
        model: it is only read.
        params: its state dict.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        caller: the public function in whose name errors speak.
        hooks: by module, called with what it returns; a tensor that they return replaces it.
        prepare: called before the run, when changes to the model are taken back afterwards.
        written: buffers that the run may write to; of all others it gets copies.

    Raises:
        ValueError: a parameter of the model is missing, or has another shape.
    """
    with exclusive:
        require_parameters(model, params, caller)
        kept = {*written, *(n for n, _ in model.named_parameters(remove_duplicate=False))}
        state = {
            n: t.detach() if n in kept else t.detach().clone()
            for n, t in params.items() if isinstance(t, Tensor)
        }  # fmt: skip
        dtype = next((t.dtype.to_real() for n, t in state.items() if has_values(t)), torch.float32)
        args, kwargs = pytree.tree_map(_copied, converted_inputs(inputs, dtype))
        places = places_of(model, state.keys())
        with lifted() if dtype == torch.float64 else nullcontext():
            with preserved(model, training=False), torch.no_grad():
                seeded(0)
                if prepare:
                    prepare()
                handles = [
                    module.register_forward_hook(_hooked(hook))
                    for module, hook in (hooks or {}).items()
                ]
                try:
                    return call_at(model, state, args, kwargs, places)
                finally:
                    for handle in handles:
                        handle.remove()


def _hooked(hook: Hook) -> Callable[[nn.Module, Any, Any], Any]:
    def called(module: nn.Module, given: Any, returned: Any) -> Any:
        return hook(returned) if isinstance(returned, Tensor) else None

    return called


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def require_parameters(model: nn.Module, params: State, caller: str) -> None:
    """Refuse a state dict that is not one of this model."""
    known = {
        id(p): params[n]
        for n, p in model.named_parameters(remove_duplicate=False)
        if n in params
    }  # fmt: skip
    for name, own in model.named_parameters():
        found = known.get(id(own))
        if found is None or found.shape != own.shape:
            came = "is missing" if found is None else f"has shape {tuple(found.shape)}"
            raise ValueError(
                f"{caller}(model={type(model).__name__}, params): {name!r} {came}, and a tensor of "
                f"shape {tuple(own.shape)} was expected, as the model has it. Pass the complete "
                "state_dict() of this architecture."
            )


def loss_of(
    model: nn.Module, loss_fn: Callable[[Any], Tensor], inputs: Inputs
) -> Callable[[State], float]:
    """θ ↦ loss_fn(model(inputs; θ)) as a function of state dicts, in evaluation mode.

    Args:
        model: it is only read; it keeps its mode and its state.
        loss_fn: from what the model returns to one real number.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.

    Returns:
        What `loss_barrier` takes: from a complete state dict to the loss. It raises `ValueError`
        for parameters that the model does not have, and for a loss that is no real number.
    """

    def evaluate(params: State) -> float:
        value = loss_fn(returned_at(model, params, inputs, "loss_of"))
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            return float(value.detach())
        if isinstance(value, float) and not math.isnan(value):
            return value
        shape = tuple(value.shape) if isinstance(value, Tensor) else ""
        raise ValueError(
            f"loss_of(loss_fn=…): it returned a {type(value).__name__} {shape}, and one real "
            "number was expected. Take a mean or a sum."
        )

    return evaluate
