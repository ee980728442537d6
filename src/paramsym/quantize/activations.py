"""The largest numbers that a network's weights meet: the ranges that quantised activations need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramsym.geometry.costs import counts


class Meetings(TorchDispatchMode):
    """Inside, notes for each watched tensor the largest |x| of the data that it meets.

    Operators are seen below modules and functions, so that it does not matter how a model spells
    them. What is computed from weights alone, such as their transposes, counts as those weights.

    Args:
        state: the parameters and buffers that the model runs with.
        watched: names of those whose data are measured.
    """

    def __init__(self, state: Mapping[str, Tensor], watched: Collection[str]) -> None:
        super().__init__()
        self.largest: dict[str, float] = {}
        self._kept = [*state.values()]  # while they live, no other tensor has their storage
        named = sorted((n in watched, n) for n, t in state.items() if t.numel())
        self._owners = {_storage(state[n]): n if seen else "" for seen, n in named}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and look at what it was given."""
        made = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        owners = [self._owners.get(_storage(t)) for t in given]
        if given and None not in owners:
            self._own(_tensors(made), next(filter(None, owners), ""))
        elif any(owners):
            self._note([n for n in owners if n], given)
        return made

    def _own(self, made: list[Tensor], name: str) -> None:
        """What comes of weights alone counts as they do."""
        for t in made:
            if _storage(t) not in self._owners:
                self._kept.append(t)
                self._owners[_storage(t)] = name

    def _note(self, names: list[str], given: list[Tensor]) -> None:
        """The largest of the data that meet some weights."""
        data = [t for t in given if _storage(t) not in self._owners and counts(t)]
        most = max((float(t.abs().max()) for t in data), default=0.0)
        for name in names:
            self.largest[name] = max(self.largest.get(name, 0.0), most)


def _tensors(item: Any) -> list[Tensor]:
    return [t for t in tree_leaves(item) if isinstance(t, Tensor) and t.numel()]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
