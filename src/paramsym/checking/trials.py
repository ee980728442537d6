"""Trials of one model: quick ones first, careful ones after an alarm, and one at other lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle

import torch

from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.lengths import Lengths, at_lengths, other_lengths
from paramsym.checking.trial import Outputs, Trial, Unusable, first_axis
from paramsym.recording.record import Inputs
from paramsym.recording.running import Walk
from paramsym.structure.symmetry import ParameterSymmetry

SMALL = 1_000_000  # parameters up to which everything is done in float64 and at a larger batch
TINY = 2_000  # parameters up to which several weights are tried: few units may all be closed
FURTHER = (100, 200)  # seeds of the second and the third
_CALLS = 3  # of a tiny model at other lengths
BATCH = 8  # samples at least: a wrong claim about one ReLU shows at every other sample


@dataclass
class Trials:
    """Makes trials of one model."""

    model: torch.nn.Module
    symmetry: ParameterSymmetry
    inputs: Inputs
    outputs: Outputs
    training: bool
    lengths: dict[int, int]
    elsewhere: bool  # whether other lengths of the inputs are tried as well

    def __post_init__(self) -> None:
        self.count = sum(p.numel() for p in self.model.parameters())
        self.small, self.tiny = self.count <= SMALL, self.count <= TINY
        self.more = max(1, math.ceil(BATCH / max(1, first_axis(self.inputs))))
        self.made: dict[int, Trial] = {}
        freed = self.symmetry.features.values()
        if not self.small or any(feature.axis == 0 for feature in freed):
            self.more = 1  # what is freed along the batch has its length

    def quick(self, seed: int = 0) -> Trial:
        """A trial in one call: at a larger batch for small models, in float32 for large ones."""
        if seed not in self.made:
            dtype = torch.float64 if self.small else torch.float32
            try:
                self.made[seed] = self._trial(seed, dtype, repeat=self.more)
            except Unusable:  # the batch is part of the model, or its casts need float64
                self.made[seed] = self.careful(seed)
        return self.made[seed]

    def at(self, lengths: Lengths) -> Trials:
        """Trials at other lengths, each of as many calls as it took to see that something falls."""
        there = replace(self, inputs=at_lengths(self.inputs, lengths))
        there.more = _CALLS if self.tiny else 1
        return there

    def forget(self) -> None:
        """What was made, which of a large model takes as much memory as the model."""
        self.made.clear()
        self.__dict__.pop("others", None)

    def careful(self, seed: int) -> Trial:
        """A trial in float64 at the shapes that were given, several times for small models."""
        try:
            return self._trial(seed, torch.float64, calls=self.more)
        except Unusable:
            if self.small:
                raise
            return self._trial(seed, torch.float32)  # it may have constants in float32

    def _trial(self, seed: int, dtype: torch.dtype, repeat: int = 1, calls: int = 1) -> Trial:
        reason = Unusable()
        for positive in (False, True):  # some models take roots of their parameters
            generator = torch.Generator().manual_seed(seed)
            try:
                source = Source(generator, dtype, pooled=not self.small)
                state = generic_state(self.model, self.symmetry.offsets, source, positive)
                return Trial(
                    self.model, state, self.inputs, self.lengths, self.outputs, self.training,
                    generator, repeat, calls, self.walk,
                )  # fmt: skip
            except Unusable as error:
                reason = error
            except Exception as error:  # whatever a user's forward pass may raise
                text = (str(error).strip().splitlines() or [""])[0][:200]
                stopped = f"{type(error).__name__}: {text}"
                reason = Unusable(f"the forward pass at generic weights stopped with {stopped}")
        raise reason

    @cached_property
    def walk(self) -> Walk:
        """What each trial would find in the model."""
        names = [*self.model.named_parameters(), *self.model.named_buffers()]
        return Walk(self.model, {name for name, _ in names})

    @cached_property
    def others(self) -> list[tuple[Lengths, Trial]]:
        """Other lengths at which the model runs, as many at once as it does, with trials there.

        Of few units one input may saturate what it meets, and one draw of weights close them all:
        several inputs are taken, and for each of the lengths other weights.
        """
        if not self.elsewhere:
            return []
        made: list[Trial] = []

        def runs(inputs: Inputs) -> bool:
            if (there := self._elsewhere(inputs)) is not None:
                made.append(there)
            return there is not None

        found = [(lengths, made[-1]) for lengths in other_lengths(self.inputs, runs)]
        if not self.tiny:
            return found
        several = [
            (lengths, self._elsewhere(at_lengths(self.inputs, lengths), seed, _CALLS))
            for seed, (lengths, _) in zip((0, FURTHER[0]), cycle(found), strict=False)
        ]
        return [(lengths, there) for lengths, there in several if there is not None]

    def _elsewhere(self, inputs: Inputs, seed: int = 0, calls: int = 1) -> Trial | None:
        """A trial with other inputs, if the model runs, and what is freed keeps its size."""
        try:
            there = self.quick(seed).elsewhere(inputs, calls)
        except Exception:  # as of a layer whose features they are
            return None
        shapes, freed = there.interfaces(), self.symmetry.features.items()
        fit = all(f.fits(shapes.get(n, ()), self.symmetry.sizes) for n, f in freed)
        return there if fit else None
