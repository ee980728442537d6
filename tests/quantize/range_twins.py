"""Small nets with scales, and their least range by linear programs with a row for every weight."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array
from torch import nn

from paramsym import ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import ComplexScaling
from paramsym.geometry.costs import scaled_by

State = dict[str, torch.Tensor]
MODELS = ("MLP", "residual MLP", "batch norm")


class Residual(nn.Module):
    """Two blocks around a rectified sum: the graph of scales has cycles without the ground."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.up, self.down = (
            nn.ModuleList(nn.Linear(a, b) for _ in range(2)) for a, b in ((6, 5), (5, 6))
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        for up, down in zip(self.up, self.down, strict=True):
            h = (h + down(up(h).relu())).relu()
        return self.last(h)


class Convolutions(nn.Module):
    """A residual convolutional net with batch norm, which has scales of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        h = (h + self.norm(self.inner(h))).relu()
        return self.last(h.mean((2, 3)))


def built(name: str) -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, State]:
    torch.manual_seed(3)
    model, x = {
        "MLP": lambda: (
            nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2)),
            torch.randn(4, 5),
        ),
        "residual MLP": lambda: (Residual(), torch.randn(4, 4)),
        "batch norm": lambda: (Convolutions(), torch.randn(4, 2, 6, 6)),
    }[name]()
    model, x = model.double().eval(), x.double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_var.uniform_(0.5, 2.0)
    return model, x, find_symmetry(model, (x,), check=False), state_of(model)


def state_of(model: nn.Module) -> State:
    return {
        n: p.detach().double() if p.is_floating_point() else p.clone()
        for n, p in model.state_dict().items()
    }


def ranges(symmetry: ParameterSymmetry, params: State) -> np.ndarray:
    """R⁺ and R⁻ of every parameter, (tensors, 2)."""
    counted = [p for n, p in params.items() if n not in symmetry.buffers and p.is_floating_point()]
    return np.array([[max(float(s * p.max()), 0.0) if s > 0 else max(-float(p.min()), 0.0)
                      for s in (1, -1)] for p in counted])  # fmt: skip


def widest(symmetry: ParameterSymmetry, params: State, objective: str) -> float:
    found = ranges(symmetry, params)
    return float(found.max() if objective == "abs" else found.sum(1).max())


def exponents(
    symmetry: ParameterSymmetry, params: State, spaces: Collection[str] | None = None
) -> tuple[np.ndarray, ...]:
    """By weight: c, log|w|, its tensor, whether it is negative. c is measured by moving.

    Along some spaces, or along all that have scales.
    """
    names = [n for n, p in params.items() if n not in symmetry.buffers and p.is_floating_point()]
    flat = torch.cat([params[n].flatten() for n in names])
    tensor = np.repeat(range(len(names)), [params[n].numel() for n in names])
    columns = []
    for space in symmetry.spaces.values():
        if not _moves(space, spaces):
            continue
        shape = shape_of(symmetry, space.name)
        for unit in torch.eye(math.prod(shape), dtype=torch.float64):
            step = scaled_by(symmetry, {space.name: unit.reshape(shape)})
            moved = act(symmetry, step, params)
            columns.append((torch.cat([moved[n].flatten() for n in names]) / flat).log())
    keep = (flat != 0).numpy()
    c = torch.stack(columns, 1).numpy()[keep] if columns else np.zeros((int(keep.sum()), 0))
    return c, flat.abs().log().numpy()[keep], tensor[keep], (flat < 0).numpy()[keep]


def shape_of(symmetry: ParameterSymmetry, name: str) -> tuple[int, ...]:
    """That of the scales of a space, or its moduli: one for each place that it stands over."""
    space = symmetry.spaces[name]
    size = space.size // 2 if isinstance(space.group, ComplexScaling) else space.size
    return (*(symmetry.spaces[base].size for base in space.over), size)


def _moves(space: Space, spaces: Collection[str] | None) -> bool:
    scaled = bool(getattr(space.group, "scales", False))
    return scaled if spaces is None else space.name in spaces


def tangent(width: int, at: int, pair: np.ndarray) -> tuple[np.ndarray, float]:
    """The tangent of log(e^p + e^n) ≤ τ at a pair (p, n), as a row and its right-hand side."""
    q = np.exp(pair - np.logaddexp(*pair))
    row = np.zeros(width)
    row[at : at + 2], row[-1] = q, -1.0
    return row, float(q @ np.log(q))


def slow_range(
    symmetry: ParameterSymmetry,
    params: State,
    objective: str,
    spaces: Collection[str] | None = None,
    reach: float = 30.0,
) -> float:
    """The least range by linear programs with one row for each weight.

    The variables are y, log R⁺ and log R⁻ by tensor, and τ. log(R⁺ + R⁻) ≤ τ is convex: tangents
    of it are added where it is broken, until it holds. No logarithm of a scale or a range is beyond
    the reach.
    """
    c, size, tensor, negative = exponents(symmetry, params, spaces)
    scales, tensors = c.shape[1], int(tensor.max()) + 1
    width, slot = scales + 2 * tensors + 1, scales + 2 * tensor + negative
    rows = np.zeros((len(c), width))
    rows[:, :scales] = c
    rows[np.arange(len(c)), slot] = -1.0
    right = -size
    present = np.zeros((tensors, 2), dtype=bool)
    present[tensor, negative.astype(int)] = True
    for k in range(2 * tensors):
        row = np.zeros(width)
        row[scales + k], row[-1] = 1.0, -1.0
        rows, right = np.vstack([rows, row]), np.r_[right, 0.0]
    for t in np.flatnonzero(present.all(1)) if objective == "max" else ():
        for odds in np.linspace(-5, 5, 41):
            row, offset = tangent(width, scales + 2 * t, np.array([odds, 0.0]))
            rows, right = np.vstack([rows, row]), np.r_[right, offset]
    bounds = [(-reach, reach)] * (width - 1) + [(-2 * reach, 2 * reach)]
    value = np.r_[np.zeros(width - 1), 1.0]
    for _ in range(200):
        found = linprog(value, csr_array(rows), right, bounds=bounds, method="highs",
                        options={"primal_feasibility_tolerance": 1e-10,
                                 "dual_feasibility_tolerance": 1e-10})  # fmt: skip
        assert found.status == 0
        pairs, tangents = found.x[scales:-1].reshape(-1, 2), []
        if objective == "max":
            for t in np.flatnonzero(present.all(1)):
                if np.logaddexp(*pairs[t]) > found.x[-1] + 1e-10:
                    tangents.append(tangent(width, scales + 2 * t, pairs[t]))
        if not tangents:
            break
        rows = np.vstack([rows, *(row for row, _ in tangents)])
        right = np.r_[right, [offset for _, offset in tangents]]
    return math.exp(found.x[-1])


def matrices_alone(symmetry: ParameterSymmetry, params: State) -> ParameterSymmetry:
    """The symmetry with every gain and bias among the buffers, which move and cost nothing."""
    vectors = [n for n in symmetry.signature if n not in symmetry.buffers and params[n].ndim < 2]
    return replace(symmetry, buffers=(*symmetry.buffers, *vectors))


def scales_of(symmetry: ParameterSymmetry, params: State) -> list[str]:
    return [n for n, s in symmetry.spaces.items() if s.exact and getattr(s.group, "scales", False)]


def moved_at_random(
    symmetry: ParameterSymmetry, params: State, seed: int, spaces: Collection[str] | None = None
) -> State:
    """Log-normal scales, σ = 1, of some spaces or of all exact ones."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name in scales_of(symmetry, params) if spaces is None else spaces:
        shape = shape_of(symmetry, name)
        made[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return act(symmetry, scaled_by(symmetry, made), params)
