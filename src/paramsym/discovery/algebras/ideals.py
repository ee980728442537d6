"""Subspaces of a Lie algebra that its bracket singles out: centre, radical, ideals, summands.

An algebra is its structure constants f[i, j, k] in a basis, [e_i, e_j] = Σ_k f[i, j, k] e_k, and a
subspace is a matrix of orthonormal columns.

Source: de Graaf, Lie Algebras: Theory and Algorithms, 2000, chapters 1, 2 and 4 (centre, radical,
Killing form, Fitting decomposition, direct sums).
"""

from __future__ import annotations

import numpy
import torch

Array = numpy.ndarray

RANK = 1e-7  # singular values below it, relative to the largest, count as zero
WEIGHT = 1e-5  # eigenvalues of ad x, likewise; those of Jordan blocks are less exact


def draw(generator: torch.Generator, *shape: int) -> Array:
    return torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()


def span(vectors: Array) -> Array:
    """An orthonormal basis of what the columns span; columns are not rescaled to each other."""
    if not vectors.size:
        return numpy.zeros((len(vectors), 0))
    left, values, _ = numpy.linalg.svd(_sketched(vectors), full_matrices=False)
    return left[:, values > RANK * max(values[0], 1e-300)] if values[0] > RANK**2 else left[:, :0]


def null(matrix: Array, scale: float) -> Array:
    """An orthonormal basis of the null space; singular values below RANK · scale are zero."""
    if not matrix.size:
        return numpy.eye(matrix.shape[1])
    _, values, right = numpy.linalg.svd(_sketched(matrix.T).T)
    return right[int((values > RANK * scale).sum()) :].T


def _sketched(vectors: Array) -> Array:
    """Random combinations of many columns, a few more than rows, that span the same.

    Their lengths keep the scale of the singular values: the mean square of a combination of n
    columns with weights of variance 1/m is n/m of theirs.
    """
    rows, columns = vectors.shape
    if columns <= 2 * rows + 20:
        return vectors
    weights = draw(torch.Generator().manual_seed(0), columns, rows + 10)
    return vectors @ weights / numpy.sqrt(rows + 10)


def size_of(f: Array) -> float:
    """A scale for brackets: the largest norm of ad e_i, 1 for an abelian algebra."""
    largest = numpy.sqrt((f**2).sum(axis=(1, 2))).max(initial=0.0)
    return float(largest) if largest > RANK else 1.0


def ad(f: Array, x: Array) -> Array:
    """The matrix of y ↦ [x, y]."""
    return numpy.einsum("i,ijk->kj", x, f)


def brackets(f: Array, left: Array, right: Array) -> Array:
    """All brackets of the columns of two subspaces, as columns."""
    return numpy.einsum("ia,jb,ijk->kab", left, right, f, optimize=True).reshape(len(f), -1)


def product(f: Array, left: Array, right: Array) -> Array:
    """The subspace [left, right]; brackets below RANK · scale are zero."""
    found = brackets(f, left, right)
    largest = numpy.abs(found).max(initial=0.0)
    return span(found) if largest > RANK * size_of(f) else found[:, :0]


def centraliser(f: Array, subspace: Array) -> Array:
    """All x with [x, y] = 0 for y in a subspace."""
    matrix = numpy.einsum("jb,ijk->kbi", subspace, f, optimize=True)
    return null(matrix.reshape(-1, len(f)), size_of(f))


def centre(f: Array) -> Array:
    return centraliser(f, numpy.eye(len(f)))


def derived_series(f: Array) -> list[Array]:
    """g ⊇ [g, g] ⊇ … until nothing changes; the last one is zero if g is soluble."""
    found = [numpy.eye(len(f))]
    while True:
        following = product(f, found[-1], found[-1])
        if following.shape == found[-1].shape:
            return found
        found.append(following)


def killing(f: Array) -> Array:
    """K(x, y) = tr(ad x ad y)."""
    return numpy.einsum("iab,jba->ij", f, f, optimize=True)


def signature(form: Array, scale: float | None = None) -> tuple[int, int, int]:
    """How many squares of a symmetric form are positive, negative, and zero."""
    values = numpy.linalg.eigvalsh((form + form.T) / 2)
    bound = RANK * (numpy.abs(values).max(initial=0.0) if scale is None else scale)
    positive, negative = int((values > bound).sum()), int((values < -bound).sum())
    return positive, negative, len(values) - positive - negative


def radical(f: Array) -> Array:
    """The largest soluble ideal: the orthogonal complement of [g, g] in the Killing form."""
    form = killing(f)
    derived = product(f, numpy.eye(len(f)), numpy.eye(len(f)))
    return null(derived.T @ form, size_of(f) ** 2)


def restricted(f: Array, subspace: Array) -> Array:
    """The structure constants of a subalgebra in the basis of its columns."""
    return numpy.einsum(
        "ia,jb,ijk,kc->abc", subspace, subspace, f, subspace, optimize=True
    )  # fmt: skip


