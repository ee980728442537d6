"""Points of one orbit: where a network may start, and where a method moves it before rounding."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from quantisation_networks import Case, Inputs, State
from torch import Tensor, nn

from paramsym import (
    ParameterSymmetry,
    act,
    balance,
    find_symmetry,
    minimize_quantization_error,
    minimize_range,
    unit_gains,
)
from paramsym.algebra import ComplexScaling, GeneralLinear, Group, Orthogonal, PositiveScaling
from paramsym.geometry.costs import scaled_by, scales_of
from paramsym.quantize import passes
from paramsym.quantize.grids import Grid
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.sensitivities import sensitivities
from paramsym.structure.data import batch_of

PROJECTIONS = 16  # random signs, for the sensitivities
FACTOR = 30.0  # of a planted outlier
TOLERANCE = 1e-1  # of the expected error: differences of interest are larger
_CALLS, _SETTLED = 250, 1e-6  # of equalisation: four sweeps each


class Orbit:
    """The equivalent networks of a model: its symmetry, and the scales in it alone.

    Of changes of basis the scales move the diagonal, because ranges are not convex along the rest.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        few = tuple(x[:2] for x in inputs)
        self.symmetry: ParameterSymmetry = find_symmetry(model, few, check=False)
        self.scales: ParameterSymmetry = self.symmetry.restrict(_diagonal, translations=False)
        self.shapes = {
            n: (*batch_of(self.scales, space), scales_of(space))
            for n, space in self.scales.spaces.items()
            if space.exact and scales_of(space)
        }

    def scaled(
        self, params: State, names: Iterable[str], logarithms: Callable[[tuple[int, ...]], Tensor]
    ) -> State:
        """Moved along the scales of some spaces, by logarithms of the shape that is asked for."""
        logs = {n: logarithms(self.shapes[n]) for n in names}
        return act(self.scales, scaled_by(self.scales, logs), params)


def _diagonal(size: int) -> Group:
    """Positive scales; pairs are those that rotary embeddings turn, with one modulus each."""
    return ComplexScaling(size) if size == 2 else PositiveScaling(size)


def nearby(orbit: Orbit, params: State, draws: int) -> list[State]:
    """The point, and others two per cent away: the same ranges, but other rounding errors."""
    generator = torch.Generator().manual_seed(5)

    def logarithms(shape: tuple[int, ...]) -> Tensor:
        return 0.02 * torch.randn(shape, generator=generator, dtype=torch.float64)

    moved = [orbit.scaled(params, orbit.shapes, logarithms) for _ in range(draws - 1)]
    return [params, *moved]


# -- starts ------------------------------------------------------------------------------------


