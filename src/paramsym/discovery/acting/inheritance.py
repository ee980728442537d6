"""Inheritance: functions from actions on a part of a network to actions on all of it.

Where L(θ, X) = j(θ₁, f(θ₂, s), X) with s = h(θ₁, X), a symmetry a_s(g, θ₂) of f is one of L:

    a'_X(g, (θ₁, θ₂)) = (θ₁, a_s(g, θ₂)),    s = h(θ₁, X)        (Proposition 4.1)

It matters that s and j do not see θ₂: then s stays where it is while θ₂ moves, and the axioms of a
are those of a'. Three cases are functions here, and they compose:

- `inherit`: f is a submodule, s what enters it. Deeper networks (Corollary 4.3) are this case.
- `on_units`: f is the sum over some of the units between two linear maps (Corollary 4.2). θ₂ must
  be the units that a acts on, and θ₁ the others; the published proof has it the other way round.
- `with_appended`: a is known for larger batches (Proposition 4.4). The points that fill a batch up
  must be a fixed function of it. With random ones, as published, a'_X is no map: two calls differ,
  and neither axiom holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.arguments import checked

from .commutators import Action, Params, WithVelocity
from .constructed import ConstructedAction
from .submodules import Submodule

Part = Callable[[dict[str, Tensor], Any], tuple[dict[str, Tensor], Any]]
Whole = Callable[[Params, Params], dict[str, Tensor]]


@dataclass(frozen=True)
class Inherited:
    """An action on part of the parameters, as an action on all of them.

    Attributes:
        action: a_s(g, θ₂).
        part: from θ and X to θ₂ and s.
        whole: θ with another θ₂; it is linear, so that velocities go the same way.
    """

    action: Action
    part: Part
    whole: Whole

    def __call__(self, g: Tensor, params: Params, data: Any) -> dict[str, Tensor]:
        """a'_X(g, θ)."""
        held = dict(params)
        inner, seen = self.part(held, data)
        return self.whole(held, self.action(g, inner, seen))


@dataclass(frozen=True)
class InheritedWithVelocity(Inherited):
    """The same for an action that states its own fields."""

    def velocity(self, direction: Tensor, params: Params, data: Any) -> dict[str, Tensor]:
        """ξ_A(θ): that of θ₂, and zero elsewhere."""
        assert isinstance(self.action, WithVelocity)
        inner, seen = self.part(dict(params), data)
        still = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        return self.whole(still, self.action.velocity(direction, inner, seen))


def _inherited(action: Action, part: Part, whole: Whole) -> Inherited:
    kind = InheritedWithVelocity if isinstance(action, WithVelocity) else Inherited
    return kind(action, part, whole)


def inherit(
    action: Action, model: nn.Module, submodule: str, inputs: Any, training: bool = False
) -> Inherited:
    r"""The action that a network has from one of its submodules.

    The new action runs the network at (θ, X) and takes what enters the submodule for the data of
    the old one: \(a'_X(g, (\theta_1, \theta_2)) = (\theta_1, a_{h(\theta_1, X)}(g, \theta_2))\).
    What leaves the submodule stays, and with it all that follows.

    Args:
        action: of the submodule: called as `action(g, params, data)` with its parameters under
            their names in the submodule, and with what enters it: the tensor if that is the one
            argument, a tuple of positional ones, or a dict of all of them where it is called with
            keywords. So does `constructed_action` of the submodule.
        model: any network in which the submodule runs once; it is only read.
        submodule: its name, as `model.get_submodule` takes it.
        inputs: example inputs of the model, on which the conditions are tried: a tensor, a tuple
            of positional inputs, or a dict of keyword arguments.
        training: run the model in training mode.

    Returns:
        An action called as `inherited(g, params, inputs)` with the parameters of the model, or its
        complete state dict.

    Raises:
        ValueError: no such submodule, one without parameters, one that runs more or less often
            than once, one whose parameters are used outside of it (ties included), one whose input
            depends on its own parameters, or a model that does not answer twice alike, since it
            draws noise or counts its calls; an action by construction of another mode.

    Source: "Finding symmetry in neural network parameter spaces", Proposition 4.1, Corollary 4.3.
    """
    inner = Submodule(model, submodule, training)
    if isinstance(action, ConstructedAction) and action.training not in (None, training):
        raise ValueError(
            f"{inner.place}: training={training} came with an action that keeps answers of the "
            f"submodule with training={action.training}, and the same mode was expected. Pass "
            "training=… to constructed_action as well."
        )
    inner.require_separate(inputs)

    def part(params: dict[str, Tensor], data: Any) -> tuple[dict[str, Tensor], Any]:
        return inner.own(params), inner.entering(params, data)

    return _inherited(action, part, inner.replaced)


