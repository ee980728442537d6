"""How a gradient pairs with all generators, and what of it is rounding.

Rounding is measured: at parameters displaced by a few roundings the pairing of a right gradient
is zero again, up to rounding errors that are drawn anew, while that of a wrong one hardly changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import stdtrit

from paramsym.checking.measure import nudged
from paramsym.dynamics.loss import ModelLoss, State
from paramsym.dynamics.resting import complete, pairing_at_rest, resting
from paramsym.structure.coordinates import Generators
from paramsym.structure.layout import widened
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, tangent

_ROUNDINGS = 4.0  # by how many units in the last place parameters are displaced
_LEAST = math.sqrt(torch.finfo(torch.float64).eps)  # and at least: saturated numbers move as well
_PROBES = 16  # random vectors that measure the lengths of velocities

Gradient = Mapping[str, torch.Tensor | None]

RIGHT, WRONG, SILENT = "right", "wrong", "no gradient"
APPROXIMATE, LEFT_OUT = "approximate", "not checked"


@dataclass(frozen=True)
class GradientRow:
    """One space, or one shift.

    `measured` is ‖(⟨g, X_j θ⟩)_j‖ / ‖g‖ ‖X θ‖ over the generators of the space and the parameters
    that they move, and `floor` what rounding may make of a zero. `writers` carry the space,
    `readers` its dual.
    """

    name: str
    dimension: int
    measured: float
    floor: float
    verdict: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that the space moves."""
        return tuple(dict.fromkeys((*self.writers, *self.readers)))


def _coarsest(kinds: Sequence[torch.dtype]) -> torch.dtype:
    """The kind of real numbers with the largest unit in the last place."""
    floating = [k for k in kinds if k.is_floating_point and k.itemsize > 1]
    return max(floating, key=lambda kind: torch.finfo(kind).eps)


