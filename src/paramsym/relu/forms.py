"""Arrays of affine functions of atoms: what a network does to them between two ReLUs.

Every entry of `Forms` is an exact affine function of *atoms*: coordinates of the input, and hidden
units relu(z), z being an entry of another such array. An affine operation acts on the coefficients
alone, which are exact numbers with what their storage leaves open (`entries`). Where functions bend
is the subject of `piecewise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from paramsym.relu.coefficients import Coefficients, check_size
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
from paramsym.relu.windows import adaptive, averaging, convolution, windows

Array = Any  # numbers of any kind that `entries_of` reads
PLACE = "a piecewise linear array"


class Atoms:
    """The input (depth 0, `read` is None) or the units relu(read), deeper than all they read."""

    def __init__(self, size: int, read: Forms | None = None) -> None:
        self.size, self.read = size, read
        self.depth = 0 if read is None else 1 + read.depth


class Forms:
    """An array of functions: Σ terms[atoms]·atoms + constant, in C order.

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
    def inputs(cls, shape: Sequence[int]) -> Self:
        """The input of the network, as an array of this shape."""
        atoms = Atoms(math.prod(shape))
        return cls(shape, {atoms: Coefficients.identity(atoms.size)}, zeros(atoms.size))

    @classmethod
    def of(cls, numbers: Array) -> Self:
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
        return f"{type(self).__name__}(shape={self.shape}, depth={self.depth})"

    # ------------------------------------------------------------ places

    def take(self, index: np.ndarray, fill: Array = 0) -> Self:
        """The entries at an array of flat places; -1 is the number `fill`."""
        flat = index.reshape(-1)
        padded = joined([self.constant, _flat(entries_of(fill, PLACE))])
        terms = {atoms: c.take(flat) for atoms, c in self.terms.items()}
        return type(self)(index.shape, terms, padded.at(np.where(flat < 0, self.size, flat)))

    def rearranged(self, function: Callable[[np.ndarray], np.ndarray]) -> Self:
        """What a function that only moves, repeats or drops entries makes of this array.

        Args:
            function: it is called with the array of places; -1 in its result is a zero.
        """
        return self.take(np.asarray(function(np.arange(self.size).reshape(self.shape))))

    def __getitem__(self, index: Any) -> Self:
        return self.rearranged(lambda places: places[index])

    def reshape(self, shape: Sequence[int]) -> Self:
        """The same entries in C order in another shape; one size may be -1."""
        shape = np.empty(self.shape, dtype=bool).reshape(tuple(shape)).shape
        return type(self)(shape, self.terms, self.constant)

    def transpose(self, axes: Sequence[int] | None = None) -> Self:
        """The axes in another order."""
        return self.rearranged(lambda places: places.transpose(axes))

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """The array repeated along new axes and axes of size 1."""
        if tuple(shape) == self.shape:
            return self
        return self.rearranged(lambda places: np.broadcast_to(places, tuple(shape)))

    def pad(self, widths: Sequence[tuple[int, int]], value: Array = 0) -> Self:
        """Numbers around the array, `widths` before and after on each axis."""
        places = np.arange(self.size).reshape(self.shape)
        return self.take(np.pad(places, list(widths), constant_values=-1), value)

    # ------------------------------------------------------------ affine operations

    def __add__(self, other: Self | Array) -> Self:
        a, b = self._broadcast(self._read(other))
        terms = dict(a.terms)
        for atoms, c in b.terms.items():
            terms[atoms] = terms[atoms] + c if atoms in terms else c
        return type(self)(a.shape, terms, plus(a.constant, b.constant))

    __radd__ = __add__

    def __neg__(self) -> Self:
        return self.negative

    @cached_property
    def negative(self) -> Self:
        """-x; one object, so that its hidden units are made once."""
        return type(self)(self.shape, {k: -c for k, c in self.terms.items()}, -self.constant)

    def __sub__(self, other: Self | Array) -> Self:
        return self + -self._read(other)

    def __rsub__(self, other: Array) -> Self:
        return -self + other

    def __mul__(self, factors: Array) -> Self:
        """Every entry times a number, broadcast."""
        held = entries_of(factors, PLACE)
        shape = np.broadcast_shapes(self.shape, held.values.shape)
        array, flat = self.broadcast_to(shape), _flat(held.shaped(shape))
        terms = {atoms: c.scaled(flat) for atoms, c in array.terms.items()}
        return type(self)(shape, terms, times(array.constant, flat))

    __rmul__ = __mul__

    def __truediv__(self, divisors: Array) -> Self:
        """Every entry divided by a number, exactly."""
        return self * reciprocal(entries_of(divisors, PLACE), PLACE)

    def linear(self, weight: Array, bias: Array | None = None) -> Self:
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

    def mapped(self, matrix: Coefficients, shape: Sequence[int]) -> Self:
        """A matrix times the flat array, in the shape of the result."""
        terms = {atoms: matrix @ c for atoms, c in self.terms.items()}
        return type(self)(shape, terms, matrix.apply(self.constant))

    def sum(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Self:
        """The sums over some axes (all of them without any)."""
        kept = np.ones(self.shape, dtype=np.int64).sum(axis=_axes(axes), keepdims=True)
        target = np.broadcast_to(np.arange(kept.size).reshape(kept.shape), self.shape).reshape(-1)
        ones = Entries(np.ones(self.size), np.zeros(self.size))
        matrix = Coefficients.summed(kept.size, self.size, target, np.arange(self.size), ones)
        return self.mapped(matrix, kept.shape if keepdims else kept.squeeze(_axes(axes)).shape)

    def mean(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Self:
        """The means over some axes (all of them without any)."""
        total = self.sum(axes, keepdims)
        return total / (self.size // max(1, total.size))

    def normalised(
        self, mean: Array, variance: Array, gain: Array = 1, bias: Array = 0, epsilon: float = 0.0
    ) -> Self:
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
    ) -> Self:
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
    ) -> Self:
        """The mean of each window over the last axes; `padded`: zeros of the padding count."""
        places = windows(self.shape, kernel, stride, padding, ceil=ceil)
        return self.mapped(*averaging(self.shape, places, len(kernel), padded, divisor))

    def adaptive_avg_pool(self, sizes: Sequence[int]) -> Self:
        """The means over windows that part the last axes into as many as `sizes` says."""
        made = self
        for axis, count in zip(range(self.ndim - len(sizes), self.ndim), sizes, strict=True):
            order = [*(k for k in range(self.ndim) if k != axis), axis]
            back = np.argsort(order).tolist()
            shares = adaptive(self.shape[axis], count)
            made = made.transpose(order).linear(shares).transpose(back)
        return made

    def _read(self, value: Self | Array) -> Self:
        return value if isinstance(value, Forms) else self.of(value)  # type: ignore[return-value]

    def _broadcast(self, other: Self) -> tuple[Self, Self]:
        shape = np.broadcast_shapes(self.shape, other.shape)
        return self.broadcast_to(shape), other.broadcast_to(shape)


def _flat(held: Entries) -> Entries:
    return Entries(held.values.reshape(-1), held.slack.reshape(-1), held.formats)


def _axes(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else tuple(axes)
