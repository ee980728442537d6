"""The fiber of one hidden layer on all of R^d: readouts for given hidden weights, least width.

For fixed hidden weights (W_1, b_1) the map from the readout (W_2, b_2) to the canonical form is
linear, so the readouts that give a function form an affine space, possibly empty: the function's
form is to be combined of the forms of the hidden units. The whole fiber is the union over the
(W_1, b_1) that contain every visible hyperplane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.domains import Everywhere
from paramsym.relu.errors import ReLUError
from paramsym.relu.hyperplanes import Key
from paramsym.relu.network import Layer, Network
from paramsym.relu.randomness import generic, randomness
from paramsym.relu.rationals import ONE, ZERO, matrix
from paramsym.relu.reading import as_network
from paramsym.relu.shallow import CanonicalForm, block_form, shallow_canonical_form


@dataclass(frozen=True)
class Readouts:
    """All (W_2, b_2) that complete given hidden weights to one function.

    Attributes:
        inner: the hidden layer.
        particular: one solution, (n+1)×m: the rows of W_2ᵀ and then b_2.
        kernel: a basis of what may be added to each output, columns of n+1 entries.
    """

    inner: Layer
    particular: list[list[fmpq]]
    kernel: list[list[fmpq]]

    @property
    def dimension(self) -> int:
        """m·dim ker."""
        return len(self.particular[0]) * len(self.kernel)

    def sample(self, rng: Any = 0) -> Network:
        """A random network with these hidden weights and this function."""
        source = randomness(rng)
        table = [list(row) for row in self.particular]
        for o in range(len(table[0])):
            for vector in self.kernel:
                size = generic(source)
                for i, v in enumerate(vector):
                    table[i][o] += size * v
        n, m = len(table) - 1, len(table[0])
        outer = fmpq_mat(m, n, [table[i][o] for o in range(m) for i in range(n)])
        return Network(exact=[self.inner, Layer(outer, list(table[n]))])


def readouts(network: Any, inner: Any) -> Readouts | None:
    """The readouts that give a network's function with other hidden weights, on R^d.

    Args:
        network: a network with at most one hidden layer.
        inner: (W_1, b_1), n×d and n.

    Returns None if there is none (a visible hyperplane is missing). Source: section 1.5.
    """
    form = shallow_canonical_form(network)
    layer = as_network([inner], "relu.readouts(inner)").exact[0]
    d = form.linear.ncols()
    if layer.weight.ncols() != d:
        raise ReLUError(
            f"hidden weights that read {layer.weight.ncols()} inputs", f"{d} inputs",
            "relu.readouts(inner)", "Use the inputs of the network.",
        )  # fmt: skip
    features = _features(layer)
    hyperplanes = list({**form.kinks, **features.kinks})
    solved = _solved(_columns(features, hyperplanes), _columns(form, hyperplanes))
    return None if solved is None else Readouts(layer, *solved)


def _features(layer: Layer) -> CanonicalForm:
    """The canonical form of x ↦ (relu(W_1 x + b_1), 1): what the columns of (W_2, b_2) combine."""
    n = layer.weight.nrows()
    units = fmpq_mat(n + 1, n, [ONE if i == k else ZERO for i in range(n + 1) for k in range(n)])
    every = Everywhere(layer.weight.ncols())
    return block_form(layer, Layer(units, [ZERO] * n + [ONE]), every)


def _columns(form: CanonicalForm, hyperplanes: list[Key]) -> list[list[fmpq]]:
    """The coefficients of each output: of the kinks, of the inputs and of 1."""
    none = [ZERO] * len(form.constant)
    kinks = [form.kinks.get(key, none) for key in hyperplanes]
    linear = form.linear.transpose().tolist()
    return [list(column) for column in zip(*kinks, *linear, form.constant, strict=True)]


def _solved(
    columns: list[list[fmpq]], targets: list[list[fmpq]]
) -> tuple[list[list[fmpq]], list[list[fmpq]]] | None:
    """All X with Σ_i columns_i·X_i = targets: one of them, and a basis of the kernel; or None."""
    n, m = len(columns), len(targets)
    table = matrix([*columns, *targets], len(columns[0])).transpose()
    reduced, rank = table.rref()
    rows = {next(i for i, v in enumerate(row) if v): row for row in reduced.tolist()[:rank]}
    if any(pivot >= n for pivot in rows):
        return None
    zero = [ZERO] * (n + m)
    entries = [rows.get(i, zero) for i in range(n)]  # row i says what unit i must be
    kernel = [
        [fmpq(int(i == free)) - row[free] for i, row in enumerate(entries)]
        for free in range(n)
        if free not in rows
    ]
    return [row[n:] for row in entries], kernel


def shallow_minimal_width(network: Any, subsets: int = 65536) -> tuple[int, int]:
    """Bounds (lower, upper) on the least width of a one-output function on R^d.

    With k visible hyperplanes it is k, k+1 or k+2: k if some orientation leaves no linear
    part, Σ_{i in S} c_i a_i = -A_R; k+1 if what is left is a multiple of one visible normal; else
    k+2. Finding S is a vector subset sum, NP-hard in general, so at most `subsets` are tried.
    Source: section 1.5, in agreement with Dereich and Kassing.
    """
    form = shallow_canonical_form(network)
    if len(form.constant) != 1:
        raise ReLUError(
            f"{len(form.constant)} outputs", "one output", "relu.shallow_minimal_width",
            "For several outputs only the canonical form's number of kinks bounds the width.",
        )  # fmt: skip
    keys = list(form.kinks)
    jumps = [2 * form.kinks[key][0] for key in keys]
    rest = form.linear.tolist()[0]
    for key, jump in zip(keys, jumps, strict=True):
        rest = [v - jump * a / 2 for v, a in zip(rest, key[:-1], strict=True)]
    best, tried = 2, 0
    for chosen in _subsets(len(keys)):
        tried += 1
        if tried > subsets:
            return len(keys), len(keys) + best
        left = list(rest)
        for i in chosen:
            left = [v + jumps[i] * a for v, a in zip(left, keys[i][:-1], strict=True)]
        if not any(left):
            return len(keys), len(keys)
        if any(_parallel(left, key[:-1]) for key in keys):
            best = 1
    return len(keys) + best, len(keys) + best


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    for size in range(count + 1):
        yield from combinations(range(count), size)


def _parallel(left: list[fmpq], normal: tuple[fmpq, ...]) -> bool:
    at = next(i for i, v in enumerate(normal) if v)
    ratio = left[at] / normal[at]
    return all(v == ratio * a for v, a in zip(left, normal, strict=True))
