"""Which parameters enter a comparison, and as what."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry


def effective(symmetry: ParameterSymmetry, params: Mapping[str, Tensor], name: str) -> Tensor:
    """A parameter as the model uses it, in double precision; rows that nothing reaches are zero."""
    own = added(widened(params[name]), symmetry.offsets.get(name, 0.0))
    if rows := symmetry.unreached.get(name):
        own = own.clone()
        own[list(rows)] = 0
    return own.contiguous()
