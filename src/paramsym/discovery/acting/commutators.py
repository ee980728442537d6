"""The group law of an action a_X(g, θ), infinitesimally: as it should be, and as it was published.

An element A of the Lie algebra moves parameters along the field ξ_A(θ) = d/dt a_X(exp(tA), θ) at
t = 0. For a left action, a(g₂, a(g₁, θ)) = a(g₂g₁, θ), these fields satisfy

    [ξ_A, ξ_B] = −ξ_[A,B],    where [ξ, η](θ) = Dη(θ)ξ(θ) − Dξ(θ)η(θ) and [A, B] = AB − BA.

(For the linear action ξ_A = Aθ it reads BAθ − ABθ = −[A, B]θ.) On a connected group it is also
enough: together with a(I, θ) = θ and complete fields it integrates to an action of the universal
cover (Palais 1957).

The published term is ‖ξ_B∘ξ_A − ½ ξ_[A,B]‖. It keeps ε² ξ_B∘ξ_A of a(exp εB, a(exp εA, θ)) and
½ε² ξ_[A,B] of a(exp εB exp εA, θ), drops all that is of second order in one element alone, and
takes the bracket of the other order. Exact actions do not make it zero: for the rescaling θ ↦
(gθ₁, θ₂/g) it is |θ|, with A = B = 1.

What other modules call (all are differentiable, and run under `torch.func.vmap` over θ and X):

    field(action, params, data, direction, identity=None) -> dict
    commutator_residual(action, params, data, first, second, identity=None, bracket=…) -> dict
    commutator_defect(action, params, data, generators, identity=None, bracket=…) -> Tensor (k, k)
    published_associativity(action, params, data, generators, identity=None, bracket=…,
                            nested=False) -> Tensor (k, k)

`action(g, params, data) -> params` takes and gives a dict of tensors with the same names and
shapes. `generators` has shape (k, *shape of g). `identity` is what g is at the identity: n × n
matrices have the unit matrix by default, and other shapes have to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Params = Mapping[str, Tensor]
Action = Callable[[Tensor, dict[str, Tensor], Any], dict[str, Tensor]]
Bracket = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class WithVelocity(Protocol):
    """An action that states its own fields, since forward mode does not reach through it."""

    def __call__(self, g: Tensor, params: dict[str, Tensor], data: Any) -> dict[str, Tensor]:
        """a_X(g, θ)."""
        ...

    def velocity(self, direction: Tensor, params: Params, data: Any) -> dict[str, Tensor]:
        """ξ_A(θ), with the names and shapes of the parameters."""
        ...


def matrix_bracket(first: Tensor, second: Tensor) -> Tensor:
    """[A, B] = AB − BA."""
    return first @ second - second @ first


def no_bracket(first: Tensor, second: Tensor) -> Tensor:
    """[A, B] = 0, as in a commutative group."""
    return torch.zeros_like(first) * second


def identity_like(direction: Tensor, identity: Tensor | None = None) -> Tensor:
    """The identity of the group that a direction belongs to.

    Args:
        direction: an element of the Lie algebra.
        identity: what it is, or None for the unit matrix.

    Raises:
        ValueError: a direction that is no square matrix, without an identity, or one of another
            shape than the direction.
    """
    shape = tuple(direction.shape)
    if identity is not None:
        if identity.shape != direction.shape:
            raise ValueError(
                f"field(identity=…): shape {tuple(identity.shape)} came for a direction of shape "
                f"{shape}, and the same shape was expected. Pass the group element that moves "
                "nothing, such as torch.zeros(k) for the group R^k."
            )
        return identity.to(direction)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"field(direction=…): shape {shape} came without an identity, and a square matrix was "
            "expected, whose identity is the unit matrix. Pass identity=…, such as torch.zeros(k) "
            "for the group R^k or torch.ones(k) for rescalings."
        )
    return torch.eye(shape[0], dtype=direction.dtype, device=direction.device)


def field(
    action: Action, params: Params, data: Any, direction: Tensor, identity: Tensor | None = None
) -> dict[str, Tensor]:
    """ξ_A(θ) = d/dt a_X(exp(tA), θ) at t = 0, by forward mode.

    The derivative of the action by g at the identity is applied to A, which is the same, since the
    curve exp(tA) has velocity A there. An action with a method `velocity` is asked for it instead.

    Args:
        action: from an element, parameters and data to parameters.
        params: θ.
        data: X, as the action takes it.
        direction: A, of the shape of group elements.
        identity: of the group; the unit matrix by default.

    Returns:
        The velocity of each parameter, those that rest included.

    Raises:
        ValueError: no identity where it does not follow from the shape of A.

    Source: "Finding symmetry in neural network parameter spaces", section 3.2: D_g a_X at I.
    """
    held = dict(params)
    if isinstance(action, WithVelocity):
        return action.velocity(direction, held, data)
    start = identity_like(direction, identity)
    return torch.func.jvp(lambda g: action(g, held, data), (start,), (direction,))[1]


def _derivative(
    action: Action, params: Params, data: Any, of: Tensor, along: Params, identity: Tensor | None
) -> dict[str, Tensor]:
    """Dξ_A(θ)η: how a field changes along a velocity."""

    def velocity(held: dict[str, Tensor]) -> dict[str, Tensor]:
        return field(action, held, data, of, identity)

    return torch.func.jvp(velocity, (dict(params),), (dict(along),))[1]


def commutator_residual(
    action: Action,
    params: Params,
    data: Any,
    first: Tensor,
    second: Tensor,
    identity: Tensor | None = None,
    bracket: Bracket = matrix_bracket,
) -> dict[str, Tensor]:
    """[ξ_A, ξ_B] + ξ_[A,B] at θ: zero for every left action.

    Args:
        action: from an element, parameters and data to parameters.
        params: θ.
        data: X, as the action takes it.
        first: A.
        second: B.
        identity: of the group; the unit matrix by default.
        bracket: of the Lie algebra; that of matrices by default.

    Returns:
        One tensor per parameter, in its shape.
    """
    one, other = (field(action, params, data, a, identity) for a in (first, second))
    forth = _derivative(action, params, data, second, one, identity)
    back = _derivative(action, params, data, first, other, identity)
    closing = field(action, params, data, bracket(first, second), identity)
    return {name: forth[name] - back[name] + closing[name] for name in params}


def commutator_defect(
    action: Action,
    params: Params,
    data: Any,
    generators: Tensor,
    identity: Tensor | None = None,
    bracket: Bracket = matrix_bracket,
) -> Tensor:
    """‖[ξ_A, ξ_B] + ξ_[A,B]‖ for all pairs of generators: the infinitesimal law of associativity.

    Args:
        action: from an element, parameters and data to parameters.
        params: θ.
        data: X, as the action takes it.
        generators: k elements of the Lie algebra, of shape (k, *shape of g).
        identity: of the group; the unit matrix by default.
        bracket: of the Lie algebra; that of matrices by default.

    Returns:
        One norm over all parameters per pair, of shape (k, k), symmetric and zero on the diagonal.

    Source: Palais, "A global formulation of the Lie theory of transformation groups" (1957).
    """
    size = len(generators)
    upper = {
        (i, j): norm(
            commutator_residual(
                action, params, data, generators[i], generators[j], identity, bracket
            )
        )
        for i in range(size)
        for j in range(i + 1, size)
    }
    zero = norm(params) * 0
    entries = [upper.get((min(i, j), max(i, j)), zero) for i in range(size) for j in range(size)]
    return torch.stack(entries).reshape(size, size)


def published_associativity(
    action: Action,
    params: Params,
    data: Any,
    generators: Tensor,
    identity: Tensor | None = None,
    bracket: Bracket = matrix_bracket,
    nested: bool = False,
) -> Tensor:
    """‖ξ_B∘ξ_A − ½ ξ_[A,B]‖ for all pairs of generators: the published term, which is no condition.

    ξ_B∘ξ_A is read as Dξ_B(θ)ξ_A(θ), which the expansion of a(exp εB, a(exp εA, θ)) gives. For
    actions that are linear in θ it is also ξ_B(ξ_A(θ)), the field at a velocity in place of a
    point. Exact actions leave it at the size of θ: it pulls a learned action away from them.

    Args:
        action: from an element, parameters and data to parameters.
        params: θ.
        data: X, as the action takes it.
        generators: k elements of the Lie algebra, of shape (k, *shape of g).
        identity: of the group; the unit matrix by default.
        bracket: of the Lie algebra; that of matrices by default.
        nested: read the composition as ξ_B(ξ_A(θ)).

    Returns:
        One norm over all parameters per ordered pair (A, B), of shape (k, k); the published term is
        their sum, averaged over θ and X.

    Source: "Finding symmetry in neural network parameter spaces", equation (7) and A.2.
    """
    velocities = [field(action, params, data, a, identity) for a in generators]
    entries: list[Tensor] = []
    for first, velocity in zip(generators, velocities, strict=True):
        for second in generators:
            if nested:
                composed = field(action, velocity, data, second, identity)
            else:
                composed = _derivative(action, params, data, second, velocity, identity)
            half = field(action, params, data, bracket(first, second) / 2, identity)
            entries.append(norm({name: composed[name] - half[name] for name in params}))
    return torch.stack(entries).reshape(len(generators), len(generators))


def norm(tensors: Params) -> Tensor:
    """The Euclidean norm of all entries together."""
    return torch.linalg.vector_norm(torch.cat([t.reshape(-1) for t in tensors.values()]))
