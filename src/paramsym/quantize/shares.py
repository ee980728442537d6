"""What each tensor has of an objective: which are rounded, their ranges, and their errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from paramsym.geometry.costs import counts
from paramsym.quantize.grids import Grid
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
from paramsym.structure.patterns import Patterns, matching
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


def tensors_to_round(
    symmetry: ParameterSymmetry, params: Params, patterns: Patterns | None, call: str
) -> list[str]:
    """The tensors to round: parameters with numbers in them, tied ones once.

    Args:
        symmetry: whose signature names them.
        params: the complete state dict.
        patterns: of names; by default all parameters of two axes or more.
        call: the function that is named in errors.

    Raises:
        ValueError: none is left.
        UnknownName: a pattern matches nothing.
    """
    known = [
        n for n in symmetry.signature
        if n in params and n not in symmetry.buffers and n not in symmetry.ties
        and params[n].is_floating_point() and params[n].numel()
    ]  # fmt: skip
    if patterns is None:
        names = [n for n in known if params[n].ndim >= 2]
    else:
        chosen = matching(patterns, known, f"{call}(quantized=…)")
        names = [n for n in known if n in chosen]
    if not names:
        raise ValueError(
            f"{call}(quantized={patterns!r}): none of the {len(known)} parameters of real numbers "
            "is to be rounded, and at least one was expected; by default those with two axes or "
            f"more are. Name some of: {', '.join(known[:6]) or 'nothing, there are none'}."
        )
    return names


def errors_of_tensors(
    symmetry: ParameterSymmetry,
    params: Params,
    sensitivities: Params,
    names: Collection[str],
    grid: Grid,
    element: GroupElement | None = None,
) -> dict[str, float]:
    """The share of each tensor in the expected squared error, Σ_G Δ_G²/12 · Σ_{i∈G} F_i.

    Args:
        symmetry: whose parameters they are.
        params: where to measure.
        sensitivities: F, measured at the parameters that `element` moves to `params`.
        names: the tensors that are rounded.
        grid: what they are rounded to.
        element: scales, by which F becomes F e^{−2⟨c,y⟩}; by default nothing has moved.
    """
    found = {}
    for name in names:
        weight = sensitivities[name].double()
        if element is not None:
            one = {**params, name: torch.ones_like(params[name], dtype=torch.float64)}
            weight = weight / act_tensor(symmetry, element, name, one).square()
        steps = grid.ranges(params[name]) / grid.steps
        index = grid.group_of(tuple(weight.shape))
        found[name] = float((steps[index].square() / 12 * weight).sum())
    return found


def ranges_of_tensors(symmetry: ParameterSymmetry, params: Params) -> dict[str, float]:
    """R⁺ + R⁻ of each parameter, tied ones once; a gain that is stored as γ − 1 counts as γ."""
    found = {}
    for name in symmetry.blocks:
        tensor = params[name].detach()
        shared = name in symmetry.buffers or name in symmetry.ties
        if shared or not counts(tensor) or not tensor.numel():
            continue
        tensor = added(tensor, symmetry.offsets.get(name, 0.0))
        flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        found[name] = float(flat.max().clamp(min=0)) + float((-flat.min()).clamp(min=0))
    return found
