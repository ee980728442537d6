"""A model together with where its weights came from, so that others like it can be written."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.checkpoint import Checkpoint, Opened
from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.streaming.windows import Joins
from paramsym.checkpoints.tensors import check_finite, check_kind, check_layout, shared_storage
from paramsym.structure.windowed import Window

Inputs = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """Files of weights, and each of their names that a model knows → its name in the model.

    `windows` are those of the names that are not the whole of that tensor; `skeleton` makes the
    model with its parameters on the meta device, and its other buffers in memory; None for weights
    alone.
    """

    checkpoint: Checkpoint
    names: Mapping[str, str]
    skeleton: Callable[[], torch.nn.Module] | None = None
    windows: Mapping[str, Window] = field(default_factory=dict)

    @cached_property
    def joins(self) -> Joins:
        """The tensors of the model that are put together from several of the files."""
        return Joins(self.names, self.windows)


class ByModelName(Mapping[str, torch.Tensor]):
    """The tensors of files by the names of the model, read when they are asked for."""

    def __init__(self, weights: Weights, ties: Mapping[str, str]):
        self.weights, self.names = weights, weights.joins.spelled(ties)

    def __getitem__(self, name: str) -> torch.Tensor:
        with Opened(self.weights.checkpoint) as opened:
            return self.weights.joins.of(opened)[self.names[name]][:]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass
class Source(abc.ABC):
    """What `open_checkpoint` returns; one subclass per kind of source.

    `files` are what must never be overwritten. `has_weights` is False where only the structure
    was built, on the meta device; `fixed_mode` is True where training mode cannot be chosen.
    `notes` are what a reader should know about how the files were read.
    """

    label: str
    model: torch.nn.Module
    inputs: Inputs
    files: list[Path] = field(default_factory=list)
    has_weights: bool = True
    fixed_mode: bool = False
    notes: list[str] = field(default_factory=list)

    @abc.abstractmethod
    def save(self, draft: Path, state: Mapping[str, torch.Tensor]) -> None:
        """Write these weights in the format of the source."""

    @property
    @abc.abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """What the name of a file that `save` writes may end in; none where it writes a folder."""

    @abc.abstractmethod
    def reload(self, draft: Path) -> torch.nn.Module:
        """The model with the weights that `save` wrote, read back from the files."""

    def streamable(self) -> Weights | None:
        """The files of the weights with the names of the model, where they can be moved from files
        to files; None where they have to be loaded."""
        return None

    def loaded(self) -> Source:
        """The source with its weights."""
        return self

    def planned(self, out: Path) -> dict[str, int]:
        """The files that `save` will write, and their sizes in bytes without headers.

        The name of `out` itself where a single file is written.
        """
        return {out.name: sum(path.stat().st_size for path in self.files)}

    def state(self) -> dict[str, torch.Tensor]:
        """All parameters and persistent buffers by name, tied ones under each of their names."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def numbers(self) -> dict[str, torch.Tensor]:
        """The same, with numbers: read from the files where it was opened without its weights."""
        if self.has_weights or (weights := self.streamable()) is None:
            return self.state()
        same = aliases(self.model)
        read = dict(ByModelName(weights, {}))
        return {alias: read[name] for name in read for alias in same[name]}

    @property
    def parameters(self) -> int:
        """The number of trainable and frozen parameters; tied ones count once."""
        return sum(p.numel() for p in self.model.parameters())


