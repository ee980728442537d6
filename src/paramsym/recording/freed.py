"""Freed inputs and outputs: each passes a virtual linear map on its feature axis.

    x ↦ W x  with W ∈ ℝⁿˣⁿ in front of the model, and  y ↦ Wᵀ y  behind it

The maps are recorded like any other, and their weights are parameters of the graph that the model
does not have. At W = 1 nothing has changed, and what moves W away from 1 is a change of basis of
the feature: W ↦ T W with x ↦ T x. One map is shared by all samples and positions, so that nothing
but the feature axis can move.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from paramsym.recording.refusals import TraceError

Side: TypeAlias = Literal["input", "output"]
Freed: TypeAlias = Mapping[str, int] | Iterable[str] | str | bool | None


@dataclass(frozen=True)
class Virtual:
    """What the weight of a virtual map stands for: the feature axis of an input or output."""

    side: Side
    name: str
    axis: int

    @property
    def parameter(self) -> str:
        """The name of the weight; no parameter of a model has one with a blank in front of it."""
        return f"{self.side} {self.name}"


def argument_names(model: torch.nn.Module, args: Sequence[Any]) -> list[str]:
    """The names of positional inputs: the parameters of `forward`, `rest[0]` for `*rest`."""
    kinds = inspect.Parameter
    named: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
            named.append(parameter.name)
        elif parameter.kind is kinds.VAR_POSITIONAL:
            named += [f"{parameter.name}[{k}]" for k in range(len(args) - len(named))]
    return named[: len(args)]


def named_arguments(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All inputs of a model by name, positional ones first."""
    return {**dict(zip(argument_names(model, args), args, strict=True)), **kwargs}


def with_arguments(
    given: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs by name, as positional and keyword inputs like those that are given."""
    values = [*given.values()]
    return tuple(values[: len(args)]), {name: given[name] for name in kwargs}


def wanted(freed: Freed, found: Mapping[str, Any], side: Side, model: str) -> list[Virtual]:
    """The feature axes that a caller frees.

    Args:
        freed: names with their feature axes; names alone mean the last axis, True all that float.
        found: the inputs or outputs by name.
        side: which of the two they are.
        model: how the model is named in an error.

    Raises:
        TraceError: a name is unknown, what it names is no floating-point tensor, or has no such
            axis.
    """
    start = f"find_symmetry({model}, free_{side}s={freed!r})"
    if freed is True:
        axes = {name: -1 for name, tensor in found.items() if _floats(tensor)}
    elif not freed:
        axes = {}
    elif isinstance(freed, Mapping):
        axes = dict(freed)
    elif not isinstance(freed, Iterable):
        raise TraceError(
            f"{start}: {freed!r} came, but names of {side}s were expected. Give one name, several, "
            "a mapping from names to their feature axes, or True for all that float."
        )
    else:
        axes = dict.fromkeys([freed] if isinstance(freed, str) else freed, -1)  # type: ignore[arg-type]
    for name, axis in axes.items():
        _require(start, side, name, axis, found)
    return [Virtual(side, name, axis) for name, axis in axes.items()]


def _floats(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point() and item.ndim > 0


def _require(start: str, side: Side, name: str, axis: int, found: Mapping[str, Any]) -> None:
    """Raise a `TraceError` unless a name stands for a floating-point tensor with that axis."""
    if name not in found:
        raise TraceError(
            f"{start}: {name!r} is no {side} of the model. Expected some of {[*found][:12]}; "
            + (
                "inputs have the names of the parameters of forward."
                if side == "input"
                else "outputs are named by how they are reached, such as 'logits' or '0'. What "
                "outputs=… chooses counts."
            )
        )
    item = found[name]
    if not isinstance(item, torch.Tensor) or not item.is_floating_point():
        what = f"of {item.dtype}" if isinstance(item, torch.Tensor) else f"a {type(item).__name__}"
        raise TraceError(
            f"{start}: the {side} {name!r} is {what}, but a floating-point tensor was expected, "
            "since a change of basis takes linear combinations. Free the embeddings of tokens "
            "instead (inputs_embeds=…), or leave it as it is."
        )
    if not isinstance(axis, int) or isinstance(axis, bool) or not -item.ndim <= axis < item.ndim:
        raise TraceError(
            f"{start}: the {side} {name!r} has shape {tuple(item.shape)} and no axis {axis!r}. "
            f"Expected the number of its feature axis, from {-item.ndim} to {item.ndim - 1}; "
            f"write free_{side}s={{{name!r}: -1}} for the last one."
        )


def passed(tensor: torch.Tensor, weight: torch.Tensor, virtual: Virtual) -> torch.Tensor:
    """A tensor after its virtual map, in the layout that it had."""
    letters = string.ascii_letters[: tensor.ndim]
    axis, new = virtual.axis % tensor.ndim, string.ascii_letters[tensor.ndim]
    after = letters[:axis] + new + letters[axis + 1 :]
    # the axis that counts the features of the model comes first, as that of sizes of the whole
    pair = (new + letters[axis]) if virtual.side == "input" else (letters[axis] + new)
    made = torch.einsum(f"{letters},{pair}->{after}", tensor, weight)
    return made if made.stride() == tensor.stride() else torch.empty_like(tensor).copy_(made)
