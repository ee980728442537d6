"""Gradient fields of layered networks over a prime field, with all their brackets.

f(x) = W_L σ(… σ(W_1 x + b_1) …) + b_L with σ a polynomial, or linear on pieces with a pattern of
pieces that is drawn for each probe. The field of covectors c_s at probes x_s is

    X(θ) = ∇_θ Σ_s ⟨c_s, f(x_s)⟩ :   dW_l = Σ_s g_l,s a_{l-1,s}ᵀ,   db_l = Σ_s g_l,s,

a polynomial in θ with integer coefficients. Brackets are derivatives of such fields along each
other, so everything is done on jets: polynomials in nilpotent ε₁, ε₂, … with ε_i² = 0, a list of
2^k coefficients by the set of ε that they stand at (bits of the index).

A law that is analytic on all of parameter space holds for every pattern, because each occurs on
some open set of parameters and inputs; near one θ more may hold, of units that are dead there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .modular import drawn, inverse, product, residues

Jet = list[np.ndarray | None]  # None is zero
Tables = list[Jet]  # of each weight and bias, with the batch in front

_PROBES = 3  # of one field; single paths stall in bottlenecks


@dataclass(frozen=True)
class Activation:
    """A homogeneous activation: σ(tz) = t^degree σ(z) for t > 0.

    Attributes:
        degree: 1 for pieces that are linear, k for the k-th power.
        slope: of the negative piece; None if there is but one piece.
    """

    degree: int = 1
    slope: tuple[int, int] | None = None  # numerator, denominator

    @property
    def mixes(self) -> bool:
        """Whether units may be mixed: σ is the identity."""
        return self.degree == 1 and self.slope is None


ACTIVATIONS = {
    "linear": Activation(),
    "relu": Activation(slope=(0, 1)),
    "leaky_relu": Activation(slope=(1, 100)),
    "absolute": Activation(slope=(-1, 1)),
    "square": Activation(degree=2),
    "cube": Activation(degree=3),
}


@dataclass(frozen=True)
class Layered:
    """A layered network, at parameters drawn from the prime field.

    Attributes:
        widths: of the input, of each hidden layer, of the output.
        activation: between the layers.
        bias: whether the layers have one.
        generator: of parameters, probes, covectors and patterns.
    """

    widths: tuple[int, ...]
    activation: Activation
    bias: bool
    generator: np.random.Generator

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the weights, those of the biases (n, 1) after each."""
        found = []
        for fan, width in zip(self.widths, self.widths[1:], strict=False):
            found += [(width, fan), (width, 1)] if self.bias else [(width, fan)]
        return found

    @property
    def count(self) -> int:
        """The number of parameters."""
        return sum(n * m for n, m in self.shapes)

    @cached_property
    def parameters(self) -> list[np.ndarray]:
        return [drawn(self.generator, n, m) for n, m in self.shapes]

    def brackets(self, level: int, count: int) -> np.ndarray:
        """Values of random brackets [X₁, [X₂, … X_level]], one a row: (count, parameters)."""
        fields = [self._field(count) for _ in range(level)]
        theta: Tables = [[p[None]] for p in self.parameters]
        found = _bracket(fields, theta)
        rows = [np.zeros((count, n, m)) if t[0] is None else t[0]
                for t, (n, m) in zip(found, self.shapes, strict=True)]  # fmt: skip
        return np.concatenate([r.reshape(count, -1) for r in rows], axis=1)

    def laws(self) -> np.ndarray:
        """The derivatives of all conserved quantities that symmetries give: (laws, parameters).

        Of layer l with weights W, b before and V after it the entries (i, j) of
        W Wᵀ + b bᵀ − k VᵀV, for σ of degree k: all of them if σ is the identity, else i = j.
        """
        step, found = 2 if self.bias else 1, []
        degree = float(self.activation.degree)
        for at in range(0, len(self.shapes) - step, step):
            units = self.shapes[at][0]
            first, second = np.triu_indices(units)
            if not self.activation.mixes:
                first = second = np.arange(units)
            rows, each = np.zeros((len(first), self.count)), np.arange(len(first))
            starts = np.cumsum([0, *(n * m for n, m in self.shapes)])
            for k in range(at, at + step + 1):
                value, (n, m) = self.parameters[k], self.shapes[k]
                part = np.zeros((len(first), n, m))
                if k < at + step:
                    part[each, first] += value[second]
                    part[each, second] += value[first]
                else:
                    part[each, :, first] -= degree * value[:, second].T
                    part[each, :, second] -= degree * value[:, first].T
                rows[:, starts[k] : starts[k + 1]] = residues(part).reshape(len(first), -1)
            found.append(rows)
        return np.concatenate([np.zeros((0, self.count)), *found])

    def _field(self, count: int) -> Callable[[Tables], Tables]:
        """`count` random fields at once."""
        probes = _PROBES if self.activation.slope else max(_PROBES, self.widths[0] + self.bias)
        inputs = drawn(self.generator, count, self.widths[0], probes)
        covectors = drawn(self.generator, count, self.widths[-1], probes)
        patterns = [self._pattern(count, width, probes) for width in self.widths[1:-1]]
        step, degree = (2 if self.bias else 1), self.activation.degree

        def field(theta: Tables) -> Tables:
            size = len(theta[0])
            a, before, slopes = _constant(inputs, size), [], []
            for at in range(0, len(theta), step):
                before.append(a)
                z = _times(theta[at], a, product)
                if self.bias:
                    z = _plus(z, theta[at + 1])
                if at + step < len(theta):
                    pattern = _constant(patterns[at // step], size)
                    lower = _power(z, degree - 1)
                    slopes.append(_times(pattern, _scaled(lower, degree), _entrywise))
                    a = _times(_times(pattern, lower, _entrywise), z, _entrywise)
            g, found = _constant(covectors, size), []
            for at in range(len(theta) - step, -1, -step):
                if self.bias:
                    found.append([None if x is None else residues(x.sum(-1, keepdims=True))
                                  for x in g])  # fmt: skip
                found.append(_times(g, _transposed(before[at // step]), product))
                if at:
                    back = _times(_transposed(theta[at]), g, product)
                    g = _times(slopes[at // step - 1], back, _entrywise)
            return found[::-1]

        return field

    def _pattern(self, count: int, width: int, probes: int) -> np.ndarray:
        if self.activation.slope is None:
            return np.ones((1, 1, 1))
        top, bottom = self.activation.slope
        slope = residues(np.array(top * inverse(bottom)))
        return np.where(self.generator.random((count, width, probes)) < 0.5, 1.0, slope)


def _bracket(fields: Sequence[Callable[[Tables], Tables]], theta: Tables) -> Tables:
    """[X₁, [X₂, …]] at a jet of parameters, with [X, Y] = DY·X − DX·Y."""
    if len(fields) == 1:
        return fields[0](theta)
    first, size = fields[0], len(theta[0])
    along = _bracket(fields[1:], _stacked(theta, first(theta)))
    inner = [jet[:size] for jet in along]
    across = first(_stacked(theta, inner))
    return [
        _plus(forth[size:], _scaled(back[size:], -1))
        for forth, back in zip(along, across, strict=True)
    ]


def _stacked(theta: Tables, velocity: Tables) -> Tables:
    """θ + ε·velocity for a new ε."""
    return [[*a, *b] for a, b in zip(theta, velocity, strict=True)]


def _constant(x: np.ndarray, size: int) -> Jet:
    return [x, *[None] * (size - 1)]


def _transposed(jet: Jet) -> Jet:
    return [None if x is None else np.swapaxes(x, -1, -2) for x in jet]


def _scaled(jet: Jet, factor: int) -> Jet:
    return jet if factor == 1 else [None if x is None else residues(factor * x) for x in jet]


def _entrywise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return residues(a * b)


def _plus(a: Jet, b: Jet) -> Jet:
    return [
        y if x is None else x if y is None else residues(x + y) for x, y in zip(a, b, strict=True)
    ]


def _times(a: Jet, b: Jet, multiply: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Jet:
    """The product of jets: coefficient S is Σ a_T b_{S∖T} over the subsets T of S."""
    found: Jet = []
    for whole in range(len(a)):
        terms = [
            multiply(x, y)
            for part in range(whole + 1)
            if part & whole == part
            and (x := a[part]) is not None
            and (y := b[whole ^ part]) is not None
        ]
        found.append(residues(np.sum(np.broadcast_arrays(*terms), axis=0)) if terms else None)
    return found


def _power(z: Jet, exponent: int) -> Jet:
    one: Jet = _constant(np.ones((1, 1, 1)), len(z))
    for _ in range(exponent):
        one = _times(one, z, _entrywise)
    return one
