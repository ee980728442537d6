"""`readings`: what the feature axes of a network hold on data, and how it moves: verified."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paramsym.arguments import module_of
from paramsym.geometry.given import numbers_of
from paramsym.geometry.reading import Reading
from paramsym.merging.acting import act_reading
from paramsym.merging.evaluation import Hook, returned_at
from paramsym.merging.layers import Layer, layers_of
from paramsym.merging.states import State
from paramsym.recording.record import Inputs
from paramsym.structure.action import act
from paramsym.structure.axes import AxisType, spaces_of
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry

ALONE = "model"  # the name of a module that is the whole model
_STRENGTH = 0.5  # of the trial: scales of about e^±½, bases of moderate condition


def readings(
    model: nn.Module,
    symmetry: ParameterSymmetry,
    params: State,
    inputs: Inputs,
    most: int | None = None,
) -> dict[str, Reading]:
    """The activations of the spaces of a network on data, each with the type by which it moves.

    What a linear layer, a convolution, an embedding or a norm returns carries the spaces of its
    output axis: for every element g without shifts

        x(g·θ) = ρ(g) x(θ).

    The type ρ is that of the bias or of the weight along that axis; fused axes (a query, key and
    value in one) are taken whole. It is tried on one element that moves all exact spaces at once,
    and a reading that does not follow it is left out.

    Args:
        model: run three times in evaluation mode; it keeps its mode, its hooks and its state.
        symmetry: of this model. Types do not carry its approximate spaces (`exact=False`).
        params: the complete state dict at which it runs, in the precision of which it runs.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        most: at most so many samples of each, evenly spaced; the same ones for every network of
            this architecture on these inputs.

    Returns:
        By path of the module (`model` for a model that is one layer itself) a `Reading`, of shape
        (samples, size): batches and positions, in order, and once for each call of a module. Layers
        that no space moves, and those that are never called, have none.

    Raises:
        ValueError: activations that are not finite, fewer than one sample, or parameters that are
            not those of the model or of the symmetry.
    """
    model = module_of(model)
    if most is not None and most < 1:
        raise ValueError(
            f"readings(most={most}): at least one sample was expected. Leave it out for all."
        )
    params = numbers_of(symmetry, params, "readings")
    tried = _tried(symmetry, params)
    candidates = _candidates(model, symmetry.restrict(spaces=tried, translations=False))
    layers = {name: layer for name, layer in layers_of(model).items() if name in candidates}
    before = _run(model, params, inputs, layers, most)
    _require_finite(before)
    generator = torch.Generator().manual_seed(0)
    element = symmetry.sample(generator, _STRENGTH, only=tried)
    after = _run(model, act(symmetry, element, params), inputs, layers, most)
    found: dict[str, Reading] = {}
    for name, values in before.items():
        own = [Reading(axis, values) for axis in candidates[name]]
        fitting = (r for r in own if _follows(symmetry, element, r, params, after[name]))
        if reading := next(fitting, None):
            found[name or ALONE] = reading
    return found


def _candidates(model: nn.Module, symmetry: ParameterSymmetry) -> dict[str, list[AxisType]]:
    """By layer the types that its output may have, the likeliest first.

    That of the bias comes first: a weight may carry on this axis what its input has lost.
    """
    found: dict[str, list[AxisType]] = {}
    for name, layer in layers_of(model).items():
        weight = symmetry.signature.get(symmetry.ties.get(layer.weight, layer.weight))
        bias = symmetry.signature.get(symmetry.ties.get(layer.bias, layer.bias))
        own = getattr(layer.module, "weight", None)
        if weight is None or own is None or len(weight) != own.ndim:
            continue
        types = [*(bias if bias is not None and len(bias) == 1 else ()), weight[layer.weight_axis]]
        if moving := [axis for axis in dict.fromkeys(types) if any(True for _ in spaces_of(axis))]:
            found[name] = moving
    return found


def _tried(symmetry: ParameterSymmetry, params: State) -> list[str]:
    """The exact spaces that can move: none whose frame, a gain, has a zero."""
    still = {
        leg.space
        for blocks in symmetry.blocks.values()
        for block in blocks
        for leg in block.legs
        for frame in leg.frame
        if not bool(added(params[frame.parameter], frame.offset).all())
    }
    return [s.name for s in symmetry.spaces.values() if s.exact and s.name not in still]


def _run(
    model: nn.Module, params: State, inputs: Inputs, layers: dict[str, Layer], most: int | None
) -> dict[str, Tensor]:
    """By layer what it returned, (samples, size), in the order of the calls."""
    found: dict[str, list[Tensor]] = {}

    def hook(layer: Layer) -> Hook:
        def keep(returned: Tensor) -> None:
            if -returned.ndim <= layer.output_axis < returned.ndim:
                # a copy: what follows may write to it in place
                rows = returned.movedim(layer.output_axis, -1).flatten(0, -2)
                found.setdefault(layer.name, []).append(rows.detach().clone())

        return keep

    returned_at(
        model, params, inputs, "readings", {layer.module: hook(layer) for layer in layers.values()}
    )
    return {
        name: _thinned(torch.cat(rows), most)
        for name, rows in found.items()
        if len({r.shape[1] for r in rows}) == 1
    }


def _thinned(rows: Tensor, most: int | None) -> Tensor:
    if most is None or len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most, device=rows.device).round().long()]


def _require_finite(found: dict[str, Tensor]) -> None:
    for name, values in found.items():
        if not bool(values.isfinite().all()):
            raise ValueError(
                f"readings(model, symmetry, params, inputs): {name or ALONE!r} returned numbers "
                "that are not finite, and finite ones were expected. Look at the inputs and at "
                "where training broke."
            )


def _follows(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    reading: Reading,
    params: State,
    after: Tensor,
) -> bool:
    """Whether the reading at moved parameters is the moved reading, channel by channel."""
    if after.shape != reading.values.shape:
        return False
    try:
        moved = act_reading(symmetry, element, reading, params).values
    except ValueError:  # another size, or a type that does not say which copy is meant
        return False
    wrong = (moved - after).double().norm(dim=0).max()
    size = after.double().norm(dim=0).max()
    return bool(wrong <= math.sqrt(torch.finfo(after.dtype).eps) * size)
