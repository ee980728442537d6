"""Where the freedom of a network is: redundant directions of each layer beside its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from paramsym.report.collapse import collapse
from paramsym.report.findings import Findings
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import is_free

_LAYER = re.compile(r"^(?:.*?\.)?\d+(?=\.)")
_BETWEEN = "between layers"


@dataclass(frozen=True)
class LayerRow:
    """Directions that move tensors of one layer alone, or of equal layers."""

    name: str
    count: int
    directions: int
    parameters: int

    @property
    def share(self) -> float:
        """Of the parameters."""
        return self.directions / self.parameters if self.parameters else 0.0


def layer_rows(findings: Findings) -> list[LayerRow]:
    """Layers in the order of the network, then what moves several of them together.

    A layer is what stands under one number, or a module that has none. Directions are those of the
    spaces and shifts, added up; where some coincide, the network has fewer.
    """
    symmetry = findings.symmetry
    sizes: dict[str, int] = {}
    for name, shape in findings.shapes.items():
        if name in symmetry.signature and name not in symmetry.ties:
            layer = _layer(name)
            sizes[layer] = sizes.get(layer, 0) + math.prod(shape)
    directions = dict.fromkeys(sizes, 0)
    between = 0
    for moved, dimension in _moves(symmetry):
        layers = {_layer(name) for name in moved}
        if len(layers) == 1 and (layer := layers.pop()) in directions:
            directions[layer] += dimension
        else:
            between += dimension
    made = [
        LayerRow(
            group.label, group.count, sum(directions[n] for n in group.items),
            sum(sizes[n] for n in group.items),
        )
        for group in collapse(sizes, str, lambda n: f"{directions[n]}|{sizes[n]}", 8)
    ]  # fmt: skip
    return [*made, LayerRow(_BETWEEN, 1, between, sum(sizes.values()))] if between else made


def _moves(symmetry: ParameterSymmetry) -> Iterable[tuple[Iterable[str], int]]:
    """The tensors that each family moves, and in how many directions."""
    for space in symmetry.spaces.values():
        if is_free(space):
            yield symmetry.parameters_of(space.name), symmetry.dimension(space.name)
    for shift in symmetry.shifts:
        yield shift.parameters, shift.dimension


def _layer(name: str) -> str:
    found = _LAYER.match(name)
    return found[0] if found else name.rpartition(".")[0] or name
