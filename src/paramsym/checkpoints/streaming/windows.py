"""Tensors in files that are windows on those of a model, and the latter put together from them.

A loader may stack the matrices of experts, join two of them, or transpose what it reads. The files
stay as they are; what is asked for by a name of the model is read from all files that have some of
it, and no more of them than the rows that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from paramsym.checkpoints.checkpoint import Entry
from paramsym.checkpoints.streaming.spelling import Tensors, by_model
from paramsym.checkpoints.streaming.traced import Patch, Traced
from paramsym.structure.fast import Rows
from paramsym.structure.windowed import Window


def windows_of(
    state: Mapping[str, torch.Tensor], entries: Mapping[str, Entry]
) -> tuple[dict[str, str], dict[str, Window]] | None:
    """How the tensors of files lie in those of a model, read off what a loader made of them.

    Args:
        state: the state dict of a model that was loaded with `Traced` tensors.
        entries: the tensors of the files.

    Returns:
        Name in the files → name in the model; and, for those that are not the whole of it, the
        window. None where a tensor has parts in several of the model, or is there in part, or where
        one of the model has numbers of several dtypes, or some that are in no file.
    """
    names: dict[str, str] = {}
    windows: dict[str, Window] = {}
    seen: set[int] = set()
    for model, tensor in state.items():
        if id(tensor) in seen:  # tied
            continue
        seen.add(id(tensor))
        if not isinstance(tensor, Traced) or not _is_complete(tensor, entries):
            return None
        for patch in tensor.patches:
            if patch.name in names:
                return None
            names[patch.name] = model
            window = _window(patch)
            if not _is_whole(window, tensor.shape):
                windows[patch.name] = window
    return names, windows


def _is_complete(tensor: Traced, entries: Mapping[str, Entry]) -> bool:
    """Whether a tensor is made of whole ones, of one dtype, which is theirs, without gaps."""
    own = [entries[p.name] for p in tensor.patches]
    whole = all(p.shape == e.shape for p, e in zip(tensor.patches, own, strict=True))
    alike = len({e.code for e in own}) == 1
    return whole and alike and sum(e.numel for e in own) == tensor.numel()


def _window(patch: Patch) -> Window:
    box = tuple(
        at if axis is None else (at, at + size)
        for at, size, axis in zip(patch.corner, patch.size, patch.axes, strict=True)
    )
    order = {axis: k for k, axis in enumerate(patch.axes) if axis is not None}
    return Window(box, tuple(order[k] for k in sorted(order)))


def _is_whole(window: Window, shape: Iterable[int]) -> bool:
    return window == Window(tuple((0, n) for n in shape), tuple(range(len(window.box))))


@dataclass(frozen=True)
class Joins:
    """The tensors of a model that several of the files, or transposed ones, are windows on.

    `names` maps a name of the files to that of the model, and `windows` those of them that are not
    the whole of it to their windows.
    """

    names: Mapping[str, str]
    windows: Mapping[str, Window]

    @cached_property
    def parts(self) -> dict[str, dict[str, Window]]:
        """Name in the model → the tensors of the files that it is made of."""
        found: dict[str, dict[str, Window]] = {}
        for name, window in self.windows.items():
            found.setdefault(self.names[name], {})[name] = window
        return found

    @cached_property
    def files(self) -> dict[tuple[str, Window], str]:
        """Which tensor of the files a window on one of the model is."""
        return {(self.names[name], window): name for name, window in self.windows.items()}

    def spelled(self, ties: Mapping[str, str]) -> dict[str, str]:
        """`by_model`, where a tensor that is put together has its own name."""
        own = {name: model for name, model in self.names.items() if name not in self.windows}
        return by_model({**own, **{model: model for model in self.parts}}, ties)

    def of(self, tensors: Tensors) -> Tensors:
        """Tensors of files, and those that are put together from them by their own names."""
        return Joined(tensors, self.parts) if self.parts else tensors

    def meta(self, entries: Mapping[str, Entry]) -> dict[str, torch.Tensor]:
        """The tensors that are put together, without numbers, on the meta device."""
        made = {}
        for model, parts in self.parts.items():
            dtype = entries[next(iter(parts))].dtype
            made[model] = torch.empty(_shape(parts), dtype=dtype, device="meta")
        return made


class Joined:
    """Tensors of files, and others that are put together from them."""

    def __init__(self, tensors: Tensors, parts: Mapping[str, Mapping[str, Window]]):
        self.tensors, self.parts = tensors, parts

    def __getitem__(self, name: str) -> Rows:
        if name in self.parts:
            return JoinedTensor(self.tensors, self.parts[name])
        return self.tensors[name]


class JoinedTensor:
    """A tensor whose rows are read from all that have some of them."""

    def __init__(self, tensors: Tensors, parts: Mapping[str, Window]):
        self.tensors, self.parts = tensors, parts
        self.shape = _shape(parts)
        self.dtype = tensors[next(iter(parts))].dtype

    def __getitem__(self, rows: slice) -> torch.Tensor:
        low, high, step = rows.indices(self.shape[0])
        assert step == 1
        made = torch.empty((max(0, high - low), *self.shape[1:]), dtype=self.dtype)
        for name, window in self.parts.items():
            first, *others = window.box
            if isinstance(first, int):
                if low <= first < high:
                    Window((first - low, *others), window.axes)(made).copy_(self.tensors[name][:])
                continue
            a, b = max(low, first[0]), min(high, first[1])
            if a < b:
                target = Window(((a - low, b - low), *others), window.axes)(made)
                target.copy_(_some(self.tensors[name], window, a - first[0], b - first[0]))
        return made


def _some(x: Rows, window: Window, low: int, high: int) -> torch.Tensor:
    """What a window has of some rows of the tensor that it is on."""
    axis = window.axes.index(0)
    return x[low:high] if axis == 0 else x[:].narrow(axis, low, high - low)


def _shape(parts: Mapping[str, Window]) -> torch.Size:
    """The shape of a tensor that windows cover."""
    boxes = zip(*(window.box for window in parts.values()), strict=True)
    return torch.Size(max(k + 1 if isinstance(k, int) else k[1] for k in own) for own in boxes)
