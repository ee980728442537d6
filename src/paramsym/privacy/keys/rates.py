"""Learning rates that undo positive scales: with θ̃ = D θ entry by entry,

    SGD     θ̃ ↦ θ̃ − lr D² g̃               g̃ = g/D, momentum likewise
    Adam    θ̃ ↦ θ̃ − lr D m̃/(√ṽ + ε/D)     m̃ = m/D, ṽ = v/D²

retrace training at θ. Who is told the rates is told D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from paramsym.algebra import Element
from paramsym.geometry.updates import Update
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True)
class Rates:
    """What the trainer of scaled parameters is told.

    Attributes:
        scales: by name the entrywise factor D of each parameter that is scaled, of its shape.
        squared: whether rates are lr·D² (SGD and its momentum), and not lr·D with ε/D (Adam and
            what else divides by the root of squares).
    """

    scales: Mapping[str, torch.Tensor]
    squared: bool

    def learning_rate(self, name: str, rate: float) -> torch.Tensor | float:
        """The learning rate of each entry of a parameter.

        Decay is not to be scaled: coupled decay of SGD goes with the plain gradient g̃ D², so that
        it is simplest to multiply gradients by D² (`Tensor.register_hook`) and to leave the
        optimiser as it is.
        """
        factor = self.scales.get(name)
        return rate if factor is None else rate * (factor.square() if self.squared else factor)

    def epsilon(self, name: str, epsilon: float) -> torch.Tensor | float:
        """The ε of each entry of a parameter."""
        factor = self.scales.get(name)
        return epsilon if factor is None or self.squared else epsilon / factor


def require_rates(updates: Iterable[Update]) -> bool:
    """Whether rates that undo scales are squared; a `ValueError` if none are known to."""
    names = {each.name: each.rates for each in updates}
    kinds = {*names.values()}
    if kinds not in ({"squared"}, {"single"}):
        odd = next((name for name, kind in names.items() if not kind), "nothing")
        raise ValueError(
            f"Key(…, scalings=True): no rates are known that undo scales under {odd!r} (the step "
            f"is {[*names]}). SGD or Adam and its like was expected, without clipping. Make the "
            "key without scalings."
        )
    return kinds == {"squared"}


def rates_of(
    symmetry: ParameterSymmetry, element: GroupElement, updates: Iterable[Update]
) -> Rates:
    """The rates that undo the scales of an element.

    Args:
        symmetry: that the element acts with.
        element: monomial wherever it scales.
        updates: of the training step.

    Raises:
        ValueError: an update is known for no rates that undo scales, or two ask for different ones.
    """
    squared = require_rates(updates)
    # Of a parameter to which the model adds a constant, the sum is scaled: its factor is that of γ.
    symmetry = replace(symmetry, offsets={}, shifts=())
    scaling = GroupElement(symmetry, tuple(
        {name: _sizes(value) for name, value in part.items()}
        for part in element.parts if not isinstance(part, Slide)
    ))  # fmt: skip
    ones = {n: torch.ones(symmetry.shape(n), dtype=torch.float64) for n in symmetry.signature}
    moved = act(symmetry, scaling, ones)
    trained = [n for n in ones if n not in symmetry.buffers]
    scales = {n: moved[n] for n in trained if bool((moved[n] != 1).any())}
    return Rates(scales, squared)


def _sizes(value: Element) -> Element:
    """The scales of a value, without signs; rotations keep sizes and stay out."""
    diagonal = None if value.diagonal is None else value.diagonal.abs()
    base = None if value.base is None else _sizes(value.base)
    return Element(order=value.order, diagonal=diagonal, base=base)
