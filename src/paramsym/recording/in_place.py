"""Functions that write to their arguments: which ones, where, and in what functional form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# in place, these only give a tensor another layout on its storage
REWINDOWED = {"transpose", "t", "squeeze", "unsqueeze", "as_strided"}

_PLAIN = {int, float, bool, str, complex, type(None), torch.dtype, torch.device}


@dataclass(frozen=True)
class Written:
    """The functional form of a function that writes to its argument number (or name) `at`."""

    function: Callable[..., Any]
    at: int | str

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        target = given[self.at] = given[self.at].clone()
        self.function(*(given[k] for k in range(len(args))), **{k: given[k] for k in kwargs})
        return target


def aside(name: str) -> str:
    """The name of the operator that a function is for an argument that it writes besides."""
    return f"{name} (what it writes to an argument)"


def is_basic(index: Any, item: Any) -> bool:
    """Whether `tensor[index] = item` is a copy of numbers into a window: slices and places."""
    if not isinstance(item, (bool, int, float, complex, torch.Tensor)):
        return False
    items = index if isinstance(index, tuple) else (index,)
    return all(
        item is None or item is Ellipsis or isinstance(item, slice)
        or (isinstance(item, int) and not isinstance(item, bool))
        for item in items
    )  # fmt: skip


def written_arguments(
    func: Any, args: tuple, kwargs: dict[str, Any], risen: list[torch.Tensor], result: Any
) -> list[torch.Tensor]:
    """The arguments that a function writes to, the one that it returns first.

    They are known by the schema, by the name, by `out=`, or by their version, which has `risen`.
    All windows on a storage share one version: where it is known through which one was written,
    the others were not.
    """
    found = tensors_in(kwargs.get("out"))
    if isinstance(func, torch._ops.OpOverload):
        for k, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found += tensors_in(args[k] if k < len(args) else kwargs.get(argument.name))
    elif is_inplace(getattr(func, "__name__", "")) and args:
        found += tensors_in(args[0])
    found += _statistics(getattr(func, "__name__", ""), args, kwargs)
    found = found or [t for t in risen if t is result]
    done = {place(t)[0] for t in found}
    found += [t for t in risen if place(t)[0] not in done]
    return list({id(t): t for t in found}.values())


def _statistics(name: str, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The running statistics that a norm updates in training, without a sign in its version."""
    flags = {"batch_norm": "training", "instance_norm": "use_input_stats"}
    if name not in flags:
        return []
    names = ("input", "running_mean", "running_var", "weight", "bias", flags[name])
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get(flags[name], name == "instance_norm"):
        return []
    return tensors_in((given.get("running_mean"), given.get("running_var")))


def is_inplace(name: str) -> bool:
    """Whether a function of that name writes to its first argument."""
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__invert__", "__index__", "__int__")
    return name == "__setitem__" or name.endswith("_") and not name.endswith("__")


def is_result(target: torch.Tensor, result: Any, kwargs: dict[str, Any]) -> bool:
    """Whether what a function computes is what it wrote to this argument."""
    if isinstance(result, torch.Tensor):
        return result is target or place(result) == place(target)
    return result is None and kwargs.get("out") is None


def place(tensor: torch.Tensor) -> tuple:
    """Where the entries of a tensor lie, and in which shape."""
    storage = tensor.untyped_storage()._cdata
    return storage, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()


def same_entries(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same numbers, not only equal ones."""
    readings = [(t.dtype, t.is_conj(), t.is_neg()) for t in (a, b)]
    return place(a) == place(b) and readings[0] == readings[1]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """All tensors of a structure that torch's pytree knows, in its order."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, tree)
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """A structure with its tensors replaced: `pytree.tree_map`, quick on what calls are made of."""
    kind = type(tree)
    if kind in _PLAIN:
        return tree
    if kind is tuple:
        return tuple([map_tensors(function, item) for item in tree])
    if kind is list:
        return [map_tensors(function, item) for item in tree]
    if kind is dict:
        return {key: map_tensors(function, item) for key, item in tree.items()}
    if isinstance(tree, torch.Tensor):
        return function(tree)
    return pytree.tree_map_only(torch.Tensor, function, tree)
