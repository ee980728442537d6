"""Whether two networks are one up to symmetry, with the element that shows it or the place that
forbids it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.geometry.alike import alike
from paramsym.geometry.bringing import Brought, bring, counted
from paramsym.geometry.control import moved_copy
from paramsym.geometry.culprit import explained
from paramsym.geometry.invariants import FLOOR, apart, difference, typical_size
from paramsym.geometry.reduced import reduce
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
Progress = Callable[[str], None]

# The largest difference within a tensor, relative to its root mean square, that counts as equal.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}
COARSE = 5e-2  # the same for half precision
_SWEEPS = 20
_NEAR = 0.05  # where points are nearer, the largest difference is the cause
_SHOWN = 3  # entries that explain a difference equally well
_CONTROL = 30.0  # times what is left of a moved copy: rounding, and no difference


class Kind(StrEnum):
    """What is known of two points."""

    EQUAL = "EQUAL"
    DIFFERENT = "DIFFERENT"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Verdict:
    """Whether two points lie on one orbit.

    Attributes:
        kind: EQUAL if `element` carries b to a; DIFFERENT if no element can; UNDECIDED with the
            reason.
        element: what carries b to a, or as near as was found.
        residual: the largest difference within a tensor that it leaves, relative to the root mean
            square of the tensor, in the scales and bases of a.
        where: the tensor, and its entry, where the difference is. Of points that are near, the
            entry that alone explains it ("or" parts those that do so equally well); of others, the
            first that nothing can carry over. Empty for equal points.
        reason: in words.
    """

    kind: Kind
    element: GroupElement
    residual: float
    where: str = ""
    reason: str = ""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.kind}: residual {self.residual:.1e}{place}. {self.reason}".rstrip()


class Gap(NamedTuple):
    """The largest difference of two points, relative to the size of its tensor."""

    size: float
    name: str
    entry: tuple[int, ...]

    @property
    def where(self) -> str:
        """The place as text."""
        return f"{self.name}[{', '.join(map(str, self.entry))}]" if self.name else ""


_NONE = Gap(0.0, "", ())


def same_orbit(
    symmetry: ParameterSymmetry,
    a: Params,
    b: Params,
    tol: float | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Whether two networks differ by an element of their symmetry, and by which.

    Both points are reduced, so that a compact group is left, and b is read next to a from what is
    fixed. If that leaves nothing, the element is the answer. If it does, and every step was forced
    (no two units alike, no sign or direction that nothing tells), no element exists; so too where
    an invariant of the orbit differs. Before a difference is called one, it is set against what the
    same steps leave of either point and a moved copy of it: one of two equivalent points may hold
    rounding where the other has zeros, and balance makes that large.

    Args:
        symmetry: of both networks. Approximate families (`exact=False`) take no part.
        a, b: complete state dicts.
        tol: the largest difference within a tensor, relative to its root mean square, that counts
            as equal; by default 1e-7 in float64, 1e-3 in float32, 0.05 in half precision.
        progress: called with a line for each step.

    Returns:
        A `Verdict`.

    Raises:
        ValueError: tensors that are missing, left over, of different shapes or dtypes, or not
            finite; a tolerance that is not positive.

    Source: Kempf and Ness, "The length of vectors in representation spaces" (1979).
    """
    a, b = alike(symmetry, a, b, "same_orbit")
    tol = _tolerance(symmetry, a, tol)
    identity = GroupElement(symmetry)
    if all(torch.equal(a[name], b[name]) for name in a if isinstance(a[name], Tensor)):
        return Verdict(Kind.EQUAL, identity, 0.0, "", "The tensors are equal.")
    if strange := _strange(symmetry, a, b):
        reason = f"The symmetry does not know {strange!r}, which differs."
        return Verdict(Kind.UNDECIDED, identity, float("inf"), strange, reason)
    brought = _brought(symmetry, a, b, progress)
    inner = _inner_gap(brought)
    if inner.size > tol:
        brought.approach.sweep(_SWEEPS, progress=progress)
        inner = _inner_gap(brought)
    element = brought.element
    moved = act(symmetry, element, b)
    outer = _gap(symmetry, a, moved)
    if inner.size <= tol < outer.size and not brought.loose:  # near enough to begin anew
        element = _brought(symmetry, a, moved, progress).element @ element
        moved = act(symmetry, element, b)
        outer = _gap(symmetry, a, moved)
    supported = inner.size <= tol
    if brought.loose and not supported:
        supported = _gap(symmetry, *brought.supports()).size <= tol
    if supported and outer.size <= tol:
        return Verdict(Kind.EQUAL, element, outer.size, "", "The element carries b to a.")
    if supported and brought.loose:
        return _with_loose_ends(brought, element, outer)
    if supported:
        reason = f"The reduced points agree to {inner.size:.1e}; the element rounds by more."
        return Verdict(Kind.UNDECIDED, element, outer.size, outer.where, reason)
    found = Verdict(Kind.DIFFERENT, element, outer.size)
    return _apart(symmetry, (a, b), moved, brought, found, inner, outer, tol)