def _displaced(
    params: State, precision: torch.dtype, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Parameters displaced by a few roundings at random."""
    step = max(_ROUNDINGS * torch.finfo(precision).eps, _LEAST)

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=generator).to(x)

    return {n: nudged(p, draw, step) for n, p in params.items()}


class Pairings:
    """⟨g, X_j θ⟩ in float64 for every generator, along directions that leave buffers at rest.

    They are coordinates of the generators whatever the basis of these directions, since what pairs
    with directions is lifted back: an orthogonal projection.
    """

    def __init__(
        self, loss: ModelLoss, symmetry: ParameterSymmetry, draws: int, generator: torch.Generator
    ):
        self.loss, self.symmetry = loss, symmetry
        self.draws, self.generator = draws, generator
        kinds: set[torch.dtype] = set()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kinds.add(t.dtype) or t, lambda t: t
        ):
            self.gradient = loss.gradient(loss.params)
        self.precision = _coarsest([loss.dtype, *kinds])
        self.names = {symmetry.ties.get(n, n): n for n in loss.params}
        self.operator = self._operator(loss.params)
        self.sizes = [block.size for block in self.operator.blocks]
        self.at = self._pairing(self.operator, self.gradient)

    def _operator(self, params: State) -> TangentOperator:
        """The tangent operator in float64, at rest where buffers are read."""
        wide = {n: widened(t) for n, t in {**self.loss.buffers, **params}.items()}
        found = tangent(self.symmetry, complete(self.symmetry, wide))
        return resting(found)

    def _pairing(self, operator: TangentOperator, gradient: Gradient) -> torch.Tensor:
        """The pairings of a gradient with all generators, (generators,)."""
        return pairing_at_rest(
            operator, {n: widened(g) for n, g in gradient.items() if g is not None}
        )

    def rows(self, level: float) -> list[GradientRow]:
        """The verdict on every space, from the pairings at θ and at displaced parameters."""
        quantile = -float(stdtrit(self.draws - 1, level / 2 / max(1, len(self.sizes))))
        spreads, units = self._spreads(), self._units()
        found = []
        for k, (block, at) in enumerate(
            zip(self.operator.blocks, self._split(self.at), strict=True)
        ):
            measured = float(at.norm())
            floor = quantile * spreads[k] + units[k] * self._rounding(block)
            verdict = self._verdict(block, measured, floor, units[k])
            unit = units[k] or 1.0
            sides = self._sides(block)
            found.append(
                GradientRow(block.name, block.size, measured / unit, floor / unit, verdict, *sides)
            )
        return found

    def distances(self, other: Pairings) -> dict[str, float]:
        """By space how far two pairings at the same parameters differ, in the units of the rows."""
        apart = [float(part.norm()) for part in self._split(self.at - other.at)]
        names = [block.name for block in self.operator.blocks]
        return {n: d / (u or 1.0) for n, d, u in zip(names, apart, self._units(), strict=True)}

    def _split(self, pairings: torch.Tensor) -> Sequence[torch.Tensor]:
        return pairings.split(self.sizes, dim=-1)

    def _spreads(self) -> list[float]:
        """By space the standard deviation of the pairings over displaced parameters."""
        drawn = []
        for _ in range(self.draws):
            params = _displaced(self.loss.params, self.precision, self.generator)
            drawn.append(self._pairing(self._operator(params), self.loss.gradient(params)))
        parts = self._split(torch.stack(drawn))
        return [float((p - p.mean(0)).norm()) / math.sqrt(self.draws - 1) for p in parts]

    def _units(self) -> list[float]:
        """By space ‖g‖ ‖X θ‖, over the parameters that it moves."""
        norms = {n: float(widened(g).norm()) for n, g in self.gradient.items() if g is not None}
        lengths = [float(part.sum()) for part in self._split(self._lengths)]
        return [
            math.hypot(*(norms.get(self.names.get(n, ""), 0.0) for n in block.parameters))
            * math.sqrt(length)
            for block, length in zip(self.operator.blocks, lengths, strict=True)
        ]

    @cached_property
    def _lengths(self) -> torch.Tensor:
        """The squared lengths of the velocities of all generators: E ⟨ξ, X_j θ⟩² over random ξ."""
        generator = torch.Generator().manual_seed(0)
        params = self.operator.params
        names = [n for n in self.operator.names if n in self.names]

        def probe(n: str) -> torch.Tensor:
            like = params[n]
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

        squares = [
            pairing_at_rest(self.operator, {n: probe(n) for n in names}).square()
            for _ in range(_PROBES)
        ]
        return torch.stack(squares).mean(0)

    def _rounding(self, block: Generators) -> float:
        """A bound for the rounding of a sum over all entries that a block moves, in float64."""
        params = self.operator.params
        entries = sum(params[n].numel() for n in block.parameters)
        return torch.finfo(torch.float64).eps * (2 + math.ceil(math.log2(max(2, entries))))

    def _verdict(self, block: Generators, measured: float, floor: float, unit: float) -> str:
        space = self.symmetry.spaces.get(block.name)
        unseen = [self.names[n] for n in block.parameters if n in self.names]
        if any(self.gradient.get(n) is None and not self.loss.own[n].requires_grad for n in unseen):
            return LEFT_OUT
        if floor >= unit:  # the gradient is rounding itself: no pairing exceeds the norms
            return SILENT
        if space is not None and not space.exact:
            return APPROXIMATE
        return WRONG if measured > floor else RIGHT

    def _sides(self, block: Generators) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The parameters that carry a space, and those that carry its dual."""
        writers: list[str] = []
        readers: list[str] = []
        for name in block.parameters:
            legs = [leg for b in self.symmetry.blocks.get(name, ()) for leg in b.legs]
            powers = [leg.power for leg in legs if leg.space == block.name]
            if name in self.names:
                writers += [name] if not powers or max(powers) > 0 else []
                readers += [name] if powers and min(powers) < 0 else []
        return tuple(writers), tuple(readers)
