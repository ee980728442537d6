"""Vectors and covectors on the parameters, given by name: checked before they are paired."""

from __future__ import annotations

import torch

from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry


def covector_of(
    symmetry: ParameterSymmetry, params: Params, given: Params, method: str
) -> dict[str, torch.Tensor]:
    """What is given, tied tensors once and under the name of the signature, without integers.

    Args:
        symmetry: whose ties count.
        params: the parameters that the entries stand beside.
        given: tensors by name.
        method: of the tangent operator, for errors.

    Raises:
        ValueError: a name that is no parameter, another shape, complex numbers for real ones.
    """
    found: dict[str, torch.Tensor] = {}
    for name, entries in given.items():
        _require_fit(params, name, entries, method)
        own = symmetry.ties.get(name, name)
        number = params[name].is_floating_point() or params[name].is_complex()
        if number and (own == name or own not in given):
            found[own] = entries
    return found


def _require_fit(params: Params, name: str, entries: torch.Tensor, method: str) -> None:
    where = f"tangent(symmetry, params).{method}({{{name!r}: …}})"
    if name not in params:
        raise ValueError(
            f"{where}: {name!r} is none of the {len(params)} parameters, among which are "
            f"{sorted(params)[:4]}. A name of the state dict was expected; use the names of "
            "model.state_dict(), and leave out what is zero."
        )
    wanted = params[name]
    if entries.shape != wanted.shape:
        raise ValueError(
            f"{where}: a tensor of shape {tuple(entries.shape)} came for a parameter of shape "
            f"{tuple(wanted.shape)}. One entry for each of the parameter was expected; pass it "
            "unflattened."
        )
    if entries.is_complex() and not wanted.is_complex():
        raise ValueError(
            f"{where}: complex numbers ({entries.dtype}) came for a real parameter "
            f"({wanted.dtype}). Real ones were expected; pass their real part."
        )
