"""Unknown functions of one number, asked on numbers: what do they do to scales and signs?

An operator without a rule that takes one tensor may still be entrywise, f(x)ᵢ = f(xᵢ) with one f
for all entries. That, and which claims hold for f (a degree with f(s·x) = sᵈ·f(x), odd or even,
increasing), is tried: at magnitudes from 1e-30 to 1e30 of both signs, densely between 1e-3 and 1e3,
at zero, at integers, and around every number that the call is given, where a threshold may hide.
Such a claim is evidence and no theorem; the symmetry lists it as probed. A function that gives
other numbers when it is called again, or writes to its input, is left alone, and it is said why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

Function = Callable[[torch.Tensor], torch.Tensor]

_DECADES = {torch.float64: 30.0}  # magnitudes that are tried, as powers of ten
_FEWER_DECADES = 6.0  # of narrower dtypes
_SCALES = (1.7, 2.9, 0.37)  # no two are powers of one number
_DENOMINATORS = 6
_ROUNDINGS = 256  # in units of the last place
_MASKS = 8
_MOST = 1 << 22  # entries of one call
_CALLS = 128


class NotProbed(Exception):
    """A function of which nothing is claimed, for a reason that its user should know."""


@dataclass(frozen=True)
class Probed:
    """What was found of a function of one number; see `Map`."""

    degree: Fraction | None
    sign: str
    increasing: bool

    def __str__(self) -> str:
        found = [] if self.degree is None else [f"degree {self.degree}"]
        found += [] if self.sign == "pin" else [self.sign]
        found += ["increasing"] if self.increasing else []
        return ", ".join(found) or "entrywise"


def probe(function: Function, shape: tuple[int, ...], given: Iterable[Any] = ()) -> Probed | None:
    """What a function of one tensor does to its entries; None if it is not entrywise.

    Args:
        function: called on tensors of this shape only, in float64 if it takes that.
        shape: of the tensor in the traced call.
        given: further arguments of the call, whose numbers are looked at closely.

    Returns:
        Claims that held at every point.

    Raises:
        NotProbed: it cannot be run on numbers, is not deterministic, or writes to its input.
    """
    count = math.prod(shape)
    if not 0 < count <= _MOST:
        return None
    generator = torch.Generator().manual_seed(3)
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        dtype, steady = _running(function, shape, generator)
        if not _is_entrywise(steady, shape, dtype, generator):
            return None
        points = _points(generator, dtype, [*_numbers(given)])
        most = max(0, _CALLS * count // (2 + len(_SCALES)) - 64)
        if len(points) > most:
            points = points[torch.randperm(len(points), generator=generator)[:most]]
        if len(points) < 64:  # too few to claim anything of what lies between
            return Probed(None, "pin", False)
        return _claims(lambda xs: _at(steady, xs, shape), points)


def _running(
    function: Function, shape: tuple[int, ...], generator: torch.Generator
) -> tuple[torch.dtype, Function]:
    """The widest dtype that a function takes, and the function on copies of its arguments."""

    def once(x: torch.Tensor) -> torch.Tensor:
        given = x.clone()
        made = function(given)
        if not isinstance(made, torch.Tensor) or made.shape != x.shape or made.dtype != x.dtype:
            raise NotProbed("it gives a tensor of another kind on numbers")
        if not _same(given, x, 0.0):
            raise NotProbed("it writes to its input")
        return made.clone()

    failed: Exception = NotProbed("it takes no floating numbers")
    for dtype in (torch.float64, torch.float32):
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        try:
            first = once(x)
        except NotProbed:
            raise
        except Exception as error:
            failed = error
            continue
        if not all(_same(first, once(x), 0.0) for _ in range(3)):
            raise NotProbed(
                "it gives other numbers when it is called again: it draws numbers or keeps a state"
            )
        return dtype, partial(_anywhere, once)
    raise NotProbed(f"it does not run on numbers ({type(failed).__name__})") from failed


def _anywhere(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The function on other numbers, which it may refuse: what is not positive definite, say."""
    try:
        return function(x)
    except NotProbed:
        raise
    except Exception as error:
        raise NotProbed(f"it does not run on all numbers ({type(error).__name__})") from error


