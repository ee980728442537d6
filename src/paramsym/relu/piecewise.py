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

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import numpy as np

from paramsym.relu.coefficients import Coefficients, stacked
from paramsym.relu.entries import Entries, entries_of, joined, zeros
from paramsym.relu.forms import PLACE, Array, Atoms, Forms
from paramsym.relu.layering import network_of
from paramsym.relu.network import Network
from paramsym.relu.windows import windows


class Piecewise(Forms):
    """An array of piecewise linear functions: forms, and the operations at which they bend."""

    # ------------------------------------------------------------ where functions bend

    def relu(self) -> Self:
        """max(x, 0), with one hidden unit for each entry that is not constant."""
        return self._rectified

    @cached_property
    def _rectified(self) -> Self:
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
            return type(self)(self.shape, terms, zeros(self.size))
        positive = fixed.values > 0
        values = np.where(positive, fixed.values, 0 * fixed.values)
        kept = Entries(values, fixed.slack, fixed.formats)
        order = np.where(place < 0, np.searchsorted(rest, np.arange(self.size)), len(rest))
        return type(self)(self.shape, terms, joined([kept, zeros(1)]).at(order))

    def _never_negative(self) -> bool:
        """Whether every entry is a hidden unit itself."""
        if (self.constant.values != 0).any() or self.constant.slack.any() or not self.terms:
            return False
        entries = [c.entries for c in self.terms.values()]
        ones = all((e.values == 1).all() and not e.slack.any() for e in entries)
        rows = np.concatenate([c.rows for c in self.terms.values()])
        single = len(np.unique(rows)) == len(rows)
        return ones and single and all(atoms.depth for atoms in self.terms)

    def maximum(self, other: Self | Array) -> Self:
        """The larger of both, entry by entry."""
        return self + (self._read(other) - self).relu()

    def minimum(self, other: Self | Array) -> Self:
        """The smaller of both, entry by entry."""
        return self - (self - other).relu()

    def __abs__(self) -> Self:
        return self.relu() + (-self).relu()

    def clip(self, low: Array | None = None, high: Array | None = None) -> Self:
        """min(max(x, low), high); a bound may be None."""
        if low is None:
            return self if high is None else self.minimum(high)
        if high is None:
            return low + (self - low).relu()
        bottom, top = entries_of(low, PLACE), entries_of(high, PLACE)
        if (bottom.values > top.values).any():
            return self.clip(low).minimum(high)
        return low + (self - low).relu() - (self - high).relu()

    def leaky_relu(self, slope: Array) -> Self:
        """x where it is positive, slope·x elsewhere."""
        return self.relu() - (-self).relu() * slope

    def max_pool(
        self,
        kernel: Sequence[int],
        stride: Sequence[int] | None = None,
        padding: Sequence[int | tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        ceil: bool = False,
    ) -> Self:
        """The largest entry of each window over the last axes, a tournament of maxima."""
        places = windows(self.shape, kernel, stride, padding, dilation, ceil)
        return self._largest(places.reshape(*places.shape[: self.ndim], -1))

    def max(self, axis: int, keepdims: bool = False) -> Self:
        """The largest entry along an axis."""
        places = np.moveaxis(np.arange(self.size).reshape(self.shape), axis, -1)
        made = self._largest(places)
        return made.rearranged(lambda p: np.expand_dims(p, axis)) if keepdims else made

    def _largest(self, places: np.ndarray) -> Self:
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
    parts = [a if isinstance(a, Piecewise) else Piecewise.of(a) for a in arrays]
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
