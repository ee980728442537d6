"""`check_action`: whether a map a_X(g, θ) is a symmetry that may depend on the data, in numbers.

A map a from batches X to maps a_X: G × Θ → Θ is a generalised group action if for all X, θ

    a_X(I, θ) = θ                                 (identity)
    a_X(g₂, a_X(g₁, θ)) = a_X(g₂g₁, θ)            (associativity)

and a symmetry of L if L(a_X(g, θ), X) = L(θ, X). Then D_θL ∘ D_g a_X|_I (h) = 0 for all h of the
Lie algebra (Theorem 3.1). It depends on the data if a_X ≠ a_X' for some X, X'.

Each of these is a number per draw of θ, X and g, relative to θ or to L. Beside each stands a
control: the same number where the condition is broken on purpose. Where the control is not seen the
check could not have failed, and there is no verdict. An action that moves nothing has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .action_check import (
    ASSOCIATIVITY,
    DEPENDENCE,
    IDENTITY,
    INFINITESIMAL,
    INVARIANCE,
    REPETITION,
    ActionCheck,
    Errors,
    Limits,
    row,
)
from .commutators import Action, Params, field, identity_like, norm
from .estimates import FEWEST
from .guarded import Guarded, Loss, copied
from .networks import as_function

Sampler = Callable[[torch.Generator], Any]


@dataclass(frozen=True)
class _Draw:
    """One θ with two batches and two elements."""

    params: dict[str, Tensor]
    data: Any
    other: Any
    first: Tensor
    second: Tensor
    direction: Tensor | None


def check_action(
    action: Action,
    loss: Loss | nn.Module,
    *,
    elements: Sampler,
    params: Sampler | Mapping[str, Tensor],
    data: Sampler,
    directions: Sampler | None = None,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    identity: Tensor | None = None,
    samples: int = 64,
    tolerance: float | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> ActionCheck:
    """Measure the conditions of a data-dependent symmetry on fresh θ, X and g, beside controls.

    Args:
        action: a_X(g, θ), called as `action(g, params, data)`, which gives all parameters back.
        loss: L(θ, X), called as `loss(params, data)`; one number, or one for each data point. A
            module stands for what it returns.
        elements: draws g from a generator. Draw them near enough for the loss to be finite and far
            enough to move something.
        params: draws θ from a generator, as a dict of tensors, or is θ.
        data: draws X from a generator.
        directions: draws h of the Lie algebra, which has the shape of elements; without it there is
            no row of the infinitesimal condition.
        product: g₂g₁ as `product(g2, g1)`: `torch.add` for the group R^k, `torch.mul` for
            rescalings.
        identity: I; the unit matrix by default.
        samples: how many draws.
        tolerance: the relative error up to which a condition holds; ε^0.6 of the dtype by default.
            It is relative to the control, too: parameters that rest, and constants of the loss,
            excuse nothing.
        confidence: of the intervals.
        generator: of the draws; one with seed 0 by default.

    Returns:
        One row per condition with its error, the way moved, its control and the verdict: a
        condition holds if the worst draw is within the tolerance, relative to θ or L and relative
        to the median of the control. There is a verdict where that is ten times the tolerance at
        least, and more than rounding. `str()` is a table.

    Raises:
        ValueError: fewer draws than an interval takes, a tolerance that is none; an action or a
            loss that changes its arguments in place; parameters that come back under other names,
            in other shapes or dtypes; a loss that is no number, or NaN, with its place.

    Source: "Finding symmetry in neural network parameter spaces", section 3, Theorem 3.1.
    """
    _require_counts(samples, tolerance, confidence)
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    function = as_function(loss)
    found: dict[str, list[Errors]] = {}
    dtype = torch.float64
    for number in range(samples):
        draw = _drawn(elements, params, data, directions, generator)
        dtype = torch.promote_types(next(iter(draw.params.values())).dtype, draw.first.dtype)
        checked = Guarded(action, function, f"check_action: draw {number}")
        for name, errors in _errors(checked, draw, product, identity, generator).items():
            found.setdefault(name, []).append(errors)
    eps = torch.finfo(dtype).eps
    limits = Limits(tolerance if tolerance is not None else eps**0.6, eps)
    rows = tuple(row(name, errors, limits, confidence) for name, errors in found.items())
    return ActionCheck(rows, limits.tolerance)


def _require_counts(samples: int, tolerance: float | None, confidence: float) -> None:
    if samples < FEWEST:
        raise ValueError(
            f"check_action(samples={samples}): at least {FEWEST} were expected, since fewer give "
            "no interval of 95 %. Take 64."
        )
    if not (tolerance is None or 0 < tolerance < 1) or not 0 < confidence < 1:
        raise ValueError(
            f"check_action(tolerance={tolerance}, confidence={confidence}): numbers between 0 and "
            "1 were expected, a relative error and a probability. Leave the tolerance out for "
            "ε^0.6 of the dtype, and take 0.95."
        )


def _drawn(
    elements: Sampler,
    params: Sampler | Mapping[str, Tensor],
    data: Sampler,
    directions: Sampler | None,
    generator: torch.Generator,
) -> _Draw:
    held = dict(params) if isinstance(params, Mapping) else dict(params(generator))
    for name, tensor in held.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"check_action(params=…): {name!r} came as a {type(tensor).__name__}, and a tensor "
                "was expected. Give dict(model.named_parameters())."
            )
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(
                f"check_action(params=…): {name!r} of {tensor.dtype} came with numbers that are "
                "not real and finite, which were expected of what is measured. Give "
                "dict(model.named_parameters()), without counts among the buffers."
            )
    # copies, since a sampler may fill one tensor again and again
    batches = copied(data(generator)), copied(data(generator))
    pair = _element(elements, generator), _element(elements, generator)
    direction = None if directions is None else directions(generator)
    return _Draw({n: t.detach().clone() for n, t in held.items()}, *batches, *pair, direction)


def _element(elements: Sampler, generator: torch.Generator) -> Tensor:
    found = elements(generator)
    if not isinstance(found, Tensor) or not bool(torch.isfinite(found).all()):
        raise ValueError(
            f"check_action(elements=…): {found if isinstance(found, Tensor) else type(found)} was "
            "drawn, and a tensor of finite numbers was expected, an element of the group. Look at "
            "what draws it."
        )
    return found.clone()  # of its own, where one tensor is filled again and again


def _errors(
    checked: Guarded,
    draw: _Draw,
    product: Callable[[Tensor, Tensor], Tensor],
    identity: Tensor | None,
    generator: torch.Generator,
) -> dict[str, Errors]:
    """Value, way and control of every condition at one draw."""
    unit = identity_like(draw.first, identity)
    params, data, first, second = draw.params, draw.data, draw.first, draw.second
    size = float(norm(params)) or 1.0
    act = checked.act
    at_first, at_rest = act(first, params, data), act(unit, params, data)
    moved = distance(at_first, params) / size

    both = act(second, at_first, data)
    law = distance(both, act(product(second, first), params, data)) / size
    wrong = (product(first, second), second)  # an action from the right obeys the first of them
    broken = max(distance(both, act(g, params, data)) for g in wrong) / size

    before = checked.value(params, data)
    scale = float(before.norm()) or 1.0
    away = _random_direction(params, distance(at_first, params), generator)
    aside = {n: params[n] + away[n] for n in params}
    change = float((checked.value(at_first, data) - before).norm()) / scale
    by_chance = float((checked.value(aside, data) - before).norm()) / scale

    elsewhere = act(first, params, draw.other)
    doubled = act(product(first, first), params, draw.other)
    found = {
        REPETITION: (
            distance(act(first, params, data), at_first) / size,
            moved,
            distance(both, at_first) / size,
        ),
        IDENTITY: (distance(at_rest, params) / size, moved, moved),
        ASSOCIATIVITY: (law, distance(both, params) / size, broken),
        INVARIANCE: (change, moved, by_chance),
    }
    if draw.direction is not None:
        found[INFINITESIMAL] = _infinitesimal(checked, draw, unit, (size, scale), generator)
    found[DEPENDENCE] = (
        distance(at_first, elsewhere) / size,
        moved,
        distance(at_first, doubled) / size,
    )
    return found


def _infinitesimal(
    checked: Guarded,
    draw: _Draw,
    unit: Tensor,
    sizes: tuple[float, float],
    generator: torch.Generator,
) -> Errors:
    """‖D_θL(ξ_h)‖, beside that of a random velocity as fast as ξ_h."""
    assert draw.direction is not None
    velocity = field(checked.action, draw.params, draw.data, draw.direction, unit)
    speed = float(norm(velocity))
    by_chance = _random_direction(draw.params, speed, generator)
    slopes = [float(checked.slope(draw.params, draw.data, v).norm()) for v in (velocity, by_chance)]
    return slopes[0] / sizes[1], speed / sizes[0], slopes[1] / sizes[1]


def _random_direction(
    params: Params, length: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """A displacement of a length, uniform over directions."""
    drawn = {
        n: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
        for n, t in params.items()
    }
    factor = length / float(norm(drawn))
    return {n: t * factor for n, t in drawn.items()}


def distance(one: Params, other: Params) -> float:
    """The Euclidean distance between two sets of parameters."""
    return float(norm({name: one[name] - other[name] for name in one}))
