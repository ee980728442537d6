"""`audit`: is everything that leaves the function unchanged accounted for? A certificate, or what
is missing.

    nullity     dimension of the null space of the Jacobian over generic inputs, at the given θ
    explained   how much of it the derived symmetry's velocities and the dead parameters span
    unexplained the rest: in which tensors it lives, and what it does there
    refuted     spaces and shifts with a velocity that does change the outputs
    undecided   those with a velocity along parameters whose derivatives are below rounding

The audit is at the given parameters. Freshly initialised ones are often not generic (zero biases,
unit gains), and then the numbers may be larger or smaller than at trained ones. Two kinds of
unexplained directions belong to no family, because they come and go with the parameters: what is
flat since a ReLU opens only where the others do not switch (Grigsby, Lindsey and Rolnick, Hidden
symmetries of ReLU networks, 2023), and what is flat since a part of the network sees only the
few vectors of a token table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramsym.arguments import module_of
from paramsym.checking.bench import progress
from paramsym.checking.beside import refuted_beside
from paramsym.checking.borne_out import is_denied
from paramsym.checking.certificate import FALSE, LOOSE, Certificate, certify
from paramsym.checking.claimed import AND, Claimed, claimed_directions, places_of
from paramsym.checking.cost import Cost, Meter, cost_of, plan_of
from paramsym.checking.derivative import Derivative, check_derivative
from paramsym.checking.find import find_symmetry
from paramsym.checking.hidden import numbers_of
from paramsym.checking.hunt import Hunted, hunt
from paramsym.checking.jacobian import Network, jacobian, planned
from paramsym.checking.twin import (
    FullSize,
    Twin,
    at_generic_weights,
    pair_of,
    require_twin,
    structure_of,
)
from paramsym.checking.unexplained import Unexplained, describe, sparse
from paramsym.recording.precision import converted_inputs
from paramsym.recording.record import Inputs
from paramsym.structure.axes import spaces_of
from paramsym.structure.counting import generic_dimension
from paramsym.structure.rank import Gap
from paramsym.structure.symmetry import ParameterSymmetry

LIMIT = 20_000  # parameters; about four minutes and six gigabytes


class AuditTooLarge(ValueError):
    """The factorisation behind an audit would exceed the limit."""


@dataclass(frozen=True)
class Audit:
    """What `audit` measured.

    `undeclared` counts dead parameters that the symmetry does not list (a table row that these
    inputs never reach, a ReLU that never opens); they are dead at the given parameters all the
    same, and count as explained. `refuted` gives the spaces and shifts that claim to keep the
    function and do not, with the derivative of the outputs along the worst unit direction of each,
    relative to the largest along any; `approximate` the same for those that claim it only up to a
    small error, and keep within 1e-5. `undecided` are those that reach into parameters whose
    derivatives are below rounding here (1e-12 of the largest): neither refuted nor confirmed.
    `residual` is that number for all directions that count as explained: it is rounding where the
    symmetry is exact. `gap` stands between a lower bound of the smallest singular value of the
    Jacobian beside the explained directions, and what is noise: `residual`, or the rounding of the
    elimination. `hunted` directions looked flat at first, and further inputs refuted them.
    `suspects` say what the unexplained directions do, and `where` gives, for each tensor, its share
    of their squared norm. `derivative` compares autograd with finite differences. Where a twin was
    audited, all numbers are the twin's, and `full` says of what model, with the dimension of its
    symmetry.
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
    suspects: tuple[Unexplained, ...] = ()
    refuted: dict[str, float] = field(default_factory=dict)
    approximate: dict[str, float] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    hunted: int = 0
    derivative: Derivative = field(default_factory=lambda: Derivative(0.0))
    singular_values: torch.Tensor = field(default_factory=lambda: torch.zeros(0), repr=False)
    full: FullSize | None = None

    @property
    def unexplained(self) -> int:
        """Directions that leave the function unchanged and that no known family accounts for."""
        return self.nullity - self.explained

    @property
    def tolerance(self) -> float:
        """Singular values below this share of the largest count as zero."""
        return self.gap.tolerance

    @property
    def complete(self) -> bool:
        """Certified complete at these weights and inputs: all is explained, all claims hold."""
        trusted = not self.derivative.wrong and not self.undecided
        jumped = self.derivative.jumps and bool(self.undeclared)
        return not self.unexplained and not self.refuted and trusted and not jumped

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against the numbers themselves, in sentences; empty where nothing does."""
        found = [
            f"{name} is refuted: a unit direction of it changes the outputs by {residual:.1e}, "
            f"and at most {FALSE:.0e} was expected ({LOOSE:.0e} of what is approximate)"
            for name, residual in self.refuted.items()
        ]
        found += [
            f"{name} is approximate: a unit direction of it changes the outputs by {residual:.1e}"
            for name, residual in self.approximate.items()
        ]
        found += [
            f"{name} is not decidable here: it moves parameters along which the outputs change by "
            "less than rounding, though they change; verify it, or audit at other weights"
            for name in self.undecided
        ]
        if self.derivative.wrong:
            found.append(
                "autograd's derivative is not the function's: finite differences differ by "
                f"{self.derivative.error:.1e} (a hand-written backward?), so that nothing is "
                "certified"
            )
        if self.derivative.jumps:
            found.append(
                f"the outputs jump, by {self.derivative.jump:.1e} of the largest: a derivative "
                "does not see thresholds move, and what is flat to it need not be a symmetry"
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.full is None:
            return self._own_verdict
        if self.complete:
            return f"complete on the twin of {self.parameters:,} parameters; {self.full}"
        return f"on the twin of {self.parameters:,} parameters: {self._own_verdict}"

    @property
    def _own_verdict(self) -> str:
        if self.complete:
            return "certified complete at these weights and inputs"
        if self.refuted:
            return f"refuted: {', '.join(self.refuted)}"
        if self.undecided:
            return f"not decidable here: {', '.join(self.undecided)}"
        if self.derivative.wrong or not self.unexplained:
            return "not certified"
        several = "s are" if self.unexplained > 1 else " is"
        return f"not complete: {self.unexplained} direction{several} unexplained"

    def __str__(self) -> str:
        lines = [
            f"{self.parameters} parameters, {self.nullity} redundant directions",
            f"  explained    {self.explained}",
            f"  unexplained  {self.unexplained}",
            f"  dead         {self.dead} parameters, {self.undeclared} of them not declared",
            f"  gap          {self.gap}",
            f"  residual     {self.residual:.1e} along explained directions",
            f"  {self.verdict}",
        ]
        lines += [f"  {doubt}" for doubt in self.doubts]
        lines += [f"  {suspect}" for suspect in self.suspects]
        shares = sorted(self.where.items(), key=lambda item: -item[1])
        lines += [f"  {share:6.1%}  {name}" for name, share in shares if share > 1e-3]
        return "\n".join(lines)


def audit_cost(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    symmetry: ParameterSymmetry | None = None,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    samples: int | None = None,
) -> Cost:
    """What `audit` would take: parameters, bytes, and an estimate of the seconds."""
    model = module_of(model)
    generator = torch.Generator().manual_seed(0)
    network = Network(model, inputs, outputs, training, generator)
    symmetry = symmetry or find_symmetry(model, inputs, outputs, training)
    return cost_of(network, generic_dimension(symmetry, network.state).value, samples)


def audit(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    symmetry: ParameterSymmetry | None = None,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
    limit: int = LIMIT,
    samples: int | None = None,
    tolerance: float = 1e-8,
    twin: Twin | None = None,
) -> Audit:
    """Certify that a symmetry accounts for every direction that leaves the function unchanged.

    The Jacobian J of the outputs over fresh random inputs of the given shapes is taken in float64,
    upcasts lifted. Columns that are zero (below 1e-12 of the largest) are dead parameters; the
    others are scaled to unit length, which changes no dimension. Along the symmetry's velocities T,
    J must be rounding; beside them it must have full column rank. What these inputs do not tell
    from zero is hunted by further, more extreme ones: a ReLU that stayed on one side is not counted
    as a symmetry. What they confirm is unexplained, and is named.

    What a claim does to buffers is no direction of the parameters: such claims are tried by finite
    differences along both, and refuted where the outputs change. A parameter that is not trained
    and turns pairs of coordinates, as a table of rotary sines, counts as a buffer.

    A model that is too large, or on the meta device, is audited by its twin: a small model of the
    same architecture, accepted only if its symmetry is the model's with other sizes. The twin is
    audited at generic weights; that is proof for the twin, and evidence for the model.

    What takes longer than two seconds shows its progress on standard error; an interrupt is noticed
    within about a second.

    Args:
        model: any module; it keeps its parameters, mode and dtype.
        inputs: a tuple or a dict of keyword arguments, as for `find_symmetry`.
        symmetry: what should explain the nullity; derived from the model by default.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: audit the function of the training mode.
        generator: source of the inputs; by default one with seed 0.
        limit: the largest number of parameters for which the factorisation is tried.
        samples: number of calls with fresh inputs; by default enough for 1.1 rows for each
            direction that is not claimed, a quarter as many from a call as it has outputs, and
            128 at least.
        tolerance: singular values are searched for a gap below this share of the largest.
        twin: what is audited in the place of the model: a module that takes the same inputs, or a
            pair of a module and its inputs.

    Raises:
        AuditTooLarge: what is audited has more parameters than `limit`.
        NotDifferentiable: the backward pass of the model fails.
        NotATwin: the symmetry of the twin is another than the model's; the message names how.
        NotFinite: weights or derivatives are not numbers.
        ValueError: the symmetry moves inputs or outputs.
    """
    model = module_of(model)
    generator = generator or torch.Generator().manual_seed(0)
    if twin is not None:
        full, small, its_inputs, symmetry = _in_its_place(
            model, inputs, twin, symmetry, outputs, training, generator
        )
        found = audit(
            small, its_inputs, symmetry=symmetry, outputs=outputs, training=training,
            generator=generator, limit=limit, samples=samples, tolerance=tolerance,
        )  # fmt: skip
        return replace(found, full=full)
    network = Network(model, inputs, outputs, training, generator)
    symmetry = symmetry or find_symmetry(model, inputs, outputs, training)
    _require_closed(model, symmetry)
    network.also_at(symmetry.checked.lengths if symmetry.checked else ())
    claims = min(generic_dimension(symmetry, network.state).value, network.count)
    cost = cost_of(network, claims, samples)
    if network.count > limit:
        raise AuditTooLarge(
            f"audit(model={type(model).__name__}, limit={limit}): the model has {network.count} "
            f"parameters, and at most {limit} were expected, since the factorisation is dense. "
            f"It would need {cost}. Audit a smaller model of the same architecture in its place, "
            f"twin=…, or pass limit={network.count} (--limit {network.count}) to go on."
        )
    claimed = claimed_directions(symmetry, network)
    approximate = {name for name, space in symmetry.spaces.items() if not space.exact}
    inexact = {name for name in claimed.names if approximate & set(name.split(AND))}
    with progress(100, "audit") as step:
        meter = Meter(cost, step)
        found = certify(  # the rows have no other owner: they are overwritten, and freed early
            _enough_rows(network, cost, claimed, samples, meter),
            claimed, inexact, tolerance, meter.operations, numbers_of(network),
        )  # fmt: skip
        noise = {n for n in found.refuted - inexact if not is_denied(network, claimed.of(n))}
        found = found.without(noise)
        hunted = hunt(network, found, cost.outputs, step)
        flat = bool(hunted.unexplained.shape[1] or hunted.undeclared)
        derivative = check_derivative(network, flat)
    result = _result(network, found, hunted, claimed, inexact, derivative, cost)
    refuted = {**result.refuted, **refuted_beside(network, symmetry)}
    undecided = tuple(name for name in result.undecided if name not in refuted)
    return replace(result, refuted=refuted, undecided=undecided)


def _in_its_place(
    model: torch.nn.Module, inputs: Inputs, twin: Twin, symmetry: ParameterSymmetry | None,
    outputs: Callable[[Any], Any] | None, training: bool, generator: torch.Generator,
) -> tuple[FullSize, torch.nn.Module, Inputs, ParameterSymmetry]:  # fmt: skip
    """The model in numbers, and its twin at generic weights, with its inputs and its symmetry."""
    small, its_inputs = pair_of(model, inputs, twin)
    if symmetry is not None:
        _require_closed(model, symmetry)
    large = structure_of(model, inputs, outputs, training, symmetry)
    own = structure_of(small, its_inputs, outputs, training, like=large)
    full = require_twin(model, large, small, own)
    args, kwargs = converted_inputs(its_inputs, torch.float64)  # as its weights will be
    made = at_generic_weights(small, own.symmetry, generator)
    return full, made, kwargs or args, own.symmetry


def _require_closed(model: torch.nn.Module, symmetry: ParameterSymmetry) -> None:
    """Raise a `ValueError` if a symmetry moves inputs or outputs."""
    moving = [
        name
        for name, axes in symmetry.interfaces.items()
        if any(True for axis in axes for _ in spaces_of(axis))
    ]
    if moving:
        raise ValueError(
            f"audit(model={type(model).__name__}, symmetry=…): the symmetry moves {moving[:8]} "
            "with the parameters, but one that leaves inputs and outputs where they are was "
            "expected, since the Jacobian is that of the function of fixed ones. Audit "
            "find_symmetry(model, inputs), without free_inputs=… and free_outputs=…; verify "
            "checks this one."
        )


def _enough_rows(
    network: Network, cost: Cost, claimed: Claimed, samples: int | None, meter: Meter
) -> torch.Tensor:
    """The planned rows, and more where fewer directions are claimed than was thought."""
    share = max(0.0, cost.seconds - meter.spent) / (2 * cost.calls)
    rows = jacobian(network, plan_of(cost), lambda: meter.seconds(share))
    least = planned(network.count - len(claimed.names), cost.outputs, samples)
    missing = least.rows - len(rows)
    if missing > 0 and len(rows) and samples is None:
        more = planned(missing, cost.outputs)
        rows = torch.cat([rows, jacobian(network, more, lambda: None)])
    return rows


def _result(
    network: Network,
    found: Certificate,
    hunted: Hunted,
    claimed: Claimed,
    inexact: set[str],
    derivative: Derivative,
    cost: Cost,
) -> Audit:
    """Count and name what was found."""
    count = hunted.unexplained.shape[1]
    explained = found.claimed + len(hunted.dead) + hunted.revived
    places = places_of(network)
    wrong = {n: found.residuals[n] for n in found.refuted} | hunted.refuted
    loose = {n: r for n, r in wrong.items() if n in inexact and r <= LOOSE}
    right = claimed.rows[[name not in wrong for name in claimed.names]]
    basis = sparse(hunted.unexplained, right) if count else hunted.unexplained
    energy = torch.linalg.qr(basis).Q.square().sum(1) / max(1, count)
    dropped = found.suspects.shape[1] - count
    live = int(found.alive.sum())
    rank = live - found.claimed - count
    values = found.values.clone()
    values[max(0, rank - max(0, dropped)) : rank] = float("nan")  # refuted by further inputs
    values[rank:] = values[rank:].sort(descending=True).values
    return Audit(
        parameters=network.count,
        nullity=explained + count,
        explained=explained,
        dead=len(hunted.dead),
        undeclared=hunted.undeclared,
        gap=Gap(rank, found.above, found.below if count else found.noise),
        residual=found.residual,
        cost=cost,
        where={n: float(energy[p].sum()) for n, p in places.items()} if count else {},
        suspects=describe(basis, {n: network.state[n] for n in network.names}, places),
        refuted={n: r for n, r in wrong.items() if n not in loose},
        approximate=loose,
        undecided=tuple(sorted(found.undecided | _below_rounding(found, hunted))),
        hunted=max(0, dropped),
        derivative=derivative,
        singular_values=values,
    )


def _below_rounding(found: Certificate, hunted: Hunted) -> set[str]:
    """Claims on nothing but small numbers, which no further input brought to light."""
    idle = found.idle.rows[:, torch.isin(found.dead, hunted.dead) & found.hidden[found.dead]]
    return {n for n, row in zip(found.idle.names, idle, strict=True) if bool(row.any())}