def aliases(model: torch.nn.Module) -> dict[str, list[str]]:
    """Each name of a parameter or persistent buffer → all names of the same tensor."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return {name: names for names in groups.values() for name in names}


def assign(
    model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], where: str
) -> list[str]:
    """Give a model the weights of a file, tensor by tensor, in the dtype of the file.

    Returns the names that the file used. Tied parameters stay tied and need only one name.

    Raises:
        CheckpointError: names or shapes differ from the model's, or a number is not finite.
    """
    same = aliases(model)
    own = model.state_dict()
    wanted = {name: tuple(t.shape) for name, t in own.items()}
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    owners: dict[int, str] = {}
    seen: list[str] = []
    extra: list[str] = []
    wrong: list[tuple[str, tuple[int, ...]]] = []
    for name, tensor in tensors:
        seen.append(name)
        if name not in wanted:
            extra.append(name)
            continue
        if tuple(tensor.shape) != wanted[name]:
            wrong.append((name, tuple(tensor.shape)))
            continue
        _check_dtype(name, tensor, own[name], where)
        check_finite({name: tensor}, where, buffers)
        _check_tie(name, tensor, owners, same, where)
        if any(other in seen[:-1] for other in same[name]):
            _check_equal(model, name, tensor, where)
            continue
        _put(model, same[name], tensor)
    _raise_differences(where, wanted, same, seen, extra, wrong)
    return seen


def _raise_differences(where, wanted, same, seen, extra, wrong) -> None:
    """Say everything that differs in one message: wrong shapes, missing and extra names."""
    present = {alias for name in seen if name in same for alias in same[name]}
    missing = [name for name in wanted if name not in present]
    if wrong:
        name, shape = wrong[0]
        more = f" (and {len(wrong) - 1} more of another shape)" if len(wrong) > 1 else ""
        raise CheckpointError(
            where, f"{name!r} has shape {shape}{more}", f"the model's shape {wanted[name]}",
            "Give the weights of this model, or the factory that fits these weights",
        )  # fmt: skip
    if missing or extra:
        parts = [f"{few(missing)} missing"] if missing else []
        parts += [f"{few(extra)} unknown to the model"] if extra else []
        raise CheckpointError(
            where, " and ".join(parts), f"exactly the {len(wanted)} tensors of the model",
            "Give the weights of this model, or the factory that fits these weights",
        )  # fmt: skip


def _check_tie(name, tensor, owners: dict[int, str], same, where: str) -> None:
    """Two names for one storage must be tied in the model as well."""
    if not tensor.numel():
        return
    first = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
    if first != name and first not in same[name]:
        raise CheckpointError(
            where, f"{first!r} and {name!r} share storage, but the model keeps them apart",
            "one tensor for each parameter of the model",
            "Save {name: tensor.clone().contiguous()}, or tie the two in the model",
        )  # fmt: skip


def _check_dtype(name: str, tensor: torch.Tensor, own: torch.Tensor, where: str) -> None:
    """Numbers of the file's tensor are of the model's kind: real, complex, or whole."""
    check_kind(name, tensor, where)
    if tensor.device.type == "meta":
        raise CheckpointError(
            where, f"{name!r} is on the meta device, without numbers", "numbers",
            "Save the weights of a model that has been loaded",
        )  # fmt: skip
    if _kind(tensor) != _kind(own):
        raise CheckpointError(
            where, f"{name!r} holds {_kind(tensor)} numbers ({_dtype(tensor)})",
            f"{_kind(own)} numbers: the model's tensor is {_dtype(own)}",
            "Where these are quantised weights, multiply them by their scales and save the result",
        )  # fmt: skip


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_complex():
        return "complex"
    return "real" if tensor.is_floating_point() else "whole"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_equal(model: torch.nn.Module, name: str, tensor: torch.Tensor, where: str) -> None:
    if not torch.equal(model.state_dict()[name], tensor):
        raise CheckpointError(
            where, f"{name!r} differs from a tensor that the model ties to it",
            "equal numbers for tied parameters", "Save the weights anew from the model",
        )  # fmt: skip


def _put(model: torch.nn.Module, names: list[str], tensor: torch.Tensor) -> None:
    """Replace one tensor of a model, under all its names, keeping what it is."""
    made: torch.Tensor | None = None
    for name in names:
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf in module._parameters:
            old = module._parameters[leaf]
            if made is None:
                made = torch.nn.Parameter(tensor, bool(old is not None and old.requires_grad))
            module._parameters[leaf] = made  # type: ignore[assignment]
        else:
            module._buffers[leaf] = tensor


def check_model(model: torch.nn.Module, where: str) -> None:
    """Refuse a model whose own weights cannot be moved one by one, or are no numbers."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors = {name: tensor.detach() for name, tensor in named.items()}
    buffers = {name for name, _ in model.named_buffers()}
    real = {n: t for n, t in tensors.items() if t.device.type != "meta"}
    parameters = {n: t for n, t in real.items() if n not in buffers}
    check_layout(parameters, where)
    if groups := shared_storage(parameters):
        raise CheckpointError(
            where, f"{few(groups[0])} share storage without being the same parameter",
            "parameters that own their numbers, or one parameter used twice",
            "Tie them by assigning the parameter itself: b.weight = a.weight",
        )  # fmt: skip
    check_finite(real, where, buffers)
