"""How much the outputs of a network move with each of its weights: summed squared derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from paramsym.recording.outputs import floating_outputs, require_outputs
from paramsym.recording.running import preserved, split_inputs


def sensitivities(
    model: torch.nn.Module,
    batches: Iterable[Any],
    projections: int | None = 16,
    generator: torch.Generator | None = None,
    outputs: Callable[[Any], Any] | None = None,
) -> dict[str, Tensor]:
    """F_i = Σ (∂f/∂w_i)² over all outputs f at all inputs, for every weight of a model.

    To second order an independent error of variance σ_i² in each weight changes the outputs by
    Σ_i σ_i² F_i in the summed square. F is the diagonal of JᵀJ, of the Gauss–Newton matrix.

    With random signs v, E (∂⟨v, f⟩/∂w_i)² = F_i: one backward pass per projection and batch gives
    an estimate without bias, whose relative error falls as one over the root of their number.

    Args:
        model: run in evaluation mode; it keeps its mode and its state.
        batches: example inputs, each a tuple of positional inputs or a dict of keyword arguments.
            Inputs drawn at random do instead of data, at a small loss.
        projections: random signs per batch; None for exact sums, one backward pass for each output
            entry.
        generator: of the signs.
        outputs: from what the model returns to the tensors whose values count; by default every
            floating tensor except caches.

    Returns:
        By name of `model.named_parameters()`, tied ones once, a tensor of its shape in double
        precision; zero where the outputs do not depend on it.

    Raises:
        ValueError: no batches, fewer than one projection, or outputs or derivatives that are not
            finite.
        TraceError: the model returns no floating tensor.

    Source: Bekas, Kokiopoulou and Saad, "An estimator for the diagonal of a matrix" (2007).
    """
    if projections is not None and projections < 1:
        raise ValueError(
            f"sensitivities(projections={projections}): at least 1 was expected, or None for exact "
            "sums over all outputs. Pass for example projections=16."
        )
    weights = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    found = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in weights.items()}
    generator = generator or torch.Generator().manual_seed(0)
    batches = [*batches]
    if not batches:
        raise ValueError(
            "sensitivities(batches=…): no batches came, and without inputs nothing can be "
            "measured. Pass a list of example inputs, for example [(x,)]."
        )
    with preserved(model, training=False), torch.enable_grad():
        held = {n: p.detach().requires_grad_() for n, p in weights.items()}
        for batch in batches:
            args, kwargs = split_inputs(batch)
            returned = torch.func.functional_call(model, held, args, kwargs)
            tensors = floating_outputs(outputs(returned) if outputs else returned)
            flat = torch.cat([t.reshape(-1) for t in require_outputs(tensors, "sensitivities")])
            _accumulate(found, flat, held, projections, generator)
    _require_finite(found)
    return found


def _accumulate(
    found: dict[str, Tensor],
    flat: Tensor,
    held: Mapping[str, Tensor],
    projections: int | None,
    generator: torch.Generator,
) -> None:
    """Add the squares of the derivatives of ⟨v, f⟩, averaged over random v or summed over units."""
    exact = projections is None
    for k in range(flat.numel() if exact else projections):
        if exact:
            v = torch.zeros_like(flat)
            v[k] = 1.0
        else:
            signs = torch.randint(0, 2, flat.shape, generator=generator)
            v = (2 * signs - 1).to(flat)
        slopes = torch.autograd.grad(
            flat, [*held.values()], v, retain_graph=True, allow_unused=True
        )
        for name, slope in zip(held, slopes, strict=True):
            if slope is not None:
                found[name] += slope.double().cpu().square() / (1 if exact else projections)


def _require_finite(found: Mapping[str, Tensor]) -> None:
    for name, tensor in found.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"sensitivities(model, batches): the derivatives with respect to {name!r} are not "
                "finite, and finite ones were expected. Look for infinite or NaN weights or inputs."
            )
