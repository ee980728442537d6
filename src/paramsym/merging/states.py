"""State dicts that belong together, and new ones made of them tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from paramsym.structure.layout import laid_like, working_dtype

State: TypeAlias = Mapping[str, Tensor]
Rule: TypeAlias = Callable[[str, list[Tensor]], Tensor]


def require_alike(caller: str, states: Sequence[State]) -> None:
    """Refuse state dicts of several architectures or precisions, by the first tensor that differs.

    Args:
        caller: the public function in whose name errors speak.
        states: at least one; all are compared with the first.

    Raises:
        ValueError: names, shapes or dtypes differ, or a dtype cannot be averaged.
    """
    first = states[0]
    for k, state in enumerate(states[1:], 1):
        _require_names(caller, first, state, k)
        for name, tensor in first.items():
            came, expected = _described(state[name]), _described(tensor)
            if came != expected:
                raise ValueError(
                    f"{caller}: {name!r} is {came} in state dict {k}, and {expected} was "
                    "expected, as in the first. Pass models of one architecture in one precision; "
                    "convert one of them with .to(dtype) first."
                )
    for name, tensor in first.items():
        if isinstance(tensor, Tensor) and (_coded(tensor) or tensor.is_meta):
            raise ValueError(
                f"{caller}: {name!r} is {_described(tensor)} on {tensor.device}, whose numbers "
                "cannot be averaged; numbers of half precision or more were expected. Load "
                "the weights, and multiply quantised ones by their scales first."
            )


def _require_names(caller: str, first: State, state: State, k: int) -> None:
    missing, extra = first.keys() - state.keys(), state.keys() - first.keys()
    if missing or extra:
        what = f"lacks {sorted(missing)[:3]}" if missing else f"has {sorted(extra)[:3]} besides"
        raise ValueError(
            f"{caller}: state dict {k} {what}, and the {len(first)} names of the first were "
            "expected. Pass the complete state_dict() of models of one architecture."
        )


def _described(item: Any) -> str:
    if not isinstance(item, Tensor):
        return f"a {type(item).__name__}"
    return f"{tuple(item.shape)} of {str(item.dtype).removeprefix('torch.')}"


def _coded(tensor: Tensor) -> bool:
    return tensor.is_quantized or (tensor.is_floating_point() and tensor.dtype.itemsize < 2)


def has_values(item: Any) -> bool:
    """Whether something is a tensor of real or complex numbers, which can be averaged."""
    return isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex())


@torch.no_grad()
def combined(states: Sequence[State], rule: Rule) -> dict[str, Tensor]:
    """A new state dict, each tensor of numbers made by a rule from those of its name.

    Names that are one tensor in every state dict are one in the result. Half precision is computed
    in float32. Integers, booleans and what is no tensor come from the first; nothing is shared
    with what was given.

    Args:
        states: alike, as `require_alike` says.
        rule: from a name and the tensors of that name to one tensor.
    """
    made: dict[str, Tensor] = {}
    known: dict[tuple[Any, ...], Tensor] = {}
    for name, tensor in states[0].items():
        if not isinstance(tensor, Tensor):
            made[name] = tensor
            continue
        given = [state[name].detach() for state in states]
        key = tuple(map(_identity, given))
        if key not in known:
            known[key] = _one(name, given, rule)
        made[name] = known[key]
    return made


def _one(name: str, given: list[Tensor], rule: Rule) -> Tensor:
    first = given[0]
    if not has_values(first):
        return first.clone()
    found = rule(name, [t.to(device=first.device, dtype=working_dtype(t)) for t in given])
    return laid_like(found.to(first.dtype), first)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """The same for two names of one tensor."""
    place = tensor.data_ptr() if tensor.numel() else id(tensor)
    return place, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
