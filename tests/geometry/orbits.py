"""Networks with two points of one orbit, and how far apart points are."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.recording.precision import converted
from tests.tracing.zoo import build

State = dict[str, Tensor]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state_of(model: nn.Module, dtype: torch.dtype = torch.float64) -> State:
    """The complete state dict, detached."""
    return {name: p.detach().clone() for name, p in converted(model, dtype).items()}


def traced(model: nn.Module, inputs: Any) -> tuple[ParameterSymmetry, State]:
    """The symmetry of a network without trial on numbers, and its parameters in float64.

    That claims hold is tested elsewhere; here they are taken for granted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_symmetry(model, inputs, check=False), state_of(model)


@cache
def of_zoo(name: str) -> tuple[ParameterSymmetry, State]:
    """A network of the zoo at generic parameters."""
    return traced(*build(name))


def generic(model: nn.Module, inputs: Any, seed: int = 0) -> tuple[ParameterSymmetry, State]:
    """The symmetry of a network, and independent normal parameters, variances between ½ and 3⁄2."""
    symmetry, state = traced(model.eval(), inputs)
    return symmetry, drawn(state, seed)


def drawn(state: State, seed: int) -> State:
    """Parameters of the same shapes, drawn anew."""
    source = generator(seed)
    made = {}
    for name, p in state.items():
        if not p.is_floating_point():
            made[name] = p
        elif "running_var" in name:
            made[name] = (torch.rand(p.shape, generator=source).double() + 0.5).to(p)
        else:
            made[name] = (0.3 * torch.randn(p.shape, generator=source).double()).to(p)
    return made


def moved(
    symmetry: ParameterSymmetry, params: State, seed: int = 1, strength: float = 0.5, **only: Any
) -> State:
    """Another point of the same orbit, by a random element of everything."""
    element = symmetry.sample(generator(seed), strength, **only)
    return {**params, **act(symmetry, element, params)}


def noisy(symmetry: ParameterSymmetry, params: State, share: float, seed: int = 2) -> State:
    """Every parameter with normal noise of a share of its root mean square."""
    source = generator(seed)
    made = dict(params)
    for name, p in params.items():
        if p.is_floating_point() and name not in symmetry.buffers and p.numel():
            noise = torch.randn(p.shape, generator=source, dtype=torch.float64).to(p)
            made[name] = p + share * p.square().mean().sqrt() * noise
    return made


def counted(symmetry: ParameterSymmetry) -> list[str]:
    """Tensors that matter: nothing dead."""
    return [n for n in symmetry.signature if n not in symmetry.dead]


def gap(symmetry: ParameterSymmetry, one: State, other: State) -> float:
    """The largest relative distance of a tensor that matters, without rows that nothing reaches."""
    worst = 0.0
    for name in counted(symmetry):
        x, y = (side[name].to(torch.float64).clone() for side in (one, other))
        if rows := symmetry.unreached.get(name):
            x[list(rows)] = y[list(rows)] = 0
        apart = float(torch.linalg.vector_norm(x - y))
        worst = max(worst, apart / (float(torch.linalg.vector_norm(x)) or 1.0))
    return worst
