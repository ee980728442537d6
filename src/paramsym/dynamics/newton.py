"""Newton's method along an orbit, towards given conserved quantities.

With X_k the field of quantity k, of degree d_k, and Σ c_j X_j the velocity of a move,

    dQ_k = ⟨∇Q_k, Σ c_j X_j θ⟩ = d_k Σ_j ⟨X_k θ, X_j θ⟩ c_j,

so that the derivative is the Gram matrix of the fields, symmetric and positive semidefinite: the
Newton step solves M Mᵀ c = (Q* − Q) / d, and exp(Σ c_j X_j) is an exact step on the orbit. Along
scales alone it is the Newton step of a convex function, ½‖exp(y)·θ‖² − ½⟨Q*, y⟩, for its gradient
is ½(Q − Q*).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.tangent import TangentOperator, tangent

from .conserved import ConservedQuantities, Params

_LONGEST = 1.0  # e-folds of one step
_HALVINGS = 40
_ARRIVED = 1e-3  # e-folds: on its way to infinity a scale takes Newton steps of about one half
_ROUNDING = 1e-15  # of the scale: what is left below it is none
_DENSE = 1 << 24  # numbers of the largest matrix of fields that is formed
_SINGULAR = 1e-12  # of the largest eigenvalue, and of the largest square of a field
_PRODUCTS = 400  # with the Gram matrix, for one step
_SETTLINGS = 4

Solve = Callable[[Tensor], Tensor]


def largest(numbers: Tensor) -> float:
    """The largest absolute value; zero where there is none."""
    return float(numbers.abs().max()) if numbers.numel() else 0.0


@dataclass(frozen=True)
class Found:
    """Where steps led: by which element, whether the quantities are there, and how it ended."""

    element: GroupElement
    arrived: bool
    ended: str


@dataclass(frozen=True)
class Search:
    """Damped Newton steps on the orbit, towards given quantities.

    Attributes:
        laws: the quantities.
        aim: the values asked for, (quantities,).
        scale: what they are measured by.
    """

    laws: ConservedQuantities
    aim: Tensor
    scale: float

    def left(self, point: Params) -> Tensor:
        """(Q* − Q) / d, what the Newton step is solved for."""
        return (self.aim - self.laws.quantities(point)) / self.laws.degrees.to(self.aim)

    def run(self, point: Params, tolerance: float, steps: int) -> Found:
        """The element that leads from a point to these quantities, or as near as the steps go."""
        element, left = self.laws.symmetry.identity(), self.left(point)
        most, taken, last, arrived = 0, 0, 0.0, False
        for _ in range(steps):
            operator = self.laws.tangent(point)
            step, rank = _newton(operator, left, self.scale)
            last, most, size = self._stretch(step), max(most, rank), largest(left)
            # Where fields become dependent, what is left is that of a limit.
            arrived = size <= tolerance * self.scale / 2 and last <= _ARRIVED and rank == most
            done = arrived and size <= _ROUNDING * self.scale
            further = None if done else self._further(operator, step, left)
            if further is None:
                break
            move, point, left = further
            element, taken = move @ element, taken + 1
        return Found(
            element, arrived,
            f"{taken} steps, the last of {last:.1e} e-folds, led to no point that has them; that "
            "there is none on the orbit is not proved",
        )  # fmt: skip

    def _further(
        self, operator: TangentOperator, step: Tensor, left: Tensor
    ) -> tuple[GroupElement, Params, Tensor] | None:
        """The step, halved until what is left falls as it should; None where rounding ends it."""
        before = float(left.norm())
        length = min(1.0, _LONGEST / max(self._stretch(step), 1e-300))
        for _ in range(_HALVINGS):
            move, point = self._moved(operator, length * step)
            after = self.left(point)
            if float(after.norm()) <= (1 - 1e-2 * length) * before:
                return move, point, after
            length /= 2
        return None

    def _stretch(self, step: Tensor) -> float:
        """The e-folds of a step; shifts are linear, and have none."""
        return largest(step[self.laws.degrees.to(step.device) == 2])

    def _moved(self, operator: TangentOperator, step: Tensor) -> tuple[GroupElement, Params]:
        """A step with an exact move, and slides that bring buffers back.

        To first order buffers rest. A scale moves the mean of a batch norm by exp(c) − 1 times it,
        and the slide of the same direction by −c times it: what is between them is slid as well.
        """
        symmetry = operator.symmetry
        velocity = operator.algebra(step)
        slid = {n: delta for n, delta in velocity.offsets.items() if bool(delta.any())}
        move = replace(velocity, offsets=slid).exp()
        point = act(symmetry, move, operator.params)
        rest = {n: operator.params[n] for n in symmetry.buffers if n in point}
        for _ in range(_SETTLINGS):
            back = {n: b - point[n] for n, b in rest.items() if point[n] is not b}
            if all(largest(x) <= _ROUNDING * largest(rest[n]) for n, x in back.items()):
                break
            slide = _slides(tangent(symmetry, point), back)
            point, move = act(symmetry, slide, point), slide @ move
        return move, point


def _slides(operator: TangentOperator, back: dict[str, Tensor]) -> GroupElement:
    """The shortest slides that move buffers by given tensors."""
    shift = torch.cat([torch.full((b.size,), float(b.is_shift)) for b in operator.blocks])
    shift = shift.to(operator.zero)

    def product(c: Tensor) -> Tensor:
        moved = operator.matvec(shift * c)
        return shift * operator.rmatvec({n: x for n, x in moved.items() if n in back})

    found = _conjugate_gradients(product, shift * operator.rmatvec(back), 1e-15)
    return replace(operator.algebra(found), values={}).exp()


# -- the Newton step ---------------------------------------------------------------------------


def _newton(operator: TangentOperator, left: Tensor, scale: float) -> tuple[Tensor, int]:
    """c with M Mᵀ c = r, for the fields M of the quantities at a point, and the rank of M where it
    is formed; least squares where some quantities depend on others."""
    generators = sum(block.size for block in operator.blocks)
    if generators * operator.shape[1] <= _DENSE:
        fields = operator.dense()
        return _least_squares(fields @ fields.T, left)
    accuracy = min(1e-2, max(float(left.norm()) / scale, 1e-8))

    def gram(c: Tensor) -> Tensor:
        return operator.rmatvec(operator.matvec(c))

    return _conjugate_gradients(gram, left, accuracy), 0


def _least_squares(gram: Tensor, right: Tensor) -> tuple[Tensor, int]:
    squares = gram.diagonal()
    long = squares > _SINGULAR * squares.max() if len(squares) else squares > 0
    inverse = torch.where(long, squares, 1.0).rsqrt() * long
    values, vectors = torch.linalg.eigh(inverse[:, None] * gram * inverse)
    kept = values > _SINGULAR * values.max() if len(values) else values > 0
    found = vectors[:, kept].T @ (inverse * right) / values[kept]
    return inverse * (vectors[:, kept] @ found), int(kept.sum())


def _conjugate_gradients(product: Solve, right: Tensor, accuracy: float) -> Tensor:
    """x with A x = r, for A positive semidefinite and r in its range."""
    found, residual, search = torch.zeros_like(right), right, right
    size = float(residual @ residual)
    aim = accuracy**2 * size
    for _ in range(_PRODUCTS):
        if size <= aim:
            break
        along = product(search)
        bend = float(search @ along)
        if bend <= 0:
            break
        found = found + (size / bend) * search
        residual = residual - (size / bend) * along
        size, before = float(residual @ residual), size
        search = residual + (size / before) * search
    return found
