"""The floating tensors in what a model returns: the function whose symmetry is meant."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.recording.refusals import TraceError

ALONE = "output"  # the name of a tensor that a model returns by itself
_CACHES = ("past_key_values", "past_key_value", "mems", "cache_params", "past_buckets_states")


def floating_outputs(returned: Any) -> list[torch.Tensor]:
    """Every floating tensor that a model returns, except its caches; see `named_outputs`."""
    return [tensor for _, tensor in named_outputs(returned)]


def named_outputs(returned: Any) -> list[tuple[str, torch.Tensor]]:
    """Every floating tensor that a model returns, except its caches, with its name.

    The name is how the tensor is reached, keys, fields and positions joined by dots: `logits`,
    `hidden_states.0`; a tensor that is returned by itself is `output`.

    Mappings, tuples, lists, dataclasses and whatever is registered with torch's pytree are walked
    in order. Caches such as `past_key_values` hold keys and values, so that counting them as part
    of the function would pin the basis of every head.

    Raises:
        TraceError: an object that cannot be walked holds tensors, which would be overlooked.
    """
    found = _tensors(returned, "the output", (), set())
    return [(".".join(keys) or ALONE, tensor) for keys, tensor in found if _has_values(tensor)]


def require_outputs(found: list[torch.Tensor], caller: str) -> list[torch.Tensor]:
    """The given outputs, if there are any: without a value there is no function to keep.

    Raises `TraceError` for an empty list.
    """
    if not found:
        raise TraceError(
            f"{caller}: the model returned no floating tensor; at least one was expected, since "
            "every parameter would count as dead otherwise. Return the scores from which "
            "integers are chosen, or choose tensors with outputs=…."
        )
    return found


def _has_values(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _tensors(
    item: Any, path: str, keys: tuple[str, ...], above: set[int]
) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    if isinstance(item, torch.Tensor):
        yield keys, item
        return
    children = _children(item)
    if children is None:
        if _hides_tensor(item, 3):
            raise TraceError(
                f"find_symmetry(outputs=…): {path} is a {type(item).__name__} that holds tensors; "
                "tensors in tuples, lists, mappings or dataclasses were expected, and what is "
                "inside of it would be overlooked. Choose them with outputs=lambda returned: …."
            )
        return
    if id(item) in above:
        return
    for step, key, child in children:
        yield from _tensors(child, f"{path}{step}", (*keys, str(key)), above | {id(item)})


def _children(item: Any) -> list[tuple[str, Any, Any]] | None:
    """(how it is reached, its key, what) for all inside of a container, or None if it is none."""
    if _is_cache(item):
        return []
    if isinstance(item, Mapping):
        return [(f"[{key!r}]", key, value) for key, value in item.items() if key not in _CACHES]
    if isinstance(item, (tuple, list, set, frozenset)):
        return [(f"[{k}]", k, value) for k, value in enumerate(item)]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [f.name for f in dataclasses.fields(item) if f.name not in _CACHES]
        return [(f".{name}", name, getattr(item, name)) for name in names if hasattr(item, name)]
    if type(item) in pytree.SUPPORTED_NODES:
        values, _ = pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)
        return [(f"<{k}>", k, value) for k, value in enumerate(values)]
    return None


def _is_cache(item: Any) -> bool:
    """Whether an object is a cache of keys and values, as transformers return them."""
    return any(
        cls.__name__.endswith("Cache") and cls.__module__.startswith("transformers.")
        for cls in type(item).__mro__
    )


_PLAIN = (str, bytes, int, float, complex, type(None), enum.Enum, torch.dtype, torch.device, type,
          types.FunctionType, types.ModuleType)  # fmt: skip


def _hides_tensor(item: Any, depth: int) -> bool:
    """Whether there is a floating tensor among the attributes of an object; generators count."""
    if isinstance(item, torch.Tensor):
        return _has_values(item)
    if isinstance(item, _PLAIN) or not depth:
        return False
    if isinstance(item, Iterator):
        return True
    children = _children(item)
    if children is not None:
        return any(_hides_tensor(child, depth - 1) for *_, child in children)
    slots = [n for cls in type(item).__mro__ for n in getattr(cls, "__slots__", ())]
    held = [*getattr(item, "__dict__", {}).values(), *(getattr(item, n, None) for n in slots)]
    return any(_hides_tensor(value, depth - 1) for value in held)
