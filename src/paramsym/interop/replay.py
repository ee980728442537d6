"""What a tool does with a map, done here: weights divided and multiplied, the function compared.

It knows nothing of symmetries: it reads names, shapes and the formula of the tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from paramsym.checking.generic import table_lengths
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.trial import State, Trial, Unusable
from paramsym.interop.maps import Dialect, ScaleMap
from paramsym.interop.parts import Layer, Part, layers_of
from paramsym.recording.record import Inputs, preserved, record
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry

_CALLS = 4  # inputs that are drawn: of few tokens some experts see none


class Replay:
    """A model at generic weights in float64, with upcasts lifted, to which maps are applied.

    Args:
        model: only read.
        symmetry: of which only the constants that norms add to their gains are used.
        inputs: example inputs.
        dialect: of the tool.
        seed: of weights, inputs and scales.

    Raises `Unusable` where the model does not run at generic weights.
    """

    def __init__(
        self, model: nn.Module, symmetry: ParameterSymmetry, inputs: Inputs, dialect: Dialect,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.dialect = model, dialect
        self.offsets, self.layers = symmetry.offsets, layers_of(model, symmetry)
        self.generator = torch.Generator().manual_seed(seed)
        lengths = table_lengths(record(model, inputs, None, False), model)
        with preserved(model, training=False):
            source = Source(self.generator, torch.float64, pooled=False)
            state = generic_state(model, symmetry.offsets, source)
            self.trial = Trial(
                model, state, inputs, lengths, None, False, self.generator, calls=_CALLS
            )

    def error(self, maps: Iterable[ScaleMap]) -> float:
        """The largest relative change of an output after maps with random scales."""

        def change(state: State) -> None:
            for entry in maps:
                self._apply(entry, state)

        return self.change(change)

    def change(self, change: Callable[[State], None]) -> float:
        """The largest relative change of an output after a change of weights.

        Infinite where the shapes do not allow what the tool does.
        """
        state = dict(self.trial.state)
        try:
            change(state)
        except (RuntimeError, KeyError, AttributeError):
            return float("inf")
        with preserved(self.model, training=False):
            return self.trial.error(state, tolerance=1e-10)

    def _apply(self, entry: ScaleMap, state: State) -> None:
        columns = self.read(self.layers[entry.balance[0]].weight, state).shape[-1]
        s = torch.exp(0.3 * torch.randn(columns, generator=self.generator, dtype=torch.float64))
        for name in entry.balance:
            part = self.layers[name].weight
            self.write(part, self.read(part, state) * s.view(1, -1), state)
        self._divide(self.layers[entry.smooth], s, state)

    def _divide(self, layer: Layer, s: Tensor, state: State) -> None:
        converted = layer.kind in self.dialect.offset_norms
        offset = self.offsets.get(layer.weight.parameter, 0.0) if converted else 0.0
        weight = added(self.read(layer.weight, state), offset)
        if weight.ndim == 1:
            weight = weight / s
        else:
            rows = weight.shape[0] if not self.dialect.partial else len(s)
            kept, scaled = weight[: weight.shape[0] - rows], weight[weight.shape[0] - rows :]
            weight = torch.cat([kept, scaled / s.view(-1, 1)])
        self.write(layer.weight, added(weight, -offset), state)
        if layer.bias is not None:
            self.write(layer.bias, self.read(layer.bias, state) / s, state)

    @staticmethod
    def read(part: Part, state: State) -> Tensor:
        """The part of a parameter as the tool sees it."""
        return part.of(state[part.parameter])

    @staticmethod
    def write(part: Part, value: Tensor, state: State) -> None:
        """Put a value there; the tensor that stood in the state is not touched."""
        made = state[part.parameter].clone()
        part.of(made).copy_(value)
        state[part.parameter] = made


def replay_of(
    model: nn.Module, symmetry: ParameterSymmetry, inputs: Inputs | None, dialect: Dialect
) -> tuple[Replay | None, str]:
    """A replay, or why there is none: no inputs, no weights, or a model that does not run."""
    if inputs is None or any(p.device.type == "meta" for p in model.parameters()):
        return None, "not replayed: that needs inputs, and a model with weights"
    try:
        return Replay(model, symmetry, inputs, dialect), ""
    except Unusable as error:
        return None, f"not replayed: {error}"
