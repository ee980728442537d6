"""Names for summands of a Lie algebra of vector fields: gl_n, sl_n, so_n, tori, aff_n, and others.

An abelian algebra has many realisations: R acts on one number by scaling, on two by rotation, and
on one by translation. The trace form tr(M̂_x M̂_y) tells them apart: positive on fields with real
eigenvalues, negative on those with imaginary ones, zero on nilpotent ones. An algebraic torus is a
product of the first two kinds; of a spiral, which is neither, the form has the sign of what
prevails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from scipy.sparse import csr_array, vstack

from paramsym.discovery.algebras import ideals
from paramsym.discovery.algebras.simple_algebras import Simple, simple_algebra
from paramsym.discovery.algebras.vector_fields import order_of

SCALINGS, ROTATIONS, TRANSLATIONS = "scalings", "rotations", "translations"
UNIPOTENT, SPIRALS = "unipotent", "spirals"


@dataclass(frozen=True)
class Summand:
    """An ideal of the algebra that is a direct summand.

    Attributes:
        name: that of the algebra, such as `sl_3`, `so(3, 1)`, `aff_2`, or of one dimension of an
            abelian one; empty if it was not recognised.
        kind: `simple`, `semidirect`, `unrecognised`, and of abelian ones how they act.
        dimension: of the ideal.
        signature: positive, negative and zero squares of its Killing form.
        size: n of sl_n.
    """

    name: str
    kind: str
    dimension: int
    signature: tuple[int, int, int]
    size: int = 0


def summand(
    f: numpy.ndarray, matrices: Sequence[csr_array], generator: torch.Generator
) -> list[Summand]:
    """The names of one indecomposable summand; of an abelian one, one for each way of acting.

    Args:
        f: its structure constants.
        matrices: M̂ of its basis.
        generator: draws elements in general position.
    """
    count = len(f)
    if not numpy.abs(f).max(initial=0.0) > ideals.RANK:
        return abelian(matrices)
    squares = ideals.signature(ideals.killing(f), ideals.size_of(f) ** 2)
    if not squares[2]:
        found = simple_algebra(f, generator)
        if found is None:
            return [Summand("", "unrecognised", count, squares)]
        name = "su(2)" if found.name == "so_3" and _half(f, matrices, generator) else found.name
        return [Summand(name, "simple", count, squares, _size(found))]
    name = _semidirect(f, matrices, generator)
    return [Summand(name, "semidirect" if name else "unrecognised", count, squares)]


def _half(f: numpy.ndarray, matrices: Sequence[csr_array], generator: torch.Generator) -> bool:
    """Whether an algebra so_3 acts by spin ½: M̂² = −¼ on what it moves if ad has weights ±i."""
    x = ideals.draw(generator, 3)
    weight = float(numpy.abs(numpy.linalg.eigvals(ideals.ad(f, x))).max())
    moving = combined(matrices, x / weight)
    moved = moving @ ideals.draw(generator, order_of(moving))
    twice = moving @ (moving @ moved)
    return bool(numpy.linalg.norm(twice + moved / 4) < 1e-5 * numpy.linalg.norm(moved))


def _size(found: Simple) -> int:
    return found.size if found.name.startswith("sl_") else 0


def abelian(matrices: Sequence[csr_array]) -> list[Summand]:
    """Commuting fields by the way they act: scalings, rotations, and nilpotent ones."""
    form = trace_form(matrices)
    scale = max(float((m.data**2).sum()) for m in matrices)
    values, vectors = numpy.linalg.eigh(form)
    nilpotent = vectors[:, numpy.abs(values) <= ideals.RANK * scale]
    counts = {
        SCALINGS: int((values > ideals.RANK * scale).sum()),
        ROTATIONS: int((values < -ideals.RANK * scale).sum()),
    }
    moved = [combined(matrices, column) for column in nilpotent.T]
    counts[_kind_of_null(moved)] = len(moved)
    names = [(k, "so_2" if k == ROTATIONS else "R", n) for k, n in counts.items() if n]
    return [Summand(name, k, n, (0, 0, n)) for k, name, n in names]


def _kind_of_null(matrices: Sequence[csr_array]) -> str:
    """How fields act on which the trace form is zero.

    That of a spiral is zero too, where it grows as fast as it turns.
    """
    if all(_constant(m) for m in matrices):
        return TRANSLATIONS
    return UNIPOTENT if all(_nilpotent(m) for m in matrices) else SPIRALS


def _nilpotent(matrix: csr_array) -> bool:
    """Whether six applications leave nothing."""
    x = ideals.draw(torch.Generator().manual_seed(0), order_of(matrix))
    size = float(numpy.linalg.norm(matrix.data))
    for _ in range(6):
        x = (matrix @ x) / size
    return bool(numpy.linalg.norm(x) < 1e-10)


def trace_form(matrices: Sequence[csr_array]) -> numpy.ndarray:
    """tr(M̂_x M̂_y) for all pairs."""
    flat = vstack([_row(m) for m in matrices], format="csr")
    transposed = vstack([_row(csr_array(m.T)) for m in matrices], format="csr")
    return (flat @ transposed.T).toarray()


def _row(matrix: csr_array) -> csr_array:
    return csr_array(matrix.reshape((1, order_of(matrix) ** 2)))


def combined(matrices: Sequence[csr_array], coefficients: numpy.ndarray) -> csr_array:
    total = csr_array((order_of(matrices[0]),) * 2)
    for matrix, factor in zip(matrices, coefficients, strict=True):
        if factor != 0:
            total = total + factor * matrix
    return csr_array(total)


def _constant(matrix: csr_array) -> bool:
    """Whether the field is one constant vector: nothing but the last column."""
    linear = matrix[:, : order_of(matrix) - 1]
    return bool(numpy.abs(linear.data).max(initial=0.0) < 1e-6 * numpy.abs(matrix.data).max())


def _semidirect(f: numpy.ndarray, matrices: Sequence[csr_array], generator: torch.Generator) -> str:
    """`L ⋉ R^k` where N = [g, rad g] is abelian; g/N = L is reductive always.

    Empty where N is not abelian, or L not recognised.
    """
    whole = numpy.eye(len(f))
    inner = ideals.product(f, whole, ideals.radical(f))
    if not inner.shape[1] or ideals.product(f, inner, inner).shape[1]:
        return ""
    outer = ideals.complement(inner)
    if not outer.shape[1]:
        return ""
    above = ideals.restricted(f, outer)  # of g/N: what leads into N is dropped
    if not _splits(f, above, outer, inner, generator):
        return ""
    lifts = [combined(matrices, column) for column in outer.T]
    parts = [
        part
        for ideal in ideals.summands(above, generator)
        for part in summand(
            ideals.restricted(above, ideal), [combined(lifts, c) for c in ideal.T], generator
        )
    ]
    if any(not part.name for part in parts):
        return ""
    name, k = direct_sum(parts), inner.shape[1]
    if name == ("R" if k == 1 else f"gl_{k}"):
        return f"aff_{k}"
    return f"({name}) ⋉ R^{k}" if "⊕" in name else f"{name} ⋉ R^{k}"


def _splits(
    f: numpy.ndarray, above: numpy.ndarray, outer: numpy.ndarray, inner: numpy.ndarray,
    generator: torch.Generator,
) -> bool:  # fmt: skip
    """Whether g/N is a subalgebra for sure.

    It is if g/N is semisimple (Levi), and if a central element of it has no weight 0 on N, since
    then the second cohomology of g/N with values in N vanishes.
    """
    middle = ideals.centre(above)
    if not middle.shape[1]:
        return True
    x = outer @ (middle @ ideals.draw(generator, middle.shape[1]))
    weights = numpy.linalg.eigvals(inner.T @ ideals.ad(f, x) @ inner)
    return bool(numpy.abs(weights).min() > ideals.WEIGHT * ideals.size_of(f))


def direct_sum(parts: Sequence[Summand]) -> str:
    """The name of a direct sum: each sl_n takes one scaling and is gl_n, as far as there are any.

    sl_n ⊕ R and gl_n are the same algebra; which scaling belongs to which is convention. Two
    su(2) make one so_4.
    """
    counts = Counter({kind: 0 for kind in _ABELIAN})
    for part in parts:
        counts[part.kind] += part.dimension
    others = sorted(
        (p for p in parts if p.kind not in _ABELIAN), key=lambda p: (-p.size, -p.dimension)
    )
    names = []
    for part in others:
        whole = bool(part.size and counts[SCALINGS])
        counts[SCALINGS] -= whole
        plain = part.name or f"unrecognised of dimension {part.dimension}"
        names.append(f"gl_{part.size}" if whole else plain)
    names = _repeated(_paired(names))
    names += [_power(kind, counts[kind]) for kind in _ABELIAN if counts[kind]]
    if len(names) > 1:
        names = [f"({name})" if "⋉" in name else name for name in names]
    return " ⊕ ".join(names) or "0"


def _paired(names: Sequence[str]) -> list[str]:
    """Each two su(2) as one so_4."""
    pairs, rest = divmod(names.count("su(2)"), 2)
    return [*(n for n in names if n != "su(2)"), *["so_4"] * pairs, *["su(2)"] * rest]


def _repeated(names: Sequence[str]) -> list[str]:
    """Three equal summands or more as a power."""
    found = []
    for name, count in Counter(names).items():
        base = f"({name})" if " " in name else name
        found += [f"{base}^{count}"] if count > 2 else [name] * count
    return found


_ABELIAN = (SCALINGS, ROTATIONS, TRANSLATIONS, UNIPOTENT, SPIRALS)


def _power(kind: str, count: int) -> str:
    base = "so_2" if kind == ROTATIONS else "R"
    name = base if count == 1 else f"{base}^{count}"
    return name if kind in (SCALINGS, ROTATIONS) else f"{name} ({kind})"
