"""Where an action by construction begins: what moves, and a Jacobian with a kernel there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .level_sets import LevelSet, in_float64
from .networks import Function, aliases, as_function, running

_RANK = 1e-9  # singular values relative to the largest that count as zero
_LARGEST = 4000  # entries that move; their bases are dense
PLACE = "constructed_action"


def reference_of(
    function: nn.Module | Function,
    data: Any,
    params: Mapping[str, Tensor] | None,
    training: bool = False,
) -> LevelSet:
    """F and X at θ₀ in float64, looked at."""
    ties: dict[str, str] = {}
    if not callable(function):
        raise ValueError(
            f"{PLACE}(function={function!r}): a module was expected, or a function (params, data) "
            "→ tensor. Pass what computes the outputs that are to stay."
        )
    if isinstance(function, nn.Module):
        ties = aliases(function)
        if params is None:
            params = {n: p for n, p in function.named_parameters() if p.requires_grad}
    if not params or not isinstance(params, Mapping):
        raise ValueError(
            f"{PLACE}(params={params}): no parameters came, and some that move were expected. "
            "Pass them by name with a function, and let a module require gradients."
        )
    _require_numbers(params)
    if isinstance(function, nn.Module):
        _require_own(function, params)
    moving = {n: t for n, t in params.items() if n not in ties}
    wide = any(t.dtype != torch.float64 for t in moving.values())
    shapes = {n: t.shape for n, t in moving.items()}
    held, inputs = in_float64(moving), in_float64(data)
    return LevelSet(as_function(function, training), held, shapes, ties, inputs, wide, PLACE)


def _require_numbers(params: Mapping[str, Tensor]) -> None:
    for name, tensor in params.items():
        require_finite(name, tensor)
    if not sum(tensor.numel() for tensor in params.values()):
        raise ValueError(
            f"{PLACE}(params=…): {list(params)[:6]} have no entries, and some that move were "
            "expected. Let other parameters move."
        )


def _require_own(module: nn.Module, params: Mapping[str, Tensor]) -> None:
    own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for name, tensor in params.items():
        if name not in own or own[name].shape != tensor.shape:
            has = tuple(own[name].shape) if name in own else "nothing"
            raise ValueError(
                f"{PLACE}(params=…): {name!r} of shape {tuple(tensor.shape)} came where "
                f"{type(module).__name__} has {has}, and parameters of the module were expected. "
                "Take them from dict(model.named_parameters())."
            )


def require_runs(level: LevelSet, at: Tensor, follow: int | None = None) -> None:
    """Refuse a batch that the network does not take, or that leaves no level set to move on.

    Args:
        level: F and X.
        at: θ as a vector.
        follow: how many entries take changes up, if that is known.

    Raises:
        ValueError: with what the network said, or how many outputs there are.
    """
    try:
        count = len(level.value(at.detach()))
    except (RuntimeError, TypeError, IndexError, KeyError, AttributeError) as error:
        said = str(error).strip().splitlines() or [""]
        raise ValueError(
            f"{PLACE}: the network does not run on this batch ({type(error).__name__}: "
            f"{said[0][:200]}), and data as it takes them were expected. Pass a tensor, a tuple of "
            "positional inputs or a dict of keyword arguments."
        ) from error
    if not count or (follow is not None and count > follow):
        raise ValueError(
            f"{PLACE}: the batch has {count} outputs, and at least one was expected, and no more "
            f"than entries take changes up{f', {follow}' if follow else ''}: each output takes "
            "one. Take fewer data points, but one at least."
        )


def require_finite(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.is_meta:
        kind = "meta tensor" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(
            f"{PLACE}: {name!r} came as a {kind}, and a tensor with numbers was expected of what "
            "moves. Pass dict(model.named_parameters()) of a model that has its weights."
        )
    if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
        raise ValueError(
            f"{PLACE}: {name!r} of {tensor.dtype} holds numbers that are not real and finite, "
            "which were expected of what moves. Leave it out of `params`, or look where training "
            "broke."
        )


def mask_of(reference: LevelSet, following: Collection[str] | None) -> Tensor:
    """One for every entry that takes changes up."""
    names = reference.shapes if following is None else following
    if isinstance(names, str):
        raise ValueError(
            f"{PLACE}(following={names!r}): a collection of names was expected. Pass [{names!r}]."
        )
    if unknown := [name for name in names if name not in reference.shapes]:
        raise ValueError(
            f"{PLACE}(following={list(names)}): {unknown[0]!r} does not move, and some of "
            f"{list(reference.shapes)} were expected."
        )
    ones = [torch.full((s.numel(),), float(n in names)) for n, s in reference.shapes.items()]
    return torch.cat(ones).to(reference.start())


def regular_jacobian(reference: LevelSet, at: Tensor, mask: Tensor) -> Tensor:
    """J at θ₀, if it has independent rows and a kernel."""
    try:
        with running(reference.function, reference.params) as function:
            once = replace(reference, function=function)
            jacobian, value = once.numbers(at)
            again = once.value(at).detach()  # the generators ran on meanwhile
    except RuntimeError as error:
        raise ValueError(
            f"{PLACE}: the derivative of the network failed ({str(error).splitlines()[0]}), and "
            "a differentiable function of all that moves was expected. Is there an .item(), a "
            ".numpy() or an operator without a derivative in between?"
        ) from error
    if not torch.equal(value, again):
        raise ValueError(
            f"{PLACE}: two runs of the network gave two answers, and a function of its parameters "
            "and inputs was expected. Take out what draws noise or counts calls."
        )
    outputs, size = jacobian.shape
    singular = torch.linalg.svdvals(jacobian)
    rank = int((singular > _RANK * singular[0]).sum()) if singular[0] > 0 else 0
    if rank == size:
        raise ValueError(
            f"{PLACE}: {outputs} outputs of the batch depend on {size} parameters with rank "
            f"{size}, and a rank below that was expected: nothing is left to move, since every "
            f"direction changes an answer. Take fewer data points; each takes one dimension per "
            "output."
        )
    follow = torch.linalg.matrix_rank(jacobian * mask, rtol=_RANK) if rank else 0
    if rank < outputs or int(follow) < outputs:
        raise ValueError(
            f"{PLACE}: the {outputs} outputs of the batch depend on the parameters with rank "
            f"{rank}, {int(follow)} on those that follow, and full rank was expected: some outputs "
            "follow from others, or no derivative reaches them (a repeated data point, a dead or "
            "detached output, one that is rounded). Leave them out, or let more parameters follow."
        )
    return jacobian


def directions_of(directions: Tensor | None, jacobian: Tensor) -> Tensor:
    """v_i as rows, independent along the level set."""
    rank, size = jacobian.shape
    if size > _LARGEST:
        raise ValueError(
            f"{PLACE}(params=…): {size} entries move, and at most {_LARGEST} were expected: a "
            f"basis of the level set takes {8 * size**2 / 2**30:.1f} GiB. Let fewer tensors move: "
            "params={name: …}."
        )
    full = torch.linalg.qr(jacobian.T, mode="complete").Q
    kernel = full[:, rank:]  # (P, P − r)
    if directions is None:
        return kernel.T.contiguous()
    if not isinstance(directions, Tensor):
        raise ValueError(
            f"{PLACE}(directions=…): a {type(directions).__name__} came, and a tensor of shape "
            f"(k, {size}) was expected, one row per direction. Pass torch.stack([v, …])."
        )
    if not directions.is_floating_point() or not bool(torch.isfinite(directions).all()):
        raise ValueError(
            f"{PLACE}(directions=…): {directions.dtype} came with numbers that are not real and "
            "finite, which were expected of velocities. Look at what made them."
        )
    if directions.dim() != 2 or directions.shape[1] != size or not len(directions):
        raise ValueError(
            f"{PLACE}(directions=…): shape {tuple(directions.shape)} came, and (k, {size}) was "
            "expected, one row per direction with all entries that move. Pass "
            "torch.stack([v, …]) of flattened parameters."
        )
    rows = directions.detach().to(jacobian)
    inside = torch.linalg.svdvals(rows @ kernel)
    independent = len(rows) <= size - rank and float(inside[-1]) > _RANK * float(rows.norm())
    if not independent:
        raise ValueError(
            f"{PLACE}(directions=…): {len(rows)} came that are dependent along the level set of "
            f"dimension {size - rank}, and independent ones were expected. Leave out what changes "
            "the outputs alone, and combinations of others."
        )
    return rows
