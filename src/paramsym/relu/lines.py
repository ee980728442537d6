"""Two networks on a line: an exact test of all of its points at once.

On x0 + t·v both networks are piecewise affine in t. All breakpoints are found layer by layer in
rationals, so "equal on the whole line" is a finite check, and a mismatch on any piece, however
short, gives an exact witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, along, matrix, product

Bound = fmpq | None
Piece = tuple[Bound, Bound, list[fmpq], list[fmpq]]  # low, high, value = offset + slope·t


def pieces(
    net: Network, start: Sequence[fmpq], direction: Sequence[fmpq], low: Bound, high: Bound
) -> Iterator[Piece]:
    """The affine pieces of t ↦ f(start + t·direction) on [low, high], from left to right."""
    state = matrix([list(pair) for pair in zip(start, direction, strict=True)], 2)
    yield from _descend(net, 0, state, low, high)


def _descend(net: Network, index: int, state: fmpq_mat, low: Bound, high: Bound) -> Iterator[Piece]:
    """The pieces from a layer on whose inputs are offset + slope·t on [low, high], rows of n×2."""
    tick()
    weight, bias = net.exact[index]
    image = product(weight, state).tolist()
    forms = [(p + b, s) for (p, s), b in zip(image, bias, strict=True)]
    if index == len(net) - 1:
        yield low, high, [p for p, _ in forms], [s for _, s in forms]
        return
    for left, right in pairwise([low, *_breakpoints(forms, low, high), high]):
        t = inside(left, right)
        active = [[p, s] if p + s * t > 0 else [ZERO, ZERO] for p, s in forms]
        yield from _descend(net, index + 1, matrix(active, 2), left, right)


def _breakpoints(forms: list[tuple[fmpq, fmpq]], low: Bound, high: Bound) -> list[fmpq]:
    """The zeros of the forms p + s·t strictly between the ends, in order."""
    zeros = {-p / s for p, s in forms if s}
    return sorted(t for t in zeros if (low is None or low < t) and (high is None or t < high))


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
    ours = pieces(a, start, direction, low, high)
    theirs = pieces(b, start, direction, low, high)
    for piece in _difference(ours, theirs, low):
        t = _where_nonzero(*piece)
        if t is not None:
            return along(start, t, direction)
    return None


def _difference(left: Iterator[Piece], right: Iterator[Piece], low: Bound) -> Iterator[Piece]:
    """The pieces of the difference of two functions that begin at one end."""
    p, q = next(left, None), next(right, None)
    while p is not None and q is not None:
        end = p[1] if _before(p[1], q[1]) else q[1]
        yield low, end, along(p[2], -ONE, q[2]), along(p[3], -ONE, q[3])
        p = next(left, None) if p[1] == end else p
        q = next(right, None) if q[1] == end else q
        low = end


def _where_nonzero(low: Bound, high: Bound, offset: list[fmpq], slope: list[fmpq]) -> fmpq | None:
    """A point of the interval where offset + slope·t is not zero, None if there is none.

    If not zero it vanishes at one point at most: of two points of the interval one will do.
    """
    if not any(offset) and not any(slope):
        return None
    first = inside(low, high)
    second = (first + inside(low, first)) / 2
    return next((t for t in (first, second) if any(along(offset, t, slope))), None)


def _before(a: Bound, b: Bound) -> bool:
    """a <= b as right ends, None meaning +infinity."""
    return b is None or (a is not None and a <= b)
