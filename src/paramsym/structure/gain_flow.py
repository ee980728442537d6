"""The flow of a norm's gains, along which a later norm does not tell the stream but for a turn.

What a layer norm writes is g n, where n sums to zero, and a norm behind it does not see what all
coordinates have in common. With P the projector onto what sums to zero it sees P g P n, whose
eigenvalues are the critical points μ of q(x) = Π (x − gᵢ), with vectors proportional to 1/(gᵢ − μ).
The roots g′ of q + c have the same critical points: there is an orthogonal S with S 1 = 1 and

    P g′ P S = S P g P,

so that the second norm sees a stream that is turned by S if the first one does. No two roots may
meet: c lies between −a and b, where a and b are the least of λₖ |Π (μₖ − μₗ)| by the sign of that
product, and λₖ is the square of what g leads from the k-th vector to 1/√n. With

    c = a b (eᵟ − 1) / (a eᵟ + b)

the odds a : b are multiplied by eᵟ: all numbers δ act, one after the other as their sum.

Weights that read g n itself see what its coordinates have in common, too. They are reached by
M = S + 1 vᵀ with M 1 = 1, the one such matrix that takes g n to g′ S n.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from paramsym.algebra.following import is_followed, is_transformed

_APART = 1e-6  # of the largest gap between neighbours: gains that are closer stand still


class GainFlow(NamedTuple):
    """What the flow adds to the gains, g′ − g of shape (n,), and without the identity the matrices
    S, M and the transpose of M⁻¹ of shape (n, n), all in double precision."""

    gains: torch.Tensor
    turn: torch.Tensor
    map: torch.Tensor
    dual: torch.Tensor


def gain_flow(gain: torch.Tensor, delta: torch.Tensor, first_order: bool = False) -> GainFlow:
    """How gains move, and what turns with them.

    Args:
        gain: g, of shape (n,) with n ≥ 3.
        delta: δ, one number.
        first_order: the derivatives at δ = 0, which are to be multiplied by δ.

    Returns:
        All zero where two gains are equal, which then cannot move. M has no finite numbers where a
        gain is zero, or the sum of their inverses is.
    """
    if any(is_followed(x) or is_transformed(x) or x.is_meta for x in (gain, delta)):
        return _gain_flow(gain.double(), delta.double(), first_order)
    far = 0.0 if first_order else float(delta)
    return _kept(tuple(gain.tolist()), far, first_order, gain.device)


@lru_cache(maxsize=2)  # a network is moved tensor by tensor
def _kept(
    gain: tuple[float, ...], delta: float, first_order: bool, device: torch.device
) -> GainFlow:
    with torch.inference_mode(False):  # what is kept may stand beside what is differentiated
        numbers = torch.tensor([*gain, delta], dtype=torch.float64, device=device)
        return _gain_flow(numbers[:-1], numbers[-1], first_order)


def to_the_middle(gain: torch.Tensor) -> torch.Tensor:
    """The δ that leads gains to where a = b, one point of each flow; zero where they stand still.

    Args:
        gain: g, of shape (n,) with n ≥ 3.
    """
    safe, _, moves = _ascending(gain.double())
    seen = _Seen.of(safe)
    return torch.where(moves, seen.low.log() - seen.high.log(), 0.0)


def _gain_flow(gain: torch.Tensor, delta: torch.Tensor, first_order: bool) -> GainFlow:
    safe, order, moves = _ascending(gain)
    change, turn = (_slope if first_order else _moved)(safe, delta)
    led = change + turn.mT @ safe + (0.0 if first_order else turn.mT @ change)  # Sᵀ g′ − g
    v = led / safe - led.div(safe).sum() / (1 / safe).sum() / safe
    v, one = v / len(gain), torch.eye(len(gain)).to(gain)
    there = turn + v  # 1 vᵀ
    back = turn - (v if first_order else (turn + one) @ v)[:, None]  # (M⁻¹)ᵀ = S − S v 1ᵀ
    place = order.argsort()
    found = (change[place], *(x[place][:, place] for x in (turn, there, back)))
    return GainFlow(*(torch.where(moves, x, torch.zeros_like(x)) for x in found))


def _ascending(gain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gains in ascending order, that order, and whether they move; others where they do not."""
    order = gain.argsort()
    gaps = gain[order].diff()
    moves = gaps.min() > _APART * gaps.max()
    return torch.where(moves, gain[order], torch.arange(1, len(gain) + 1).to(gain)), order, moves


def _moved(gain: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """g′ − g and S − 1, of gains in ascending order."""
    seen = _Seen.of(gain)
    one, other = delta.sigmoid(), (-delta).sigmoid()
    left = one * (seen.high - seen.share) + other * (seen.low + seen.share)  # no term is negative
    left = left / (one * seen.high + other * seen.low)
    edge = seen.edge * left.clamp_min(torch.finfo(gain.dtype).tiny).sqrt()
    rest = torch.cat([edge[:, None], torch.diag(seen.critical)], 1)
    arrow = torch.cat([torch.cat([gain.mean()[None], edge])[None], rest])
    roots, frame = torch.linalg.eigh(arrow)
    there = (frame * frame[0].sign())[1:]
    n = len(gain)
    return roots - gain, there.mT @ seen.vectors.mT + 1 / n - torch.eye(n).to(gain)


def _slope(gain: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The derivatives of g′ and S at δ = 0, of gains in ascending order."""
    seen, n = _Seen.of(gain), len(gain)
    edge = -seen.edge * seen.share / (seen.low + seen.high) / 2
    change = 2 / math.sqrt(n) * (seen.vectors @ edge)
    between = seen.vectors.mT @ (change[:, None] * seen.vectors)
    one = torch.eye(n - 1).to(gain)
    apart = seen.critical - seen.critical[:, None] + one
    return change, seen.vectors @ (between / apart * (1 - one)) @ seen.vectors.mT


class _Seen(NamedTuple):
    """What a norm sees of gains: μ ascending, with vectors that g leads to what is positive along
    1, √λ, and of least = min(a, b) the shares of a, of b, and of each λₖ Π (μₖ − μₗ).

    Products of hundreds of gaps are no floating-point numbers, but their logarithms are. For c the
    flow leaves λ − c / Π (μ − μ′), which is λ (eᵟ (high − share) + low + share) / (eᵟ high + low).
    """

    critical: torch.Tensor
    vectors: torch.Tensor
    edge: torch.Tensor
    share: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def of(cls, gain: torch.Tensor) -> _Seen:
        n = len(gain)
        first = torch.eye(n).to(gain)
        first[:, 0] = 1.0
        sum_to_zero = torch.linalg.qr(first).Q[:, 1:]
        critical, vectors = torch.linalg.eigh(sum_to_zero.mT @ (gain[:, None] * sum_to_zero))
        vectors = sum_to_zero @ vectors
        along = gain @ vectors
        away = (critical[:, None] - critical).abs() + torch.eye(n - 1).to(gain)
        spread = away.log().sum(1)  # log |Π (μ − μ′)|; the signs alternate, + for the largest μ
        sign = (-1.0) ** torch.arange(n - 2, -1, -1).to(gain)
        room = (along.square() / n).log() + spread
        ends = [torch.where(sign == s, room, math.inf).min() for s in (-1.0, 1.0)]
        least = torch.minimum(*ends)
        low, high = ((least - end).exp() for end in ends)
        share = sign * (least - room).exp()
        return cls(critical, vectors * along.sign(), along.abs() / n**0.5, share, low, high)
