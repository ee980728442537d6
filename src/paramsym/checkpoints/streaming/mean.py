"""The mean of several checkpoints, each moved by an element of its own, tensor by tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from paramsym.checkpoints.checkpoint import Opened
from paramsym.checkpoints.streaming.job import Job, require_fitting, require_moved
from paramsym.checkpoints.streaming.spelling import Tensors
from paramsym.merging.interpolation import mixed
from paramsym.structure.fast import Rows
from paramsym.structure.layout import working_dtype_of

_COPIES = 10  # of a tensor in the wider dtype, at most, besides one of each checkpoint


@dataclass(frozen=True)
class Mean(Job):
    """A job that writes what `mixed` makes of a checkpoint and others, each of them moved.

    Integers, and what the model does not know, come from the first. The others have tensors of its
    names, shapes and dtypes; how they lie in files is theirs.

    Attributes:
        others: what is done to the others.
        shares: of the first and of them, with sum 1.
        path: the kind of path from one to the other, as for `interpolate`.
    """

    others: tuple[Job, ...] = ()
    shares: tuple[float, ...] = (1.0,)
    path: str = "linear"

    def moves(self, name: str) -> bool:
        """Whether a tensor of the files is averaged."""
        dtype = self.checkpoint.entries[name].dtype
        return name in self.names and (dtype.is_floating_point or dtype.is_complex)

    @property
    def moving(self) -> list[str]:
        """The tensors of the files that are averaged."""
        return [name for name in self.checkpoint if self.moves(name)]

    def panels(self, opened: Tensors, name: str, tensor: Rows) -> Iterator[torch.Tensor]:
        """One tensor of the mean, as a whole: a great circle needs all of its numbers."""
        if not self.moves(name):
            return super().panels(opened, name, tensor)
        model = self.names[name]  # which says whether it is a statistic
        first = super().panels(_Wide(opened), name, _WideTensor(tensor))
        states = [{model: _whole(self, name, first, tensor)}]
        for other in self.others:
            with Opened(other.checkpoint) as files:
                source = files[other.source(name)]
                panels = other.panels(_Wide(files), name, _WideTensor(source))
                states.append({model: _whole(other, name, panels, source)})
                files.require_unchanged()
        return iter([mixed(states, self.shares, self.path)[model].to(tensor.dtype)])

    def memory(self, name: str) -> int:
        """Bytes that averaging a tensor takes at most."""
        if not self.moves(name):
            return super().memory(name)
        entry, count = self.checkpoint.entries[name], len(self.shares)
        mixing = (count + _COPIES) * entry.numel * max(4, entry.dtype.itemsize)
        moving = (super().memory(name), *(other.memory(name) for other in self.others))
        return count * entry.numel * max(4, entry.dtype.itemsize) + max(mixing, *moving)

    def kind(self, name: str) -> Hashable:
        return (super().kind(name), *(other.kind(name) for other in self.others))

    @property
    def places(self) -> list[str]:
        """The spaces and shifts that move in one of them."""
        others = (name for other in self.others for name in other.places)
        return list(dict.fromkeys((*super().places, *others)))

    @property
    def bytes(self) -> int:
        return self.checkpoint.bytes + sum(other.bytes for other in self.others)


def mean_of(job: Job, others: Sequence[Job], shares: Sequence[float], path: str) -> Mean:
    """The mean of what several jobs write, the first of which says where.

    Raises:
        CheckpointError: as `require_fitting`, of one of the others.
    """
    for other in others:
        require_fitting(other)
    return Mean(
        job.checkpoint, job.symmetry, job.element, job.names, job.windows, tuple(others),
        tuple(shares), path,
    )  # fmt: skip


def _whole(job: Job, name: str, panels: Iterator[torch.Tensor], source: Rows) -> torch.Tensor:
    """A tensor from its panels, each of which is good until the next is asked for.

    Raises:
        CheckpointError: a number is not finite.
    """
    entry, at, made = job.checkpoint.entries[name], 0, None
    for panel in panels:
        require_moved(job, name, panel, source)
        if not panel.ndim:
            return panel.clone()
        made = torch.empty(entry.shape, dtype=panel.dtype) if made is None else made
        made[at : at + len(panel)] = panel
        at += len(panel)
    return torch.empty(entry.shape, dtype=entry.dtype) if made is None else made


class _WideTensor:
    """A tensor of a file in the dtype in which it is moved.

    What is moved in half precision is rounded to it. A mean of rounded tensors would be rounded
    twice.
    """

    def __init__(self, rows: Rows):
        self.rows, self.shape, self.dtype = rows, rows.shape, working_dtype_of(rows.dtype)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        return self.rows[rows].to(self.dtype)


class _Wide:
    """Tensors of files in the dtypes in which they are moved."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors

    def __getitem__(self, name: str) -> Rows:
        return _WideTensor(self.tensors[name])
