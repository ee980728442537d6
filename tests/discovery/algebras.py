"""Matrix Lie algebras with their names, as vector fields x ↦ Mx or x ↦ Mx + m on one tensor."""

from collections.abc import Mapping, Sequence

import numpy
import torch

Array = numpy.ndarray


class Field:
    """x ↦ Mx + m on the tensor `x`."""

    def __init__(self, matrix: Array, constant: Array | None = None) -> None:
        self.matrix = torch.as_tensor(matrix, dtype=torch.float64)
        self.constant = None if constant is None else torch.as_tensor(constant)

    def velocity(self, params: Mapping[str, torch.Tensor], /) -> dict[str, torch.Tensor]:
        x = params["x"]
        moved = (self.matrix @ x.reshape(self.matrix.shape[1], -1)).reshape(x.shape)
        return {"x": moved if self.constant is None else moved + self.constant}


def unit(n: int, i: int, j: int) -> Array:
    matrix = numpy.zeros((n, n))
    matrix[i, j] = 1.0
    return matrix


def gl(n: int) -> list[Array]:
    return [unit(n, i, j) for i in range(n) for j in range(n)]


def sl(n: int) -> list[Array]:
    off = [unit(n, i, j) for i in range(n) for j in range(n) if i != j]
    return off + [unit(n, i, i) - unit(n, i + 1, i + 1) for i in range(n - 1)]


def so(p: int, q: int = 0) -> list[Array]:
    n, form = p + q, numpy.diag([1.0] * p + [-1.0] * q)
    return [form @ (unit(n, i, j) - unit(n, j, i)) for i in range(n) for j in range(i)]


def sp(n: int) -> list[Array]:
    """sp(2n, R)."""
    found = []
    for i in range(n):
        for j in range(n):
            found.append(unit(2 * n, i, j) - unit(2 * n, n + j, n + i))
        for j in range(i + 1):
            found.append(unit(2 * n, i, n + j) + unit(2 * n, j, n + i) * (i != j))
            found.append(unit(2 * n, n + i, j) + unit(2 * n, n + j, i) * (i != j))
    return found


def as_real(matrices: Sequence[Array]) -> list[Array]:
    re, im = numpy.real, numpy.imag
    return [numpy.block([[re(m), -im(m)], [im(m), re(m)]]) for m in matrices]


def su(p: int, q: int = 0) -> list[Array]:
    n, form = p + q, numpy.diag([1.0] * p + [-1.0] * q)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    found = [form @ (unit(n, i, j) - unit(n, j, i)) + 0j for i, j in pairs]
    found += [1j * form @ (unit(n, i, j) + unit(n, j, i)) for i, j in pairs]
    found += [1j * (unit(n, i, i) - unit(n, i + 1, i + 1)) for i in range(n - 1)]
    return as_real(found)


def complex_sl(n: int) -> list[Array]:
    return as_real([m + 0j for m in sl(n)] + [1j * m for m in sl(n)])


def with_vectors(matrices: Sequence[Array]) -> list[Array]:
    """g ⋉ R^n, one row and column larger."""
    n = len(matrices[0])
    return [numpy.pad(m, ((0, 1), (0, 1))) for m in matrices] + [
        unit(n + 1, i, n) for i in range(n)
    ]


def diagonal(n: int) -> list[Array]:
    return [unit(n, i, i) for i in range(n)]


def rotations(n: int) -> list[Array]:
    size = 2 * n
    return [unit(size, 2 * k, 2 * k + 1) - unit(size, 2 * k + 1, 2 * k) for k in range(n)]


def together(*algebras: Sequence[Array]) -> list[Array]:
    """The direct sum, in blocks."""
    size = sum(len(a[0]) for a in algebras)
    found, start = [], 0
    for algebra in algebras:
        after = size - start - len(algebra[0])
        found += [numpy.pad(m, ((start, after), (start, after))) for m in algebra]
        start += len(algebra[0])
    return found


def heisenberg() -> list[Array]:
    return [unit(3, 0, 1), unit(3, 1, 2), unit(3, 0, 2)]


def triangular(n: int) -> list[Array]:
    return [unit(n, i, j) for i in range(n) for j in range(i, n)]


NAMED = {
    "gl_3": gl(3), "gl_5": gl(5), "sl_2": sl(2), "sl_4": sl(4), "so_3": so(3), "so_4": so(4),
    "so_5": so(5), "so_6": so(6), "so_7": so(7), "so_8": so(8), "so(3, 1)": so(3, 1),
    "so(4, 1)": so(4, 1), "so(3, 2)": so(3, 2), "so(5, 1)": so(5, 1), "so(4, 2)": so(4, 2),
    "so(5, 2)": so(5, 2), "sp(6, R)": sp(3), "su(3)": su(3), "su(2, 1)": su(2, 1),
    "sl_3(C)": complex_sl(3), "su(2)": su(2), "aff_1": with_vectors(gl(1)),
    "aff_2": with_vectors(gl(2)), "aff_3": with_vectors(gl(3)), "so_3 ⋉ R^3": with_vectors(so(3)),
    "sl_2 ⋉ R^2": with_vectors(sl(2)), "R^4": diagonal(4), "so_2^3": rotations(3),
    "R ⊕ so_2": together(diagonal(1), rotations(1)), 
    "R^2 (unipotent)": [unit(3, 0, 2), unit(3, 1, 2)],
    "gl_3 ⊕ R^2": together(gl(3), diagonal(2)), "gl_3 ⊕ gl_2": together(gl(2), gl(3)),
    "so_3 ⊕ so_3": together(so(3), so(3)),
    "sl_2 ⊕ so_3 ⊕ so_2": together(sl(2), so(3), rotations(1)),
    "aff_2 ⊕ aff_2": together(with_vectors(gl(2)), with_vectors(gl(2))),
    "R (spirals)": [numpy.array([[1.0, -1.0], [1.0, 1.0]])],
    "aff_1^3 ⊕ R^2": together(*[with_vectors(gl(1))] * 3, diagonal(2)),
    "(so_3 ⋉ R^3) ⊕ R": together(with_vectors(so(3)), diagonal(1)),
    "gl_3 ⊕ aff_2 ⊕ R": together(with_vectors(gl(2)), gl(3), diagonal(1)),
}  # fmt: skip
ALIASES = {  # the same algebra by another construction
    "so(2, 1)": (so(2, 1), "sl_2"), "so(2, 2)": (so(2, 2), "sl_2 ⊕ sl_2"),
    "so(3, 3)": (so(3, 3), "sl_4"), "sp(4, R)": (sp(2), "so(3, 2)"), "su(4)": (su(4), "so_6"),
    "sl_2(C)": (complex_sl(2), "so(3, 1)"),
}  # fmt: skip


def disguised(matrices: Sequence[Array], generator: torch.Generator) -> list[Array]:
    """A random basis of the span, in random coordinates of moderate condition."""
    n, count = len(matrices[0]), len(matrices)

    def draw(*shape: int) -> Array:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()

    scales = numpy.exp(numpy.linspace(-0.7, 0.7, n))
    turn = numpy.linalg.qr(draw(n, n))[0] * scales @ numpy.linalg.qr(draw(n, n))[0]
    return mixed([turn @ m @ numpy.linalg.inv(turn) for m in matrices], draw(count, count))


def mixed(matrices: Sequence[Array], weights: Array) -> list[Array]:
    return list(numpy.einsum("ab,bij->aij", weights, numpy.stack(matrices)))
