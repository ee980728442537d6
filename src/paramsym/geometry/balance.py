"""`balance`: the point of least norm on the orbit of given parameters, with a certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral

from paramsym.geometry.bounds import Anchors, Bounds, Limits, anchor, limits_of, require_bounded
from paramsym.geometry.costs import cost_along_scales, terms_along_scales
from paramsym.geometry.descent import descend
from paramsym.geometry.factors import Factor, factors_of, together
from paramsym.geometry.finite import require_finite, require_range
from paramsym.geometry.gains import require_gains, unit_scales
from paramsym.geometry.given import NumbersInFiles, numbers_of
from paramsym.geometry.movers import Movers, movers_of
from paramsym.geometry.result import Balanced, Part, Status
from paramsym.geometry.rotations import standstill
from paramsym.geometry.turns import Params, Turns
from paramsym.structure.agreed import require_agreed
from paramsym.structure.patterns import Patterns
from paramsym.structure.sliding import standstill as shift_standstill
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import is_sharded

Progress = Callable[[str], None]
_LESS = "with it a scale has no end, and in this precision the norm is lower without"
OBJECTIVES = {"l2": 2.0, "l1": 1.0}


def balance(
    symmetry: ParameterSymmetry,
    params: Params,
    objective: str = "l2",
    hold: Patterns = (),
    include: Patterns = (),
    shifts: bool = True,
    tolerance: float = 1e-12,
    rounds: int = 100,
    bounds: Bounds | None = None,
    anchors: Anchors | None = None,
    gains: str = "free",
    rotations: bool = False,
    progress: Progress | None = None,
) -> Balanced:
    """The equivalent parameters of least norm, and a bound on what is left to gain.

    Along the logarithms of all scales Σ |w|^p is a convex sum of exponentials. A change of basis g
    makes tr(g G gᵀ) + tr(g⁻ᵀ G′ g⁻¹) of the Gram matrices G of what it moves and G′ of what it
    moves dually, least at the geometric mean of G⁻¹ and G′. A shift is linear least squares. Along
    scales and bases the norm is least exactly where the moments vanish (Kempf and Ness). Families
    that share no tensor are balanced one after the other.

    Args:
        symmetry: derived or written by hand.
        params: the complete state dict; it is only read. Buffers move and cost nothing, tied
            tensors count once, a gain that is stored as γ − 1 counts as γ. DTensors are gathered,
            all of them, and those of the result are placed as they are. A mapping that is no dict
            is one of tensors in files, which are read when they are needed.
        objective: "l2", Σ |w|², or "l1", Σ |w|, along scales and moduli
            alone.
        hold: patterns of spaces and shifts to leave as they are.
        include: patterns of approximate spaces (`exact=False`) to move all the same; their scales
            need bounds.
        shifts: whether shifts take part. The cost is not convex in shifts and scales together, so
            that a point is called LOCAL where any has moved.
        tolerance: gap relative to the cost at which the scales are done.
        rounds: at most so many turns.
        bounds: (low, high) by pattern of spaces: their scales, relative to the given parameters,
            stay in between; numbers, or tensors of shape (copies…, n). Of complex kinds it is the
            moduli, of signed ones the absolute values.
        anchors: scales by pattern of spaces, alike: what they are fixed at, NaN for those that
            are free. Together with bounds they may leave no point: INFEASIBLE, nothing moves.
        gains: "free", where gains take part as all parameters do; or "unit", where those in whose
            frames rotations act are made one in absolute value first, by anchors. Rotations then
            keep the norm, and the value is one and the same from every equivalent start.
        rotations: whether rotations in the frames of gains take part, by descent. They have many
            local minima, so that the point is called LOCAL; the value is never above that
            without them. By default they are held, and `held_moment` of the result says how
            steep the norm is along them.
        progress: called with one line per turn.

    Returns:
        A `Balanced`.

    Raises:
        ValueError: an unknown objective; numbers that are not finite; a tensor that is missing or
            of another shape than its type; a tolerance or a number of rounds that is not positive;
            an unknown convention for gains;
            bounds or anchors that are not positive and finite, of another shape, or for spaces
            without scales; bounds that exclude 1; approximate scales that have none.
        UnknownName: a pattern that matches nothing.

    Source: Kempf and Ness, "The length of vectors in representation spaces" (1979); Osborne, "On
    pre-conditioning of matrices" (1960); Bhatia, Positive Definite Matrices (2007), chapter 4.
    """
    if objective not in OBJECTIVES:
        raise ValueError(
            f"balance(objective={objective!r}): it is none of {[*OBJECTIVES]}. The sum of squares "
            "('l2') or of absolute values ('l1') was expected. Pass one of the two."
        )
    _require_positive(tolerance, rounds)
    require_gains(gains)
    given, in_files = params, isinstance(params, Mapping) and not isinstance(params, dict)
    params = (NumbersInFiles if in_files else numbers_of)(symmetry, params, "balance")
    require_finite(symmetry, params, summed=True)
    power = OBJECTIVES[objective]
    movers = movers_of(symmetry, power, hold, include, shifts, rotations=rotations)
    _hold_standing(symmetry, params, movers)
    limits = limits_of(symmetry, bounds or {}, anchors or {}, movers.held)
    if gains == "unit":
        _anchor_gains(symmetry, params, movers, limits)
    require_bounded(symmetry, movers.scales, limits)
    # what was spread over ranks is moved as it is
    spread = {} if in_files else {n: t.detach() for n, t in given.items() if is_sharded(t)}
    start = params if in_files else {**params, **spread}
    if limits.conflicts:
        require_finite(symmetry, params)
        before = cost_along_scales(symmetry, params, (), power).constant
        return Balanced(
            start, symmetry.identity(), before, before,
            Status.INFEASIBLE, math.inf, {}, limits.conflicts, 0,
        )  # fmt: skip
    factors, parts = factors_of(symmetry, movers), []
    begun = partial(Turns, symmetry, power=power, tolerance=tolerance, limits=limits.logs)
    for k, factor in enumerate(factors):
        told = _telling(progress, k + 1, len(factors))
        parts.append(_settled(begun, params, factor, rounds, told))
    constant = _constant(symmetry, params, factors, power)
    found = together(symmetry, start, parts, constant, movers.held)
    require_range(symmetry, params, found.before)
    require_agreed(found.element, spread)
    return found


def _hold_standing(symmetry: ParameterSymmetry, params: Params, movers: Movers) -> None:
    """Hold the rotations and shifts that cannot move next to a gain of zero."""
    for space in [*movers.rotations]:
        if why := standstill(symmetry, params, space):
            movers.rotations.remove(space)
            movers.held[space] = why
    for name in [*movers.shifts]:
        if why := shift_standstill(symmetry.shift_of[name], params):
            movers.shifts.remove(name)
            movers.held[name] = why


def _anchor_gains(
    symmetry: ParameterSymmetry, params: Params, movers: Movers, limits: Limits
) -> None:
    """Fix scales at what makes the gains of frames one."""
    scales, kept = unit_scales(symmetry, params)
    movers.held |= kept
    for space, values in scales.items():
        anchor(limits, space, values, movers.held)


def _settled(
    begun: Callable[..., Turns], params: Params, factor: Factor, rounds: int,
    progress: Progress | None,
) -> Part:  # fmt: skip
    """One factor, whose tensors are let go when it is done.

    Where shifts take all weight from a scale, it grows without end, and with it what they round to:
    the norm may then be lower without them.
    """
    own = {n: params[n] for n in factor.tensors if n in params}
    still = factor.movers.without_shifts(_LESS)
    turns = begun(params=own, movers=factor.movers)
    turns.settle(rounds, progress)
    if turns.movers.rotations:
        descend(turns, turns.movers.rotations, rounds, progress)
    found = turns.found()
    if not turns.slid or found.status is not Status.UNATTAINED:
        return found
    other = _settled(begun, params, replace(factor, movers=still), rounds, progress)
    return min(found, other, key=lambda part: part.value)


def _constant(
    symmetry: ParameterSymmetry, params: Params, factors: Sequence[Factor], power: float
) -> float:
    """The cost of the tensors that no factor moves."""
    moved = {n for factor in factors for n in factor.tensors}
    rest = [n for n in symmetry.blocks if n not in moved]
    return terms_along_scales(symmetry, params, rest, (), power)[1]


def _telling(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """What is told of one part of several."""
    if progress is None or parts == 1:
        return progress
    return lambda line: progress(f"part {part} of {parts}, {line}")


def _require_positive(tolerance: float, rounds: int) -> None:
    if not 0 < tolerance < math.inf:
        raise ValueError(
            f"balance(tolerance={tolerance}): a positive number was expected, the gap relative to "
            "the cost at which the scales are done. Pass for example tolerance=1e-12."
        )
    if not isinstance(rounds, Integral) or rounds < 1:
        raise ValueError(
            f"balance(rounds={rounds!r}): a whole number of turns was expected, at "
            "least one. Pass rounds=1 for one turn of every family, or leave it at 100."
        )
