"""The way through freed inputs and outputs: to be the same function is f(θ) = g⁻¹ ∘ f(g·θ) ∘ g.

Whatever compares functions runs the moved model on moved inputs, and brings its outputs back. What
is compared are then the outputs of the model that was given, whether or not anything is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.recording.freed import named_arguments, with_arguments
from paramsym.recording.outputs import named_outputs
from paramsym.structure.element import GroupElement
from paramsym.structure.interfaces import act_inputs, act_outputs
from paramsym.structure.symmetry import ParameterSymmetry

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Ends:
    """What an element does to the inputs and outputs of a model.

    `before` are the parameters that it met, `after` those that it left: gains among them may be
    frames of inputs and outputs.
    """

    symmetry: ParameterSymmetry
    element: GroupElement
    before: Mapping[str, torch.Tensor]
    after: Mapping[str, torch.Tensor]
    wrong: torch.Generator | None = None

    def astray(self, generator: torch.Generator) -> Ends:
        """A wrong move of the same size: inputs displaced at random, no output brought back."""
        return replace(self, wrong=generator)

    def entries(self, model: torch.nn.Module, arguments: Arguments) -> int:
        """How many entries of the inputs move."""
        if not self.symmetry.inputs:
            return 0
        given = named_arguments(model, *arguments)
        moved = named_arguments(model, *self.forth(model, arguments))
        names = [name for name in self.symmetry.inputs if name in given]
        return sum(int((given[name] != moved[name]).sum()) for name in names)

    def forth(self, model: torch.nn.Module, arguments: Arguments) -> Arguments:
        """The inputs of the moved model: freed ones moved."""
        if not self.symmetry.inputs:
            return arguments
        given = named_arguments(model, *arguments)
        freed = {name: given[name] for name in self.symmetry.inputs if name in given}
        moved = act_inputs(self.symmetry, self.element, freed, self.before)
        if self.wrong is not None:
            moved = {name: _displaced(x, moved[name], self.wrong) for name, x in freed.items()}
        return with_arguments({**given, **moved}, *arguments)

    def back(self, choose: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """Chooses the outputs of the moved model: the floating ones, freed ones moved back."""
        if not self.symmetry.outputs or self.wrong is not None:
            return choose

        def chosen(returned: Any) -> list[torch.Tensor]:
            found = named_outputs(returned if choose is None else choose(returned))
            freed = {name: y for name, y in found if name in self.symmetry.outputs}
            moved = act_outputs(self.symmetry, ~self.element, freed, self.after)
            return [moved.get(name, y) for name, y in found]

        return chosen


def _displaced(x: torch.Tensor, moved: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor displaced at random, as far as it was moved; integers are exchanged."""
    if not (x.is_floating_point() or x.is_complex()):
        order = torch.randperm(x.numel(), generator=generator).to(x.device)
        return x.reshape(-1)[order].reshape(x.shape)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    size = float((moved - x).norm() / noise.norm().clamp_min(1e-300))
    return x + (size * noise).to(x)
