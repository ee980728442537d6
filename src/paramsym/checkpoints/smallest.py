"""The smallest model of a Hugging Face configuration whose symmetry is the large one's.

The configuration shrinks by what its numbers are for (`shrinking`); the model is built, its
symmetry derived, and compared with the large one's. Where that is another, a few more profiles are
tried, and then every small field is given back its own value, one by one. What is returned has
passed the comparison; what merely builds has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from paramsym.checking.audit import LIMIT
from paramsym.checking.twin import Structure, differences_between, structure_of
from paramsym.checkpoints.errors import first_line
from paramsym.checkpoints.inputs import inputs_from_config
from paramsym.checkpoints.shrinking import PROFILES, Changes, changed, changes_of
from paramsym.checkpoints.source import Inputs
from paramsym.checkpoints.twins import NoTwin as NoTwin
from paramsym.checkpoints.twins import build

_SHOWN = 2  # differences in an error


def has_configuration(model: torch.nn.Module) -> bool:
    """Whether a model is built from a configuration of transformers, so that others can be."""
    config = getattr(model, "config", None)
    return hasattr(type(model), "_from_config") and hasattr(config, "to_dict")


def smallest_twin(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    training: bool = False,
    structure: Structure | None = None,
    limit: int = LIMIT,
) -> tuple[torch.nn.Module, Inputs]:
    """The smallest model of the same configuration whose symmetry is the model's with other sizes.

    Args:
        model: a model of transformers, also on the meta device.
        inputs: its example inputs, as for `find_symmetry`.
        training: compare the functions of the training mode.
        structure: what the model is compared by, where that is known.
        limit: the largest number of parameters of the twin.

    Returns:
        The twin, in memory and with fresh weights, and example inputs for it: what `audit` takes as
        `twin`.

    Raises:
        NoTwin: none was found; the message names what differs in the nearest one.
    """
    large = structure or structure_of(model, inputs, training=training)
    search = _Search(model, large, training, limit)
    for profile in PROFILES:
        found = search.attempt(changes_of(model.config, profile))
        if found is not None:
            return found
    nearest = search.nearest
    for name in nearest.changes:
        rest = {other: value for other, value in nearest.changes.items() if other != name}
        found = search.attempt(rest)
        if found is not None:
            return found
    more = len(nearest.why) - _SHOWN
    raise NoTwin(
        f"smallest_twin(model={type(model).__name__}): of {len(search.tried)} small configurations "
        f"the nearest differs in {'; '.join(nearest.why[:_SHOWN])}"
        f"{f'; and {more} more' if more > 0 else ''}. One with the symmetry of the model and at "
        f"most {limit} parameters was expected. Build a small model by hand, and audit with "
        "twin=(small, small_inputs)."
    )


@dataclass
class _Attempt:
    """A small configuration, and why its model is no twin: differences, or what stopped it."""

    changes: Changes
    why: tuple[str, ...]
    built: bool


@dataclass
class _Search:
    """Small configurations that were tried for one model."""

    model: torch.nn.Module
    large: Structure
    training: bool
    limit: int
    tried: list[_Attempt] = field(default_factory=list)

    @property
    def nearest(self) -> _Attempt:
        """The attempt with the fewest differences; one that was built before others."""
        return min(self.tried, key=lambda attempt: (not attempt.built, len(attempt.why)))

    def attempt(self, changes: Changes) -> tuple[torch.nn.Module, Inputs] | None:
        """Build the model of a small configuration and compare it; None where it is no twin."""
        if any(attempt.changes == changes for attempt in self.tried):
            return None
        try:
            config = changed(self.model.config, changes)
            empty = build(type(self.model), config, "meta")
            count = sum(parameter.numel() for parameter in empty.parameters())
            if count > self.limit:
                why = (f"its size: {count} parameters, more than {self.limit}",)
                self.tried.append(_Attempt(changes, why, False))
                return None
            twin = build(type(self.model), config, "cpu")
            inputs = dict(inputs_from_config(twin, config))
            own = structure_of(twin, inputs, None, self.training, like=self.large)
            why = differences_between(self.large, own)
        except Exception as error:  # whatever a configuration that nobody meant can raise
            self.tried.append(_Attempt(changes, (f"building it: {first_line(error)}",), False))
            return None
        if why:
            self.tried.append(_Attempt(changes, why, True))
            return None
        return twin, inputs
