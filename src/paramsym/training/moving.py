"""Parameters that are trained, and all that moves with them, along any element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.state import act_state
from paramsym.structure.symmetry import ParameterSymmetry


class Carried(NamedTuple):
    """Tensors by parameter that move with these: by D⁻ᵈ, d their degree, where these move by D."""

    tensors: Mapping[str, Tensor]
    degree: int


def moved(
    symmetry: ParameterSymmetry, element: GroupElement, params: Mapping[str, Tensor],
    carried: list[Carried],
) -> None:  # fmt: skip
    """Move parameters and what follows them, in the tensors that they are in.

    It is computed in double precision and rounded once.

    Args:
        symmetry: whose parameters they are.
        element: any element.
        params: the complete state dict.
        carried: sums of gradients, of degree one.
    """
    with torch.no_grad():
        before = {name: widened(p.detach()) for name, p in params.items()}
        found = [
            act_state(
                symmetry, element, {n: {"exp_avg": widened(t)} for n, t in tensors.items()}, before
            )
            for tensors, _ in carried
        ]
        for name, tensor in act(symmetry, element, before).items():
            if tensor is not before[name]:
                params[name].copy_(tensor)
        for (tensors, _), after in zip(carried, found, strict=True):
            for name, tensor in tensors.items():
                tensor.copy_(after[name]["exp_avg"])