def complement(subspace: Array, within: Array | None = None) -> Array:
    """Columns of `within` (everything) that are orthogonal to a subspace of it."""
    if within is None:
        within = numpy.eye(len(subspace))
    return span_exactly(
        within - subspace @ (subspace.T @ within), within.shape[1] - subspace.shape[1]
    )


def span_exactly(vectors: Array, dimension: int) -> Array:
    """The span of the columns, whose dimension is known."""
    return numpy.linalg.svd(vectors, full_matrices=False)[0][:, :dimension]


def rank_of_cartan(f: Array, generator: torch.Generator) -> int:
    """The dimension of a Cartan subalgebra: how often ad x has the eigenvalue 0, for generic x."""
    if not len(f):
        return 0
    return int(zero_weights(f, numpy.linalg.eigvals(ad(f, draw(generator, len(f))))).sum())


def zero_weights(f: Array, values: Array) -> Array:
    """Which eigenvalues of ad x, for generic x, are zero."""
    sizes = numpy.abs(values)
    return sizes <= max(WEIGHT * sizes.max(initial=0.0), RANK * size_of(f))


def _ideal(f: Array, start: Array, generator: torch.Generator) -> Array:
    """The smallest ideal that contains a subspace."""
    found = span(start)
    while True:
        few = draw(generator, len(f), 3)
        grown = span(numpy.hstack([found, _unit(f, few, found)]))
        if grown.shape == found.shape:
            grown = span(numpy.hstack([found, _unit(f, numpy.eye(len(f)), found)]))
            if grown.shape == found.shape:
                return found
        found = grown


def _unit(f: Array, left: Array, right: Array) -> Array:
    """Brackets at the scale of the algebra, so that rounding errors stay small beside vectors."""
    return brackets(f, left, right) / size_of(f)


def summands(f: Array, generator: torch.Generator) -> list[Array]:
    """Ideals whose direct sum is the algebra, as small as the weights of a generic element show.

    The abelian summand, if there is one, comes last. For the rest every weight space of ad x lies
    in one summand, where x is generic; the ideals that weight spaces generate, united where they
    meet, are J_1, …, J_n, and summand a is J_a with what of the Cartan subalgebra of x commutes
    with all other J_b. What does not come apart so is returned whole.
    """
    whole = numpy.eye(len(f))
    derived = product(f, whole, whole)
    middle = centre(f)
    inner = null((middle - derived @ (derived.T @ middle)), 1.0)  # centre ∩ [g, g], in the centre
    abelian = middle @ complement(inner)
    core = span_exactly(
        numpy.hstack([derived, _beside(derived, middle)]), len(f) - abelian.shape[1]
    )
    parts = [core @ part for part in _split(restricted(f, core), generator)] if core.size else []
    return [*parts, *([abelian] if abelian.shape[1] else [])]


def _beside(derived: Array, middle: Array) -> Array:
    """Directions orthogonal to [g, g] + centre."""
    both = span(numpy.hstack([derived, middle]))
    return complement(both)


def _split(f: Array, generator: torch.Generator) -> list[Array]:
    """Summands of an algebra without an abelian one."""
    whole = numpy.eye(len(f))
    ideals = _weight_ideals(f, generator)
    if len(ideals) < 2:
        return [whole]
    cartan = null(ad(f, draw(generator, len(f))), size_of(f))
    found = []
    for a, own in enumerate(ideals):
        others = numpy.hstack([ideal for b, ideal in enumerate(ideals) if b != a])
        effect = numpy.einsum("jb,ijk,ih->bkh", others, f, cartan, optimize=True)
        still = cartan @ null(effect.reshape(-1, cartan.shape[1]), size_of(f))
        found.append(span(numpy.hstack([own, still])))
    together = numpy.hstack(found)
    direct = together.shape[1] == len(f) and span(together).shape[1] == len(f)
    return found if direct and _commute(f, found) else [whole]


def _commute(f: Array, parts: list[Array]) -> bool:
    """Whether parts that span the algebra are ideals: brackets between any two of them vanish."""
    after = [numpy.hstack(parts[k + 1 :]) for k in range(len(parts) - 1)]
    return not any(
        product(f, part, rest).shape[1] for part, rest in zip(parts[:-1], after, strict=True)
    )


def _weight_ideals(f: Array, generator: torch.Generator) -> list[Array]:
    """Ideals that weight vectors generate, united where they meet."""
    values, vectors = numpy.linalg.eig(ad(f, draw(generator, len(f))))
    ideals: list[Array] = []
    for vector in vectors.T[~zero_weights(f, values)]:
        if any(_inside(vector, ideal) for ideal in ideals):
            continue
        ideal = _ideal(f, numpy.stack([vector.real, vector.imag], axis=1), generator)
        meeting = [other for other in ideals if _meet(ideal, other)]
        ideals = [other for other in ideals if not _meet(ideal, other)]
        ideals.append(span(numpy.hstack([ideal, *meeting])))
    return ideals


def _inside(vector: Array, subspace: Array) -> bool:
    return bool(numpy.linalg.norm(vector - subspace @ (subspace.T @ vector)) < 1e-5)


def _meet(left: Array, right: Array) -> bool:
    return span(numpy.hstack([left, right])).shape[1] < left.shape[1] + right.shape[1]
