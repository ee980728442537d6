"""The numbers that an orbit is minimised over, as they come in: one door for all that does so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from paramsym.structure.action import check_parameters
from paramsym.structure.belonging import require_shape
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
    return {name: _number(symmetry, name, tensor, call) for name, tensor in params.items()}


@dataclass(frozen=True)
class NumbersInFiles(Mapping[str, Tensor]):
    """The same of tensors that are read when they are asked for, and looked at then; see
    `numbers_of`."""

    symmetry: ParameterSymmetry
    params: Mapping[str, Tensor]
    call: str

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.params[name]
        if name in self.symmetry.signature:
            require_shape(self.symmetry, name, tensor)
        return _number(self.symmetry, name, tensor, self.call)

    def __contains__(self, name: object) -> bool:
        return name in self.params

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)


def _number(symmetry: ParameterSymmetry, name: str, tensor: Tensor, call: str) -> Tensor:
    if name in symmetry.signature:
        if tensor.is_meta:
            _refuse(call, name, "is on the device 'meta' and has no numbers",
                    "Load the weights first, and pass the state_dict() that has them")  # fmt: skip
        if tensor.layout is not torch.strided:
            _refuse(call, name, f"has the layout {tensor.layout}", "Pass tensor.to_dense()")
        if tensor.is_quantized or (tensor.is_floating_point() and tensor.dtype.itemsize < 2):
            _refuse(call, name, f"has dtype {tensor.dtype}, whose numbers say nothing alone",
                    "Multiply quantised weights by their scales, and pass the result")  # fmt: skip
    traced = isinstance(tensor, Tensor) and tensor.requires_grad
    return whole(tensor.detach() if traced else tensor)


def _refuse(call: str, name: str, came: str, instead: str) -> NoReturn:
    raise ValueError(
        f"{call}(params): {name!r} {came}, and dense numbers of half precision or more were "
        f"expected. {instead}."
    )
