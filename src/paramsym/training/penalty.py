"""A penalty on the function rather than on its parameters: the least norm of their orbit.

R(θ) = inf_g Σ |gθ|^p over scales and changes of basis. Where g attains it, the envelope theorem
gives the gradient with g held fixed, ∇R(θ) = gᵀ ∇(Σ |·|^p)(gθ): no derivative of g is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.geometry.balance import OBJECTIVES, balance
from paramsym.geometry.costs import (
    balanced_scales,
    cost_along_scales,
    counts,
    family_shapes,
    scaled_by,
)
from paramsym.geometry.given import numbers_of
from paramsym.geometry.movers import Movers, movers_of
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.result import Status
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.gram import gram
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


def orbit_penalty(
    symmetry: ParameterSymmetry,
    params: Params,
    objective: str = "l2",
    hold: Patterns = (),
    tolerance: float = 1e-12,
) -> Tensor:
    """The least norm of the orbit of the parameters, which can be differentiated.

    R(θ) = inf_g Σ |gθ|^p is one number for all equivalent parameters, and ∇R(gθ) = g⁻ᵀ∇R(θ). For
    two layers with ReLU it is Σ_i 2‖w_i‖‖v_i‖ of what enters and what leaves a unit (for "l1" twice
    the root of the product of sums), for a linear interface that is no wider than either side twice
    the nuclear norm of the product.

    **Where the infimum is not attained** R is still the infimum. A unit with weights on one side
    only can go to zero, and so can what then leads nowhere: they cost nothing. R has a kink there,
    as 2‖w‖‖v‖ has at v = 0, and of its subgradients the one of least norm is taken: zero for all
    weights of such units. Weight decay by R therefore leaves dead units alone.

    Args:
        symmetry: what `find_symmetry` derived, or written by hand.
        params: the complete state dict, with the parameters themselves and not copies:
            `dict(model.named_parameters()) | dict(model.named_buffers())`. Buffers move and cost
            nothing, tied tensors count once, a gain that is stored as γ − 1 counts as γ.
        objective: "l2", Σ |w|² along scales and bases, or "l1", Σ |w| along scales alone.
        hold: patterns of spaces that do not move. Shifts and rotations in the frames of gains
            never do: along these the norm is not convex, and R not invariant.
        tolerance: gap relative to the cost at which the scales are done.

    Returns:
        R, a scalar in double precision with the graph of the parameters.

    Raises:
        ValueError: as `balance`; or bases with null directions on one side, along which the
            norm only falls.

    Source: Neyshabur, Tomioka and Srebro, "Norm-based capacity control in neural networks" (2015),
    for the least norm of two layers; Danskin, The Theory of Max-Min (1967), for the gradient.
    """
    numbers = numbers_of(symmetry, params, "orbit_penalty")
    found = balance(symmetry, numbers, objective, hold, shifts=False, tolerance=tolerance)
    power, given = OBJECTIVES[objective], params
    if found.status is Status.UNATTAINED:
        movers = movers_of(symmetry, power, hold, (), shifts=False)
        kept = _kept(symmetry, numbers, movers, power)
        given = {n: p * kept[n] if n in kept else p for n, p in params.items()}
        rest = numbers_of(symmetry, given, "orbit_penalty")
        found = balance(symmetry, rest, objective, hold, shifts=False, tolerance=tolerance)
        if found.status is Status.UNATTAINED:
            _refuse_null(found.held, movers)
    wide = {n: widened(p) if counts(p) else p for n, p in given.items()}
    return _power_sum(symmetry, act(symmetry, found.element, wide), power)


def _power_sum(symmetry: ParameterSymmetry, params: Params, power: float) -> Tensor:
    """Σ |w|^p as `balance` counts it."""
    total = torch.zeros((), dtype=torch.float64)
    for name in symmetry.blocks:
        if name in symmetry.buffers or name in symmetry.ties or not counts(params[name]):
            continue
        size = added(params[name], symmetry.offsets.get(name, 0.0)).abs()
        total = total + size.pow(power).sum().to(total.device)
    return total


# -- where the infimum is not attained -----------------------------------------------------------


def _kept(
    symmetry: ParameterSymmetry, params: Params, movers: Movers, power: float
) -> dict[str, Tensor]:
    """By parameter 1 for entries that stay along the way to the infimum, and 0 for the others.

    Scales y that follow a direction d with a·d ≤ 0 for all exponents a lose the terms with
    a·d < 0. Each loss may take the other side from further units, hence the turns.
    """
    kept = {n: torch.ones_like(params[n]) for n in symmetry.blocks if counts(params[n])}
    for _ in range(1 + sum(space.size for space in symmetry.spaces.values())):
        left = {n: p * kept[n] if n in kept else p for n, p in params.items()}
        cost = cost_along_scales(symmetry, left, movers.scales, power)
        step = _downhill(symmetry, cost, movers) @ _emptied(symmetry, left, movers)
        ones = {n: widened(torch.ones_like(p)) if counts(p) else p for n, p in params.items()}
        moved = act(symmetry, step, ones)
        lost = {n: (moved[n] - 1).abs() > 1e-3 for n in kept}
        if not any(bool((lost[n] & (left[n] != 0)).any()) for n in kept):
            break
        kept = {n: mask.masked_fill(lost[n], 0.0) for n, mask in kept.items()}
    return kept


def _downhill(symmetry: ParameterSymmetry, cost: Posynomial, movers: Movers) -> GroupElement:
    """Scales e for those that the norm draws to infinity, and 1/e for those that it draws to zero.

    First those with weights on one side; if there are none, groups that are held together from
    one side alone.
    """
    up, down = cost.here.up > 0, cost.here.down > 0
    direction = (down & ~up).double() - (up & ~down).double()
    if not bool(direction.any()):
        free = balanced_scales(cost)[0]
        loose = (up & down).double()
        sides = cost.reached(loose, -1) - cost.reached(loose, 1)
        direction = sides * (loose - free)
    shapes = family_shapes(symmetry, movers.scales)
    return scaled_by(symmetry, {n: y.reshape(shapes[n]) for n, y in cost.split(direction).items()})


def _emptied(symmetry: ParameterSymmetry, params: Params, movers: Movers) -> GroupElement:
    """Half the identity in spaces of bases that only one side sees at all."""
    counted = {n: p for n, p in params.items() if n not in symmetry.buffers}
    bases = {}
    for space in movers.bases:
        sides = [side.abs().sum((-2, -1)) for side in gram(symmetry, counted, space)]
        one_sided = (sides[0] == 0) != (sides[1] == 0)
        eye = torch.eye(symmetry.spaces[space].size, dtype=torch.float64)
        bases[space] = eye * torch.where(one_sided, 0.5, 1.0)[..., None, None].double()
    return symmetry.element(bases)


def _refuse_null(held: Mapping[str, str], movers: Movers) -> None:
    lost = {n: why for n, why in held.items() if n in movers.bases and n not in movers.held}
    name, why = next(iter((lost or dict(held)).items()))
    raise ValueError(
        f"orbit_penalty(params): the bases of {name!r} have {why}; weights on both sides or "
        "none on one were expected, so that the least norm has a gradient. Pass "
        f"hold=[{name!r}], which leaves these bases as they are."
    )
