"""Whether an artefact went with its model, with the artefact that stayed behind as the control."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.artefacts.artefact import Artefact, Tensors, own
from paramsym.artefacts.merging import merged
from paramsym.artefacts.moving import Mover
from paramsym.recording.precision import functional
from paramsym.recording.record import split_inputs
from paramsym.structure.action import act
from paramsym.structure.axes import spaces_of
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True)
class TransportCheck:
    """What a move did to a model with its artefact.

    Attributes:
        error: the largest difference of an output, relative to the largest output.
        control: the same where the model moved and the artefact did not. Where it is small, too,
            the check shows nothing.
    """

    error: float
    control: float


@torch.no_grad()
def verify_adapter(
    model: torch.nn.Module,
    before: Artefact,
    after: Tensors,
    element: GroupElement,
    inputs: tuple[Any, ...] | Mapping[str, Any],
    params: Tensors | None = None,
) -> TransportCheck:
    """Compare a model with an adapter before and after both have moved.

    Args:
        model: whose outputs are compared, in evaluation mode. It is only read.
        before: the adapter as `recognised` typed it.
        after: its tensors as `transport` moved them.
        element: what moves the model.
        inputs: of the model.
        params: the state dict before the move; by default that of the model. Where it is float64,
            so is all that is computed.

    Raises:
        CheckpointError: the adapter has biases of its own, so that no weights are the model with
            it, or nothing says its scaling.
    """
    theta = dict(model.state_dict()) if params is None else dict(params)
    symmetry = element.symmetry
    assert isinstance(symmetry, ParameterSymmetry)
    apart = _shared(symmetry, before)
    model = _untied(model, apart)
    moved = act(symmetry, element, theta)
    there = Artefact(after, before.types, before.offsets, before.replaces, before.pairs)
    args, kwargs = split_inputs(inputs)

    def outputs(params: Tensors) -> list[torch.Tensor]:
        once = {n: params[n] for n in params if n not in symmetry.ties or n in apart}
        return functional(model, once, args, kwargs)

    first = outputs(merged(before, theta))
    return TransportCheck(
        _apart(first, outputs(merged(there, moved))), _apart(first, outputs(merged(before, moved)))
    )


def _shared(symmetry: ParameterSymmetry, adapter: Artefact) -> list[str]:
    """All names of the tied tensors of which an adapter changes one use."""
    changed = {symmetry.ties.get(name, name) for name in adapter.altered}
    own = {*symmetry.ties.values()} & changed
    return [*own, *(alias for alias, name in symmetry.ties.items() if name in own)]


def _untied(model: torch.nn.Module, names: list[str]) -> torch.nn.Module:
    """The model, or a copy in which these tensors are tensors of their own, as the modules are."""
    model = copy.deepcopy(model) if names else model
    for name in names:
        path, _, leaf = name.rpartition(".")
        module = copy.deepcopy(model.get_submodule(path)) if path else model
        setattr(module, leaf, torch.nn.Parameter(getattr(module, leaf).detach().clone()))
        if path:
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    return model


@torch.no_grad()
def verify_types(
    before: Artefact,
    after: Tensors,
    element: GroupElement,
    generator: torch.Generator,
    base: Tensors | None = None,
) -> TransportCheck:
    """Pair each tensor of an artefact with random activations of its type, before and after a move.

    ⟨a, x⟩ = ⟨g·a, g·x⟩ for x of the dual type: what a tensor reads from activations, or gives to
    their readers, does not change. That says that the tensors moved as their types do, and nothing
    of whether the types are right.

    Args:
        before: the artefact with its types.
        after: its tensors as `transport` moved them.
        element: what moves the model.
        generator: where the activations come from.
        base: tensors of the model before the move, where frames read gains.
    """
    symmetry = element.symmetry
    assert isinstance(symmetry, ParameterSymmetry)
    errors, controls = [], []
    for name in sorted(before.meeting):
        axes = before.types[name]
        if not any(True for axis in axes for _ in spaces_of(axis)):
            continue
        x = torch.randn(before.tensors[name].shape, generator=generator, dtype=torch.float64)
        positive = name in before.absolute
        duals = Artefact(
            {"x": x.abs() if positive else x}, {"x": tuple(axis.T for axis in axes)},
            absolute=frozenset({"x"} if positive else ()),
        )  # fmt: skip
        x = duals.tensors["x"]
        y = Mover(symmetry, element, duals, {**_owned(before), **(base or {})}).moved()["x"]
        a, b = before.tensors[name].double(), after[name].double()
        size = float(a.norm() * x.norm()) or 1.0
        errors.append(abs(float((a * x).sum() - (b * y).sum())) / size)
        controls.append(abs(float((a * x).sum() - (a * y).sum())) / size)
    return TransportCheck(worst(errors), worst(controls))


def worst(numbers: Iterable[float]) -> float:
    """The largest of some numbers, 0 if there are none, and NaN if one of them is no number."""
    return float(torch.tensor([0.0, *numbers], dtype=torch.float64).max())


def _owned(artefact: Artefact) -> dict[str, torch.Tensor]:
    """The tensors of an artefact as frames name them."""
    return {own(name): tensor for name, tensor in artefact.tensors.items()}


def _apart(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """The largest difference relative to the largest number, over all outputs."""
    found = [
        float((a.double() - b.double()).abs().max() / a.double().abs().max().clamp_min(1e-300))
        for a, b in zip(first, second, strict=True)
        if a.numel()
    ]
    return worst(found)
