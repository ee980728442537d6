"""`initialise_with`: the equivalent parameters whose conserved quantities have given values.

Training by gradient flow cannot change these quantities; a move along the orbit can (`newton`), as
far as they are within reach (`reachable`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.finite import require_finite
from paramsym.geometry.given import numbers_of
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.symmetry import ParameterSymmetry

from .conserved import ConservedQuantities, Params, conserved_quantities
from .newton import Found, Search, largest
from .reachable import obstruction
from .targets import Quantities, targets

_FIRST, _STEPS = 16, 80


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
    params = numbers_of(symmetry, params, "initialise_with")
    require_finite(symmetry, params, "initialise_with")
    with torch.no_grad():
        return _initialised(symmetry, params, quantities, tolerance)


def _initialised(
    symmetry: ParameterSymmetry, params: Params, quantities: Quantities, tolerance: float
) -> Initialised:
    point = {n: widened(p) for n, p in params.items()}
    laws = conserved_quantities(symmetry, point)
    aim = targets(laws, point, quantities)
    search = Search(_without_idle(laws), aim, _scale(laws, point, aim))

    def result(found: Found) -> Initialised:
        element = GroupElement(symmetry, found.element.parts)
        moved = act(symmetry, element, params)
        there = {n: widened(p) for n, p in moved.items()}
        left = largest(laws.quantities(there) - aim) / search.scale
        near = left <= tolerance or any(p.dtype != there[n].dtype for n, p in moved.items())
        status = Reach.REACHED if found.arrived and near else Reach.UNDECIDED
        return Initialised(moved, element, laws.values(there), status, left, found.ended)

    first = result(search.run(point, tolerance, _FIRST))
    if first.status == Reach.REACHED:
        return replace(first, why="")
    # What is out of reach takes all steps that there are: the proof comes before most of them.
    if why := obstruction(laws, point, aim, tolerance * search.scale):
        nowhere = result(Found(symmetry.identity(), False, why))
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
    size = max(largest(aim), largest(laws.quantities(point)))
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