def _is_entrywise(
    function: Function, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> bool:
    """Whether each entry of the output is one and the same function of the entry at its place."""
    near = 2**8 * torch.finfo(dtype).eps
    for size in (1.0, 30.0, 1e-3):
        x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        x, y = x.to(dtype), (size * y).to(dtype)
        of_x, of_y = function(x), function(y)
        for k in range(_MASKS):
            mask = torch.rand(shape, generator=generator) < (k + 1) / (_MASKS + 1)
            mixed = function(torch.where(mask, x, y))
            if not _same(mixed, torch.where(mask, of_x, of_y), near):
                return False
        order = torch.randperm(x.numel(), generator=generator)
        moved = function(x.reshape(-1)[order].reshape(shape))
        if not _same(moved, of_x.reshape(-1)[order].reshape(shape), near):
            return False
        if not _same(function(x), of_x, 0.0):
            raise NotProbed("it gives other numbers when it is called again: it keeps a state")
    return True


def _same(a: torch.Tensor, b: torch.Tensor, near: float) -> bool:
    """Whether all entries agree, each relative to its own size; NaN and infinity count."""
    return bool(_agree(a, b, near).all())


def _agree(a: torch.Tensor, b: torch.Tensor, near: float) -> torch.Tensor:
    size = torch.maximum(a.abs(), b.abs())
    close = size.isfinite() & ((a - b).abs() <= near * size)  # infinity is near to nothing
    return close | (a == b) | (a.isnan() & b.isnan())


# -- points ----------------------------------------------------------------------------------------


def _numbers(given: Iterable[Any]) -> Iterator[float]:
    for leaf in pytree.tree_leaves(list(given)):
        if isinstance(leaf, torch.Tensor) and leaf.numel() <= 64 and not leaf.is_complex():
            yield from (float(x) for x in leaf.reshape(-1).tolist())
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and math.isfinite(leaf):
            yield float(leaf)


def _points(generator: torch.Generator, dtype: torch.dtype, given: list[float]) -> torch.Tensor:
    """Positive points at all magnitudes, and closely around some numbers."""

    def spread(count: int, decades: float) -> torch.Tensor:
        steps = torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)
        return 10 ** (decades * (2 * steps / count - 1))

    decades = _DECADES.get(dtype, _FEWER_DECADES)
    special = torch.tensor(
        [*range(1, 11), 0.5, 1.5, 2.5, 20.0, 100.0, *map(abs, given)], dtype=torch.float64
    )
    near = [special * (1 + step) for step in (0, 1e-9, -1e-9, 1e-4, -1e-4, 0.05, -0.05, 0.5, 1.0)]
    grid = (torch.arange(1000) + torch.rand(1000, generator=generator, dtype=torch.float64)) / 100
    points = torch.cat([spread(700, decades), spread(2000, 3.0), grid, *near])
    return points[points > 0].to(dtype)


def _at(function: Function, points: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The function at any number of points, by calls on tensors of one shape."""
    count = math.prod(shape)
    rest = -len(points) % count
    filled = torch.cat([points, points.new_ones(rest)]).reshape(-1, *shape)
    made = torch.stack([function(x) for x in filled])
    return made.reshape(-1)[: len(points)]


# -- claims ----------------------------------------------------------------------------------------


def _claims(f: Function, points: torch.Tensor) -> Probed:
    near = _ROUNDINGS * torch.finfo(points.dtype).eps
    zero = f(torch.zeros(1, dtype=points.dtype))
    above, below = f(points), f(-points)
    if _same(above, above[:1].expand_as(above), near) and _same(below, above, near):
        return Probed(None, "pin", False)  # a constant, as far as one can see
    sign = "pin"
    beside = f(-torch.zeros(1, dtype=points.dtype))  # 1/x is odd at the two zeros
    if _same(below, -above, near) and _same(beside, -zero, 0.0):
        sign = "odd"
    elif _same(below, above, near):
        sign = "even"
    ordered = torch.cat([-points.sort().values.flip(0), points.new_zeros(1), points.sort().values])
    values = f(ordered)
    increasing = bool((values.diff() >= 0).all()) and bool(values.isfinite().all())
    return Probed(_degree(f, points, (above, below, zero), near), sign, increasing)


def _degree(
    f: Function, points: torch.Tensor, known: tuple[torch.Tensor, ...], near: float
) -> Fraction | None:
    above, below, zero = known
    guess = _guess(f, points, above, below)
    if guess is None or not (_is_fixed(float(zero), guess)):
        return None
    for scale in _SCALES:
        factor = scale ** float(guess)
        for sign, at in ((1, above), (-1, below)):
            if not _same(f(sign * scale * points), factor * at, near * (1 + abs(guess))):
                return None
    return guess


def _is_fixed(zero: float, degree: Fraction) -> bool:
    """Whether a value at zero is unchanged by every factor."""
    return degree == 0 or zero == 0 or math.isinf(zero) or math.isnan(zero)


def _guess(
    f: Function, points: torch.Tensor, above: torch.Tensor, below: torch.Tensor
) -> Fraction | None:
    """The degree between one point and its double, as a short fraction."""
    middle = points[(points > 0.1) & (points < 10)][:32]
    for sign in (1, -1):
        x, y = f(sign * middle), f(sign * 2 * middle)
        ratio = (y / x)[(x != 0) & x.isfinite() & y.isfinite()]
        if len(ratio) and bool((ratio > 0).all()):
            exact = float(ratio.double().log2().median())
            found = Fraction(exact).limit_denominator(_DENOMINATORS)
            return found if abs(float(found) - exact) < 1e-4 else None
    return None
