"""`initialise_with`: the equivalent parameters whose conserved quantities have given values.

Training by gradient flow cannot change these quantities; a move along the orbit can. With X_k the
field of quantity k, of degree d_k, and Σ c_j X_j the velocity of the move,

    dQ_k = ⟨∇Q_k, Σ c_j X_j θ⟩ = d_k Σ_j ⟨X_k θ, X_j θ⟩ c_j,

so that the derivative is the Gram matrix of the fields, symmetric and positive semidefinite: the
Newton step solves M Mᵀ c = (Q* − Q) / d, and exp(Σ c_j X_j) is an exact step on the orbit. Along
scales alone it is the Newton step of a convex function, ½‖exp(y)·θ‖² − ½⟨Q*, y⟩, for its gradient
is ½(Q − Q*).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.finite import require_finite
from paramsym.structure.action import act, check_parameters
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, tangent

from .conserved import ConservedQuantities, Params, conserved_quantities
from .reachable import obstruction
from .targets import Quantities, targets

_FIRST, _STEPS = 16, 80
_LONGEST = 1.0  # e-folds of one step
_HALVINGS = 40
_ARRIVED = 1e-3  # e-folds: on its way to infinity a scale takes Newton steps of about one half
_ROUNDING = 1e-15  # of the scale: what is left below it is none
_DENSE = 1 << 24  # numbers of the largest matrix of fields that is formed
_SINGULAR = 1e-12  # of the largest eigenvalue, and of the largest square of a field
_PRODUCTS = 400  # with the Gram matrix, for one step
_SETTLINGS = 4

Solve = Callable[[Tensor], Tensor]


class Reach(StrEnum):
    """What is known of given quantities: an equivalent network has them, none has, or neither was
    shown."""

    REACHED = "REACHED"
    UNREACHABLE = "UNREACHABLE"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Initialised:
    """A point of an orbit that was sought by its conserved quantities.

    Attributes:
        params: the parameters there, a new dict; `act(symmetry, element, params)` of those given.
        element: the group element that leads there.
        quantities: theirs, as `ConservedQuantities.values` gives them.
        status: REACHED if they are the asked ones up to the tolerance; UNREACHABLE if no point of
            the orbit has them, with the proof in `why`, and then nothing has moved; UNDECIDED where
            the search ended elsewhere and there is no such proof.
        residual: the largest difference from what was asked, relative to the largest of the asked
            and the given quantities and the mean squared length of their fields.
        why: for all but REACHED, what stands against it.
    """

    params: dict[str, Tensor]
    element: GroupElement
    quantities: dict[str, Tensor]
    status: Reach
    residual: float
    why: str = ""

    def __str__(self) -> str:
        first = f"{self.status}: quantities off by {self.residual:.1e} of their scale"
        return f"{first}\n  {self.why}" if self.why else first


def initialise_with(
    symmetry: ParameterSymmetry,
    params: Params,
    quantities: Quantities,
    tolerance: float = 1e-10,
) -> Initialised:
    """The equivalent parameters whose conserved quantities have given values.

    The function stays; what gradient flow keeps constant from there on is chosen. The search runs
    in float64, by Newton's method along scales, symmetric changes of basis and constant shifts; it
    leaves buffers where they are.

    Args:
        symmetry: what `find_symmetry` derived.
        params: the complete state dict; it is only read.
        quantities: by family the values asked for, in the shape that `ConservedQuantities.values`
            gives; 0.0 for balance, another number for that multiple of the identity (of a diagonal:
            that number for each unit), a vector for a diagonal matrix. Other families keep theirs.
        tolerance: the residual up to which the values count as reached.

    Returns:
        An `Initialised`. UNREACHABLE is proved for all that leads there without exchanging units:
        by a combination of scales along which no parameter grows although the quantities should, by
        the ranks of what carries a basis, or by families that say the same twice.

    Raises:
        KeyError: a family without quantities.
        ValueError: values of another shape, that are not finite, or a matrix that is not symmetric;
            a tolerance that is not positive; parameters that are not finite; as `act`.

    Source: Zhao, Ganev, Walters, Yu, Dehmamy (2023), section 6, for the quantities as coordinates
    of an initialisation; Kempf and Ness (1979) for the convex function along an orbit.
    """
    if not 0 < tolerance < math.inf:
        raise ValueError(
            f"initialise_with(tolerance={tolerance}): a positive number was expected, the residual "
            "relative to the scale of the quantities. Pass for example tolerance=1e-10."
        )
    check_parameters(symmetry, params)
    require_finite(symmetry, params, "initialise_with")
    with torch.no_grad():
        return _initialised(symmetry, params, quantities, tolerance)


def _initialised(
    symmetry: ParameterSymmetry, params: Params, quantities: Quantities, tolerance: float
) -> Initialised:
    point = {n: _wide(p.detach()) for n, p in params.items()}
    laws = conserved_quantities(symmetry, point)
    aim = targets(laws, point, quantities)
    search = _Search(_without_idle(laws), aim, _scale(laws, point, aim))

    def result(found: _Found) -> Initialised:
        element = GroupElement(symmetry, found.element.parts)
        moved = act(symmetry, element, params)
        there = {n: _wide(p.detach()) for n, p in moved.items()}
        left = _largest(laws.quantities(there) - aim) / search.scale
        near = left <= tolerance or any(p.dtype != there[n].dtype for n, p in moved.items())
        status = Reach.REACHED if found.arrived and near else Reach.UNDECIDED
        return Initialised(moved, element, laws.values(there), status, left, found.ended)

    first = result(search.run(point, tolerance, _FIRST))
    if first.status == Reach.REACHED:
        return replace(first, why="")
    # What is out of reach takes all steps that there are: the proof comes before most of them.
    if why := obstruction(laws, point, aim, tolerance * search.scale):
        nowhere = result(_Found(symmetry.identity(), False, why))
        return replace(nowhere, status=Reach.UNREACHABLE)
    found = result(search.run(point, tolerance, _STEPS))
    balanced = None if found.status == Reach.REACHED else _balanced(symmetry, point)
    if balanced is not None:
        again = search.run(act(symmetry, balanced, point), tolerance, _STEPS)
        beyond = GroupElement(symmetry, again.element.parts)
        second = result(replace(again, element=beyond @ balanced))
        found = second if second.status == Reach.REACHED else found
    return replace(found, why="") if found.status == Reach.REACHED else found


def _balanced(symmetry: ParameterSymmetry, point: Params) -> GroupElement | None:
    """What leads to the point of least norm, if buffers rest and shifts of their own help.

    Shifts that read parameters take away what no reader sees, which scales and bases only shrink:
    a linear network with more hidden units than rank is balanced at another rank.
    """
    if not any(f for shift in symmetry.shifts for term in shift.terms for f in term.factors):
        return None
    found = balance(symmetry, point)
    resting = all(torch.equal(found.params[n], point[n]) for n in symmetry.buffers if n in point)
    return found.element if resting else None


def _scale(laws: ConservedQuantities, point: Params, aim: Tensor) -> float:
    """The size of the quantities: without cancellation their fields are as long, ‖X_k θ‖², taken
    on average as ‖Σ ±X_k θ‖² with random signs."""
    size = max(_largest(aim), _largest(laws.quantities(point)))
    if len(aim):
        coins = torch.rand(len(aim), generator=torch.Generator().manual_seed(0))
        signs = torch.where(coins < 0.5, -1.0, 1.0).to(aim)
        moved = laws.tangent(point).matvec(signs)
        size = max(size, sum(float(x.abs().square().sum()) for x in moved.values()) / len(aim))
    return size or 1.0


def _without_idle(laws: ConservedQuantities) -> ConservedQuantities:
    """The same quantities, of a symmetry without the shifts that take no part in them."""
    taking = torch.zeros(laws.basis.generators)
    taking[laws.basis.rows[laws.basis.values != 0]] = 1.0
    busy = {b.name for b, part in laws.operator.split(taking) if b.is_shift and bool(part.any())}
    symmetry = laws.symmetry
    kept = tuple(s for s in symmetry.shifts if s.name in busy)
    return conserved_quantities(replace(symmetry, shifts=kept), laws.operator.params)


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _largest(numbers: Tensor) -> float:
    return float(numbers.abs().max()) if numbers.numel() else 0.0


@dataclass(frozen=True)
class _Found:
    element: GroupElement
    arrived: bool
    ended: str


@dataclass(frozen=True)
class _Search:
    """Damped Newton steps on the orbit, towards given quantities."""

    laws: ConservedQuantities
    aim: Tensor
    scale: float

    def left(self, point: Params) -> Tensor:
        """(Q* − Q) / d, what the Newton step is solved for."""
        return (self.aim - self.laws.quantities(point)) / self.laws.degrees.to(self.aim)

    def run(self, point: Params, tolerance: float, steps: int) -> _Found:
        """The element that leads from a point to these quantities, or as near as the steps go."""
        element, left = self.laws.symmetry.identity(), self.left(point)
        most, taken, last, arrived = 0, 0, 0.0, False
        for _ in range(steps):
            operator = self.laws.tangent(point)
            step, rank = _newton(operator, left, self.scale)
            last, most, size = _largest(step), max(most, rank), _largest(left)
            # Where fields become dependent, what is left is that of a limit.
            arrived = size <= tolerance * self.scale / 2 and last <= _ARRIVED and rank == most
            done = arrived and size <= _ROUNDING * self.scale
            further = None if done else self._further(operator, step, left)
            if further is None:
                break
            move, point, left = further
            element, taken = move @ element, taken + 1
        return _Found(
            element, arrived,
            f"{taken} steps, the last of {last:.1e} e-folds, led to no point that has them; that "
            "there is none on the orbit is not proved",
        )  # fmt: skip

    def _further(
        self, operator: TangentOperator, step: Tensor, left: Tensor
    ) -> tuple[GroupElement, Params, Tensor] | None:
        """The step, halved until what is left falls as it should; None where rounding ends it."""
        before = float(left.norm())
        length = min(1.0, _LONGEST / max(_largest(step), 1e-300))
        for _ in range(_HALVINGS):
            move, point = self._moved(operator, length * step)
            after = self.left(point)
            if float(after.norm()) <= (1 - 1e-2 * length) * before:
                return move, point, after
            length /= 2
        return None

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
            if all(_largest(x) <= _ROUNDING * _largest(rest[n]) for n, x in back.items()):
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
