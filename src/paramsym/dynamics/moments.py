"""What optimisers hold for the parameters of a model, by name, to be read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from paramsym.arguments import optimizer_of
from paramsym.dynamics.orbit_action import Moments


class Held:
    """The entries of optimisers for the parameters of a model.

    Args:
        parameters: of the model, by name.
        ties: by name of the model that of the symmetry, for tied parameters.
        optimizer: one, several or none.

    Raises:
        ValueError: what came is no optimiser, or one of none of the parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        ties: Mapping[str, str],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    ):
        several = [optimizer] if not isinstance(optimizer, Sequence) else optimizer
        self.entries: dict[str, dict[str, Any]] = {}
        for each in several:
            if each is not None:
                each = optimizer_of(each, "teleport(optimizer=…)")
                _require_of(each, parameters)
                # a look at a state would make an entry
                found = {ties.get(n, n): each.state[p] for n, p in parameters.items()
                         if each.state.get(p)}  # fmt: skip
                self.entries |= found

    def moments(self) -> Moments:
        """A copy of the tables, with the tensors themselves."""
        return {name: dict(entries) for name, entries in self.entries.items()}

    def write(self, moments: Moments) -> None:
        """Put moments into the tensors that the optimisers hold."""
        for name, entries in self.entries.items():
            for key, held in entries.items():
                value = moments[name][key]
                if isinstance(held, torch.Tensor) and held is not value:
                    held.copy_(value)


def _require_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    kind = type(optimizer).__name__
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in theirs for p in parameters.values()):
        raise ValueError(
            f"teleport(optimizer={kind}): none of its parameters is one of the model's "
            f"{len(parameters)}. The optimiser that trains this model was expected; make it from "
            "model.parameters(), after the model has moved to its device."
        )
