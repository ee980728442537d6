"""The weights that codes and scales stand for, some rows at a time: to run a model with them."""

from __future__ import annotations

import torch

from paramsym.checkpoints.checkpoint import Opened
from paramsym.checkpoints.streaming.quantised import StoredPart, StoredWeight
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.structure.fast import Rows


class Dequantised:
    """The tensors of a checkpoint that is open, quantised ones as the numbers that they stand for.

    W[i, j] = (codes[i, j] − zeros[I, J]) · scales[I, J], in float32, for codes that are not packed:
    how packs are read is a convention of each tool.

    Raises:
        CheckpointError: when it is made, where it is not known how a weight is stored.
    """

    def __init__(self, opened: Opened, storage: Storage):
        self.opened = opened
        self.weights = {name: storage.weight(name) for name in storage.beside}

    @property
    def packed(self) -> list[str]:
        """The weights that cannot be read here."""
        return [
            name for name, weight in self.weights.items()
            if any(f is not None and f.packed for part in weight.parts for f in part.axes)
        ]  # fmt: skip

    def __getitem__(self, name: str) -> Rows:
        if name in self.weights:
            return _Numbers(self.opened, self.weights[name])
        return self.opened[name]


class _Numbers:
    def __init__(self, opened: Opened, weight: StoredWeight):
        self.opened, self.weight = opened, weight
        self.shape, self.dtype = torch.Size(weight.shape), torch.float32

    def __getitem__(self, rows: slice) -> torch.Tensor:
        codes, *others = self.weight.parts
        made = self.opened[codes.name][rows].float()
        places = torch.arange(self.shape[0])[rows]
        for part in sorted(others, key=lambda part: part.scales):  # zeros before scales
            spread = self._spread(part, places)
            made = made * spread if part.scales else made - spread
        return made

    def _spread(self, part: StoredPart, rows: torch.Tensor) -> torch.Tensor:
        """What blocks share, for some rows of the weight, so that it can be broadcast."""
        found = self.opened[part.name][:].float()
        shape = [1] * len(self.shape)
        for k, follows in enumerate(part.axes):
            if follows is not None:
                places = rows if follows.axis == 0 else torch.arange(self.shape[follows.axis])
                found = found.index_select(k, places // follows.unit)
                shape[follows.axis] = len(places)
        return found.reshape(shape)
