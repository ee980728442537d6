"""What linear symmetries are not searched for: each refused with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from paramsym.checking.measure import size_of
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.precision import lifted
from paramsym.recording.record import split_inputs
from paramsym.recording.running import call_at, preserved, seeded

from .noise import noise
from .sampling import Points, Sampler

_PROBES = 64
_FINITE_PROBES = 8
_FLAT = {torch.float64: 1e-12, torch.float32: 1e-5}  # of a gradient, relative to all of it
_STEP = {torch.float64: 1e-4, torch.float32: 1e-2}  # of differences, relative
_CLOSE = {torch.float64: 1e-5, torch.float32: 1e-2}  # two differences without a kink between
_ROUNDINGS = 16  # of the outputs
_CHANCE = 2  # of the probes may look smooth and be none
_SAME = {torch.float64: 1e-9, torch.float32: 1e-4}  # of outputs, relative to their size


def require_numbers(model: torch.nn.Module, inputs: Any) -> None:
    """Refuse weights that are not finite, and inputs that are NaN; infinite inputs are masks."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"linear_symmetries(model=…): {type(model).__name__} was given, but a torch.nn.Module "
            "was expected, whose parameters are searched. Put the function into the forward() of a "
            "module with nn.Parameter attributes."
        )
    caller = f"linear_symmetries(model={type(model).__name__})"
    if not any(p.is_floating_point() or p.is_complex() for p in model.parameters()):
        raise ValueError(
            f"{caller}: the model has no floating parameter, but at least one was expected, since "
            "symmetries are searched that move parameters. Give a module that has weights."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{caller}: {name!r} has no shape yet, but tensors of known shapes were expected. "
                "Run the model once on an example, which initialises lazy modules."
            )
        if tensor.device.type == "meta":
            raise ValueError(
                f"{caller}: {name!r} is on the meta device, but tensors on a device with numbers "
                "were expected, since the model is run. Call model.to_empty(device='cpu'); the "
                "weights themselves are not read."
            )
    for name, tensor in model.named_parameters():
        if not bool(tensor.detach().isfinite().all()):
            bad = int((~tensor.detach().isfinite()).sum())
            raise ValueError(
                f"{caller}: {bad} of {tensor.numel()} entries of {name!r} are NaN or infinite, but "
                "numbers were expected. Load weights that are finite, or initialise the model anew."
            )
    for name, tensor in model.named_buffers():
        if bool(tensor.isnan().any()):
            raise ValueError(
                f"{caller}: the buffer {name!r} has entries that are NaN, but numbers were "
                "expected, since buffers are constants of the function. Reset it, for example "
                "with reset_running_stats()."
            )
    for path, leaf in pytree.tree_flatten_with_path(split_inputs(inputs))[0]:
        if isinstance(leaf, Tensor) and bool(leaf.isnan().any()):
            raise ValueError(
                f"{caller}: inputs{pytree.keystr(path[1:])} has entries that are NaN, but numbers "
                "were expected. Give example inputs of the shape and kind that the model takes; "
                "random ones do."
            )


def require_variety(sampler: Sampler) -> None:
    """Refuse inputs that are the same in all samples and have one sample only."""
    if sampler.varies:
        return
    leaves = [sampler.given[k] for k in sampler.tensors]
    if any(leaf.ndim and leaf.shape[0] and len(leaf.unique(dim=0)) > 1 for leaf in leaves):
        return
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves) or "no tensor"
    why = (
        "integers that index no table and infinite floats are kept"
        if sampler.fresh
        else "fresh=False keeps them"
    )
    raise ValueError(
        f"linear_symmetries(inputs=…): the inputs ({shapes}) hold one sample only, up to "
        f"copies, and it would be the same at all weights ({why}), so that what is found would "
        "hold at this sample alone. Several samples or inputs that can be drawn anew were "
        "expected: give torch.randn(2, …), which is replaced by fresh numbers at each weight, or "
        "more samples along the first axis."
    )


