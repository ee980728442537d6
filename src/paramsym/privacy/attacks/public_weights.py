"""A key, from parameters that everybody has: pretrained weights, or an initialisation by a seed.

Training that starts from a public θ₀ sends θ̃₀ = g·θ₀, both sides of which are known, and g is the
answer to a question of alignment; every sample x = g⁻¹·x̃ and every later θ_t = g⁻¹·θ̃_t follow. Both
ends are freed and no axis is known, so that one starts from what no key changes:

    biases, which carry one space alone (`align` begins there)
    inner products of units, which no isometry of the other axes changes (`match_units`)

and whichever brings θ₀ nearer to what was sent counts. What is sent later than the start is near
g·θ₀, and g is found as long as units are told apart by more than what they have learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.algebra.lattice import monomial
from paramsym.geometry.alignment import align
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.features import features_of
from paramsym.privacy.attacks.rates import scales_of_units
from paramsym.privacy.attacks.unit_matching import (
    carriers_of,
    distance,
    match_units,
    matches_units,
    solve_for,
)
from paramsym.privacy.job import Job
from paramsym.structure.action import act
from paramsym.structure.axes import Carried, spaces_of
from paramsym.structure.element import GroupElement
from paramsym.structure.interfaces import act_inputs
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]

_FOUND, _UNKNOWN = 0.1, 0.5  # relative errors of what is decoded: read, and not
_ROUNDING = 1e-10  # relative singular values below it are none


@dataclass(frozen=True)
class Brought:
    """A key that was found, and how far it leaves public parameters from those that were sent.

    Attributes:
        element: g, with sent ≈ g·public.
        distance: ‖g·public − sent‖ / ‖sent‖; about 1 where nothing was found.
    """

    element: GroupElement
    distance: float


def key_from_public_weights(
    symmetry: ParameterSymmetry, public: Params, sent: Params, generator: torch.Generator
) -> Brought:
    """The key that carries public parameters to those that were sent.

    Args:
        symmetry: that the key belongs to; the structure of the network and the optimiser tell it.
        public: a complete state dict.
        sent: of the same names and shapes.
        generator: draws where searches start again.

    Returns:
        The element that leaves the smaller distance, of alignment and of unit matching.

    Raises:
        ValueError: tensors that are missing, left over, or of different shapes.
    """
    public, sent = ({n: _widened(x) for n, x in side.items()} for side in (public, sent))
    aligned = align(symmetry, sent, public).element
    found = [aligned]
    if any(_scales(symmetry, name) for name in symmetry.spaces):
        found.append(_tightened(symmetry, aligned, public, sent))
    if matches_units(symmetry):
        found.append(match_units(symmetry, public, sent, generator))
    brought = [Brought(g, distance(symmetry, g, public, sent)) for g in found]
    return min(brought, key=lambda each: each.distance)


def without_scales(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The restriction to orders, signs and matrices, for parameters whose scales were undone."""
    groups = {
        name: monomial(space.size, space.group.permutes, space.group.signs, False)
        for name, space in symmetry.spaces.items()
        if isinstance(space.group, AbstractMonomial) and space.group.scales
    }
    return symmetry.restrict(groups=groups) if groups else symmetry


def reinitialised(params: Params, generator: torch.Generator) -> dict[str, Tensor]:
    """Other parameters of the same kind: the entries of each tensor in an order of their own."""
    return {
        name: each.flatten()[torch.randperm(each.numel(), generator=generator)].reshape(each.shape)
        for name, each in params.items()
    }


def _widened(x: Tensor) -> Tensor:
    """What was rounded in single precision is still better solved for in double."""
    return x.double() if x.is_floating_point() else x


def _scales(symmetry: ParameterSymmetry, name: str) -> bool:
    group = symmetry.spaces[name].group
    return isinstance(group, AbstractMonomial) and group.scales


def _tightened(
    symmetry: ParameterSymmetry, element: GroupElement, public: Params, sent: Params
) -> GroupElement:
    """An element with its orders and signs kept, and its scales and matrices solved for anew.

    Balance leaves a scale undetermined that only biases tell: one that all spaces share.
    """
    signed = _orders(symmetry, element)
    if signed is None:
        return element
    moved = act(symmetry, GroupElement(symmetry, (dict(signed),)), public)
    alone = [
        name for name, axes in symmetry.signature.items()
        if all(s in signed for axis in axes for s in spaces_of(axis))
    ]  # fmt: skip
    scales = scales_of_units(symmetry, {n: (sent[n] / moved[n]).double() for n in alone})
    scaled = {n: _times(v, scales[n].flatten()) if n in scales else v for n, v in signed.items()}
    matrices = [n for n in symmetry.spaces if n not in signed]
    return solve_for(symmetry, matrices, scaled, public, sent)


def _orders(symmetry: ParameterSymmetry, element: GroupElement) -> dict[str, Element] | None:
    """Orders and signs of the monomial spaces; None where there are copies, or no values."""
    found = {}
    for name, space in symmetry.spaces.items():
        if isinstance(space.group, AbstractMonomial):
            value = element[name]
            if space.over or not isinstance(value, Element):
                return None
            signs = None if value.diagonal is None else value.diagonal.sign()
            found[name] = value._replace(diagonal=signs)
    return found


def _times(value: Element, scales: Tensor) -> Element:
    return value._replace(
        diagonal=scales if value.diagonal is None else value.diagonal.double() * scales
    )


