"""The numbers that an orbit is minimised over, as they come in: one door for all that does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from paramsym.structure.action import check_parameters
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import whole


def numbers_of(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], call: str
) -> dict[str, Tensor]:
    """The same tensors, shared, apart from any graph of gradients; what is outside the signature
    stays what it is, and DTensors are gathered.

    Args:
        symmetry: whose parameters they are.
        params: the complete state dict.
        call: the function that is named in errors.

    Raises:
        ValueError: as `check_parameters`; or a tensor without numbers in strides that can be
            added up.
    """
    check_parameters(symmetry, params)
    for name in symmetry.signature:
        tensor = params.get(name)
        if tensor is None:
            continue
        if tensor.is_meta:
            _refuse(call, name, "is on the device 'meta' and has no numbers",
                    "Load the weights first, and pass the state_dict() that has them")  # fmt: skip
        if tensor.layout is not torch.strided:
            _refuse(call, name, f"has the layout {tensor.layout}", "Pass tensor.to_dense()")
        if tensor.is_quantized or (tensor.is_floating_point() and tensor.dtype.itemsize < 2):
            _refuse(call, name, f"has dtype {tensor.dtype}, whose numbers say nothing alone",
                    "Multiply quantised weights by their scales, and pass the result")  # fmt: skip
    traced = {n for n, t in params.items() if isinstance(t, Tensor) and t.requires_grad}
    return {n: whole(t.detach() if n in traced else t) for n, t in params.items()}


def _refuse(call: str, name: str, came: str, instead: str) -> NoReturn:
    raise ValueError(
        f"{call}(params): {name!r} {came}, and numbers of half precision or more, dense in memory, "
        f"were expected. {instead}."
    )
