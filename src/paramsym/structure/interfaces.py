"""The action of a parameter symmetry on the inputs and outputs that it frees.

    f(g·x; g·θ) = g·f(x; θ)

The parameters move by `act`. A freed input or output moves along its feature axis, by the same walk
over blocks as a parameter; what is not freed stays.

Integers stand for one-hot vectors, whose feature axis comes after all others: e_k ↦ g·e_k. Where g
orders units, that is e_π(k), so that the integers are numbered anew, k ↦ π(k).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from paramsym.arguments import checked
from paramsym.structure.action import act
from paramsym.structure.axes import AxisType, Fixed, frames_of
from paramsym.structure.belonging import require_own
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.feature import Feature, Features
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, torch.Tensor]
Tensors = TypeVar("Tensors", bound=torch.Tensor | Mapping[str, torch.Tensor])


@checked
def act_inputs(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    inputs: Tensors,
    params: Params | None = None,
) -> Tensors:
    """Move freed inputs along a symmetry: x ↦ g·x, with f(g·x; g·θ) = g·f(x; θ).

    Along its feature axis x transforms by the representation that `symmetry.inputs` names, sample
    by sample and position by position; shifts leave it where it is. Gradients pass, and
    `torch.func.vmap` may batch the element or the inputs.

    Args:
        symmetry: from `find_symmetry(…, free_inputs=…)`, or with `inputs` written by hand.
        element: the one that moves the parameters.
        inputs: tensors by name, of any batch; those that are not freed pass unchanged. A tensor by
            itself is the one freed input. Integers number units, and those that number none (−100)
            stay.
        params: the parameters θ before they move, needed where a feature is moved in the frame of
            a gain: x ↦ γ g γ⁻¹ x.

    Returns:
        A dict, or the tensor, as given; nothing is modified.

    Raises:
        ValueError: a freed input is missing or does not fit its type, `params` are needed, the
            element belongs to another symmetry, or integers came where it mixes or scales units.
    """
    return _moved(symmetry, element, symmetry.inputs, "input", inputs, params)


@checked
def act_outputs(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    outputs: Tensors,
    params: Params | None = None,
) -> Tensors:
    """Move freed outputs along a symmetry: y ↦ g·y, with f(g·x; g·θ) = g·f(x; θ).

    Outputs are named by how they are reached in what the model returns, `logits` or `0`; one that
    is returned by itself is `output`. See `act_inputs` for everything else.

    Args:
        symmetry: from `find_symmetry(…, free_outputs=…)`, or with `outputs` written by hand.
        element: the one that moves the parameters.
        outputs: tensors by name, or the one freed output.
        params: the parameters θ before they move, where gains serve as frames.

    Raises:
        ValueError: as `act_inputs`.
    """
    return _moved(symmetry, element, symmetry.outputs, "output", outputs, params)


def _moved(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    features: Features,
    side: str,
    given: Any,
    params: Params | None,
) -> Any:
    """A tensor, or tensors by name, with those of some features moved."""
    require_own(symmetry, element)
    if isinstance(given, torch.Tensor):
        name = _only(features, side, given)
        return _moved_by_name(symmetry, element, features, side, {name: given}, params)[name]
    return _moved_by_name(symmetry, element, features, side, given, params)


def _only(features: Features, side: str, given: torch.Tensor) -> str:
    """The name of the one tensor that is freed; `ValueError` if there are others."""
    if len(features) != 1:
        raise ValueError(
            f"act_{side}s(symmetry, g, …): one tensor of shape {tuple(given.shape)} came, but "
            f"the symmetry frees {len(features)} {side}s: {[*features][:8]}. Pass tensors by "
            "name, {name: tensor}."
        )
    return next(iter(features))


def _moved_by_name(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    features: Features,
    side: str,
    given: Mapping[str, torch.Tensor],
    params: Params | None,
) -> dict[str, torch.Tensor]:
    carried = {n: f for n, f in features.items() if f.spaces}
    for name, feature in carried.items():
        _require_fit(symmetry, side, name, feature, given)
    numbers = {n: f for n, f in carried.items() if _counts(given[n])}
    numbered = {n: _numbered(symmetry, element, n, f, given[n]) for n, f in numbers.items()}
    carried = {n: f for n, f in carried.items() if n not in numbers}
    return {**given, **numbered, **_turned(symmetry, element, carried, side, given, params)}


def _turned(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    carried: Features,
    side: str,
    given: Mapping[str, torch.Tensor],
    params: Params | None,
) -> dict[str, torch.Tensor]:
    """The tensors of these features, moved along their axes."""
    types = {f"{side} {n}": _types(f, given[n]) for n, f in carried.items()}
    moved = {f"{side} {n}": given[n] for n in carried}
    if any(True for feature in carried.values() for _ in frames_of(feature.type)):
        if params is None:
            raise ValueError(
                f"act_{side}s(symmetry, g, …): no params came, but {[*carried][:8]} are moved in "
                "the frame of gains, which have to be known. Pass params=model.state_dict(), the "
                "parameters before they move."
            )
        whole = replace(symmetry, signature={**symmetry.signature, **types})
        moved = act(whole, element, {**params, **moved})
    else:  # shifts move parameters alone
        own = replace(symmetry, signature=types, shifts=(), ties={}, offsets={})
        parts = tuple(part for part in element.parts if not isinstance(part, Slide))
        moved = act(own, GroupElement(element.symmetry, parts), moved)
    return {n: moved[f"{side} {n}"] for n in carried}


def _counts(tensor: torch.Tensor) -> bool:
    """Whether the entries are integers, which number the units of a feature axis."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _numbered(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    name: str,
    feature: Feature,
    integers: torch.Tensor,
) -> torch.Tensor:
    """Integers as the units that they number move; those that number none stay."""
    size = feature.type.size(symmetry.sizes)
    units = torch.arange(1, size + 1, dtype=torch.float64)
    one = {name: Feature(feature.type, -1)}
    placed = _turned(symmetry, element, one, "input", {name: units}, None)[name]
    if not torch.equal(placed.sort().values, units):
        raise ValueError(
            f"act_inputs(symmetry, g, …): {name!r} holds {integers.dtype}, which number the units "
            f"of {feature}, and this element mixes or scales them. An element that orders them was "
            "expected: restrict the symmetry to groups=Permutation there, or pass one-hot vectors."
        )
    new = (placed.long() - 1).argsort().to(integers.device)
    known = (integers >= 0) & (integers < size)
    found = new[integers.clamp(0, size - 1).long()]
    return torch.where(known, found.to(integers.dtype), integers)


def _types(feature: Feature, tensor: torch.Tensor) -> tuple[AxisType, ...]:
    """One type per axis of a tensor: that of the feature, and all others fixed."""
    types: list[AxisType] = [Fixed(n) for n in tensor.shape]
    types[feature.axis] = feature.type
    return tuple(types)


def _require_fit(
    symmetry: ParameterSymmetry,
    side: str,
    name: str,
    feature: Feature,
    given: Mapping[str, torch.Tensor],
) -> None:
    """Raise a `ValueError` that says what does not fit the type of a feature axis."""
    where = f"act_{side}s(symmetry, g, …)"
    if name not in given:
        raise ValueError(
            f"{where}: the {side} {name!r} is missing among {[*given][:8]}. Its type ({feature}) "
            f"moves with the symmetry, so that it was expected. Pass all freed {side}s by name."
        )
    shape = tuple(given[name].shape)
    if _counts(given[name]):
        return
    if not feature.fits(shape, symmetry.sizes):
        raise ValueError(
            f"{where}: the {side} {name!r} has shape {shape}, but its type ({feature}) needs "
            f"{feature.type.size(symmetry.sizes)} entries along axis {feature.axis}. Was the "
            "symmetry inferred from another model?"
        )
