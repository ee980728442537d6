"""The best thresholds under the cycles known so far, and a bound that they certify.

Write log R⁺ = τ + log q and log R⁻ = τ + log(1 − q) for the ranges of a tensor, so that
R⁺ + R⁻ = e^τ, with q = 1/(1 + e^{−x}). Around a cycle C of weights w, n⁺ of them positive and n⁻
negative in a tensor, the scales cancel, so that

    |C| τ ≥ Σ log|w| − Σ n⁺ log q − Σ n⁻ log(1 − q) =: |C| g_C(x),

a convex function of x. The least τ = max_C g_C(x) is found by Newton steps with a barrier. For any
weights λ_C ≥ 0 of sum 1, the minimum over x of Σ λ_C g_C(x) has a closed form: with N± the means of
n±/|C| it is Σ λ_C A_C + Σ (N⁺ + N⁻) H(N⁺ / (N⁺ + N⁻)), A_C the mean of log|w| and H the entropy.
It bounds τ for every equivalent network.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, xlogy

_STEPS = 60
_RIDGE = 1e-12
_HALVINGS = 50


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

    def best(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Thresholds x that are best for these cycles, and the bound that they certify.

        Args:
            x: where to start, of shape (parted tensors,).
        """
        a, shares = np.array(self.means), np.stack(self.shares)
        plus, minus = shares[:, 0], shares[:, 1]
        used = np.flatnonzero((plus + minus).any(0))
        plus, minus, z = plus[:, used], minus[:, used], x[used]
        bound, weight = -np.inf, 10.0
        while True:
            z, heights = _centred(a, plus, minus, z, weight)
            multipliers = 1 / heights[1]
            multipliers /= multipliers.sum()
            bound = max(bound, _dual(a, plus, minus, multipliers))
            if heights[0] - bound <= 1e-12 or weight > 1e14:
                break
            weight *= 20
        x = x.copy()
        x[used] = z
        return x, bound


def _values(a: np.ndarray, plus: np.ndarray, minus: np.ndarray, z: np.ndarray) -> np.ndarray:
    """g_C(x) of all cycles."""
    return a + plus @ np.logaddexp(0, -z) + minus @ np.logaddexp(0, z)


def _dual(a: np.ndarray, plus: np.ndarray, minus: np.ndarray, multipliers: np.ndarray) -> float:
    """min over x of Σ λ_C g_C(x)."""
    p, n = multipliers @ plus, multipliers @ minus
    return float(multipliers @ a + (xlogy(p + n, p + n) - xlogy(p, p) - xlogy(n, n)).sum())


def _centred(
    a: np.ndarray, plus: np.ndarray, minus: np.ndarray, z: np.ndarray, weight: float
) -> tuple[np.ndarray, tuple[float, np.ndarray]]:
    """The minimum of weight · τ − Σ log(τ − g_C(x)) over x and τ; with it τ and the τ − g_C."""

    def height(g: np.ndarray) -> float:
        """The best τ at given g: Σ 1/(τ − g) = weight, by Newton steps from below."""
        top, low, high = g.max(), 1 / weight, len(g) / weight
        gap = low
        for _ in range(100):
            parts = 1 / (gap + (top - g))
            excess, slope = parts.sum() - weight, -(parts**2).sum()
            if excess <= 1e-13 * weight:
                break
            gap = min(gap - excess / slope, high)
        return gap

    def merit(g: np.ndarray) -> tuple[float, np.ndarray]:
        slack = height(g) + (g.max() - g)
        return weight * (g.max() + slack.min()) - float(np.log(slack).sum()), slack

    g = _values(a, plus, minus, z)
    value, slack = merit(g)
    for _ in range(_STEPS):
        q = expit(z)
        slopes = minus * q - plus * (1 - q)  # ∇g, (cycles, tensors)
        m = 1 / slack
        gradient = m @ slopes
        curvature = (m @ (plus + minus)) * q * (1 - q)
        spread = slopes.T @ ((m**2)[:, None] * slopes)
        mean = m**2 @ slopes
        hessian = np.diag(curvature + _RIDGE * weight) + spread
        hessian -= np.outer(mean, mean) / (m**2).sum()  # τ is at its best throughout
        step = -np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        decrement = -float(gradient @ step)
        if decrement <= 1e-10:
            break
        length = min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-300))
        for _ in range(_HALVINGS):
            there = _values(a, plus, minus, z + length * step)
            following, narrower = merit(there)
            if following <= value - 1e-4 * length * decrement:
                break
            length /= 2
        else:
            break
        z, value, slack = z + length * step, following, narrower
        g = there
    return z, (float(g.max()), slack)
