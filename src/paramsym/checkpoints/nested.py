"""Checkpoints that are nested dictionaries: where in them the state dict is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from paramsym.checkpoints.errors import CheckpointError, few

Keys = tuple[str, ...]


def is_state_dict(item: Any) -> bool:
    """A dict of names and tensors, with one tensor at least."""
    return (
        isinstance(item, Mapping)
        and bool(item)
        and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in item.items())
    )


def candidates(loaded: Any, depth: int = 4) -> list[tuple[str, int]]:
    """Paths to the state dicts inside a nested dictionary, dots between keys, with their sizes.

    Those with the most tensors come first. Keys that are no text are not followed: below them
    stands the state of an optimiser.
    """
    found = [(".".join(keys), len(item)) for keys, item in _walk(loaded, depth)]
    return sorted(found, key=lambda pair: -pair[1])


def _walk(item: Any, depth: int, keys: Keys = ()) -> Iterator[tuple[Keys, Mapping]]:
    if keys and is_state_dict(item):
        yield keys, item
    elif isinstance(item, Mapping) and depth:
        for key, value in item.items():
            if isinstance(key, str):
                yield from _walk(value, depth - 1, (*keys, key))


def select(loaded: Any, key: str, where: str) -> tuple[Keys, Mapping[str, torch.Tensor]]:
    """The keys that a path names, which may have dots in themselves, and the state dict there.

    Raises:
        CheckpointError: nothing is there, or no state dict; the message lists those there are.
    """
    keys = _keys(loaded, key)
    if keys is None:
        raise CheckpointError(
            f"{where} --key {key}", "there is nothing at this place",
            _expected(loaded), "Give --key one of these paths, dots between the keys",
        )  # fmt: skip
    item = loaded
    for part in keys:
        item = item[part]
    if not is_state_dict(item):
        raise CheckpointError(
            f"{where} --key {key}", f"this is {_described(item)}",
            _expected(loaded), "Give --key the path to the state dict of the model",
        )  # fmt: skip
    return keys, item


def nested(keys: Keys, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A dictionary with a state dict at a place, and nothing else."""
    item: dict[str, Any] = dict(tensors)
    for key in reversed(keys):
        item = {key: item}
    return item


def no_state_dict(loaded: Any, where: str) -> CheckpointError:
    """What to say of an archive that is no flat dict of names and tensors."""
    found = [path for path, _ in candidates(loaded)]
    if found:
        instead = f"Give --key {found[0]}" + (f" (or {few(found[1:])})" if found[1:] else "")
    else:
        instead = "Save model.state_dict() alone, for example torch.load(…)['state_dict']"
    return CheckpointError(
        where, f"the file holds {_described(loaded)}", "a flat dict of names and tensors", instead
    )


def _keys(loaded: Any, key: str) -> Keys | None:
    """The shortest first keys first: 'a.b' is b in a, or the key 'a.b'."""
    if not isinstance(loaded, Mapping):
        return None
    parts = key.split(".")
    for count in range(1, len(parts) + 1):
        first, rest = ".".join(parts[:count]), ".".join(parts[count:])
        if first in loaded:
            below = _keys(loaded[first], rest) if rest else ()
            if below is not None:
                return (first, *below)
    return None


def _described(item: Any) -> str:
    if not isinstance(item, Mapping):
        return f"a {type(item).__name__}"
    others = [str(k) for k, v in item.items() if not isinstance(v, torch.Tensor)]
    return f"a dict in which {few(others)} is no tensor" if others else "a dict without names"


def _expected(loaded: Any) -> str:
    found = [f"{path} ({count} tensors)" for path, count in candidates(loaded)[:6]]
    if found:
        return f"a state dict: {', '.join(found)}"
    return "a nested dictionary" + ("" if isinstance(loaded, Mapping) else " with a state dict")
