"""Two networks on a line: an exact test of all of its points at once.

On x0 + t·v both networks are piecewise affine in t. All breakpoints are found layer by layer in
rationals, so "equal on the whole line" is a finite check, and a mismatch on any piece, however
short, gives an exact witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, product

Bound = fmpq | None
Piece = tuple[Bound, Bound, list[fmpq], list[fmpq]]  # low, high, value = offset + slope·t


def pieces(
    net: Network, start: Sequence[fmpq], direction: Sequence[fmpq], low: Bound, high: Bound
) -> Iterator[Piece]:
    """The affine pieces of t ↦ f(start + t·direction) on [low, high], from left to right."""
    state = fmpq_mat(len(start), 2, [v for pair in zip(start, direction, strict=True)
                                     for v in pair])  # fmt: skip
    yield from _descend(net, 0, state, low, high)


def _descend(net: Network, index: int, state: fmpq_mat, low: Bound, high: Bound) -> Iterator[Piece]:
    tick()
    weight, bias = net.exact[index]
    image = product(weight, state).tolist() if state.nrows() else [[ZERO, ZERO] for _ in bias]
    forms = [(p + b, s) for (p, s), b in zip(image, bias, strict=True)]
    if index == len(net) - 1:
        yield low, high, [p for p, _ in forms], [s for _, s in forms]
        return
    cuts: set[fmpq] = set()
    for p, s in forms:
        if s:
            t = -p / s
            if (low is None or t > low) and (high is None or t < high):
                cuts.add(t)
    ends: list[Bound] = [low, *sorted(cuts), high]
    for left, right in zip(ends, ends[1:], strict=False):
        t = inside(left, right)
        entries: list[fmpq] = []
        for p, s in forms:
            entries += (p, s) if p + s * t > 0 else (ZERO, ZERO)
        yield from _descend(net, index + 1, fmpq_mat(len(forms), 2, entries), left, right)


def inside(low: Bound, high: Bound) -> fmpq:
    """A point of the open interval (the end itself if it is a single point)."""
    if low is None:
        return ZERO if high is None else high - ONE
    return low + ONE if high is None else (low + high) / 2


def difference_on_line(
    a: Network,
    b: Network,
    start: Sequence[fmpq],
    direction: Sequence[fmpq],
    domain: Domain,
) -> list[fmpq] | None:
    """An input on the line (within the domain) where the networks differ, or None if none is."""
    low, high = domain.clip(start, direction)
    left = pieces(a, start, direction, low, high)
    right = pieces(b, start, direction, low, high)
    p, q = next(left, None), next(right, None)
    begin = low
    while p is not None and q is not None:
        end = p[1] if _before(p[1], q[1]) else q[1]
        gap = [u - v for u, v in zip(p[2], q[2], strict=True)]
        tilt = [u - v for u, v in zip(p[3], q[3], strict=True)]
        if any(gap) or any(tilt):
            t = inside(begin, end)
            if not any(g + s * t for g, s in zip(gap, tilt, strict=True)):
                # An affine function vanishes at one point at most: any other one will do.
                t = (t + inside(begin, t)) / 2 if begin != t else t
            if any(g + s * t for g, s in zip(gap, tilt, strict=True)):
                return [x + t * v for x, v in zip(start, direction, strict=True)]
        if p[1] == end:
            p = next(left, None)
        if q[1] == end:
            q = next(right, None)
        begin = end
    return None


def _before(a: Bound, b: Bound) -> bool:
    """a <= b as right ends, None meaning +infinity."""
    return b is None or (a is not None and a <= b)
