"""`minimize_range`: the equivalent weights whose widest tensor is narrowest, with a certificate.

A few sweeps find a start; the weights that come close to the ranges there are the first edges.
Under given thresholds for all tensors and signs, the cycle of largest mean says by how much they
must grow, and its potentials are scales that keep them (`excess`); the cycles so far say which
thresholds are best, and bound what any scales can reach (`thresholds`). One pass over all weights
then measures the scales that were found, and adds the edges that they break.

Many scales reach the least range. Among those that exceed it by little, the ones of least norm are
taken (`least_norm`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paramsym.geometry.costs import balanced_scales, cost_along_scales, scaled_by
from paramsym.geometry.finite import require_finite
from paramsym.geometry.given import numbers_of
from paramsym.geometry.movers import movers_of
from paramsym.geometry.result import Balanced, Status
from paramsym.quantize.excess import EXCESS, Policies
from paramsym.quantize.incidence import GROUND, Edges, Incidence, incidence_of
from paramsym.quantize.least_norm import LeastNorm, Norm
from paramsym.quantize.passes import edges_above, equalised, extremes, united
from paramsym.quantize.thresholds import Cuts
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]

OBJECTIVES = ("max", "abs")
CERTIFIED = 1e-6  # gap relative to the value up to which a point is called optimal
NORM_GAP = 1e-4  # gap relative to the norm up to which it is least
_NEAR = 0.6  # of its tensor's range: weights below it are no edges at first
_FAINTER, _FAINTEST = 8, 1e-60  # without a cycle: the next share is its power, after this all
_GAP = 0.1  # of the logarithm, before a bound is known
_FIRST = 1e-3  # of the logarithm, at which the first thresholds are good enough
_ROUNDING = 1e-12  # by which a range, relative, may pass the one that was asked for
_SETTLED = 1e-12  # no gap of the logarithm below it is asked for
_CYCLES = 200  # searches for a worst cycle in one round


def minimize_range(
    symmetry: ParameterSymmetry,
    params: Params,
    objective: str = "max",
    hold: Patterns = (),
    include: Patterns = (),
    tolerance: float = 1e-10,
    rounds: int = 50,
    progress: Callable[[str], None] | None = None,
    slack: float = 0.01,
) -> Narrowed:
    """The equivalent parameters whose widest tensor is as narrow as any, and the proof.

    With y the logarithms of the scales and R⁺, R⁻ the largest positive and negative magnitude of a
    tensor, the maximum over all tensors of R⁺ + R⁻ is a convex function of y: log|w| + ⟨c, y⟩ is
    linear for every weight w. Around a cycle of weights whose scales cancel, from the input to the
    output or back through a residual sum, Σ log|w| is the same for all equivalent networks, which
    bounds the ranges from below; together these bounds give the least range. Signs stay as they
    are: R⁺ + R⁻ may depend on them, and of a scale that may be negative or complex only the modulus
    moves.

    All parameters take part, gains and biases too: over the matrices alone a network with norms has
    no least range, because its gains could take up everything. Sums and products of the ranges are
    no objectives of their own: where layers follow each other, they have the same best scales;
    where they meet in residual sums, the product has no least value.

    Many points have the least range t, and differ in all else. Of those whose range is at most
    (1 + slack)·t, one of least Σ |w|² is returned, which is one convex problem more.

    Args:
        symmetry: derived or written by hand.
        params: the complete state dict; it is only read. Buffers move and cost nothing, tied
            tensors count once, a gain that is stored as γ − 1 counts as γ.
        objective: "max", the largest R⁺ + R⁻ of a tensor, or "abs", the largest |w|.
        hold: patterns of spaces to leave as they are.
        include: patterns of approximate spaces (`exact=False`) to move all the same.
        tolerance: gap relative to the value at which to stop.
        rounds: at most so many passes over all weights.
        progress: called with one line per pass.
        slack: how much wider than the least range the point of least norm may be, relative; with
            0 the point is the one that proves the least range, whatever its norm. Nothing is
            traded where the least range is not certified.

    Returns:
        A `Narrowed`: `value` is the range, `value − gap` a proved lower bound for every equivalent
        network along the scales that are not in `held`; `moment` is empty. It is OPTIMAL where the
        range is proved to be at most (1 + slack) times the least, up to 1e-6; what is known of
        the norm is in `norm` and `norm_gap`.

    Raises:
        ValueError: an unknown objective; a slack that is negative or not finite; numbers that are
            not finite; a tensor that is missing or of another shape than its type.
        UnknownName: a pattern that matches nothing.

    Source: Cochet-Terrasson, Cohen, Gaubert, McGettrick and Quadrat (1998) for cycle means; Nagel
    et al., "Data-free quantization through weight equalization and bias correction" (2019), whose
    equalisation converges to the optimum of "abs".
    """
    call = "minimize_range"
    if objective not in OBJECTIVES:
        raise ValueError(
            f"minimize_range(objective={objective!r}): it is none of {[*OBJECTIVES]}. The largest "
            "R⁺ + R⁻ of a tensor ('max') or the largest |w| ('abs') was expected; a sum or a "
            "product of ranges has the same best scales in a feed-forward network and, the "
            "product, no least value in a residual one. Pass one of the two."
        )
    if not 0 <= slack < math.inf:
        raise ValueError(
            f"minimize_range(slack={slack!r}): a finite share that is not negative was expected, "
            "by which a point of less norm may be wider than the least range. Pass 0 for the least "
            "range itself, or a share such as 0.01."
        )
    params = numbers_of(symmetry, params, call)
    if not all(_adds_up(params[n]) for n in symmetry.signature if n in params):
        require_finite(symmetry, params, call)
    movers = movers_of(symmetry, 1.0, hold, include, shifts=False, call=call)
    incidence = incidence_of(symmetry, params, movers.scales)
    held = {**movers.held, **incidence.held}
    found = _Search(incidence, objective == "abs", tolerance, progress).run(rounds)
    certified = max(found.value - found.bound, 0.0) <= CERTIFIED * found.value
    norm = Norm(found.y, math.nan, math.inf)
    if slack and certified and found.bound and incidence.families:
        norm = _of_least_norm(symmetry, params, incidence, found, slack, objective == "abs")
        found.y, found.value = norm.y, _width(extremes(incidence, norm.y), objective == "abs")
    values = {n: y for n, y in incidence.split(found.y).items() if bool(y.any())}
    element = scaled_by(symmetry, values) if values else symmetry.identity()
    gap = max(found.value - found.bound, 0.0)  # where they meet, either may be rounded up
    status = Status.OPTIMAL if certified else Status.LOCAL
    if found.free:
        status = Status.UNATTAINED
        held["every scale"] = "no cycle of weights bounds the ranges: they can all go to zero"
    return Narrowed(
        params, element, found.before, found.value, status, gap, {}, held,
        found.rounds, norm.value, norm.gap,
    )  # fmt: skip


def _adds_up(tensor: Tensor) -> bool:
    """Whether the sum is finite, as it is of finite numbers that do not overflow: a quick look."""
    return tensor.dtype in (torch.float32, torch.float64) and math.isfinite(float(tensor.sum()))


@dataclass(frozen=True)
class Narrowed(Balanced):
    """A balanced point whose objective is a range.

    Attributes:
        norm: Σ |w|² there, of all that counts; nan where ranges were not traded for it.
        norm_gap: how much lower the norm can be within the same range, along the scales that moved
            and up to factors of e¹⁰; infinite where that is not known.
    """

    norm: float = math.nan
    norm_gap: float = math.inf


def _of_least_norm(
    symmetry: ParameterSymmetry,
    params: Params,
    incidence: Incidence,
    found: _Found,
    slack: float,
    absolute: bool,
) -> Norm:
    """Scales of least norm among those whose ranges exceed the least by a share at most.

    What the search returns is measured: where its ranges are wider than that, or its norm is not
    below that of the scales that prove the least range, these stay.
    """
    cost = cost_along_scales(symmetry, params, [*incidence.families], 2.0)
    ranges = extremes(incidence, found.y).reshape(-1, 2)
    parted = _parted(ranges, absolute)
    top = math.log(found.value) + math.log1p(slack)
    problem = LeastNorm(incidence, cost, balanced_scales(cost)[0], parted, top)
    kept = cost.at(problem.logs(found.y)).value
    made = problem.run(found.y, _odds(ranges, parted), NORM_GAP)
    width = _width(extremes(incidence, made.y), absolute)
    if not width <= (1 + slack) * found.value * (1 + _ROUNDING):
        return Norm(found.y, kept, math.inf)
    norm = cost.at(problem.logs(made.y)).value
    return made if norm < kept else Norm(found.y, kept, made.gap + max(kept - made.value, 0.0))


@dataclass
class _Found:
    """Scales y with what is known of them; `free` if no cycle bounds the ranges."""

    y: np.ndarray
    before: float
    value: float
    bound: float
    rounds: int
    free: bool = False


class _Search:
    """Rounds of edges, cycles and thresholds, for one model."""

    def __init__(
        self,
        incidence: Incidence,
        absolute: bool,
        tolerance: float,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.incidence, self.absolute = incidence, absolute
        self.tolerance, self.progress = tolerance, progress

    def run(self, rounds: int) -> _Found:
        """Until the value of a point and the bound of the cycles meet."""
        zero = np.zeros(self.incidence.nodes)
        before = _width(extremes(self.incidence, zero), self.absolute)
        if not before:
            return _Found(zero, 0.0, 0.0, 0.0, 0)
        found = _Found(zero, before, before, 0.0, 0)
        y = equalised(self.incidence)
        y -= y[GROUND]
        share, none = _NEAR, np.zeros(2 * len(self.incidence.tensors))
        ranges, edges = edges_above(self.incidence, y, none, share)
        parted = _parted(ranges.reshape(-1, 2), self.absolute)
        cuts, x = Cuts(len(self.incidence.tensors), parted), _odds(ranges.reshape(-1, 2), parted)
        for done in range(1, rounds + 1):
            y, x, bound, level = self._solved(edges, cuts, x, y)
            if not len(cuts):
                if not share:
                    return _Found(zero, before, before, 0.0, done, free=True)
                # fainter weights may close one: a start far off hides them
                share = share**_FAINTER if share > _FAINTEST else 0.0
                edges = edges_above(self.incidence, y, none, share)[1]
                continue
            least = np.exp(level + cuts.thresholds(x))
            ranges, more = edges_above(self.incidence, y, least * (1 - 1e-3))
            value = _width(ranges, self.absolute)
            found.rounds, found.bound = done, max(found.bound, math.exp(bound))
            if value < found.value:
                found.y, found.value = y, value
            if self.progress:
                self.progress(f"round {done}: {value:.9g}, at least {found.bound:.9g}, "
                              f"{len(edges.slot)} weights, {len(cuts)} cycles")  # fmt: skip
            if found.value - found.bound <= self.tolerance * found.value:
                break
            edges = united(edges, more, self.incidence.nodes)
        return found

    def _solved(
        self, edges: Edges, cuts: Cuts, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Scales, thresholds x, a lower bound and the value τ that some edges allow."""
        policies = Policies(self.incidence.nodes, edges.lowering, edges.raising, y)
        bound, best, at, potentials = -np.inf, np.inf, x, y
        trial, accuracy, sharp = x, np.inf, max(_SETTLED, self.tolerance / 4)
        for _ in range(_CYCLES):
            level, cycles, _ = policies.worst(edges.size - cuts.thresholds(trial)[edges.slot])
            if not cycles:
                break
            settled = level > best - sharp
            if level < best:
                best, at, potentials = level, trial, policies.potentials
            if best - bound <= 2 * sharp:
                break
            new = cuts.add([*cycles, *policies.rivals(edges.slot)], edges.slot, edges.size)
            if settled and not new and accuracy == sharp:
                break
            accuracy = _FIRST if bound == -np.inf else sharp  # first not all cycles are there
            model, more = cuts.best(at, accuracy, min(best - bound, _GAP))
            bound, trial = max(bound, more), _between(at, model)
        kept = edges.size - cuts.thresholds(at)[edges.slot] - best - EXCESS
        potentials = policies.raised(y, kept, potentials)
        return potentials - potentials[GROUND], at, bound, best


def _width(ranges: np.ndarray, absolute: bool) -> float:
    return float(ranges.max() if absolute else ranges.reshape(-1, 2).sum(1).max())


def _parted(ranges: np.ndarray, absolute: bool) -> np.ndarray:
    """The tensors that have a threshold for each sign, from R⁺ and R⁻, (tensors, 2)."""
    return np.flatnonzero(np.logical_and((ranges > 0).all(1), not absolute))


def _odds(ranges: np.ndarray, parted: np.ndarray) -> np.ndarray:
    """log R⁺ − log R⁻ of some tensors."""
    return np.log(ranges[parted, 0]) - np.log(ranges[parted, 1])


def _between(at: np.ndarray, model: np.ndarray) -> np.ndarray:
    """A point towards the thresholds that the cycles ask for, two e-folds of odds away at most.

    Along the line no cycle that is known becomes worse than both ends.
    """
    step = model - at
    return at + step * min(1.0, 2.0 / max(float(np.abs(step).max(initial=0.0)), 1.0))