def _tolerance(symmetry: ParameterSymmetry, a: Params, tol: float | None) -> float:
    if tol is None:
        kinds = {a[n].dtype.to_real() for n in symmetry.signature if a[n].is_floating_point()}
        return max((TOLERANCES.get(kind, COARSE) for kind in kinds), default=1e-7)
    if isinstance(tol, bool) or not isinstance(tol, Real) or not 0 < tol <= 1e300:
        raise ValueError(
            f"same_orbit(tol={tol!r}): a positive number was expected, the largest difference "
            "within a tensor relative to its root mean square. Leave tol= out for the default."
        )
    return float(tol)


def _strange(symmetry: ParameterSymmetry, a: Params, b: Params) -> str:
    """A tensor outside of the symmetry that is not the same in both."""
    names = [n for n in a if n not in symmetry.signature and n not in symmetry.ties]
    tensors = [n for n in names if isinstance(a[n], Tensor) and isinstance(b[n], Tensor)]
    return next((n for n in tensors if not torch.equal(a[n], b[n])), "")


def _brought(
    symmetry: ParameterSymmetry, a: Params, b: Params, progress: Progress | None
) -> Brought:
    found = bring(symmetry, symmetry, reduce(symmetry, a, progress), reduce(symmetry, b, progress))
    found.approach.read(progress=progress)
    return found


# -- verdicts --------------------------------------------------------------------------------------


def _with_loose_ends(brought: Brought, element: GroupElement, outer: Gap) -> Verdict:
    """Two points that agree in all that determines the function, and differ in what does not."""
    named = ", ".join(f"{count} of {space!r}" for space, count in [*brought.loose.items()][:3])
    reason = (
        "They agree in all that determines the function; directions that stand against zeros "
        f"({named}) hold different numbers."
    )
    return Verdict(Kind.UNDECIDED, element, outer.size, outer.where, reason)


def _apart(
    symmetry: ParameterSymmetry,
    points: tuple[Params, Params],
    moved: Params,
    brought: Brought,
    found: Verdict,
    inner: Gap,
    outer: Gap,
    tol: float,
) -> Verdict:
    """Two points that the element found does not join: no other does, or it was not forced."""
    near = inner.size <= _NEAR
    where = _place(symmetry, points[0], moved, outer) if near else _first_apart(brought).where
    controls = [_control(symmetry, point) for point in points]
    left = max(_inner_gap(control).size for control in controls)
    if inner.size <= _CONTROL * left and outer.size <= tol:
        return Verdict(Kind.EQUAL, found.element, outer.size, "", "The element carries b to a.")
    if inner.size <= _CONTROL * left:
        reason = f"The same steps leave {left:.1e} of a moved copy, and {inner.size:.1e} here."
        return _undecided(found, where, reason)
    own, *each = (apart(found.pair) for found in (brought, *controls))
    copied = {text: max(sizes[text] for sizes in each) for text in own}
    if different := difference(brought.pair, own, copied, where.partition("[")[0]):
        reason = f"An invariant of the orbit differs: {different}."
        return Verdict(Kind.DIFFERENT, found.element, found.residual, where, reason)
    if held := brought.held:
        name, why = next(iter(held.items()))
        return _undecided(found, where, f"{name!r} could not be brought to its place: {why}.")
    if doubts := brought.approach.doubts:
        name, why = next(iter(doubts.items()))
        return _undecided(found, where, f"{name!r} was not determined: {why}.")
    reason = "Every step was forced, and the tensors still differ."
    return Verdict(Kind.DIFFERENT, found.element, found.residual, where, reason)


