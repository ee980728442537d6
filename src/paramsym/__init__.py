"""Parameter symmetries of neural networks: find them, prove them, move along them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramsym.artefacts.transport import transport as transport
    from paramsym.checking.audit import AuditTooLarge as AuditTooLarge
    from paramsym.checking.audit import audit as audit
    from paramsym.checking.audit import audit_cost as audit_cost
    from paramsym.checking.find import find_symmetry as find_symmetry
    from paramsym.checking.lowering import assert_lowering as assert_lowering
    from paramsym.checking.verify import assert_invariant as assert_invariant
    from paramsym.checking.verify import verify as verify
    from paramsym.checkpoints.twins import twin as twin
    from paramsym.dynamics.conserved import ConservedQuantities as ConservedQuantities
    from paramsym.dynamics.conserved import conserved_quantities as conserved_quantities
    from paramsym.dynamics.counting import LawCount as LawCount
    from paramsym.dynamics.counting import count_conservation_laws as count_conservation_laws
    from paramsym.dynamics.elementwise import unit_quantities as unit_quantities
    from paramsym.dynamics.flow import gradient_flow as gradient_flow
    from paramsym.dynamics.gradients import check_gradients as check_gradients
    from paramsym.dynamics.initial import Initialised as Initialised
    from paramsym.dynamics.initial import initialise_with as initialise_with
    from paramsym.dynamics.ledger import ConservationLedger as ConservationLedger
    from paramsym.dynamics.noether import noether_currents as noether_currents
    from paramsym.dynamics.noether import second_order_flow as second_order_flow
    from paramsym.dynamics.teleportation import teleport as teleport
    from paramsym.geometry.alignment import Aligned as Aligned
    from paramsym.geometry.alignment import align as align
    from paramsym.geometry.balance import balance as balance
    from paramsym.geometry.canonical import Canonical as Canonical
    from paramsym.geometry.canonical import canonicalize as canonicalize
    from paramsym.geometry.fingerprints import Fingerprint as Fingerprint
    from paramsym.geometry.fingerprints import fingerprint as fingerprint
    from paramsym.geometry.reduced import Reduced as Reduced
    from paramsym.geometry.reduced import reduce as reduce
    from paramsym.geometry.result import Balanced as Balanced
    from paramsym.geometry.same_orbit import Verdict as Verdict
    from paramsym.geometry.same_orbit import same_orbit as same_orbit
    from paramsym.lowering import rule as rule
    from paramsym.merging.adapters import merge_adapters as merge_adapters
    from paramsym.merging.interpolation import interpolate as interpolate
    from paramsym.merging.interpolation import loss_barrier as loss_barrier
    from paramsym.merging.merge import merge as merge
    from paramsym.merging.readings import readings as readings
    from paramsym.origin.comparing import compare as compare
    from paramsym.origin.comparison import Comparison as Comparison
    from paramsym.primitives import Primitive as Primitive
    from paramsym.quantize.errors import (
        minimize_quantization_error as minimize_quantization_error,
    )
    from paramsym.quantize.preparing import prepare_for_quantization as prepare_for_quantization
    from paramsym.quantize.ranges import minimize_range as minimize_range
    from paramsym.recording.refusals import TraceError as TraceError
    from paramsym.structure.action import act as act
    from paramsym.structure.action import act_dual as act_dual
    from paramsym.structure.action import act_tensor as act_tensor
    from paramsym.structure.action import infinitesimal as infinitesimal
    from paramsym.structure.element import AlgebraElement as AlgebraElement
    from paramsym.structure.element import GroupElement as GroupElement
    from paramsym.structure.feature import Feature as Feature
    from paramsym.structure.gains import unit_gains as unit_gains
    from paramsym.structure.gram import gram as gram
    from paramsym.structure.interfaces import act_inputs as act_inputs
    from paramsym.structure.interfaces import act_outputs as act_outputs
    from paramsym.structure.moment import moment_map as moment_map
    from paramsym.structure.orbit import orbit_dimension as orbit_dimension
    from paramsym.structure.polar import polar as polar
    from paramsym.structure.shift import Shift as Shift
    from paramsym.structure.space import Space as Space
    from paramsym.structure.state import act_state as act_state
    from paramsym.structure.symmetry import ParameterSymmetry as ParameterSymmetry
    from paramsym.structure.symmetry import blocks as blocks
    from paramsym.structure.tangent import tangent as tangent
    from paramsym.training.penalty import orbit_penalty as orbit_penalty
    from paramsym.training.rebalance import Rebalance as Rebalance
    from paramsym.training.result import Rebalanced as Rebalanced

__version__ = "0.1.0"

# Imported when first used, so that `paramsym --help` need not wait for torch.
_HOMES = {
    "act": "paramsym.structure.action",
    "act_dual": "paramsym.structure.action",
    "act_tensor": "paramsym.structure.action",
    "act_inputs": "paramsym.structure.interfaces",
    "act_outputs": "paramsym.structure.interfaces",
    "act_state": "paramsym.structure.state",
    "infinitesimal": "paramsym.structure.action",
    "AlgebraElement": "paramsym.structure.element",
    "GroupElement": "paramsym.structure.element",
    "ParameterSymmetry": "paramsym.structure.symmetry",
    "blocks": "paramsym.structure.symmetry",
    "Feature": "paramsym.structure.feature",
    "gradient_flow": "paramsym.dynamics.flow",
    "gram": "paramsym.structure.gram",
    "Shift": "paramsym.structure.shift",
    "Space": "paramsym.structure.space",
    "ConservationLedger": "paramsym.dynamics.ledger",
    "minimize_range": "paramsym.quantize.ranges",
    "moment_map": "paramsym.structure.moment",
    "check_gradients": "paramsym.dynamics.gradients",
    "transport": "paramsym.artefacts.transport",
    "teleport": "paramsym.dynamics.teleportation",
    "Aligned": "paramsym.geometry.alignment",
    "align": "paramsym.geometry.alignment",
    "Canonical": "paramsym.geometry.canonical",
    "canonicalize": "paramsym.geometry.canonical",
    "Fingerprint": "paramsym.geometry.fingerprints",
    "fingerprint": "paramsym.geometry.fingerprints",
    "Reduced": "paramsym.geometry.reduced",
    "reduce": "paramsym.geometry.reduced",
    "Verdict": "paramsym.geometry.same_orbit",
    "same_orbit": "paramsym.geometry.same_orbit",
    "Balanced": "paramsym.geometry.result",
    "balance": "paramsym.geometry.balance",
    "Comparison": "paramsym.origin.comparison",
    "compare": "paramsym.origin.comparing",
    "minimize_quantization_error": "paramsym.quantize.errors",
    "noether_currents": "paramsym.dynamics.noether",
    "second_order_flow": "paramsym.dynamics.noether",
    "unit_quantities": "paramsym.dynamics.elementwise",
    "prepare_for_quantization": "paramsym.quantize.preparing",
    "ConservedQuantities": "paramsym.dynamics.conserved",
    "conserved_quantities": "paramsym.dynamics.conserved",
    "LawCount": "paramsym.dynamics.counting",
    "count_conservation_laws": "paramsym.dynamics.counting",
    "Initialised": "paramsym.dynamics.initial",
    "initialise_with": "paramsym.dynamics.initial",
    "orbit_dimension": "paramsym.structure.orbit",
    "polar": "paramsym.structure.polar",
    "tangent": "paramsym.structure.tangent",
    "unit_gains": "paramsym.structure.gains",
    "interpolate": "paramsym.merging.interpolation",
    "loss_barrier": "paramsym.merging.interpolation",
    "merge": "paramsym.merging.merge",
    "merge_adapters": "paramsym.merging.adapters",
    "readings": "paramsym.merging.readings",
    "orbit_penalty": "paramsym.training.penalty",
    "Rebalance": "paramsym.training.rebalance",
    "Rebalanced": "paramsym.training.result",
    "TraceError": "paramsym.recording.refusals",
    "find_symmetry": "paramsym.checking.find",
    "Primitive": "paramsym.primitives",
    "rule": "paramsym.lowering",
    "AuditTooLarge": "paramsym.checking.audit",
    "audit": "paramsym.checking.audit",
    "audit_cost": "paramsym.checking.audit",
    "assert_invariant": "paramsym.checking.verify",
    "assert_lowering": "paramsym.checking.lowering",
    "twin": "paramsym.checkpoints.twins",
    "verify": "paramsym.checking.verify",
}
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


_ROOMS = {
    "algebra", "structure", "recording", "primitives", "lowering", "tracing", "checking",
    "geometry", "quantize", "dynamics", "merging",
    "origin", "training", "waring", "discovery", "ensembles", "privacy", "interop", "artefacts",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"paramsym.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'paramsym' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    value = globals()[name] = import_module("paramsym.arguments").at("paramsym", name, found)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