def require_function(sampler: Sampler) -> None:
    """Refuse outputs that are no numbers or random, and buffers that are written to."""
    caller = f"linear_symmetries(model={type(sampler.model).__name__})"
    if not sampler.measure():
        raise ValueError(
            f"{caller}: the model returned no floating tensor, but a function with values was "
            "expected: integers, as of argmax, have no derivative. Choose a differentiable output "
            "with outputs=…, a function of what the model returns."
        )
    if not _finite_values(sampler):
        raise ValueError(
            f"{caller}: all outputs are NaN or infinite at {_FINITE_PROBES} random weights and "
            "inputs, but numbers were expected. Look for a logarithm, root or division of what "
            "can be zero or negative, or choose other outputs with outputs=…."
        )
    point = sampler.points(1)
    (first, written), (second, _) = (_run(sampler, point, seed) for seed in (1, 2))
    if written:
        raise ValueError(
            f"{caller}: a forward pass writes to the buffer {written!r}, but a function of weights "
            "and inputs was expected: a state makes the next output another one. Set "
            "training=False, or track_running_stats=False in normalisation layers."
        )
    off, size = _change(first, second)
    if off > _SAME[sampler.dtype] * size:
        raise ValueError(
            f"{caller}: two runs at the same weights and inputs differ by {off / size:.1e} of the "
            "output, but a function was expected: dropout or noise draws random numbers. Set "
            "training=False, or take the noise as an input of the model."
        )


def _finite_values(sampler: Sampler) -> bool:
    """Whether some output is finite at random points.

    A temperature, an exponent or a scale may have to be positive, and then half of the points have
    no values: single numbers stay near the user's if this helps.
    """
    found = sum(_has_numbers(sampler) for _ in range(_FINITE_PROBES))
    if found < _FINITE_PROBES and sampler.numbers:
        sampler.near = True
        sampler.near = sum(_has_numbers(sampler) for _ in range(_FINITE_PROBES)) > found
    return found > 0 or sampler.near


def _has_numbers(sampler: Sampler) -> bool:
    """Whether some output at a random point is finite."""
    with torch.no_grad():
        found = sampler.values(sampler.points(1))
    return any(bool(t.isfinite().any()) for t in found)


def _run(sampler: Sampler, point: Points, seed: int) -> tuple[list[Tensor], str]:
    """The outputs at a point, with all random generators seeded, and a buffer that was written."""
    kept = {n: t.clone() for n, t in sampler.state.items()}
    weights = {n: w[0] for n, w in point.weights.items()}
    state, args, kwargs = sampler.filled(weights, [leaf[0] for leaf in point.leaves])
    state = {n: t.clone() if n not in weights else t for n, t in state.items()}
    wide = lifted() if sampler.dtype == torch.float64 else nullcontext()
    with preserved(sampler.model, sampler.training), torch.no_grad(), wide:
        seeded(seed)
        returned = call_at(sampler.model, state, args, kwargs)
        chosen = returned if sampler.outputs is None else sampler.outputs(returned)
        found = [t.detach().clone() for t in floating_outputs(chosen)]
    for name in state.keys() - weights.keys():
        if not torch.equal(state[name].nan_to_num(), kept[name].nan_to_num()):
            return found, name
    return found, ""


def require_gradients(sampler: Sampler) -> dict[str, torch.Tensor]:
    """By tensor the entries that the function depends on, marked.

    Raises:
        ValueError: a tensor without gradient that the outputs do depend on, or no gradient at all.
    """
    caller = f"linear_symmetries(model={type(sampler.model).__name__})"
    try:
        gradients = sampler.gradients(sampler.points(_PROBES))
    except RuntimeError as error:
        raise ValueError(
            f"{caller}: the backward pass failed, {str(error).splitlines()[0]!r}, but a model was "
            "expected that can be differentiated at other weights than its own. Let backward "
            "passes of your own read weights that they saved, not the module's."
        ) from error
    gradients = {n: g.flatten(1).abs() for n, g in gradients.items()}
    sizes = {n: g.amax(1) for n, g in gradients.items()}
    whole = torch.stack([*sizes.values()]).amax(0)
    finite = whole.isfinite()
    if not bool(finite.any()):
        raise ValueError(
            f"{caller}: the derivatives are NaN or infinite at all of {_PROBES} random weights and "
            "inputs, but numbers were expected. Look for a logarithm, root or division of what "
            "can be zero or negative, or choose other outputs with outputs=…."
        )
    limit = _FLAT[sampler.dtype] * whole[finite]
    live = {n: (g[finite] > limit[:, None]).any(0) for n, g in gradients.items()}
    flat = [n for n, entries in live.items() if not bool(entries.any())]
    stepping = [name for name in flat if _depends(sampler, name)]
    if stepping:
        raise ValueError(
            f"{caller}: the outputs change with {stepping[0]!r}, but their derivative by it is "
            "zero; a differentiable model was expected, since the search reads derivatives only. "
            "Replace sign, round, argmax or detach() by something with a derivative, or choose "
            "other outputs with outputs=…."
        )
    if len(flat) == len(sizes):
        raise ValueError(
            f"{caller}: the outputs depend on none of the {len(sizes)} parameters, but a function "
            "of parameters was expected. Choose outputs that depend on them with outputs=…."
        )
    return live


