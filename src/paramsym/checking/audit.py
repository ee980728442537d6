"""`audit`: how many directions leave the function unchanged, and how many of them are explained.

    nullity     dimension of the null space of the Jacobian over generic inputs, at the given θ
    explained   dimension of the span of the derived symmetry's velocities and the dead parameters
    unexplained nullity − explained, and the tensors in which those directions live

The audit is at the given parameters. Freshly initialised ones are often not generic (zero biases,
unit gains), and then both numbers may be larger or smaller than at trained ones. Two kinds of
unexplained directions belong to no family, because they come and go with the parameters: what is
flat since a ReLU opens only where the others do not switch (Grigsby, Lindsey and Rolnick, Hidden
symmetries of ReLU networks, 2023), and what is flat since a part of the network sees only the
few vectors of a token table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from paramsym.checking.find import find_symmetry
from paramsym.checking.jacobian import Cost, Network, cost_of
from paramsym.checking.nullspace import complement, confirmed_null_space
from paramsym.recording.record import Inputs
from paramsym.structure.axes import AxisType, spaces_of
from paramsym.structure.rank import Gap, find_gap
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import real_entries, tangent


class AuditTooLarge(ValueError):
    """The dense decomposition behind an audit would exceed the limit."""


@dataclass(frozen=True)
class Audit:
    """What `audit` measured.

    `undeclared` counts dead parameters that the symmetry does not list (a table row that these
    inputs never reach, a ReLU that never opens); they are dead at the given parameters all the
    same, and count as explained. `where` gives, for each tensor, its share of the squared norm of
    the unexplained directions; it is empty where everything is explained. `residual` is the
    largest derivative of the outputs along an explained direction of unit length, relative to the
    largest along any direction: it is rounding where the symmetry is sound and exact.
    """

    parameters: int
    nullity: int
    explained: int
    dead: int
    undeclared: int
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
            f"  dead         {self.dead} parameters, {self.undeclared} of them not declared",
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
        samples: number of calls with fresh inputs; by default enough for 1.5 rows
            per parameter, and 32 at least.
        tolerance: singular values are searched for a gap below this share of the largest.

    Raises:
        AuditTooLarge: the model has more parameters than `limit`.
        ValueError: the symmetry moves inputs or outputs.
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
    _require_closed(model, symmetry)
    known = _known_directions(symmetry, network)
    factor, null = confirmed_null_space(network, cost, known, tolerance)
    alive = null.alive
    basis, sizes, _ = torch.linalg.svd(known[alive], full_matrices=False)
    directions = basis[:, sizes > 1e-7]  # known directions over the live parameters alone
    unit = torch.eye(network.count, dtype=torch.float64)[:, ~alive]
    dead, nullity = unit.shape[1], null.directions.shape[1]
    explained = dead + directions.shape[1]
    where = {}
    if nullity > explained:
        padded = torch.zeros(network.count, directions.shape[1], dtype=torch.float64)
        padded[alive] = directions
        where = _shares(network, complement(null.directions, torch.cat([unit, padded], dim=1)))
    undeclared = complement(unit, known).shape[1]
    residual = _residual(factor[:, alive], directions)
    return Audit(
        network.count,
        nullity,
        explained,
        dead,
        undeclared,
        null.gap,
        residual,
        cost,
        where,
        null.values,
    )


def _require_closed(model: torch.nn.Module, symmetry: ParameterSymmetry) -> None:
    """Raise a `ValueError` if a symmetry moves inputs or outputs."""
    moving = [name for name, axes in symmetry.interfaces.items() if any(map(_carries, axes))]
    if moving:
        raise ValueError(
            f"audit(model={type(model).__name__}, symmetry=…): the symmetry moves {moving[:8]} "
            "with the parameters, but one that leaves inputs and outputs where they are was "
            "expected, since the Jacobian is that of the function of fixed ones. Audit "
            "find_symmetry(model, inputs), without free_inputs=… and free_outputs=…; verify "
            "checks this one."
        )


def _carries(axis: AxisType) -> bool:
    return any(True for _ in spaces_of(axis))


def _known_directions(symmetry: ParameterSymmetry, network: Network) -> torch.Tensor:
    """An orthonormal basis of what the symmetry declares, with buffers left where they are.

    For the generators G = [parameters | buffers], these are the parameter parts of the
    combinations c with cᵀ G_buffers = 0, together with the parameters that are declared dead.
    """
    operator = tangent(symmetry, network.state)
    places, start = {}, 0
    for name in network.names:
        size = real_entries(network.state[name])
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
    if held and len(dense):
        buffers = torch.cat(held, dim=1)
        if bool((buffers != 0).any()):
            left, values, _ = torch.linalg.svd(buffers, full_matrices=True)
            live = left[:, find_gap(values, 1e-9).rank :].T @ live
    declared = [k for n in symmetry.dead if n in places for k in range(start)[places[n]]]
    return _span(torch.cat([live, torch.eye(start, dtype=live.dtype)[declared]]))


def _span(rows: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis, as columns, of the span of rows of comparable size."""
    size = torch.linalg.vector_norm(rows, dim=1)
    rows = rows[size > 1e-9 * (float(size.max()) if len(size) else 0.0)]
    if not len(rows):
        return rows.new_zeros(rows.shape[1], 0)
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    return right[: find_gap(values, 1e-7).rank].T


def _residual(factor: torch.Tensor, directions: torch.Tensor) -> float:
    if not directions.shape[1]:
        return 0.0
    along = torch.linalg.vector_norm(factor @ directions, dim=0).max()
    return float(along / torch.linalg.matrix_norm(factor, 2))


def _shares(network: Network, rest: torch.Tensor) -> dict[str, float]:
    """In which tensors directions live: shares of their squared norm."""
    energy = rest.square().sum(1) / max(1, rest.shape[1])
    sizes = [real_entries(network.state[name]) for name in network.names]
    return {
        name: float(part.sum())
        for name, part in zip(network.names, energy.split(sizes), strict=True)
    }
