"""`audit`: how many directions leave the function unchanged, and how many of them are explained.

    nullity     dimension of the null space of the Jacobian over generic inputs, at the given θ
    explained   dimension of the span of the derived symmetry's velocities and the dead parameters
    unexplained nullity − explained, and the tensors in which those directions live

The audit is at the given parameters. Freshly initialised ones are often not generic (zero biases,
unit gains), and then both numbers may be larger or smaller than at trained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from paramsym.structure.rank import Gap, find_gap, matrix_rank
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent
from paramsym.tracing.find import find_symmetry
from paramsym.tracing.jacobian import Cost, Network, cost_of, triangular_jacobian
from paramsym.tracing.record import Inputs

_ROUNDS = 6  # of further inputs, until they confirm the null space
_ROUNDING = 1e-12  # a column this small next to the largest is a dead parameter, rounded


class AuditTooLarge(ValueError):
    """The dense decomposition behind an audit would exceed the limit."""


@dataclass(frozen=True)
class Audit:
    """What `audit` measured.

    `where` gives, for each tensor, its share of the squared norm of the unexplained directions;
    it is empty where everything is explained. `residual` is the largest derivative of the outputs
    along an explained direction of unit length, relative to the largest along any direction: it
    is rounding where the symmetry is sound and exact.
    """

    parameters: int
    nullity: int
    explained: int
    dead: int
    gap: Gap
    residual: float
    cost: Cost
    where: dict[str, float] = field(default_factory=dict)
    singular_values: torch.Tensor = field(default_factory=lambda: torch.zeros(0), repr=False)

    @property
    def unexplained(self) -> int:
        """Directions that leave the function unchanged and that no known family accounts for."""
        return self.nullity - self.explained

    @property
    def tolerance(self) -> float:
        """Singular values below this share of the largest count as zero."""
        return self.gap.tolerance

    def __str__(self) -> str:
        lines = [
            f"{self.parameters} parameters, {self.nullity} redundant directions",
            f"  explained    {self.explained}",
            f"  unexplained  {self.unexplained}",
            f"  dead         {self.dead} parameters (among the redundant directions)",
            f"  gap          {self.gap}",
            f"  residual     {self.residual:.1e} along explained directions",
        ]
        shares = sorted(self.where.items(), key=lambda item: -item[1])
        lines += [f"  {share:6.1%}  {name}" for name, share in shares if share > 1e-3]
        return "\n".join(lines)


def audit_cost(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    samples: int | None = None,
) -> Cost:
    """What `audit` would take: parameters, bytes, and an estimate of the seconds."""
    generator = torch.Generator().manual_seed(0)
    return cost_of(Network(model, inputs, outputs, training, generator), samples)


def audit(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    symmetry: ParameterSymmetry | None = None,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
    limit: int = 8000,
    samples: int | None = None,
    tolerance: float = 1e-5,
) -> Audit:
    """Count the parameter directions that leave the function unchanged; explain them.

    The Jacobian of the outputs over fresh random inputs of the given shapes is taken in float64,
    upcasts lifted. Columns that are zero (below 1e-12 of the largest) are dead parameters; the
    others are scaled to unit length, which changes no dimension, before their singular values are
    computed. Further inputs, each time twice as large, must then confirm the null directions, or
    they are added: a ReLU that stayed on one side is not counted as a symmetry.

    Args:
        model: any module; it keeps its parameters, mode and dtype.
        inputs: a tuple or a dict of keyword arguments, as for `find_symmetry`.
        symmetry: what should explain the nullity; derived from the model by default.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: audit the function of the training mode.
        generator: source of the inputs; by default one with seed 0.
        limit: the largest number of parameters for which the dense decomposition is tried.
        samples: number of calls with fresh inputs; by default enough for 1.3 output entries
            per parameter, and four at least.
        tolerance: singular values are searched for a gap below this share of the largest.

    Raises:
        AuditTooLarge: the model has more parameters than `limit`.
    """
    generator = generator or torch.Generator().manual_seed(0)
    network = Network(model, inputs, outputs, training, generator)
    cost = cost_of(network, samples)
    if network.count > limit:
        raise AuditTooLarge(
            f"audit(model={type(model).__name__}, limit={limit}): the model has {network.count} "
            f"parameters, and at most {limit} were expected, since the decomposition is dense. "
            f"It would need {cost}. Audit a smaller model of the same architecture, or pass "
            f"limit={network.count} to go on."
        )
    symmetry = symmetry or find_symmetry(model, inputs, outputs, training)
    factor = triangular_jacobian(network, cost.calls, cost.rows)
    for _ in range(_ROUNDS):
        alive, null, gap, values = _null_space(factor, tolerance)
        network.spread *= 2
        fresh = triangular_jacobian(network, max(1, cost.calls // 4), cost.rows)
        if _vanish(fresh, alive, null, gap):
            break
        factor = torch.linalg.qr(torch.cat([factor, fresh]), mode="r").R
    dead = int((~alive).sum())
    nullity = dead + null.shape[1]

    directions = _explained_directions(symmetry, network, alive)
    explained = dead + directions.shape[1]
    residual = _residual(factor[:, alive], directions)
    where = {}
    if nullity > explained:
        where = _shares(network, alive, null, directions, nullity - explained)
    return Audit(
        network.count, nullity, explained, dead, gap, residual, cost, where, values
    )


def _null_space(
    factor: torch.Tensor, tolerance: float
) -> tuple[torch.Tensor, torch.Tensor, Gap, torch.Tensor]:
    """(live columns, null directions over them, gap, singular values)."""
    norms = torch.linalg.vector_norm(factor, dim=0)
    alive = norms > _ROUNDING * norms.max()
    scale = norms[alive]
    _, values, right = torch.linalg.svd(factor[:, alive] / scale, full_matrices=True)
    values = torch.cat([values, values.new_zeros(len(right) - len(values))])
    gap = find_gap(values, tolerance)
    null = right[gap.rank :].T / scale[:, None]  # back to unscaled coordinates: (alive, nullity)
    return alive, torch.linalg.qr(null).Q, gap, values


def _vanish(fresh: torch.Tensor, alive: torch.Tensor, null: torch.Tensor, gap: Gap) -> bool:
    """Whether inputs that had no part in finding the null directions confirm them."""
    norms = torch.linalg.vector_norm(fresh, dim=0)
    if bool((norms[~alive] > _ROUNDING * norms.max()).any()):
        return False
    if not null.shape[1]:
        return True
    along = torch.linalg.vector_norm(fresh[:, alive] @ null, dim=0).max()
    return float(along / torch.linalg.matrix_norm(fresh, 2)) < max(1e-9, 10 * gap.tolerance)


def _explained_directions(
    symmetry: ParameterSymmetry, network: Network, alive: torch.Tensor
) -> torch.Tensor:
    """An orthonormal basis of the velocities of live parameters that leave buffers where they are.

    For the generators G = [live parameters | buffers], these are the live parts of the
    combinations c with cᵀ G_buffers = 0.
    """
    operator = tangent(symmetry, network.state)
    places, start = {}, 0
    for name in network.names:
        size = network.state[name].numel()
        places[name] = slice(start, start + size)
        start += size
    dense = operator.dense()
    live = torch.zeros(len(dense), start, dtype=dense.dtype)
    held = []
    for name, columns in operator.columns.items():
        if name in places:
            live[:, places[name]] = dense[:, columns].cpu()
        else:
            held.append(dense[:, columns].cpu())
    live = live[:, alive]
    if held and len(dense):
        buffers = torch.cat(held, dim=1)
        if bool((buffers != 0).any()):
            left, values, _ = torch.linalg.svd(buffers, full_matrices=True)
            live = left[:, find_gap(values, 1e-9).rank :].T @ live
    size = torch.linalg.vector_norm(live, dim=1)
    live = live[size > 1e-9 * float(size.max() if len(size) else 0)]
    if not len(live):
        return torch.zeros(live.shape[1], 0, dtype=torch.float64)
    live = live / torch.linalg.vector_norm(live, dim=1, keepdim=True)
    rank = matrix_rank(live).rank
    _, _, right = torch.linalg.svd(live, full_matrices=False)
    return right[:rank].T


def _residual(factor: torch.Tensor, directions: torch.Tensor) -> float:
    if not directions.shape[1]:
        return 0.0
    along = torch.linalg.vector_norm(factor @ directions, dim=0).max()
    return float(along / torch.linalg.matrix_norm(factor, 2))


def _shares(
    network: Network,
    alive: torch.Tensor,
    null: torch.Tensor,
    directions: torch.Tensor,
    count: int,
) -> dict[str, float]:
    """Which tensors the null directions orthogonal to the explained ones live in."""
    rest = null - directions @ (directions.T @ null)
    left, _, _ = torch.linalg.svd(rest, full_matrices=False)
    energy = torch.zeros(len(alive), dtype=torch.float64)
    energy[alive] = left[:, :count].square().sum(1) / count
    sizes = [network.state[name].numel() for name in network.names]
    return {
        name: float(part.sum())
        for name, part in zip(network.names, energy.split(sizes), strict=True)
    }
