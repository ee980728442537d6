"""The best thresholds under the cycles known so far, and a bound that they certify.

Write log R⁺ = τ + log q and log R⁻ = τ + log(1 − q) for the ranges of a tensor, so that
R⁺ + R⁻ = e^τ, with q = 1/(1 + e^{−x}). Around a cycle C of weights w, n⁺ of them positive and n⁻
negative in a tensor, the scales cancel, so that

    |C| τ ≥ Σ log|w| − Σ n⁺ log q − Σ n⁻ log(1 − q) =: |C| g_C(x),

a convex function of x. The least τ = max_C g_C(x) is found by an interior-point method. For any
weights λ_C ≥ 0 of sum 1, the minimum over x of Σ λ_C g_C(x) has a closed form: with N± the means of
n±/|C| it is Σ λ_C A_C + Σ (N⁺ + N⁻) H(N⁺ / (N⁺ + N⁻)), A_C the mean of log|w| and H the entropy.
It bounds τ for every equivalent network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.special import xlogy

SHARP = 1e-13  # τ is known up to this, relative to the range
_STEPS = 80
_CENTRE, _CENTRED = 0.03, 1e-3  # of the mean of λ s the next, after a step cut short or not
_RIDGE = 1e-13
(_GESV,) = get_lapack_funcs(("gesv",))  # the call of NumPy takes longer than few unknowns
_LONGEST = 3.0  # e-folds of odds in one step


class Cuts:
    """Cycles, each by its mean log|w| and its shares of positive and negative weights.

    Args:
        tensors: how many tensors there are.
        parted: the numbers of those that have a threshold for each sign; the others have one for
            both, τ.
    """

    def __init__(self, tensors: int, parted: np.ndarray) -> None:
        self.parted = parted
        self.odds = len(parted)
        # of each slot the place among n⁺ of all parted tensors, n⁻, and one that none looks at
        place = np.full((tensors, 2), 2 * self.odds)
        place[parted, 0] = np.arange(self.odds)
        place[parted, 1] = self.odds + np.arange(self.odds)
        self.place = place.ravel()
        self.means: list[float] = []
        self.shares: list[np.ndarray] = []
        self._known: set[tuple[float, bytes]] = set()

    def __len__(self) -> int:
        return len(self.means)

    def add(self, cycles: Sequence[np.ndarray], slots: np.ndarray, sizes: np.ndarray) -> bool:
        """Cycles by the numbers of their edges; whether one of them was new.

        Args:
            cycles: the numbers of the edges of each.
            slots, sizes: of all edges, the slot and log|w|.
        """
        known, width = len(self._known), 2 * self.odds + 1
        lengths = np.array([len(cycle) for cycle in cycles])
        edges, which = np.concatenate(cycles), np.repeat(np.arange(len(cycles)), lengths)
        means = np.bincount(which, sizes[edges]) / lengths
        at = which * width + self.place[slots[edges]]
        counts = np.bincount(at, minlength=len(cycles) * width).reshape(-1, width)
        for count, mean, length in zip(counts, means.tolist(), lengths.tolist(), strict=True):
            key = round(mean, 13), count.tobytes()
            if key not in self._known:
                self._known.add(key)
                self.means.append(mean)
                self.shares.append(count[:-1] / length)
        return len(self._known) > known

    def thresholds(self, x: np.ndarray) -> np.ndarray:
        """log q and log(1 − q) by slot, zero where a tensor has one threshold: (2 · tensors,)."""
        return np.append(-_soft(x), 0.0)[self.place]

    def best(
        self, x: np.ndarray, accuracy: float = SHARP, gap: float = 0.1
    ) -> tuple[np.ndarray, float]:
        """Thresholds x that are best for these cycles, and the bound that they certify.

        Args:
            x: where to start, of shape (parted tensors,).
            accuracy: of τ, at which to stop.
            gap: by how much τ may be lower there, roughly.
        """
        a, shares = np.array(self.means), np.array(self.shares)
        used = shares.any(0).reshape(2, -1).any(0)
        if not used.any():
            return x, float(a.max())
        if used.all():
            return _least_height(a, shares, x, accuracy, gap)
        x = x.copy()
        x[used], bound = _least_height(a, shares[:, np.r_[used, used]], x[used], accuracy, gap)
        return x, bound


def _soft(x: np.ndarray) -> np.ndarray:
    """−log q and −log(1 − q)."""
    return np.logaddexp(0.0, np.concatenate((-x, x)))


def _dual(a: np.ndarray, shares: np.ndarray, multipliers: np.ndarray) -> float:
    """min over x of Σ λ_C g_C(x), for weights λ of sum 1."""
    multipliers = multipliers / multipliers.sum()
    part = multipliers @ shares
    both = part.reshape(2, -1).sum(0)
    return float(multipliers @ a + xlogy(both, both).sum() - xlogy(part, part).sum())


def _least_height(
    a: np.ndarray, shares: np.ndarray, x: np.ndarray, accuracy: float, gap: float
) -> tuple[np.ndarray, float]:
    """x at which max_C g_C(x) is least, and the best bound on the way.

    Primal and dual Newton steps on Σ λ_C ∇g_C = 0, Σ λ_C = 1, s_C = τ − g_C and λ_C s_C = μ → 0,
    with slacks s of their own: τ − g_C would be rounding long before the bound is sharp.
    """
    m, accuracy = len(a), max(accuracy, SHARP)
    soft = _soft(x)
    g = a + shares @ soft  # of all cycles
    best, least, bound = x, float(g.max()), -np.inf
    top, centre = least + gap, _CENTRE
    inside = np.concatenate((top - g, top - g))  # λ and s
    inside[:m] = 1 / inside[m:]
    inside[:m] /= inside[:m].sum()
    for _ in range(_STEPS):
        mean = float(inside[:m] @ inside[m:]) / m
        aim = max(centre * mean, 1e-17)
        toward, rise, change = _newton_step(shares, soft, top, inside, g, aim)
        farthest = float(np.abs(toward).max(initial=0.0))
        closing = -float((change / inside).min())  # as far as the first of them vanishes, nearly
        nearly = 1 - min(0.01, mean)
        length = min(nearly / max(closing, 1e-300), _LONGEST / max(farthest, 1e-300), 1.0)
        centre = _CENTRED if length > 0.9 else _CENTRE
        x, top, inside = x + length * toward, top + length * rise, inside + length * change
        soft = _soft(x)
        g = a + shares @ soft
        height = float(g.max())
        if height < least:
            best, least = x, height
        still = aim < 1e-16 and farthest < 1e-7  # what is left of the gap is rounding
        if still or float(inside[:m] @ inside[m:]) <= accuracy:
            bound = max(bound, _dual(a, shares, inside[:m]))
            if still or least - bound <= accuracy:
                return best, bound
    return best, max(bound, _dual(a, shares, inside[:m]))


def _newton_step(
    shares: np.ndarray, soft: np.ndarray, top: float,
    inside: np.ndarray, g: np.ndarray, aim: float,
) -> tuple[np.ndarray, float, np.ndarray]:  # fmt: skip
    """The steps of x, of τ, and of λ and s, towards λ s = aim."""
    m, n = len(g), len(soft) // 2
    multipliers, slack = inside[:m], inside[m:]
    ratio, q = multipliers / slack, np.exp(-soft)  # q and 1 − q
    slopes = shares[:, n:] * q[:n] - shares[:, :n] * q[n:]  # ∇g, (cycles, tensors)
    broken = g + slack - top
    pushed = aim / slack - multipliers + ratio * broken
    edge, total = ratio @ slopes, float(ratio.sum())
    hessian = slopes.T @ (ratio[:, None] * slopes)
    hessian -= edge[:, None] * (edge / total)  # τ goes where it is best
    diagonal = hessian.reshape(-1)[:: n + 1]
    diagonal += (multipliers @ shares).reshape(2, -1).sum(0) * (q[:n] * q[n:])
    diagonal += _RIDGE * (1 + diagonal.max(initial=0.0))
    aimed = multipliers + pushed
    above = (float(aimed.sum()) - 1.0) / total
    toward = _GESV(hessian, above * edge - aimed @ slopes)[2]
    rise = above + float(edge @ toward) / total
    along = slopes @ toward - rise
    return toward, rise, np.concatenate((pushed + ratio * along, -broken - along))