def _place(symmetry: ParameterSymmetry, a: Params, moved: Params, outer: Gap) -> str:
    """The entries of which one alone explains a small difference, or the largest difference."""
    found = explained(symmetry, a, moved)
    texts = [Gap(0.0, name, entry).where for name, entry in found[:_SHOWN]]
    return (" or ".join(texts) + " or others" * (len(found) > _SHOWN)) or outer.where


def _undecided(found: Verdict, where: str, reason: str) -> Verdict:
    return Verdict(Kind.UNDECIDED, found.element, found.residual, where, reason)


def _control(symmetry: ParameterSymmetry, point: Params) -> Brought:
    """A point and a moved copy of it after the same steps."""
    return _brought(symmetry, point, moved_copy(symmetry, point), None)


# -- differences -----------------------------------------------------------------------------------


def _inner_gap(brought: Brought) -> Gap:
    """Between the reduced points, where what nothing determines is zero."""
    return _gap(brought.symmetry, brought.first.free, brought.moved)


def _first_apart(brought: Brought) -> Gap:
    """The first tensor, in the order in which they become known, where points are clearly apart."""
    moved = brought.moved
    rank = {name: k for k, name in enumerate(brought.approach.order)}
    symmetry = brought.pair.symmetry
    names = sorted(
        brought.pair.moving,
        key=lambda n: max((rank.get(s, 0) for s in symmetry.movers[n]), default=0),
    )
    fixed, floor = brought.first.free, _floor(brought.symmetry, brought.first.free)
    gaps = [_gap_of(brought.symmetry, name, fixed, moved, floor) for name in names]
    return next((gap for gap in gaps if gap.size > _NEAR), gaps[0])


def _gap(symmetry: ParameterSymmetry, a: Params, b: Params) -> Gap:
    """The largest difference within a tensor, relative to its root mean square."""
    floor = _floor(symmetry, a)
    gaps = (_gap_of(symmetry, name, a, b, floor) for name in symmetry.signature)
    return max(gaps, key=lambda gap: gap.size, default=_NONE)


def _floor(symmetry: ParameterSymmetry, a: Params) -> float:
    """The size that smaller tensors count as, for rounding is all that they may hold."""
    return FLOOR * typical_size({name: a[name] for name in counted(symmetry, a)})


def _gap_of(symmetry: ParameterSymmetry, name: str, a: Params, b: Params, floor: float) -> Gap:
    """The largest difference within one tensor."""
    if name in symmetry.dead or name not in a or not _tells(a[name]):
        return _NONE
    one, other = widened(a[name]), widened(b[name])
    away = (one - other).abs() if one.is_floating_point() or one.is_complex() else one != other
    away = away.double()
    if rows := symmetry.unreached.get(name):
        away[list(rows)] = 0
    if not (largest := float(away.max())):
        return _NONE
    sizes = [float(x.abs().double().square().mean().sqrt()) for x in (one, other)]
    place = torch.unravel_index(away.argmax(), away.shape)
    return Gap(largest / max(*sizes, floor, 1e-300), name, tuple(int(k) for k in place))


def _tells(x: Tensor) -> bool:
    """Whether a tensor says anything: an empty one does not, nor does a counter."""
    return bool(x.numel()) and (x.ndim > 0 or x.is_floating_point() or x.is_complex())