# -- the attempt -----------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Decode what the job sends, from `job.initial`.

    It succeeds where decoded inputs (or parameters, if no input is freed) are off by a tenth of
    their norm at most, and its control fails where they are off by half or more. Of inputs those
    directions count that the first layer reads: of the others the parameters say nothing, and the
    function depends on none of them.

    Raises:
        NotApplicable: the parameters do not start from any that everybody has, those are of other
            shapes, or what is decoded has no size.
    """
    if job.initial is None:
        raise NotApplicable("parameters that everybody has, and from which training starts, needed")
    _require_alike(job, job.initial)
    seen = _directions_seen(job) if _reads_inputs(job) else None
    _require_some(job, seen)
    generator = torch.Generator().manual_seed(job.seed)
    began = process_time()
    brought = _key_of(job, job.initial, generator)
    seconds = process_time() - began
    other = _key_of(job, reinitialised(job.initial, generator), generator)
    value, control = (_error(job, each.element, seen) for each in (brought, other))
    what = "parameters"
    if seen is not None:
        rank, size = round(float(seen.trace())), len(seen)
        what = "inputs" if rank == size else f"inputs, as the network sees them ({rank} of {size})"
    succeeded = value <= _FOUND
    return Attempt(
        attack="the key from a public initialisation",
        claim="model" if seen is None else "data",
        needs="the parameters that training starts from: pretrained weights, or their seed",
        measure=f"relative error of the decoded {what}",
        value=value,
        control=control,
        control_is="another initialisation with the same distribution",
        succeeded=succeeded,
        control_failed=control >= _UNKNOWN,
        seconds=seconds,
        says=(
            f"The key is found next to the public parameters (they agree to "
            f"{brought.distance:.1e}), and all {what} and later parameters with it."
            if succeeded
            else f"The {what} are decoded with an error of {value:.0%}: what was sent has moved "
            "too far from the public parameters, or their units are not told apart."
        ),
    )


def _key_of(job: Job, public: Params, generator: torch.Generator) -> Brought:
    """The key of a job, with its scales read off the rates where these are told."""
    symmetry, view = job.key.acting, job.view
    if view.rates is None or not view.rates.scales:
        return key_from_public_weights(symmetry, public, view.state_dict, generator)
    scales = view.rates.scales  # what `scales_from_rates` reads off
    sent = {
        name: each / scales[name].to(each) if name in scales else each
        for name, each in view.state_dict.items()
    }
    found = key_from_public_weights(without_scales(symmetry), public, sent, generator)
    units = {n: Element(diagonal=x[..., 0] if x.shape[-1] == 1 else x)
             for n, x in scales_of_units(symmetry, scales).items()}  # fmt: skip
    whole = GroupElement(symmetry, (*found.element.parts, units))
    return Brought(whole, found.distance)


def _require_alike(job: Job, initial: Params) -> None:
    """Raise `NotApplicable` unless public parameters are those of a network of the same shapes."""
    for name in job.key.acting.signature:
        own, given = job.view.state_dict[name], initial.get(name)
        if given is None or given.shape != own.shape:
            came = "none" if given is None else tuple(given.shape)
            raise NotApplicable(
                f"the public parameters are of another network: {name!r} has the shape "
                f"{tuple(own.shape)}, and {came} came"
            )


def _require_some(job: Job, seen: Tensor | None) -> None:
    """Raise `NotApplicable` where there is nothing that errors could be relative to."""
    if seen is None:
        plain = job.model.state_dict()
        told = [plain[n] for n in job.key.acting.signature if plain[n].is_floating_point()]
    else:
        (feature,) = job.key.acting.inputs.values()
        told = [features_of(job.inputs, feature) @ seen]
    size = sum(float(each.double().square().sum()) for each in told)
    if not 0 < size < torch.inf:
        raise NotApplicable(f"what would be decoded has the squared norm {size:g}")


def _reads_inputs(job: Job) -> bool:
    features = [*job.key.acting.inputs.values()]
    moved = any(feature.spaces for feature in features)
    return moved and len(features) == 1 and job.inputs.is_floating_point()


def _directions_seen(job: Job) -> Tensor:
    """The projector on the directions of the input that the first parameters read.

    A key is determined there alone. Where they are read by other types, all count.
    """
    (feature,) = job.key.acting.inputs.values()
    params, carriers = job.model.state_dict(), []
    if isinstance(feature.type, Carried) and not feature.type.frame:
        carriers = carriers_of(job.key.acting, feature.type.factors[0][0])
    if not carriers:
        size = feature.type.size(job.key.acting.sizes)
        return torch.eye(size, dtype=torch.float64)
    read = torch.cat([carrier.unfolded(params) for carrier in carriers], 1)
    left, sizes, _ = torch.linalg.svd(read, full_matrices=False)
    left = left[:, sizes > _ROUNDING * sizes.max()]
    return left @ left.T


def _error(job: Job, element: GroupElement, seen: Tensor | None) -> float:
    """How far what an element decodes is from what was encoded, relative to its norm."""
    back = ~element
    if seen is not None:
        (feature,) = job.key.acting.inputs.values()
        decoded = act_inputs(job.key.acting, back, job.view.inputs, job.view.state_dict)
        got, true = (features_of(x, feature) @ seen for x in (decoded, job.inputs))
        return float((got - true).norm() / true.norm())
    plain, decoded = job.model.state_dict(), act(job.key.acting, back, job.view.state_dict)
    names = [n for n in job.key.acting.signature if plain[n].is_floating_point()]
    apart = sum(float((decoded[n] - plain[n]).double().square().sum()) for n in names)
    return (apart / sum(float(plain[n].double().square().sum()) for n in names)) ** 0.5
