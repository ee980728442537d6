"""Whether what a derivative denies is denied by the function, too.

Far out, terms of 1e8 that cancel leave a derivative of 1e-8, and where a softmax is saturated the
same one again and again. Columns that vanish at usual inputs are then seen to be alive, and a true
claim about them to be false. The function itself is no such sum: what moves it moves it by about
what the derivative says, for steps of more than one size.
"""

from __future__ import annotations

import torch

from paramsym.checking.generic import Arguments, Draws
from paramsym.checking.jacobian import Network

# In what is usual for a parameter; the second ones where the first do not agree.
_STEPS = ((1e-3, 1e-4, 1e-5), (1.0, 1e-1, 1e-2, 1e-6, 1e-7))
_AGREE = 0.5  # of the derivative
_TWICE = 2  # steps that have to agree: one may by chance
_COMBINATIONS = 4  # of the outputs
_CALLS = 32  # usual inputs at which a claim is looked at


def is_denied(network: Network, directions: torch.Tensor) -> bool:
    """Whether at some usual inputs the function changes along some directions, (directions,
    parameters)."""
    network = network.anew()
    drawn = network.draws([1.0] * _CALLS)
    return any(is_borne_out(network, drawn[k], mixed(directions, k)) for k in range(_CALLS))


def mixed(directions: torch.Tensor, seed: int) -> torch.Tensor:
    """A random combination of directions, of unit length: it changes what one of them changes."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(directions), generator=generator, dtype=directions.dtype)
    return torch.nn.functional.normalize(weights @ directions, dim=0)


def is_borne_out(network: Network, arguments: Arguments, direction: torch.Tensor) -> bool:
    """Whether outputs move along a direction as their derivative says, at some inputs.

    Args:
        network: the model as a function of its parameters.
        arguments: the inputs.
        direction: (parameters,), of unit length.
    """
    values, leaves = network.outputs_at(arguments)
    weights = network.drawn(_COMBINATIONS, values) / network.sizes_at(arguments)
    said = network.products(values, leaves, weights) @ direction
    if not bool(said.norm() > 0):
        return False
    parts = direction.split([leaf.numel() for leaf in leaves])
    usual = float(torch.cat([leaf.detach().abs().reshape(-1) for leaf in leaves]).median()) or 1.0
    agreeing = 0
    for some in _STEPS:
        steps = usual * torch.tensor(some, dtype=torch.float64)
        both = torch.cat([steps, -steps])
        own = [
            x.detach() + torch.tensordot(both.to(x), part.reshape(x.shape).to(x), 0)
            for x, part in zip(leaves, parts, strict=True)
        ]
        up, down = network.values(own, Draws.alike(arguments, len(both))).chunk(2)
        differences = (weights @ (up - down).T).cpu() / (2 * steps)
        off = torch.linalg.vector_norm(differences - said[:, None], dim=0)
        agreeing += int((off <= _AGREE * said.norm()).sum())
        if agreeing >= _TWICE:
            return True
    return False
