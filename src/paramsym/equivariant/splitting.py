r"""Irreducible subspaces of any orthogonal representation, from the algebra that the group spans.

Let A be the algebra spanned by ρ(G). On V = ⊕ V_i^{d_i}, with V_i of dimension p_i and type D_i, it
is ⊕ M_{p_i/δ_i}(D_i), and what commutes with it is ⊕ D_i^{d_i × d_i}. A random symmetric element of
A therefore has p_i/δ_i distinct eigenvalues on V_i^{d_i}, each with an eigenspace D_i^{d_i}: one
slice of the block. With random elements B of A and P_E the projection to an eigenspace E:

- E and F are slices of the same block exactly if P_F B P_E is not zero, and it is then an isometry
  up to scale, the same for all copies: it aligns F with E;
- the skew parts of P_E B P_E are the imaginary units of D_i: none, one, or three;
- what commutes with A commutes with these: in a basis (w, −iw, −jw, −kw), repeated, it multiplies
  coordinates from the left by numbers of D_i.

A few words in the generators are all that is needed: no list of elements, no system of equations
for the commutant. The group may be infinite: its closure is compact and commutes with the same.

Eigenspaces are cut at wide gaps only, and what is left together is cut by further elements, so that
rounding is not divided by small gaps. `irreducibles` polishes and certifies what was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from .errors import NearlyEqualError
from .irreducibles import EXACT, NOISE, Irreducible, Move, certified, polish, spelled
from .orbits import OrbitClass

Real = NDArray[np.float64]
ATTEMPTS = 6
WORDS = 24  # products of generators in a random element
SAMPLES = 6
LEVELS = 40
WIDE = 0.05  # a gap at which eigenvalues of random elements (of size 1) are parted at first


class _Algebra:
    """Random elements of the span of ρ(G), the same element on every class."""

    def __init__(self, classes: Sequence[OrbitClass], seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        count = len(classes[0].moves)
        ends = range(count, count + WORDS)
        self.recipe = [tuple(self.generator.integers(end, size=2).tolist()) for end in ends]
        self.words = [spelled(c.moves, self.recipe) for c in classes]

    def element(self) -> list[Real]:
        """Σ c_k ρ(w_k) with random c of norm 1, on each class (s × s)."""
        numbers = self.generator.standard_normal(len(self.words[0]))
        numbers /= np.linalg.norm(numbers)
        return [_combination(numbers, words) for words in self.words]


def _combination(numbers: Real, words: Sequence[Move]) -> Real:
    size = len(words[0])
    total = np.zeros((size, size))
    for number, word in zip(numbers, words, strict=True):
        if word.ndim == 1:
            total[word, np.arange(size)] += number  # P_σ e_i = e_σ(i)
        else:
            total += number * word
    return total


def split(classes: Sequence[OrbitClass]) -> list[Irreducible]:
    """The irreducibles of orthogonal representations of one group, and their copies.

    Args:
        classes: of orbits of permutations, or whole spaces on which the generators act by
            matrices; the same generators in the same order on each.

    Raises:
        NearlyEqualError: no attempt could be certified: generators that are nearly, but not
            exactly, those of a smaller group.
    """
    for seed in range(ATTEMPTS):
        algebra = _Algebra(classes, seed)
        parts = _eigenspaces(algebra, [c.size for c in classes])
        found = _gathered(parts, algebra, classes)
        if not certified(found, classes):
            continue
        polish(found, classes, algebra.words, algebra.recipe)
        if certified(found, classes, EXACT):
            return sorted(found, key=lambda v: v.order)
    raise NearlyEqualError(f"decompose: {ATTEMPTS} random elements of the algebra", EXACT)


def _eigenspaces(algebra: _Algebra, sizes: Sequence[int]) -> list[list[Real]]:
    """Common eigenspaces of the symmetric elements: for each a basis (s × k) in each class."""
    pending, done, wide = [[np.eye(size) for size in sizes]], [], WIDE
    for _ in range(LEVELS):
        element = [e + e.T for e in algebra.element()]
        following = []
        for part in pending:
            pieces = _cut(part, element, wide)
            (following if pieces else done).extend(pieces or [part])
        pending, wide = following, max(wide / 2, NOISE)
        if not pending:
            break
    return done + pending


def _cut(part: list[Real], element: list[Real], wide: float) -> list[list[Real]]:
    """A part along the wide gaps between eigenvalues; empty if all of them are equal."""
    spectra = [np.linalg.eigh(u.T @ e @ u) for u, e in zip(part, element, strict=True)]
    values = np.sort(np.concatenate([s.eigenvalues for s in spectra]))
    if values[-1] - values[0] < NOISE:
        return []
    cuts = np.flatnonzero(np.diff(values) > wide)
    ends = [-np.inf, *(values[cuts] + values[cuts + 1]) / 2, np.inf]
    return [
        [
            u @ s.eigenvectors[:, (low < s.eigenvalues) & (s.eigenvalues < high)]
            for u, s in zip(part, spectra, strict=True)
        ]
        for low, high in zip(ends, ends[1:], strict=False)
    ]


@dataclass(eq=False)
class _Block:
    """Slices of one isotypic block: for each class a basis of every slice, all aligned."""

    home: int
    slices: list[list[Real]]


class _Samples:
    """P_a B P_b for all eigenspaces a and b and a few random elements B."""

    def __init__(self, parts: list[list[Real]], algebra: _Algebra) -> None:
        columns = [np.column_stack(bases) for bases in zip(*parts, strict=True)]
        self.widths = np.array([[basis.shape[1] for basis in part] for part in parts])
        self.starts = np.cumsum(np.vstack([0 * self.widths[:1], self.widths]), axis=0)
        self.samples = [
            [v.T @ e @ v for v, e in zip(columns, algebra.element(), strict=True)]
            for _ in range(SAMPLES)
        ]
        self.strengths = np.array([self._strengths(sample) for sample in self.samples])

    def _strengths(self, sample: list[Real]) -> Real:
        """The scale of each P_a B P_b, a multiple of an isometry."""
        total = np.zeros((len(self.widths), len(self.widths)))
        for matrix, width in zip(sample, self.widths.T, strict=True):
            belongs = np.repeat(np.eye(len(width)), width, axis=1)
            total += belongs @ (matrix * matrix) @ belongs.T
        return np.sqrt(total / self.widths.sum(axis=1))

    def between(self, a: int, b: int, k: int) -> list[Real]:
        """P_a B P_b on each class, for B number k."""
        s = self.starts
        places = zip(self.samples[k], s[a], s[a + 1], s[b], s[b + 1], strict=True)
        return [m[i:j, p:q] for m, i, j, p, q in places]

    def joining(self, a: int, b: int) -> list[Real] | None:
        """The strongest of the maps between two slices; None if they are of different blocks."""
        k = int(self.strengths[:, a, b].argmax())
        same = bool((self.widths[a] == self.widths[b]).all())
        return self.between(a, b, k) if same and self.strengths[k, a, b] > NOISE else None


def _gathered(
    parts: list[list[Real]], algebra: _Algebra, classes: Sequence[OrbitClass]
) -> list[Irreducible]:
    """Eigenspaces as slices of blocks, and blocks as copies of irreducibles."""
    samples = _Samples(parts, algebra)
    blocks: list[_Block] = []
    for number, part in enumerate(parts):
        for block in blocks:
            maps = samples.joining(number, block.home)
            if maps is not None:
                turned = [u @ _polar(m) for u, m in zip(part, maps, strict=True)]
                block.slices.append(turned)
                break
        else:
            blocks.append(_Block(number, [part]))
    inner = [[samples.between(b.home, b.home, k) for k in range(SAMPLES)] for b in blocks]
    return [_irreducible(b, maps, classes) for b, maps in zip(blocks, inner, strict=True)]


def _polar(matrix: Real) -> Real:
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def _irreducible(
    block: _Block, samples: list[list[Real]], classes: Sequence[OrbitClass]
) -> Irreducible:
    units = _units([np.asarray(block_diag(*sample)) for sample in samples])
    size = len(units)
    copies: list[list[Real]] = []
    start = 0
    for c, basis in enumerate(block.slices[0]):
        inside = slice(start, start := start + basis.shape[1])
        frame = _adapted([unit[inside, inside] for unit in units])
        slices = [s[c] @ frame for s in block.slices]
        numbers = range(0, basis.shape[1] // size * size, size)
        copies.append([np.column_stack([s[:, k : k + size] for s in slices]) for k in numbers])
    found = Irreducible(size, copies)
    found.measure(classes)
    return found


def _units(samples: list[Real]) -> list[Real]:
    """1, and minus the imaginary units, of the division algebra that the samples span."""
    units: list[Real] = []
    for sample in samples:
        skew = sample - sample.T
        for unit in units:
            skew = skew - np.sum(skew * unit) / np.sum(unit * unit) * unit
        scale = float(np.linalg.norm(skew)) / len(skew) ** 0.5
        if scale > NOISE and len(units) < 2:
            unit = _polar(skew)  # the nearest orthogonal matrix: a unit quaternion
            units.append((unit - unit.T) / 2)
    one = np.eye(len(samples[0]))
    if len(units) < 2:
        return [one, *(-unit for unit in units)]
    return [one, -units[0], -units[1], -units[0] @ units[1]]


def _adapted(units: list[Real]) -> Real:
    """An orthogonal matrix with columns (w, −iw, …) for orthonormal w over the algebra."""
    size = len(units[0])
    columns = np.zeros((size, 0))
    while columns.shape[1] < size:
        rest = np.eye(size) - columns @ columns.T
        vector = rest[:, np.linalg.norm(rest, axis=0).argmax()]
        vector = vector - columns @ (columns.T @ vector)
        vector = vector / np.linalg.norm(vector)
        columns = np.column_stack([columns, *(unit @ vector for unit in units)])
    return columns
