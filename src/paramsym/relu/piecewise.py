"""Arrays of piecewise linear functions of one input, and what networks do to them.

Every entry of a `Piecewise` array is an exact affine function of *atoms*: coordinates of the input,
and hidden units relu(z), z being an entry of another such array. An affine operation acts on the
coefficients alone; `relu` makes new atoms, one level above the deepest that it reads. All else
that is piecewise linear is written with it, for example

    maximum(a, b) = a + relu(b - a)        leaky(x) = relu(x) - slope·relu(-x)
    clip(x, l, h) = l + relu(x - l) - relu(x - h)

and `network()` lays the atoms out as the layers of a `Network` of the same function
(`layering`). Coefficients are exact numbers with what their storage leaves open (`entries`).

    x = Piecewise.inputs((2, 5, 5))
    h = x.convolve(kernel, bias, padding=(1, 1)).relu().max_pool((2, 2), (2, 2))
    net = h.reshape((-1,)).linear(weight).network()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paramsym.relu.coefficients import Coefficients, check_size, stacked
from paramsym.relu.entries import (
    Entries,
    entries_of,
    joined,
    normalising,
    plus,
    reciprocal,
    times,
    zeros,
)
from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Network
from paramsym.relu.windows import adaptive, averaging, convolution, windows

Array = Any  # numbers of any kind that `entries_of` reads
PLACE = "a piecewise linear array"


class Atoms:
    """The input (depth 0, `read` is None) or the units relu(read), deeper than all they read."""

    def __init__(self, size: int, read: Piecewise | None = None) -> None:
        self.size, self.read = size, read
        self.depth = 0 if read is None else 1 + read.depth


class Piecewise:
    """An array of piecewise linear functions: Σ terms[atoms]·atoms + constant, in C order.

    Attributes:
        shape: of the array, of `size` entries.
        terms: by atoms, their coefficients, a sparse matrix of `size` rows.
        constant: `size` numbers.
    """

    __array_ufunc__ = None  # NumPy arrays leave `array + piecewise` to this class

    def __init__(
        self, shape: Sequence[int], terms: dict[Atoms, Coefficients], constant: Entries
    ) -> None:
        self.shape, self.constant = tuple(int(n) for n in shape), constant
        self.terms = {atoms: c for atoms, c in terms.items() if len(c.rows)}
        self.size = math.prod(self.shape)

    @classmethod
    def inputs(cls, shape: Sequence[int]) -> Piecewise:
        """The input of the network, as an array of this shape."""
        atoms = Atoms(math.prod(shape))
        return cls(shape, {atoms: Coefficients.identity(atoms.size)}, zeros(atoms.size))

    @classmethod
    def of(cls, numbers: Array) -> Piecewise:
        """Constant functions."""
        held = entries_of(numbers, PLACE)
        return cls(held.values.shape, {}, _flat(held))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def depth(self) -> int:
        """How many ReLUs lie between the input and these functions, at most."""
        return max((atoms.depth for atoms in self.terms), default=0)

    def __repr__(self) -> str:
        return f"Piecewise(shape={self.shape}, depth={self.depth})"

    # ------------------------------------------------------------ places

    def take(self, index: np.ndarray, fill: Array = 0) -> Piecewise:
        """The entries at an array of flat places; -1 is the number `fill`."""
        flat = index.reshape(-1)
        padded = joined([self.constant, _flat(entries_of(fill, PLACE))])
        terms = {atoms: c.take(flat) for atoms, c in self.terms.items()}
        return Piecewise(index.shape, terms, padded.at(np.where(flat < 0, self.size, flat)))

    def rearranged(self, function: Callable[[np.ndarray], np.ndarray]) -> Piecewise:
        """What a function that only moves, repeats or drops entries makes of this array.

        Args:
            function: it is called with the array of places; -1 in its result is a zero.
        """
        return self.take(np.asarray(function(np.arange(self.size).reshape(self.shape))))

    def __getitem__(self, index: Any) -> Piecewise:
        return self.rearranged(lambda places: places[index])

    def reshape(self, shape: Sequence[int]) -> Piecewise:
        """The same entries in C order in another shape; one size may be -1."""
        shape = np.empty(self.shape, dtype=bool).reshape(tuple(shape)).shape
        return Piecewise(shape, self.terms, self.constant)

    def transpose(self, axes: Sequence[int] | None = None) -> Piecewise:
        """The axes in another order."""
        return self.rearranged(lambda places: places.transpose(axes))

    def broadcast_to(self, shape: Sequence[int]) -> Piecewise:
        """The array repeated along new axes and axes of size 1."""
        if tuple(shape) == self.shape:
            return self
        return self.rearranged(lambda places: np.broadcast_to(places, tuple(shape)))

    def pad(self, widths: Sequence[tuple[int, int]], value: Array = 0) -> Piecewise:
        """Numbers around the array, `widths` before and after on each axis."""
        places = np.arange(self.size).reshape(self.shape)
        return self.take(np.pad(places, list(widths), constant_values=-1), value)

    # ------------------------------------------------------------ affine operations

    def __add__(self, other: Piecewise | Array) -> Piecewise:
        a, b = _broadcast(self, _as_piecewise(other))
        terms = dict(a.terms)
        for atoms, c in b.terms.items():
            terms[atoms] = terms[atoms] + c if atoms in terms else c
        return Piecewise(a.shape, terms, plus(a.constant, b.constant))

    __radd__ = __add__

    def __neg__(self) -> Piecewise:
        return self.negative

    @cached_property
    def negative(self) -> Piecewise:
        """-x; one object, so that its hidden units are made once."""
        return Piecewise(self.shape, {k: -c for k, c in self.terms.items()}, -self.constant)

    def __sub__(self, other: Piecewise | Array) -> Piecewise:
        return self + -_as_piecewise(other)

    def __rsub__(self, other: Array) -> Piecewise:
        return -self + other

    def __mul__(self, factors: Array) -> Piecewise:
        """Every entry times a number, broadcast."""
        held = entries_of(factors, PLACE)
        shape = np.broadcast_shapes(self.shape, held.values.shape)
        array, flat = self.broadcast_to(shape), _flat(held.shaped(shape))
        terms = {atoms: c.scaled(flat) for atoms, c in array.terms.items()}
        return Piecewise(shape, terms, times(array.constant, flat))

    __rmul__ = __mul__

    def __truediv__(self, divisors: Array) -> Piecewise:
        """Every entry divided by a number, exactly."""
        return self * reciprocal(entries_of(divisors, PLACE), PLACE)

    def linear(self, weight: Array, bias: Array | None = None) -> Piecewise:
        """Σ_k weight[o, k]·x[…, k] + bias[o] at […, o]."""
        held = entries_of(weight, PLACE)
        n, k = held.values.shape
        if self.shape[-1:] != (k,):
            raise ReLUError(
                f"a layer that reads {k} features", f"{(self.shape or (0,))[-1]}", PLACE,
                "Check the order of the layers and that no weight is transposed.",
            )  # fmt: skip
        copies = self.size // max(1, k)
        check_size(copies * n * k)
        row, column = (g.reshape(-1) for g in np.indices((n, k)))
        rows = (np.arange(copies)[:, None] * n + row).reshape(-1)
        columns = (np.arange(copies)[:, None] * k + column).reshape(-1)
        repeated = _flat(held).at(np.tile(np.arange(n * k), copies))
        matrix = Coefficients(copies * n, self.size, rows, columns, repeated)
        made = self.mapped(matrix, (*self.shape[:-1], n))
        return made if bias is None else made + bias

    def mapped(self, matrix: Coefficients, shape: Sequence[int]) -> Piecewise:
        """A matrix times the flat array, in the shape of the result."""
        terms = {atoms: matrix @ c for atoms, c in self.terms.items()}
        return Piecewise(shape, terms, matrix.apply(self.constant))

    def sum(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Piecewise:
        """The sums over some axes (all of them without any)."""
        kept = np.ones(self.shape, dtype=np.int64).sum(axis=_axes(axes), keepdims=True)
        target = np.broadcast_to(np.arange(kept.size).reshape(kept.shape), self.shape).reshape(-1)
        ones = Entries(np.ones(self.size), np.zeros(self.size))
        matrix = Coefficients.summed(kept.size, self.size, target, np.arange(self.size), ones)
        return self.mapped(matrix, kept.shape if keepdims else kept.squeeze(_axes(axes)).shape)

    def mean(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Piecewise:
        """The means over some axes (all of them without any)."""
        total = self.sum(axes, keepdims)
        return total / (self.size // max(1, total.size))

    # ------------------------------------------------------------ where functions bend

    def relu(self) -> Piecewise:
        """max(x, 0), with one hidden unit for each entry that is not constant."""
        return self._rectified

    @cached_property
    def _rectified(self) -> Piecewise:
        if self._never_negative():
            return self
        varies = np.zeros(self.size, dtype=bool)
        for c in self.terms.values():
            varies[c.rows] = True
        varying, rest = np.flatnonzero(varies), np.flatnonzero(~varies)
        fixed = self.constant.at(rest)
        place = np.full(self.size, -1)
        place[varying] = np.arange(len(varying))
        atoms = Atoms(len(varying), self if len(varying) == self.size else self.take(varying))
        terms = {atoms: Coefficients.identity(len(varying)).take(place)}
        if not len(rest):
            return Piecewise(self.shape, terms, zeros(self.size))
        positive = fixed.values > 0
        values = np.where(positive, fixed.values, 0 * fixed.values)
        kept = Entries(values, fixed.slack, fixed.formats)
        order = np.where(place < 0, np.searchsorted(rest, np.arange(self.size)), len(rest))
        return Piecewise(self.shape, terms, joined([kept, zeros(1)]).at(order))

    def _never_negative(self) -> bool:
        """Whether every entry is a hidden unit itself."""
        if (self.constant.values != 0).any() or self.constant.slack.any() or not self.terms:
            return False
        entries = [c.entries for c in self.terms.values()]
        ones = all((e.values == 1).all() and not e.slack.any() for e in entries)
        rows = np.concatenate([c.rows for c in self.terms.values()])
        single = len(np.unique(rows)) == len(rows)
        return ones and single and all(atoms.depth for atoms in self.terms)

    def maximum(self, other: Piecewise | Array) -> Piecewise:
        """The larger of both, entry by entry."""
        return self + (_as_piecewise(other) - self).relu()

    def minimum(self, other: Piecewise | Array) -> Piecewise:
        """The smaller of both, entry by entry."""
        return self - (self - other).relu()

    def __abs__(self) -> Piecewise:
        return self.relu() + (-self).relu()

    def clip(self, low: Array | None = None, high: Array | None = None) -> Piecewise:
        """min(max(x, low), high); a bound may be None."""
        if low is None:
            return self if high is None else self.minimum(high)
        if high is None:
            return low + (self - low).relu()
        bottom, top = entries_of(low, PLACE), entries_of(high, PLACE)
        if (bottom.values > top.values).any():
            return self.clip(low).minimum(high)
        return low + (self - low).relu() - (self - high).relu()

    def leaky_relu(self, slope: Array) -> Piecewise:
        """x where it is positive, slope·x elsewhere."""
        return self.relu() - (-self).relu() * slope

    def normalised(
        self, mean: Array, variance: Array, gain: Array = 1, bias: Array = 0, epsilon: float = 0.0
    ) -> Piecewise:
        """Batch norm in evaluation: (x - mean)·gain/√(variance + epsilon) + bias, broadcast.

        The factor is irrational in general. It is computed once in float64, and the function is
        the one with this number.
        """
        return (self - mean) * normalising(entries_of(gain, PLACE), entries_of(variance, PLACE),
                                           epsilon) + bias  # fmt: skip

    # ------------------------------------------------------------ windows over the last axes

    def convolve(
        self,
        weight: Array,
        bias: Array | None = None,
        stride: Sequence[int] | None = None,
        padding: Sequence[int | tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        groups: int = 1,
    ) -> Piecewise:
        """The convolution of (…, channels, *sizes) with a weight (outputs, channels, *kernel)."""
        held = entries_of(weight, PLACE)
        made = self.mapped(*convolution(self.shape, held, stride, padding, dilation, groups))
        if bias is None:
            return made
        each = entries_of(bias, PLACE)
        return made + each.at((slice(None), *(None,) * (held.values.ndim - 2)))

    def avg_pool(
        self,
        kernel: Sequence[int],
        stride: Sequence[int] | None = None,
        padding: Sequence[int | tuple[int, int]] | None = None,
        ceil: bool = False,
        padded: bool = True,
        divisor: int | None = None,
    ) -> Piecewise:
        """The mean of each window over the last axes; `padded`: zeros of the padding count."""
        places = windows(self.shape, kernel, stride, padding, ceil=ceil)
        return self.mapped(*averaging(self.shape, places, len(kernel), padded, divisor))

    def adaptive_avg_pool(self, sizes: Sequence[int]) -> Piecewise:
        """The means over windows that part the last axes into as many as `sizes` says."""
        made = self
        for axis, count in zip(range(self.ndim - len(sizes), self.ndim), sizes, strict=True):
            order = [*(k for k in range(self.ndim) if k != axis), axis]
            back = np.argsort(order).tolist()
            shares = adaptive(self.shape[axis], count)
            made = made.transpose(order).linear(shares).transpose(back)
        return made

    def max_pool(
        self,
        kernel: Sequence[int],
        stride: Sequence[int] | None = None,
        padding: Sequence[int | tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        ceil: bool = False,
    ) -> Piecewise:
        """The largest entry of each window over the last axes, a tournament of maxima."""
        places = windows(self.shape, kernel, stride, padding, dilation, ceil)
        return self._largest(places.reshape(*places.shape[: self.ndim], -1))

    def max(self, axis: int, keepdims: bool = False) -> Piecewise:
        """The largest entry along an axis."""
        places = np.moveaxis(np.arange(self.size).reshape(self.shape), axis, -1)
        made = self._largest(places)
        return made.rearranged(lambda p: np.expand_dims(p, axis)) if keepdims else made

    def _largest(self, places: np.ndarray) -> Piecewise:
        """The maximum over the last axis of a table of places, of which some are in the array."""
        places = np.where(places < 0, places.max(axis=-1, keepdims=True), places)
        candidates = [self.take(places[..., k]) for k in range(places.shape[-1])]
        while len(candidates) > 1:
            pairs = zip(candidates[::2], candidates[1::2], strict=False)
            odd = candidates[-1:] if len(candidates) % 2 else []
            candidates = [a.maximum(b) for a, b in pairs] + odd
        return candidates[0]

    # ------------------------------------------------------------ as a network

    def network(self, name: str = "network") -> Network:
        """These functions, flat in C order, as the outputs of a layered network."""
        from paramsym.relu.layering import network_of  # it reads this module

        return network_of(self, name)


def concatenate(arrays: Sequence[Piecewise | Array], axis: int = 0) -> Piecewise:
    """Arrays joined along an axis that they have; some may be numbers."""
    return rearranged(lambda *places: np.concatenate(places, axis=axis), arrays)


def rearranged(
    function: Callable[..., np.ndarray], arrays: Sequence[Piecewise | Array]
) -> Piecewise:
    """What a function that only moves, repeats or drops entries makes of several arrays.

    Args:
        function: it is called with one array of places for each; -1 in its result is a zero.
    """
    parts = [_as_piecewise(a) for a in arrays]
    below = np.cumsum([0, *(p.size for p in parts)])
    places = [
        np.arange(p.size).reshape(p.shape) + start for p, start in zip(parts, below, strict=False)
    ]
    terms = {}
    for atoms in {atoms: None for part in parts for atoms in part.terms}:
        empty = Coefficients.identity(atoms.size).take
        terms[atoms] = stacked([p.terms.get(atoms) or empty(np.full(p.size, -1)) for p in parts])
    whole = Piecewise((int(below[-1]),), terms, joined([p.constant for p in parts]))
    return whole.take(np.asarray(function(*places)))


def _as_piecewise(value: Piecewise | Array) -> Piecewise:
    return value if isinstance(value, Piecewise) else Piecewise.of(value)


def _broadcast(a: Piecewise, b: Piecewise) -> tuple[Piecewise, Piecewise]:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return a.broadcast_to(shape), b.broadcast_to(shape)


def _flat(held: Entries) -> Entries:
    return Entries(held.values.reshape(-1), held.slack.reshape(-1), held.formats)


def _axes(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else tuple(axes)