def require_derivatives(sampler: Sampler) -> None:
    """Refuse derivatives that are not those of the function, as behind detach().

    Along a random line the difference (F(θ + hδ) − F(θ − hδ)) / 2h is compared with ⟨∇F, δ⟩, at
    samples where half of h gives the same difference, so that no kink or jump is between.
    """
    points, step = sampler.points(_PROBES), _STEP[sampler.dtype]
    slopes = {
        n: torch.randn(w.shape, generator=sampler.generator, dtype=torch.float64) * w.double().cpu()
        for n, w in points.weights.items()
    }
    gradients = sampler.gradients(points)
    parts = [(gradients[n] * d).flatten(1) for n, d in slopes.items()]
    derivative = torch.cat(parts, 1).sum(1)

    def pairing(weights: Mapping[str, Tensor]) -> Tensor:
        there = points.moved(weights)
        values, covectors = sampler.all_values(there), there.covectors.double().cpu()
        return (torch.where(values.isfinite(), values, 0.0) * covectors).sum(1, keepdim=True)

    def moved(h: float) -> dict[str, Tensor]:
        return {
            n: (w.double() + h * slopes[n].to(w.device)).to(w) for n, w in points.weights.items()
        }

    def along(h: float) -> Tensor:
        return ((pairing(moved(h)) - pairing(moved(-h))) / (2 * h))[:, 0]

    long, short = along(step), along(step / 2)
    scale = torch.cat(parts, 1).norm(dim=1) + long.abs()
    errors = noise(pairing, points.weights, sampler.generator)[:, 0]
    errors = errors + torch.finfo(sampler.dtype).eps * pairing(points.weights)[:, 0].abs()
    near = _CLOSE[sampler.dtype] * scale + _ROUNDINGS * errors / step
    wrong = ((long - short).abs() <= near) & ((short - derivative).abs() > 10 * near)
    if int(wrong.sum()) > _CHANCE:
        off = float(((short - derivative).abs() / scale)[wrong].median())
        raise ValueError(
            f"linear_symmetries(model={type(sampler.model).__name__}): at {int(wrong.sum())} of "
            f"{_PROBES} random weights and inputs the derivative differs from that of the outputs, "
            f"by differences, typically by {off:.1e} of its size; a function with its own "
            "derivatives was expected, since the search reads derivatives only. Take out detach(), "
            "straight-through estimators and wrong custom backward passes, as those that read the "
            "module's weights and not the saved ones, and scale a function that oscillates within "
            f"{step:.0e} of its weights."
        )


def _depends(sampler: Sampler, name: str) -> bool:
    """Whether outputs change where one tensor is replaced by another draw."""
    for _ in range(_FINITE_PROBES):
        point, other = sampler.points(1), sampler.points(1)
        moved = point.moved({name: other.weights[name]})
        with torch.no_grad():
            before, after = sampler.values(point), sampler.values(moved)
        off, size = _change(before, after)
        if off > _SAME[sampler.dtype] * size:
            return True
    return False


def _change(before: list[Tensor], after: list[Tensor]) -> tuple[float, float]:
    """The largest change of an output, and the largest output, of those that are finite."""
    pairs = [(size_of(a - b), size_of(a)) for a, b in zip(before, after, strict=True) if a.numel()]
    changes, sizes = zip(*pairs, strict=True)
    return max(float(c.max()) for c in changes), max(float(size.max()) for size in sizes)
