"""The level sets {θ : F(θ, X) = F(θ₀, X)} of a network on one batch, and curves inside of them.

F has r numbers: outputs times data points. Where its Jacobian J(θ), of shape (r, P), has rank r,
the level set is a manifold of dimension P − r, with ker J(θ) for its tangent space. A field that
lies in ker J keeps F along its flow. Here such fields come from constant vectors v,

    ξ_v(θ) = v − N (J(θ)N)⁻¹ J(θ) v,    N of shape (P, r),

which is v without what changes F, taken back along N. With N = J(θ)ᵀ it is the orthogonal
projection onto ker J(θ). With a constant N all ξ_v commute: in the coordinates (F, θ mod N) of the
implicit function theorem they have constant coefficients, 0 and v mod N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import DOP853
from torch import Tensor
from torch.utils import _pytree as pytree

from paramsym.recording.precision import lifted

from .networks import Function, require_tensor

_SMALLEST = 1e-6  # singular values of JN, relative to the largest of J where the curve began
_ROWS = 8
_STEPS = 2000
_CORRECTIONS = 10
_NARROW = 1e-9  # parts of the way in which J does not turn round
_CLOSE = 1e-10  # relative distance to the level set that corrections must reach


class RankDrops(RuntimeError):
    """A curve came to a point where the level set, or its chart, is no manifold."""


@dataclass(frozen=True)
class LevelSet:
    """θ ↦ F(θ, X) for one vector θ of all entries that move.

    Attributes:
        function: F.
        params: all parameters and buffers; those that do not move are read from here.
        shapes: by name, of what moves, in its order in the vector.
        ties: further names of what moves.
        data: X.
        wide: requests for narrower types are lifted to float64.
        place: of error messages.
    """

    function: Function
    params: Mapping[str, Tensor]
    shapes: Mapping[str, torch.Size]
    ties: Mapping[str, str]
    data: Any
    wide: bool
    place: str

    def start(self) -> Tensor:
        """The vector of the parameters that came."""
        return torch.cat([self.params[name].reshape(-1) for name in self.shapes])

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """All parameters at a vector, under all of their names."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        moved = {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}
        again = {name: moved[first] for name, first in self.ties.items() if name in self.params}
        return {**self.params, **moved, **again}

    def value(self, vector: Tensor) -> Tensor:
        """F as a vector."""
        context: AbstractContextManager[Any] = lifted() if self.wide else nullcontext()
        with context:
            found = self.function(self.state(vector), self.data)
        return require_tensor(found, self.place).reshape(-1)

    def jacobian(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """J(θ) of shape (r, P), and F(θ)."""

        def twice(vector: Tensor) -> tuple[Tensor, Tensor]:
            found = self.value(vector)
            return found, found

        return torch.func.jacrev(twice, has_aux=True)(vector)

    def numbers(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """J(θ) and F(θ) without graphs; few rows go one by one, which takes a third of the time."""
        with torch.enable_grad():
            at = vector.detach().requires_grad_()
            value = self.value(at)
            if len(value) > _ROWS:
                return self.jacobian(at)[0].detach(), value.detach()
            if not value.requires_grad:
                return at.new_zeros(len(value), len(at)), value
            rows = [torch.autograd.grad(v, at, retain_graph=True)[0] for v in value]
        return torch.stack(rows), value.detach()


def in_float64(item: Any) -> Any:
    """Detached floating tensors in float64, in nested inputs; others as they are."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().double() if leaf.is_floating_point() else leaf.detach()

    return pytree.tree_map(convert, ordinary(item))


def ordinary(item: Any) -> Any:
    """Tensors of `torch.inference_mode`, which no derivative may meet, as copies outside of it."""

    def convert(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf

    with torch.inference_mode(False):
        return pytree.tree_map(convert, item)


Normal = Callable[[Tensor], Tensor]  # from J to N


def tangential(jacobian: Tensor, normal: Tensor, vectors: Tensor) -> Tensor:
    """v − N (JN)⁻¹ J v for a vector, or for every column of a matrix."""
    return vectors - normal @ solved(jacobian @ normal, jacobian @ vectors)


def solved(square: Tensor, right: Tensor) -> Tensor:
    """A⁻¹b, also for a vector b."""
    return torch.linalg.solve(square, right)


@dataclass
class Curve:
    """The flow of one ξ_v, from a point to time one.

    Attributes:
        level: the level set.
        normal: N, from J.
        tolerance: the error of one step, relative to the largest entry of θ.
        scale: the largest singular value of J where the curve begins.
        evaluations: how many Jacobians were taken.
    """

    level: LevelSet
    normal: Normal
    tolerance: float
    scale: float = 0.0
    evaluations: int = 0

    def end(self, velocity: Tensor) -> Tensor:
        """exp(ξ_v)(θ), corrected along N until F is that of θ."""
        start = self.level.start()
        jacobian, value = self.level.numbers(start)
        self.scale = float(torch.linalg.matrix_norm(jacobian, 2))
        size = max(1.0, float(start.abs().max()))
        solver = DOP853(
            lambda _, y: self._velocity(y, velocity), 0.0, start.cpu().numpy(), 1.0,
            rtol=self.tolerance, atol=self.tolerance * size,
        )  # fmt: skip
        said, left = None, _STEPS
        while solver.status == "running" and left:
            before = (float(solver.t), jacobian)
            said, left = solver.step(), left - 1
            if solver.status != "failed" and np.isfinite(solver.y).all():
                jacobian = self._frame(self._tensor(solver.y))[0]
                self._require_no_turn(solver.dense_output(), *before, float(solver.t), jacobian)
        if solver.status != "finished" or not np.isfinite(solver.y).all():
            raise RankDrops(
                f"{self.level.place}: no step from part {solver.t:.4g} of the way "
                f"({said or f'{_STEPS} steps'}), and a smooth curve was expected. Take a smaller "
                "element, or a network without kinks."
            )
        return self._corrected(self._tensor(solver.y), value)

    def _tensor(self, y: np.ndarray) -> Tensor:
        """A copy on the device of the parameters: the solver writes into its own."""
        return torch.tensor(y, device=next(iter(self.level.params.values())).device)

    def _frame(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """J, N and F, where JN is far from singular."""
        jacobian, value = self.level.numbers(at)
        self.evaluations += 1
        normal = self.normal(jacobian)
        smallest = float(torch.linalg.svdvals(jacobian @ normal)[-1])
        if not smallest > _SMALLEST * self.scale:
            raise RankDrops(
                f"{self.level.place}: the smallest singular value of JN falls to {smallest:.1e}, "
                f"and more than {_SMALLEST:g} of {self.scale:.1e} was expected: here the "
                "derivative of the outputs drops in rank, or a frame that commutes ends. Take a "
                "smaller element, or frame='projected', which has no chart to leave."
            )
        return jacobian, normal, value

    def _velocity(self, y: np.ndarray, velocity: Tensor) -> np.ndarray:
        jacobian, normal, _ = self._frame(self._tensor(y))
        return tangential(jacobian, normal, velocity).cpu().numpy()

    def _require_no_turn(
        self, dense: Callable[[float], np.ndarray], t: float, one: Tensor, end: float, other: Tensor
    ) -> None:
        """Refuse a step across a place where det JN changes its sign.

        Where the rank drops at one point only, steps may pass over it. J then changes its
        orientation at once, however near one looks; on a curved level set it turns bit by bit.
        """
        normal = self.normal(other)
        turned = torch.linalg.det(one @ normal) * torch.linalg.det(other @ normal)
        if turned > 0:
            return
        if end - t < _NARROW:
            raise RankDrops(
                f"{self.level.place}: at part {t:.4g} of the way the derivative of the outputs "
                "drops in rank or jumps, since it turns round, and a smooth one of full rank was "
                "expected all along. Take a smaller element, or other parameters: these lie on a "
                "singular level set."
            )
        middle = (t + end) / 2
        between = self._frame(self._tensor(dense(middle)))[0]
        self._require_no_turn(dense, t, one, middle, between)
        self._require_no_turn(dense, middle, between, end, other)

    def _corrected(self, at: Tensor, value: Tensor) -> Tensor:
        """Newton's method along N, as long as it comes nearer."""
        size = max(float(value.norm()), float(torch.finfo(at.dtype).tiny))
        best, least = at, float("inf")
        for _ in range(_CORRECTIONS):
            jacobian, normal, now = self._frame(at)
            error = float((now - value).norm())
            if error >= least:
                break
            best, least = at, error
            at = at - normal @ solved(jacobian @ normal, now - value)
        reached = max(_CLOSE * size, 1e3 * torch.finfo(at.dtype).eps * self.scale)
        if least > reached:
            raise RankDrops(
                f"{self.level.place}: corrections end {least / size:.1e} from the level set, and "
                f"{_CLOSE:g} was expected. Take a smaller element, or a network without kinks."
            )
        return best
