"""What `lift` is given, looked at before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .relation import Family, Relation


def require_finite(relation: Any, space: str) -> None:
    """A relation of five finite numbers that maps arguments one to one."""
    if not isinstance(relation, Relation):
        instead = "Pass family.at(t) for an element of it." if isinstance(relation, Family) else (
            "Pass one of intertwiners(function).relations, or Relation(alpha, beta, a, b, c)."
        )  # fmt: skip
        raise TypeError(
            f"lift(space={space!r}): relation is a {type(relation).__name__}, and a Relation was "
            f"expected. {instead}"
        )
    numbers = (relation.alpha, relation.beta, relation.a, relation.b, relation.c)
    if not all(math.isfinite(x) for x in numbers) or not relation.alpha:
        raise ValueError(
            f"lift(space={space!r}): the relation has (alpha, beta, a, b, c) = {numbers}, and "
            "finite numbers with alpha other than zero were expected. intertwiners(function)"
            ".relations lists those that hold."
        )


def chosen_units(units: Any, count: int, where: str) -> Tensor:
    """One for each unit that moves, else zero.

    Args:
        units: None for all, a number, numbers, or a mask: a truth value for each unit.
        count: how many units there are.
        where: begins the errors.

    Raises:
        TypeError: neither whole numbers nor truth values.
        ValueError: a mask of another length; a number that no unit has, or twice the same.
    """
    mask = torch.zeros(count, dtype=torch.float64)
    if units is None:
        return mask + 1
    wanted = _listed(units)
    if wanted and all(isinstance(k, bool) for k in wanted):
        if len(wanted) != count:
            raise ValueError(
                f"{where}: units is a mask of {len(wanted)} truth values, and one for each of the "
                f"{count} units was expected. Pass their numbers instead, or units=None for all."
            )
        return torch.tensor(wanted, dtype=torch.float64)
    if any(isinstance(k, bool) or not isinstance(k, int) for k in wanted):
        raise TypeError(
            f"{where}: units is {units!r}, and a number, numbers or a mask of truth values was "
            f"expected, of {count} units. Pass units=[0, 2], or units=None for all."
        )
    wrong = [k for k in wanted if not 0 <= k < count]
    if wrong or len(set(wanted)) < len(wanted):
        came = f"unit {wrong[0]} was asked for" if wrong else f"units {wanted} repeats one"
        raise ValueError(
            f"{where}: {came}, and numbers from 0 to {count - 1} were expected, each once. "
            "Pass units=None to move all of them."
        )
    mask[wanted] = 1
    return mask


def _listed(units: Any) -> list[Any]:
    found = units.tolist() if hasattr(units, "tolist") else units
    return list(found) if isinstance(found, (Sequence, set)) else [found]


def state_of(model: nn.Module, params: Mapping[str, Tensor] | None, space: str) -> dict[str, Any]:
    """The parameters and buffers that were given, or the model's."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if params is None:
        return {name: tensor.detach() for name, tensor in state.items()}
    missing = [name for name in state if name not in params]
    if missing:
        raise ValueError(
            f"lift(space={space!r}): params has no {missing[0]!r} ({len(missing)} are missing), "
            f"and all {len(state)} parameters and buffers of the model were expected. Pass "
            "{**dict(model.named_parameters()), **dict(model.named_buffers()), **yours}."
        )
    return dict(params)
