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

import numpy as np
from scipy.special import expit, xlogy

SHARP = 1e-13  # τ is known up to this, relative to the range
_STEPS = 80
_CENTRE = 0.1
_RIDGE = 1e-14
_LONGEST = 3.0  # e-folds of odds in one step


class Cuts:
    """Cycles, each by its mean log|w| and its shares of positive and negative weights.

    Args:
        tensors: how many tensors there are.
        parted: which of them have a threshold for each sign, of shape (tensors,); the others have
            one for both, τ.
    """

    def __init__(self, tensors: int, parted: np.ndarray) -> None:
        self.parted = np.flatnonzero(parted)
        self.column = np.full(tensors, -1)
        self.column[self.parted] = np.arange(len(self.parted))
        self.means: list[float] = []
        self.shares: list[np.ndarray] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.means)

    def add(self, slots: np.ndarray, sizes: np.ndarray) -> bool:
        """A cycle by the slots and log|w| of its edges; whether it was new."""
        share = np.zeros((2, len(self.parted)))
        at = self.column[slots // 2]
        np.add.at(share, (slots[at >= 0] % 2, at[at >= 0]), 1 / len(slots))
        mean = float(np.mean(sizes))
        key = np.r_[np.round(share.ravel(), 12), np.round(mean, 13)].tobytes()
        if key in self._known:
            return False
        self._known.add(key)
        self.means.append(mean)
        self.shares.append(share)
        return True

    def thresholds(self, x: np.ndarray) -> np.ndarray:
        """log q and log(1 − q) by slot, zero where a tensor has one threshold: (2 · tensors,)."""
        made = np.zeros((len(self.column), 2))
        made[self.parted, 0], made[self.parted, 1] = -np.logaddexp(0, -x), -np.logaddexp(0, x)
        return made.ravel()

    def best(self, x: np.ndarray, accuracy: float = SHARP) -> tuple[np.ndarray, float]:
        """Thresholds x that are best for these cycles, and the bound that they certify.

        Args:
            x: where to start, of shape (parted tensors,).
            accuracy: of τ, at which to stop.
        """
        a, shares = np.array(self.means), np.stack(self.shares)
        used = np.flatnonzero(shares.any((0, 1)))
        plus, minus = shares[:, 0, used], shares[:, 1, used]
        x = x.copy()
        x[used], bound = _least_height(a, plus, minus, x[used], accuracy)
        return x, bound


def _values(a: np.ndarray, plus: np.ndarray, minus: np.ndarray, z: np.ndarray) -> np.ndarray:
    """g_C(x) of all cycles."""
    return a + plus @ np.logaddexp(0, -z) + minus @ np.logaddexp(0, z)


def _dual(a: np.ndarray, plus: np.ndarray, minus: np.ndarray, multipliers: np.ndarray) -> float:
    """min over x of Σ λ_C g_C(x)."""
    p, n = multipliers @ plus, multipliers @ minus
    return float(multipliers @ a + (xlogy(p + n, p + n) - xlogy(p, p) - xlogy(n, n)).sum())


def _least_height(
    a: np.ndarray, plus: np.ndarray, minus: np.ndarray, x: np.ndarray, accuracy: float
) -> tuple[np.ndarray, float]:
    """x at which max_C g_C(x) is least, and the best bound on the way.

    Primal and dual Newton steps on Σ λ_C ∇g_C = 0, Σ λ_C = 1, s_C = τ − g_C and λ_C s_C = μ → 0,
    with slacks s of their own: τ − g_C would be rounding long before the bound is sharp.
    """
    g = _values(a, plus, minus, x)
    best, least, bound = x, float(g.max()), -np.inf
    multipliers = np.full(len(a), 1 / len(a))
    top = least + 0.1
    slack, centre = top - g, _CENTRE
    for _ in range(_STEPS):
        aim = max(centre * float(multipliers @ slack) / len(slack), 1e-17)
        toward, rise, change, widening = _newton_step(
            plus, minus, x, top, multipliers, slack, g, aim
        )
        length = min(_room(multipliers, change), _room(slack, widening), 1.0)
        length = min(length, _LONGEST / max(float(np.abs(toward).max(initial=0.0)), 1e-300))
        centre = _CENTRE**2 if length > 0.9 else _CENTRE
        x, top = x + length * toward, top + length * rise
        multipliers, slack = multipliers + length * change, slack + length * widening
        g = _values(a, plus, minus, x)
        bound = max(bound, _dual(a, plus, minus, multipliers / multipliers.sum()))
        if g.max() < least:
            best, least = x, float(g.max())
        still = float(np.abs(toward).max(initial=0.0)) < 1e-7
        if least - bound <= max(accuracy, SHARP) or (aim < 1e-16 and still):
            break  # what is left of the gap is rounding
    return best, bound


def _newton_step(
    plus: np.ndarray, minus: np.ndarray, x: np.ndarray, top: float,
    multipliers: np.ndarray, slack: np.ndarray, g: np.ndarray, aim: float,
) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:  # fmt: skip
    """The steps of x, τ, λ and s, towards λ s = aim."""
    q, ratio = expit(x), multipliers / slack
    both = plus + minus
    slopes = both * q - plus  # ∇g, (cycles, tensors)
    broken = g + slack - top
    pushed = (aim - multipliers * slack + multipliers * broken) / slack
    hessian = slopes.T @ (ratio[:, None] * slopes)
    hessian.flat[:: len(x) + 1] += (multipliers @ both) * q * (1 - q) + _RIDGE
    edge = slopes.T @ ratio
    total = float(ratio.sum())
    hessian -= edge[:, None] * (edge / total)  # τ goes where it is best
    above = (multipliers.sum() + pushed.sum() - 1.0) / total
    right = above * edge - slopes.T @ (multipliers + pushed)
    toward = np.linalg.lstsq(hessian, right, rcond=None)[0]
    rise = above + float(edge @ toward) / total
    widening = rise - broken - slopes @ toward
    change = pushed + ratio * (slopes @ toward - rise)
    return toward, rise, change, widening


def _room(values: np.ndarray, change: np.ndarray) -> float:
    """How far positive numbers may go before one of them vanishes, nearly."""
    return 0.99 / max(float((-change / values).max()), 1e-300)
