"""`balance`: the point of least norm on the orbit of given parameters, with a certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral

from paramsym.geometry.bounds import Anchors, Bounds, anchor, limits_of, require_bounded
from paramsym.geometry.costs import cost_along_scales
from paramsym.geometry.descent import descended
from paramsym.geometry.finite import require_finite
from paramsym.geometry.gains import require_gains, unit_scales
from paramsym.geometry.given import numbers_of
from paramsym.geometry.movers import movers_of
from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.rotations import standstill
from paramsym.geometry.turns import Params, Turns
from paramsym.structure.agreed import require_agreed
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import is_sharded, placed_like

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
    progress: Callable[[str], None] | None = None,
) -> Balanced:
    """The equivalent parameters of least norm, and a bound on what is left to gain.

    Along the logarithms of all scales Σ |w|^p is a convex sum of exponentials. A change of basis g
    makes tr(g G gᵀ) + tr(g⁻ᵀ G′ g⁻¹) of the Gram matrices G of what it moves and G′ of what it
    moves dually, least at the geometric mean of G⁻¹ and G′. A shift is linear least squares. Along
    scales and bases the norm is least exactly where the moments vanish (Kempf and Ness).

    Args:
        symmetry: derived or written by hand.
        params: the complete state dict; it is only read. Buffers move and cost nothing, tied
            tensors count once, a gain that is stored as γ − 1 counts as γ. DTensors are gathered,
            all of them, and those of the result are placed as they are.
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
    numbers = numbers_of(symmetry, params, "balance")
    spread = {n: t for n, t in params.items() if is_sharded(t)}
    params = numbers
    require_finite(symmetry, params, summed=True)
    power = OBJECTIVES[objective]
    movers = movers_of(symmetry, power, hold, include, shifts, rotations=rotations)
    for space in [*movers.rotations]:
        if why := standstill(symmetry, params, space):
            movers.rotations.remove(space)
            movers.held[space] = why
    limits = limits_of(symmetry, bounds or {}, anchors or {}, movers.held)
    if gains == "unit":
        scales, kept = unit_scales(symmetry, params)
        movers.held |= kept
        for space, values in scales.items():
            anchor(limits, space, values, movers.held)
    require_bounded(symmetry, movers.scales, limits)
    if limits.conflicts:
        require_finite(symmetry, params)
        before = cost_along_scales(symmetry, params, (), power).constant
        held = Balanced(
            dict(params), symmetry.identity(), before, before,
            Status.INFEASIBLE, math.inf, {}, limits.conflicts, 0,
        )  # fmt: skip
        return _placed(held, spread)
    turns = Turns(symmetry, params, power, movers, tolerance, limits.logs)
    turns.settle(rounds, progress)
    if not movers.rotations:
        return _placed(turns.found(), spread)
    return _placed(descended(turns, movers.rotations, rounds, progress), spread)


def _placed(found: Balanced, spread: Params) -> Balanced:
    """The point with what was spread over ranks spread as before."""
    require_agreed(found.element, spread)
    there = {n: placed_like(found.params[n], t) for n, t in spread.items()}
    return replace(found, params={**found.params, **there})


def _require_positive(tolerance: float, rounds: int) -> None:
    if not 0 < tolerance < math.inf:
        raise ValueError(
            f"balance(tolerance={tolerance}): a positive number was expected, the gap relative to "
            "the cost at which the scales are done. Pass for example tolerance=1e-12."
        )
    if not isinstance(rounds, Integral) or rounds < 1:
        raise ValueError(
            f"balance(rounds={rounds!r}): a whole number of turns, at least one, was "
            "expected. Pass rounds=1 for one turn of every family, or leave it at 100."
        )
