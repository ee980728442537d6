"""`constructed_action`: actions that keep what a network answers on a batch, by construction.

The published way to find actions a_X(g, θ) that depend on the data is to train a network for a.
What it finds keeps the loss nearly. Here a_X(h, θ) is the time-one flow of a field in the kernel of
D_θF(·, X):

    a_X(h, θ) = exp(Σ_i h_i ξ_i)(θ),    ξ_i(θ) = v_i − N (JN)⁻¹ J v_i,    h ∈ R^k

so that F(a_X(h, θ), X) = F(θ, X), and with F every loss of it. It is integrated with error control
and corrected by Newton's method: invariance is rounding, and a_X(0, θ) = θ exactly.

What is left is the group law of R^k, a_X(h₂, a_X(h₁, θ)) = a_X(h₁ + h₂, θ). It holds if, and only
if, the fields commute. There are two frames:

- "projected": N = Jᵀ, the orthogonal projection. It is defined wherever J has full rank. Each line
  R·h acts; different directions do not commute, and the defect is of second order in h.
- "commuting": N is that of a reference point θ₀, the same for all θ: the coordinate fields of the
  implicit function theorem. They commute exactly, and R^k acts, as far as the chart reaches. Which
  parameters follow decides how far: on one data point the last layer of a sigmoid network takes
  every other change up, everywhere.

A batch on which J has full column rank leaves nothing to move. Each data point and output takes one
dimension: P − r are left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .commutators import Params
from .level_sets import Curve, LevelSet, Normal, in_float64, ordinary, tangential
from .networks import Function, Network, running
from .starting_points import (
    PLACE,
    directions_of,
    mask_of,
    reference_of,
    regular_jacobian,
    require_finite,
    require_runs,
)

Frame = Literal["projected", "commuting"]

TOLERANCES = {"projected": 1e-12, "commuting": 1e-9}  # a chart has its end from corrections
_FINEST = 3e-14


@dataclass(frozen=True)
class ConstructedAction:
    """R^k acting along level sets of a network on a batch, called as `action(h, params, data)`.

    Attributes:
        directions: v_i as rows, (k, P), in the order of the parameters that move.
        rank: r, how many numbers of the batch are kept.
        frame: "projected" or "commuting".
        reference: F and X at the parameters that it was made with.
        following: one for the entries that take changes up, zero for the others.
        tolerance: the error of one step of the flow.
    """

    directions: Tensor
    rank: int
    frame: Frame
    reference: LevelSet
    following: Tensor
    tolerance: float

    @property
    def training(self) -> bool | None:
        """The mode that its network runs in; None for functions, which are in no mode."""
        function = self.reference.function
        return function.training if isinstance(function, Network) else None

    @property
    def identity(self) -> Tensor:
        """0 of R^k, which `check_action` asks for, with `product=torch.add`."""
        return self.directions.new_zeros(len(self.directions))

    def __call__(self, h: Tensor, params: Params, data: Any) -> dict[str, Tensor]:
        """a_X(h, θ).

        Args:
            h: coordinates, (k,); zero gives the parameters as they are.
            params: θ, as tensors under the names that the action was made with; others stay.
            data: X.

        Raises:
            ValueError: other shapes or names, NaN, ties that came with different numbers, or a
                batch that the network does not run on, without outputs or with too many.
            RankDrops: the curve leaves where J, or the chart, is regular.
        """
        self._require(h, params)
        if not h.any():
            return dict(params)
        with torch.inference_mode(False):
            found = self._end(h, in_float64(dict(params)), in_float64(data))
        moved = {n for n in params if n in self.reference.shapes or n in self.reference.ties}
        return {n: found[n].to(t) if n in moved else t for n, t in params.items()}

    def _end(self, h: Tensor, params: dict[str, Tensor], data: Any) -> dict[str, Tensor]:
        """The end of the curve, in float64."""
        level = self._level(params, data)
        velocity = ordinary(h).detach().to(self.directions) @ self.directions
        with running(level.function, level.params) as function:
            level = replace(level, function=function)
            require_runs(level, level.start(), int(self.following.sum()))
            curve = Curve(level, self._normal(level.data), self.tolerance)
            return level.state(curve.end(velocity))

    def velocity(self, direction: Tensor, params: Params, data: Any) -> dict[str, Tensor]:
        """Σ_i h_i ξ_i(θ), which `field` asks for; it is differentiable in θ.

        Args:
            direction: h, (k,).
            params: θ.
            data: X.
        """
        self._require(direction, params)
        with torch.inference_mode(False):
            return self._velocity(*ordinary((direction, dict(params), data)))

    def _velocity(
        self, direction: Tensor, params: dict[str, Tensor], data: Any
    ) -> dict[str, Tensor]:
        level = replace(self._level(params, data), wide=False)
        at = level.start()
        require_runs(level, at, int(self.following.sum()))
        jacobian, _ = level.jacobian(at)
        normal = self._normal(data)(jacobian).to(at.dtype)
        along = direction.to(at.dtype) @ self.directions.to(at.dtype)
        found = replace(level, params={}).state(tangential(jacobian, normal, along))
        again = {name: found[first] for name, first in self.reference.ties.items()}
        still = {n: torch.zeros_like(t) for n, t in params.items()}
        return {**still, **{n: t for n, t in {**found, **again}.items() if n in params}}

    def _level(self, params: dict[str, Tensor], data: Any) -> LevelSet:
        held = {**self.reference.params, **params}
        return replace(self.reference, params=held, data=data)

    def _normal(self, data: Any) -> Normal:
        """N as a function of J; a constant one is that of the reference at the same batch."""
        if self.frame == "projected":
            return self._orthonormal
        level = replace(self.reference, data=in_float64(data))
        constant = self._orthonormal(level.jacobian(level.start())[0].detach())
        return lambda jacobian: constant

    def _orthonormal(self, jacobian: Tensor) -> Tensor:
        """A basis of the rows of J, in the entries that follow: (P, r)."""
        return torch.linalg.qr((jacobian * self.following.to(jacobian.dtype)).T).Q

    def _require(self, h: Tensor, params: Params) -> None:
        shape = (len(self.directions),)
        if not isinstance(h, Tensor) or not isinstance(params, Mapping):
            raise ValueError(
                f"{PLACE}(…)(h, params, data): a {type(h).__name__} and a {type(params).__name__} "
                f"came, and a tensor of shape {shape} and a dict of tensors were expected. Pass "
                "torch.as_tensor(h) and dict(model.named_parameters())."
            )
        if tuple(h.shape) != shape or not h.is_floating_point() or not torch.isfinite(h).all():
            raise ValueError(
                f"{PLACE}(…)(h={h.reshape(-1)[:6].tolist()}): shape {tuple(h.shape)} came, and "
                f"finite coordinates of shape {shape} were expected, one per direction."
            )
        for name in {*self.reference.shapes} & {*params}:
            require_finite(name, params[name])
        for name, expected in self.reference.shapes.items():
            if name not in params or params[name].shape != expected:
                came = tuple(params[name].shape) if name in params else "nothing"
                raise ValueError(
                    f"{PLACE}(…)(params=…): {came} came for {name!r}, and shape "
                    f"{tuple(expected)} was expected. Pass the parameters under the names that "
                    "the action was made with."
                )
        for name, first in self.reference.ties.items():
            if name in params and not torch.equal(params[name], params[first]):
                raise ValueError(
                    f"{PLACE}(…)(params=…): {name!r} and {first!r} came with different numbers, "
                    "and the same were expected, since the network ties them. Pass one of them "
                    "alone, or a network that does not tie them."
                )


def constructed_action(
    function: nn.Module | Function,
    data: Any,
    params: Mapping[str, Tensor] | None = None,
    *,
    frame: Frame = "projected",
    directions: Tensor | None = None,
    following: Collection[str] | None = None,
    tolerance: float | None = None,
    training: bool = False,
) -> ConstructedAction:
    r"""An action of R^k that keeps a network's answer on a batch, whatever the batch is.

    \(a_X(h, \theta) = \exp(\sum_i h_i \xi_i)(\theta)\) with
    \(\xi_i = v_i - N (J N)^{-1} J v_i\), \(J = D_\theta F(\cdot, X)\).

    Args:
        function: F, a module or a function (params, data) → tensor, as a loss is.
        data: X of the reference: a tensor, a tuple of positional inputs, or a dict of keyword
            arguments. The action takes others of the same form.
        params: θ₀, what moves, by name; for a module its trainable parameters by default. The
            directions are chosen here, and the frame that commutes is made here.
        frame: "projected", defined wherever J has full rank, or "commuting", for which the group
            law holds as far as its chart reaches.
        directions: v_i as rows, (k, P), entries in the order of `params`; an orthonormal basis of
            ker J(θ₀) by default, k = P − r.
        following: names of the tensors that take changes up; all by default.
        tolerance: the relative error of one step of the flow, integrated in float64: 1e-12 by
            default, and 1e-9 for the frame that commutes, where corrections along N give the end.
            Where a flow contracts, as behind a LayerNorm of few units, the way back from its end
            is worse by that factor; outputs are not.
        training: whether a module runs in training mode, whatever mode it is in: it is the answers
            of that mode that stay.

    Returns:
        The action, called as `action(h, params, data)`, with `velocity`, `directions`, `identity`.

    Raises:
        ValueError: nothing to move on this batch, no outputs, a network that does not run on it;
            outputs that depend on each other or on no parameter; answers that are random, not
            finite or no tensor; parameters or directions that do not fit.

    Source: "Finding symmetry in neural network parameter spaces", sections 3.2 and 5.4, for what
        was learned there; Hairer, Lubich and Wanner, "Geometric numerical integration" (2006),
        IV.4, for the projection.
    """
    tolerance = TOLERANCES.get(frame, 0.0) if tolerance is None else tolerance
    if frame not in TOLERANCES or not _FINEST <= tolerance < 1e-2:
        raise ValueError(
            f"{PLACE}(frame={frame!r}, tolerance={tolerance}): 'projected' or 'commuting', and a "
            f"number from {_FINEST:g} to 0.01 were expected. Take frame='projected' and 1e-12."
        )
    with torch.inference_mode(False):
        reference = reference_of(function, data, params, training)
        at = reference.start()
        mask = mask_of(reference, following)
        require_runs(reference, at)
        jacobian = regular_jacobian(reference, at, mask)
        rows = directions_of(ordinary(directions), jacobian)
        return ConstructedAction(rows, len(jacobian), frame, reference, mask, tolerance)
