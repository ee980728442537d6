"""Repair of activation statistics: a merged network whose channels vary as those of its parents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paramsym.merging.evaluation import Hook, Inputs, returned_at
from paramsym.merging.layers import Layer, layers_of
from paramsym.merging.shares import normalised
from paramsym.merging.states import State, require_alike
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.running import places_of
from paramsym.structure.layout import laid_like, working_dtype
from paramsym.structure.patterns import Patterns, matching

BOTH, SCALE = "mean and standard deviation", "standard deviation alone: it has no bias"


@dataclass(frozen=True)
class Repaired:
    """Parameters with repaired statistics.

    Attributes:
        params: a new state dict; tensors that did not change are those given.
        layers: what was matched, by path of the module.
        left: the layers that were left alone, with the reason.
    """

    params: dict[str, Tensor]
    layers: dict[str, str]
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Moments:
    """Mean and standard deviation of each channel, in double precision."""

    mean: Tensor
    deviation: Tensor


def repair(
    model: nn.Module,
    params: State,
    parents: Sequence[State],
    inputs: Inputs,
    weights: Sequence[float] | None = None,
    hold: Patterns = (),
) -> Repaired:
    """Rescale each channel of a merged network to the mean statistics of its parents.

    Averaged weights make activations that vary less than those of either parent, more so from
    layer to layer. With mean μ and standard deviation σ of a channel on data, and the weighted
    means μ*, σ* of those of the parents,

        W ← s W,   b ← s b + μ* − s μ,   s = σ*/σ,

    so that no module is added. Layers are taken in the order in which they run, each on what the
    repaired ones before it give. Where a linear layer or a convolution has no bias, only σ can be
    matched; a channel that is constant in the merged network gets its mean alone.

    What the model returns is not touched: it is no hidden channel. Running statistics of batch
    norms are not recomputed; `reset_batch_norms` does that.

    Args:
        model: run once for each parent and once at `params`, in evaluation mode; it keeps its mode
            and its state.
        params: of the merged network.
        parents: state dicts that it was merged from, aligned.
        inputs: data as the model takes them, one large batch of a tuple or a dict.
        weights: of the parents; all alike by default.
        hold: patterns of modules to leave alone.

    Returns:
        A `Repaired`, which says of every layer what was matched or why it was left.

    Raises:
        ValueError: state dicts that are not those of the model, no parents, weights that are
            not positive.
        UnknownName: a pattern that matches no layer.

    Source: Jordan, Sedghi, Saukh, Entezari and Neyshabur, "REPAIR: REnormalizing Permuted
    Activations for Interpolation Repair" (2023).
    """
    require_alike("repair", (params, *parents))
    shares = normalised("repair", weights, len(parents))
    layers = {n: layer for n, layer in layers_of(model).items() if layer.linear}
    held = {n: "held" for n in matching(hold, layers, "repair(hold=…)")}
    left = _unfoldable(model, params, layers) | held
    layers = {n: layer for n, layer in layers.items() if n not in left}
    runs = [_run(model, parent, inputs, layers) for parent in parents]
    left |= runs[0].unfit(layers)
    targets = {n: _mean([run.moments[n] for run in runs], shares) for n in layers if n not in left}
    changes = _changes(model, params, inputs, layers, targets)
    made = {**params, **_folded(params, layers, changes)}
    done = {n: SCALE if shift is None else BOTH for n, (_, shift) in changes.items()}
    return Repaired(_with_ties(model, params, made), done, left)


def _folded(
    params: State,
    layers: Mapping[str, Layer],
    changes: Mapping[str, tuple[Tensor, Tensor | None]],
) -> dict[str, Tensor]:
    """The weights and biases that make the changes themselves."""
    made = {}
    for name, (scale, shift) in changes.items():
        layer = layers[name]
        made[layer.weight] = _scaled(params[layer.weight], scale, layer.weight_axis)
        if shift is not None:
            bias = params[layer.bias]
            made[layer.bias] = _in(bias, bias.to(scale) * scale + shift)
    return made


def _unfoldable(model: nn.Module, params: State, layers: Mapping[str, Layer]) -> dict[str, str]:
    """Layers whose weight or bias is used elsewhere, too, or is no parameter of its own."""
    found = {}
    for name, layer in layers.items():
        own = [layer.weight] if layer.module.bias is None else [layer.weight, layer.bias]
        if not params.keys() >= {*own}:
            found[name] = "its weight or bias is computed from others, or not among the parameters"
        elif any(len(places_of(model, [tensor])) != 1 for tensor in own):
            found[name] = "its weight or bias has several places"
    return found


def _with_ties(model: nn.Module, params: State, made: dict[str, Tensor]) -> dict[str, Tensor]:
    """All names of a parameter that changed, where a module has several."""
    first: dict[int, str] = {}
    for name, own in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(own), name)
        if name in made and known in made and made[known] is not params[known]:
            made[name] = made[known]
    return made


@dataclass
class _Run:
    """One run of a parent: the moments of its layers, and which of them make what it returns."""

    moments: dict[str, _Moments] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    last: set[str] = field(default_factory=set)

    def unfit(self, layers: Mapping[str, Layer]) -> dict[str, str]:
        """Layers that one change cannot repair, or that make no hidden channel."""
        counts = {n: self.calls.get(n, 0) for n in layers}
        found = {n: f"it is called {count} times" for n, count in counts.items() if count != 1}
        return found | {n: "it makes what the model returns" for n in self.last}


def _run(model: nn.Module, parent: State, inputs: Inputs, layers: Mapping[str, Layer]) -> _Run:
    run = _Run()
    kept: dict[str, Tensor] = {}  # alive to the end, so that no storage is used again

    def measure(layer: Layer, returned: Tensor) -> None:
        run.moments[layer.name] = _moments(returned, layer.output_axis)
        run.calls[layer.name] = run.calls.get(layer.name, 0) + 1
        kept[layer.name] = returned

    returned = returned_at(model, parent, inputs, "repair", _hooks(layers, measure))
    ends = {t.untyped_storage().data_ptr() for t in floating_outputs(returned)}
    run.last = {n for n, t in kept.items() if t.untyped_storage().data_ptr() in ends}
    return run


def _mean(moments: Sequence[_Moments], shares: Sequence[float]) -> _Moments:
    """The weighted means of means and of standard deviations."""
    parts = [*zip(shares, moments, strict=True)]
    return _Moments(
        torch.stack([share * each.mean for share, each in parts]).sum(0),
        torch.stack([share * each.deviation for share, each in parts]).sum(0),
    )


def _changes(
    model: nn.Module,
    params: State,
    inputs: Inputs,
    layers: Mapping[str, Layer],
    targets: Mapping[str, _Moments],
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The scale and the shift of each channel, each layer on what the repaired ones give."""
    found: dict[str, tuple[Tensor, Tensor | None]] = {}

    def correct(layer: Layer, returned: Tensor) -> Tensor | None:
        if layer.name not in targets:
            return None
        now, target = _moments(returned, layer.output_axis), targets[layer.name]
        tiny = torch.finfo(returned.dtype).eps * now.mean.abs()
        lives = now.deviation > tiny
        scale = torch.where(lives, target.deviation / torch.where(lives, now.deviation, 1.0), 1.0)
        biased = getattr(layer.module, "bias", None) is not None
        shift = target.mean - scale * now.mean if biased else None
        found[layer.name] = scale, shift
        ones = [1] * returned.ndim
        ones[layer.output_axis] = -1
        made = returned.double() * scale.reshape(ones)
        return (made if shift is None else made + shift.reshape(ones)).to(returned.dtype)

    returned_at(model, params, inputs, "repair", _hooks(layers, correct))
    return found


def _hooks(
    layers: Mapping[str, Layer], called: Callable[[Layer, Tensor], Tensor | None]
) -> dict[nn.Module, Hook]:
    def hook(layer: Layer) -> Hook:
        return lambda returned: called(layer, returned)

    return {layer.module: hook(layer) for layer in layers.values()}


def _moments(returned: Tensor, axis: int) -> _Moments:
    rows = returned.detach().movedim(axis, -1).flatten(0, -2).double()
    return _Moments(rows.mean(0), rows.std(0, correction=0))


def _scaled(weight: Tensor, scale: Tensor, axis: int) -> Tensor:
    ones = [1] * weight.ndim
    ones[axis] = -1
    return _in(weight, weight.to(scale) * scale.reshape(ones))


def _in(tensor: Tensor, made: Tensor) -> Tensor:
    return laid_like(made.detach().to(working_dtype(tensor)).to(tensor.dtype), tensor)
