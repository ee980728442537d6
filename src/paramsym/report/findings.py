"""Everything that is known about one model, gathered once and shown in several ways."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints import CheckpointError, Source
from paramsym.checkpoints.smallest import has_configuration
from paramsym.report.moved_weight import MovedWeight, moved_weight
from paramsym.report.run import calls_of, input_texts
from paramsym.structure.counting import Count, generic_dimension
from paramsym.structure.orbit import OrbitTooLarge, orbit_dimension
from paramsym.structure.symmetry import ParameterSymmetry

COUNT_LIMIT = 300_000  # parameters up to which the orbit dimension is computed at the weights

LARGE = 5_000_000  # parameters from which on only some spaces are verified one by one


@dataclass(frozen=True)
class Findings:
    """The symmetry of a model, and how well it is proved.

    `redundant` counts independent directions along which the parameters can move without changing
    the function, at the given weights or at generic ones, as `counted` says. It is exact, or an
    upper bound that says which families may overlap. `tensors` are the parameters and buffers
    without their numbers. `copies` is log₁₀ of the number of equivalent copies by discrete moves.
    `order` names modules as they are called, `inputs` says with what, `seed` is that of the random
    moves, and `example` a weight before and after one of them.
    """

    source: str
    model: str
    symmetry: ParameterSymmetry
    tensors: dict[str, torch.Tensor]
    parameters: int
    redundant: Count
    counted: str
    copies: float
    seconds: float
    training: bool = False
    verification: Any = None
    audit: Any = None
    audit_refused: str = ""
    order: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    seed: int = 0
    example: MovedWeight | None = None

    @property
    def share(self) -> float:
        """Redundant directions per parameter."""
        return self.redundant.value / max(1, self.parameters)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter and buffer."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


def examine(
    checkpoint: Source,
    verify: bool = True,
    audit: bool = False,
    training: bool = False,
    generator: torch.Generator | None = None,
    limit: int | None = None,
) -> Findings:
    """Find the symmetry of a checkpoint, and prove and audit it as asked.

    `limit` is the largest number of parameters that is audited, by default that of `audit`. A model
    of transformers that is larger, or has no weights, is audited by its twin.

    Raises:
        CheckpointError: a proof was asked for, but the model has no weights.
        TraceError: the model cannot be traced with its inputs.
    """
    verify = _can_verify(checkpoint, verify, audit)
    if training and checkpoint.fixed_mode:
        raise CheckpointError(
            f"{checkpoint.label} --training", "a program, whose mode was fixed by its export",
            "a folder or a factory", "Export the model in training mode, and leave the option out",
        )  # fmt: skip
    model, inputs = checkpoint.model, checkpoint.inputs
    generator = generator or torch.Generator().manual_seed(0)
    find_symmetry(torch.nn.LayerNorm(2), (torch.ones(1, 2),))  # whose imports are no work
    start = time.process_time()
    with calls_of(model) as order:
        symmetry = find_symmetry(model, inputs, training=training)
    seconds = time.process_time() - start
    verification = audited = None
    refused = ""
    if verify:
        from paramsym.checking.verify import verify as run_verify

        verification = run_verify(
            model, symmetry, inputs, training=training, generator=generator,
            limit=200 if checkpoint.parameters <= LARGE else 24,
        )  # fmt: skip
    if audit:
        audited, refused = _audited(checkpoint, symmetry, training, generator, limit)
    state = checkpoint.state()
    redundant, counted = _redundant(checkpoint, symmetry, state)
    return Findings(
        checkpoint.label, type(model).__name__, symmetry,
        {name: tensor.detach().to("meta") for name, tensor in state.items()},
        checkpoint.parameters, redundant, counted, symmetry.log_order(), seconds, training,
        verification, audited, refused, tuple(order), tuple(input_texts(inputs)),
        generator.initial_seed(), moved_weight(symmetry, state) if verify else None,
    )  # fmt: skip


def _can_verify(checkpoint: Source, verify: bool, audit: bool) -> bool:
    """Whether moves are to be measured, which needs weights; the audit of a twin needs none."""
    if checkpoint.has_weights or not (verify or audit):
        return verify
    if not (audit and has_configuration(checkpoint.model)):
        raise CheckpointError(
            checkpoint.label, "a model on the meta device, without numbers",
            "weights, to verify or audit with", "Give --weights FILE, or use --no-verify",
        )  # fmt: skip
    if verify:
        checkpoint.notes.append("without weights no move is measured; the audit is of a twin")
    return False


def _audited(
    checkpoint: Source, symmetry: ParameterSymmetry, training: bool,
    generator: torch.Generator, limit: int | None,
) -> tuple[Any, str]:  # fmt: skip
    """The audit of a model or of its twin, or why there is none."""
    from paramsym.checking.audit import LIMIT, AuditTooLarge
    from paramsym.checking.audit import audit as run_audit
    from paramsym.checking.jacobian import NotFinite
    from paramsym.checking.twin import NotATwin, structure_of
    from paramsym.checkpoints.smallest import NoTwin, smallest_twin

    model, inputs, twin = checkpoint.model, checkpoint.inputs, None
    limit = limit or LIMIT
    large = checkpoint.parameters > limit or not checkpoint.has_weights
    try:
        if large and has_configuration(model):
            structure = structure_of(model, inputs, None, training, symmetry)
            twin = smallest_twin(model, inputs, training=training, structure=structure, limit=limit)
        return run_audit(
            model, inputs, symmetry=symmetry, training=training, generator=generator, limit=limit,
            twin=twin,
        ), ""  # fmt: skip
    except (AuditTooLarge, NotFinite, NotATwin, NoTwin) as error:
        return None, str(error)


def _redundant(
    checkpoint: Source, symmetry: ParameterSymmetry, state: dict[str, torch.Tensor]
) -> tuple[Count, str]:
    if checkpoint.has_weights and checkpoint.parameters <= COUNT_LIMIT:
        try:
            return Count(orbit_dimension(symmetry, state)), "at these weights"
        except OrbitTooLarge:
            pass
    return generic_dimension(symmetry, state), "at generic weights of these shapes"


def to_json(findings: Findings) -> str:
    """All findings as JSON text; `symmetry` is what `ParameterSymmetry.from_json` reads."""
    symmetry = findings.symmetry
    return json.dumps(
        {
            "source": findings.source,
            "model": findings.model,
            "training": findings.training,
            "parameters": findings.parameters,
            "redundant": findings.redundant.value,
            "redundant_counted": findings.counted,
            "redundant_exact": findings.redundant.is_exact,
            "redundant_at_most_because": findings.redundant.why or None,
            "log10_equivalent_copies": findings.copies,
            "seconds": findings.seconds,
            "spaces": [
                {
                    "name": space.name, "group": str(symmetry.group(space.name)),
                    "size": space.size, "over": list(space.over),
                    "dimension": symmetry.dimension(space.name),
                    "exact": space.exact, "why_not_freer": space.why,
                }
                for space in symmetry.spaces.values()
            ],
            "shifts": [
                {
                    "name": s.name, "family": s.family, "dimension": s.dimension,
                    "dimension_exact": s.is_counted,
                    "space": s.space, "kind": s.kind,
                }
                for s in symmetry.shifts
            ],
            "dead": list(symmetry.dead),
            "unknown": dict(symmetry.unknown),
            "random": dict(symmetry.random),
            "probed": dict(symmetry.probed),
            "verification": _verification(findings.verification),
            "audit": _audit(findings.audit),
            "audit_refused": findings.audit_refused or None,
            "symmetry": json.loads(symmetry.to_json()),
        },
        indent=1,
        allow_nan=False,
    )  # fmt: skip


def _verification(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "error": _number(found.error),
        "control": _number(found.control),
        "rows": [{key: _number(value) for key, value in asdict(row).items()} for row in found.rows],
    }


def _audit(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    gap = found.gap
    return {
        "parameters": found.parameters, "nullity": found.nullity, "explained": found.explained,
        "unexplained": found.unexplained, "dead": found.dead,
        "undeclared": found.undeclared, "complete": found.complete, "verdict": found.verdict,
        "doubts": list(found.doubts), "refuted": found.refuted, "approximate": found.approximate,
        "undecided": list(found.undecided),
        "suspects": [{"count": s.count, "moves": dict(s.moves)} for s in found.suspects],
        "hunted": found.hunted, "derivative_error": _number(found.derivative.error),
        "jump": _number(found.derivative.jump),
        "gap": {"above": gap.above, "below": gap.below},
        "tolerance": found.tolerance, "residual": found.residual,
        "where": {name: share for name, share in found.where.items() if share > 1e-6},
        "twin_of": None if found.full is None else {
            "model": found.full.model, "parameters": found.full.parameters,
            "redundant": found.full.redundant.value,
            "redundant_exact": found.full.redundant.is_exact,
        },
        "cost": asdict(found.cost) if is_dataclass(found.cost) else str(found.cost),  # type: ignore[arg-type]
    }  # fmt: skip


def _number(value: Any) -> Any:
    """Values that JSON has: numbers that are not finite become null, other objects text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