def on_units(action: Action, axes: Mapping[str, int], units: Sequence[int]) -> Inherited:
    r"""The action that a wider layer has from a narrower one, on some of its units.

    \(U\sigma(VX) = U_1\sigma(V_1X) + U_2\sigma(V_2X)\) for every partition of the units, if σ
    acts on every unit by itself. A symmetry of the second summand, whose width it is known for, is
    one of the sum: θ₂ are the units that move.

    Args:
        action: of a layer with as many units as are named, under the same names of tensors.
        axes: by tensor, the axis along which units lie: `{"V": 0, "U": 1}` for UσV. Other tensors
            are not touched, and the action is not shown them.
        units: which units move, in the order in which the action sees them.

    Raises:
        ValueError: units that are repeated or no integers, or none; when called, a tensor that is
            missing or has fewer.

    Source: "Finding symmetry in neural network parameter spaces", Corollary 4.2, with θ₁ and θ₂ of
        its proof exchanged.
    """
    try:
        at = [operator.index(unit) for unit in units]
    except TypeError:
        at = []
    if not at or len(set(at)) < len(at) or min(at) < 0 or not axes:
        raise ValueError(
            f"on_units(axes={dict(axes)}, units={list(units)[:8]}): an axis by tensor, and "
            "different units counted from 0 were expected, at least one of each. Pass range(h) for "
            "the first h units."
        )

    def part(params: dict[str, Tensor], data: Any) -> tuple[dict[str, Tensor], Any]:
        for name, axis in axes.items():
            there = name in params and -params[name].dim() <= axis < params[name].dim()
            if not there or params[name].shape[axis] <= max(at):
                came = tuple(params[name].shape) if name in params else "nothing"
                raise ValueError(
                    f"on_units(axes={dict(axes)}): {came} came for {name!r}, and more than "
                    f"{max(at)} units along axis {axis} were expected. Name tensors as the "
                    "parameters do, and units that are there."
                )
        chosen = {n: params[n].index_select(k, _index(at, params[n])) for n, k in axes.items()}
        return chosen, data

    def whole(params: Params, inner: Params) -> dict[str, Tensor]:
        moved = {
            n: params[n].index_copy(k, _index(at, params[n]), inner[n]) for n, k in axes.items()
        }
        return {**params, **moved}

    return _inherited(action, part, whole)


def _index(units: list[int], like: Tensor) -> Tensor:
    return torch.tensor(units, device=like.device)


@checked
def with_appended(action: Action, append: Callable[[Tensor], Tensor], axis: int = 0) -> Inherited:
    r"""The action that small batches have from larger ones, by points that fill them up.

    If L is one number per data point, what keeps all of \((X, t(X))\) keeps X:
    \(a'_X = a_{(X, t(X))}\).

    Args:
        action: of the larger batches.
        append: t, from a batch to the points that follow it. It must give the same points for the
            same batch: fixed points, or a function of the batch.
        axis: along which the points lie.

    Raises:
        ValueError: when called, a batch or points that are no tensor; points that differ between
            two calls, or of another shape.

    Source: "Finding symmetry in neural network parameter spaces", Proposition 4.4, where the
        points are random.
    """

    def part(params: dict[str, Tensor], data: Any) -> tuple[dict[str, Tensor], Any]:
        if not isinstance(data, Tensor):
            raise ValueError(
                f"with_appended(…)(data=…): a {type(data).__name__} came, and one tensor was "
                "expected, to which points can be appended. Write an action that takes its parts."
            )
        # copies, since points that are written into the batch would be its own
        points, again = append(data.clone()), append(data.clone())
        if not isinstance(points, Tensor) or not isinstance(again, Tensor):
            raise ValueError(
                f"with_appended(append=…): a {type(points).__name__} came back, and a tensor of "
                "points was expected. Return what is to follow the batch."
            )
        if points.shape != again.shape or not torch.equal(points, again):
            raise ValueError(
                "with_appended(append=…): two calls on one batch gave different points, and the "
                "same ones were expected: with random points there is no map from batches to "
                "actions, and the group law fails. Draw the points once and return them, or "
                "compute them from the batch."
            )
        fits = points.dim() == data.dim() and all(
            points.shape[k] == data.shape[k] for k in range(data.dim()) if k != axis % data.dim()
        )
        if not fits:
            raise ValueError(
                f"with_appended(append=…): points of shape {tuple(points.shape)} came for a batch "
                f"of shape {tuple(data.shape)}, and the same sizes but for axis {axis} were "
                "expected. Say along which axis data points lie: axis=…."
            )
        return params, torch.cat([data, points.to(data)], axis)

    return _inherited(action, part, lambda params, inner: dict(inner))
