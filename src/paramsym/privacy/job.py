"""A job of one's own, as its owner knows it and as the other side sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from paramsym.privacy.coding import encode, labels_of
from paramsym.privacy.keys.key import Key
from paramsym.privacy.keys.rates import Rates


@dataclass(frozen=True, eq=False)
class View:
    """What the other side is sent: attacks read this, and what everybody has, and nothing else.

    Attributes:
        state_dict: g·θ.
        inputs: g·x, of shape (samples, …).
        targets: moved targets or new labels; None if none are sent, as labels of outputs that a key
            mixes for an evaluation.
        rates: rates for each entry, if the key scales and somebody trains.
    """

    state_dict: Mapping[str, torch.Tensor]
    inputs: torch.Tensor
    targets: torch.Tensor | None
    rates: Rates | None


@dataclass(frozen=True, eq=False)
class Job:
    """A model with its data and the key that is to hide them, and what everybody may have of them.

    Attributes:
        model: with the plain parameters, which is not touched.
        key: what moves them.
        inputs: plain, of shape (samples, …).
        targets: labels, or tensors of the shape of the outputs.
        public: inputs of the same kind that everybody has, other samples than `inputs`.
        public_targets: their targets.
        initial: parameters that everybody has and from which the plain ones come: pretrained
            weights, or an initialisation whose seed is known.
        second: the key of another session with the same model, for linking.
        seed: of what attacks draw.
    """

    model: nn.Module
    key: Key
    inputs: torch.Tensor
    targets: torch.Tensor | None = None
    public: torch.Tensor | None = None
    public_targets: torch.Tensor | None = None
    initial: Mapping[str, torch.Tensor] | None = None
    second: Key | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise a `ValueError` for the second key of another model."""
        if self.second is None:
            return
        own, other = (
            {name: each.symmetry.shape(name) for name in each.symmetry.signature}
            for each in (self.key, self.second)
        )
        if own != other:
            strange = next(n for n in (*own, *other) if own.get(n) != other.get(n))
            raise ValueError(
                f"Job(…, second=…): {strange!r} has the shape {other.get(strange)} there, and "
                f"{own.get(strange)} in the first key; two sessions of one model were expected. "
                "Make both keys with Key.generate from its symmetry."
            )

    @cached_property
    def view(self) -> View:
        """What the other side is sent."""
        return self.seen_with(self.key)

    def seen_with(self, key: Key) -> View:
        """What the other side would be sent in a session with another key of the same model."""
        targets = self.targets if key.updates or self._may_be_sent(key) else None
        encoded = encode(self.model, (self.inputs, targets), key, check=False)
        assert isinstance(encoded.inputs, torch.Tensor)
        rates = key.learning_rates if key.updates else None
        return View(encoded.state_dict, encoded.inputs, encoded.targets, rates)

    def _may_be_sent(self, key: Key) -> bool:
        """Whether targets can go along where nobody trains: labels cannot if a key mixes them."""
        if self.targets is None or self.targets.is_floating_point():
            return True
        try:
            labels_of(key)
        except ValueError:
            return False
        return True