def rescaled(orbit: Orbit, params: State, seed: int) -> State:
    """Log-normal scales, σ = 1."""
    generator = torch.Generator().manual_seed(seed)

    def logarithms(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return orbit.scaled(params, orbit.shapes, logarithms)


def with_outliers(orbit: Orbit, params: State, seed: int, factor: float = FACTOR) -> State:
    """Two coordinates of every space 30 times as large.

    Where gains of norms have scales, theirs alone, at the same two coordinates of the stream in
    each norm: what the norms write then has two outlier channels, as in large language models.
    """
    gains = {
        leg.space: float(leg.power)
        for name in orbit.symmetry.frame_parameters
        for block in orbit.scales.blocks[name]
        for leg in block.legs
        if leg.space in orbit.shapes
    }
    rank = torch.rand(4096, generator=torch.Generator().manual_seed(seed))

    def logarithms(shape: tuple[int, ...]) -> Tensor:
        made = torch.zeros(shape, dtype=torch.float64)
        made[..., rank[: shape[-1]].topk(min(2, shape[-1])).indices] = math.log(factor)
        return made

    if not gains:
        return orbit.scaled(params, orbit.shapes, logarithms)
    for power in {*gains.values()}:
        chosen = [space for space, own in gains.items() if own == power]
        params = orbit.scaled(params, chosen, lambda shape, p=power: logarithms(shape) / p)
    return params


def with_faint_channels(orbit: Orbit, params: State, seed: int) -> State:
    """The reverse: two channels 30 times smaller, and the weights that read them larger."""
    return with_outliers(orbit, params, seed, 1 / FACTOR)


STARTS: dict[str, Callable[[Orbit, State, int], State]] = {
    "as trained": lambda orbit, params, seed: params,
    "rescaled": rescaled,
    "outliers": with_outliers,
    "faint channels": with_faint_channels,
}

# -- methods -----------------------------------------------------------------------------------


def equalised(orbit: Orbit, params: State) -> State:
    """Cross-layer equalisation to convergence, between all tensors that share a scale.

    The scale of a unit is the root of the range of what it lowers over that of what it raises, in
    turns, until none moves. Gains and biases count as weights do: over matrices alone a network
    with gains has no equalised point.
    """
    spaces = orbit.scales.spaces
    # Both of a pair of queries and keys that a gain scales would be raised or lowered together.
    names = [n for n in orbit.shapes if not isinstance(spaces[n].group, ComplexScaling)]
    for _ in range(_CALLS):
        incidence = incidence_of(orbit.scales, params, names)
        assert not incidence.held, incidence.held
        y = passes.equalised(incidence)
        params = act(orbit.scales, scaled_by(orbit.scales, incidence.split(y)), params)
        if float(abs(y).max()) < _SETTLED:
            break
    return params


def rotated(orbit: Orbit, params: State, make: Callable[[int], Tensor]) -> State:
    """Gains folded, then every basis turned but that of queries and keys: the stream and values."""
    params = unit_gains(orbit.symmetry, params) if orbit.symmetry.frame_parameters else params
    values = {}
    for name, space in orbit.symmetry.spaces.items():
        turns = isinstance(space.group, Orthogonal)
        if turns or (isinstance(space.group, GeneralLinear) and not name.endswith(".qk")):
            copies = batch_of(orbit.symmetry, space)
            made = torch.stack([make(space.size) for _ in range(torch.Size(copies).numel())])
            values[name] = made.reshape(*copies, space.size, space.size)
    return act(orbit.symmetry, orbit.symmetry.element(values), params)


def random_rotation(generator: torch.Generator) -> Callable[[int], Tensor]:
    """n ↦ an orthogonal matrix of that size, evenly distributed."""

    def make(size: int) -> Tensor:
        q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
        return q * r.diagonal().sign()

    return make


def hadamard(generator: torch.Generator) -> Callable[[int], Tensor]:
    """n ↦ Sylvester's matrix of entries ± n^(−1/2) times random signs; n is a power of two."""

    def make(size: int) -> Tensor:
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < size:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        assert len(matrix) == size, f"Sylvester's matrices have powers of two as sizes, not {size}"
        signs = 2 * torch.randint(0, 2, (size,), generator=generator).double() - 1
        return matrix * signs / size**0.5

    return make


def weighted(orbit: Orbit, case: Case, params: State, grid: Grid) -> tuple[State, float]:
    """The scales of least expected error on calibration data, and the certified relative gap."""
    model = copy.deepcopy(case.model)
    model.load_state_dict(params)
    signs = torch.Generator().manual_seed(2)
    found = sensitivities(model, case.calibration, PROJECTIONS, signs, case.features)
    layers = [f"{layer}.weight" for layer in case.layers]
    result = minimize_quantization_error(
        orbit.symmetry, params, found, grid, layers, tolerance=TOLERANCE
    )
    return result.params, result.gap / result.value


def methods(orbit: Orbit, params: State, seed: int) -> dict[str, Callable[[], State]]:
    """The methods that need no data, by name; rotations where there is a stream to turn."""

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    found = {
        "untouched": lambda: params,
        "equalised": lambda: equalised(orbit, params),
        "range": lambda: minimize_range(orbit.scales, params).params,
        "L2": lambda: balance(orbit.symmetry, params, shifts=False).params,
    }
    if orbit.symmetry.frame_parameters:
        found["unit gains"] = lambda: unit_gains(orbit.symmetry, params)
    if any(isinstance(s.group, GeneralLinear) for s in orbit.symmetry.spaces.values()):
        found["random rotation"] = lambda: rotated(orbit, params, random_rotation(generator()))
        found["Hadamard rotation"] = lambda: rotated(orbit, params, hadamard(generator()))
    return found
