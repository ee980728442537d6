"""Which pairs of a key and an optimiser retrace plain training: one run for each, as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from paramsym.privacy.coding import Given
from paramsym.privacy.keys.key import Key
from paramsym.privacy.retracing.expected import Clip, Compare, Expected
from paramsym.privacy.retracing.runs import Factory, Retraced, retrace


@dataclass(frozen=True)
class RetracingTable:
    """Largest differences over keys and optimisers; runs by (key, optimiser)."""

    runs: Mapping[tuple[str, str], Retraced] = field(default_factory=dict)

    def __str__(self) -> str:
        """One row for each optimiser and one column for each key.

        A star marks pairs of which nothing better than a drift is expected.
        """
        keys = list(dict.fromkeys(key for key, _ in self.runs))
        names = list(dict.fromkeys(name for _, name in self.runs))
        rows = [["", *keys]]
        rows += [[name, *(self._entry(key, name) for key in keys)] for name in names]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines) + "\n* does not commute"

    def _entry(self, key: str, name: str) -> str:
        run = self.runs.get((key, name))
        if run is None:
            return "–"
        star = "" if run.expected is Expected.RETRACES else "*"
        return f"{run.largest:.0e}{star}"

    def to_json(self) -> str:
        """All runs in full."""
        rows = [
            {"key": key, "name": name, **json.loads(run.to_json())}
            for (key, name), run in self.runs.items()
        ]
        return json.dumps(rows)


def retracing_table(
    model: nn.Module,
    data: tuple[Given, Tensor],
    keys: Mapping[str, Key],
    optimizers: Mapping[str, Factory],
    steps: int,
    *,
    loss: nn.Module | Compare,
    batch: int | None = None,
    seed: int = 0,
    clip: Clip | None = None,
    outputs: Callable[[Any], Any] | None = None,
) -> RetracingTable:
    """`retrace` for every pair of a key and an optimiser.

    Args:
        model: as for `retrace`, and so are all that are not named here.
        data: inputs and targets.
        keys: by a name for the table.
        optimizers: by a name for the table.
        steps: of every run.
        loss: of outputs and targets.
        batch: how many samples each step sees.
        seed: of the order of the samples.
        clip: what is done to gradients.
        outputs: what the loss compares.
    """
    return RetracingTable({
        (key_name, name): retrace(
            model, data, key, optimizer, steps, loss=loss, batch=batch, seed=seed, clip=clip,
            outputs=outputs, every=steps,
        )
        for key_name, key in keys.items()
        for name, optimizer in optimizers.items()
    })  # fmt: skip
