"""A weights file of a model: where in it the state dict is, and how it spells the names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.nested import Keys, nested, select
from paramsym.checkpoints.tensors import check_layout, load_archive, names_of, read_tensors
from paramsym.checkpoints.writing import is_archive, owned, write_tensors

Tensors = Iterator[tuple[str, torch.Tensor]]

# What wraps a model and puts a name before all of its own.
_WRAPPERS = {"module": "DistributedDataParallel", "_orig_mod": "torch.compile"}


@dataclass(frozen=True)
class WeightsFile:
    """A file, the keys that lead to its state dict, and what stands before every name in it."""

    path: Path
    keys: Keys = ()
    prefix: str = ""
    notes: tuple[str, ...] = ()

    def write(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write tensors of a model under the names and in the place that this file has."""
        named = {self.prefix + name: tensor for name, tensor in tensors.items()}
        if self.keys and is_archive(path):
            torch.save(nested(self.keys, owned(named)), path)
        else:
            write_tensors(path, named, self.path)

    def read(self, path: Path) -> Tensors:
        """The tensors that `write` wrote, by the model's names."""
        if self.keys and is_archive(path):
            found = select(load_archive(path), ".".join(self.keys), str(path))[1].items()
        else:
            found = read_tensors(path)
        return ((name.removeprefix(self.prefix), tensor) for name, tensor in found)


def open_weights(
    path: Path, known: Collection[str], key: str | None = None
) -> tuple[WeightsFile, Tensors]:
    """A weights file, and its tensors by the names of a model.

    Args:
        path: a file that `read_tensors` reads, or an archive of nested dictionaries.
        known: the names of the model.
        key: the path to the state dict in an archive, dots between the keys.

    Raises:
        CheckpointError: as `read_tensors`; or `key` leads nowhere.
    """
    keys: Keys = ()
    notes: list[str] = []
    if key is not None:
        if not is_archive(path):
            raise CheckpointError(
                f"--key {key}", f"{path.name!r} is flat: safetensors have no keys",
                "an archive of torch.save with dictionaries in it", "Leave --key out",
            )  # fmt: skip
        loaded = load_archive(path)
        keys, state = select(loaded, key, str(path))
        left = _others(loaded, keys)
        if left:
            notes.append(f"{path.name}: only {key!r} is read and written; {few(left)} stay behind, "
                         "since they belong to the old weights")  # fmt: skip
        check_layout(state, str(path))
        names, tensors = list(state), iter([(n, t.detach()) for n, t in state.items()])
    elif is_archive(path):
        flat = dict(read_tensors(path))
        names, tensors = list(flat), iter(flat.items())
    else:
        names, tensors = names_of(path), read_tensors(path)
    prefix = common_prefix(names, known)
    if prefix:
        source = _WRAPPERS.get(prefix.split(".")[0])
        notes.append(f"{path.name}: every name begins with {prefix!r}"
                     f"{f' ({source})' if source else ''}, which the model's names do not; it is "
                     "read without, and written with it")  # fmt: skip
    fitted = ((name.removeprefix(prefix), tensor) for name, tensor in tensors)
    return WeightsFile(path, keys, prefix, tuple(notes)), fitted


def common_prefix(names: Collection[str], known: Collection[str]) -> str:
    """What stands before every name of a file, with a dot at its end, so that the rest is known.

    Empty where one of the names is known as it is, or where no prefix makes any of them known.
    """
    model = set(known)
    if not names or any(name in model for name in names):
        return ""
    parts = next(iter(names)).split(".")
    for count in range(1, len(parts)):
        prefix = ".".join(parts[:count]) + "."
        if not all(name.startswith(prefix) for name in names):
            return ""
        if any(name.removeprefix(prefix) in model for name in names):
            return prefix
    return ""


def _others(loaded: Any, keys: Keys) -> list[str]:
    """What stands beside the state dict, on the way to it."""
    left: list[str] = []
    for k, key in enumerate(keys):
        left += [".".join((*keys[:k], str(other))) for other in loaded if other != key]
        loaded = loaded[key]
    return left
