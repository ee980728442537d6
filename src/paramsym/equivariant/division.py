r"""Matrices over ℝ, ℂ and ℍ, stored as real arrays of shape (rows, columns, δ), δ = 1, 2, 4.

The last axis holds the coordinates of a number: (a), a + bi, a + bi + cj + dk. `realise` writes a
matrix over one of these division algebras as a real matrix, each number becoming the δ × δ matrix
of multiplication from the left; for ℂ this is the realisation map of the source,

    z ↦ [[Re z, −Im z], [Im z, Re z]].

`compress` is the orthogonal projection back, so that compress(realise(A)) = A.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


def _multiplication(size: int) -> Real:
    """L[c, k, l]: coordinate k of (unit c) · (unit l)."""
    table = np.zeros((size, size, size))
    if size == 1:
        table[0, 0, 0] = 1
    elif size == 2:
        table[0], table[1] = np.eye(2), [[0, -1], [1, 0]]
    else:
        i = np.kron(np.eye(2), [[0, -1], [1, 0]])
        i[2:, 2:] = [[0, -1], [1, 0]]  # i·j = k, i·k = −j
        j = np.array([[0, 0, -1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, -1, 0, 0]])
        table[0], table[1], table[2], table[3] = np.eye(4), i, j, i @ j
    return table


MULTIPLICATION: dict[int, Real] = {size: _multiplication(size) for size in (1, 2, 4)}


def realise(matrix: Real) -> Real:
    """The real matrix (rows·δ × columns·δ) of multiplication by a matrix over ℝ, ℂ or ℍ."""
    rows, columns, size = matrix.shape
    blocks = np.einsum("edc,ckl->ekdl", matrix, MULTIPLICATION[size])
    return blocks.reshape(rows * size, columns * size)


def compress(matrix: Real, size: int) -> Real:
    """The nearest matrix over the algebra of dimension δ = size: `realise`'s adjoint, by δ."""
    rows, columns = matrix.shape[0] // size, matrix.shape[1] // size
    blocks = matrix.reshape(rows, size, columns, size)
    return np.einsum("ekdl,ckl->edc", blocks, MULTIPLICATION[size]) / size


def adjoint(matrix: Real) -> Real:
    """The conjugate transpose."""
    sign = np.ones(matrix.shape[2])
    sign[1:] = -1
    return matrix.transpose(1, 0, 2) * sign


def multiply(left: Real, right: Real) -> Real:
    """The product of two matrices over the same algebra."""
    return np.einsum("abi,bcj,ikj->ack", left, right, MULTIPLICATION[left.shape[2]], optimize=True)


class SVD(NamedTuple):
    """M = left · diag(values) · right*, with orthonormal columns over the algebra."""

    left: Real
    values: Real
    right: Real

    def select(self, chosen: list[int]) -> Real:
        """The sum of the chosen singular triples: a matrix whose rank is their number."""
        scaled = self.left[:, chosen] * self.values[chosen, None]
        return multiply(scaled, adjoint(self.right[:, chosen]))


def svd(matrix: Real) -> SVD:
    """The singular value decomposition over ℝ, ℂ or ℍ: min(rows, columns) triples, descending."""
    size = matrix.shape[2]
    if 0 in matrix.shape:
        left, right = (np.zeros((length, 0, size)) for length in matrix.shape[:2])
        return SVD(left, np.zeros(0), right)
    if size == 1:
        left, values, right = np.linalg.svd(matrix[..., 0], full_matrices=False)
        return SVD(left[..., None], values, right.T[..., None])
    if size == 2:
        left, values, right = np.linalg.svd(_complex(matrix), full_matrices=False)
        return SVD(_pairs(left), values, _pairs(right.conj().T))
    return _quaternion_svd(matrix)


def eigenvalues(matrix: Real) -> Real:
    """The real eigenvalues of a Hermitian matrix over ℝ, ℂ or ℍ, one for each row, descending."""
    size = matrix.shape[2]
    if size == 1:
        return np.array(np.linalg.eigvalsh(matrix[..., 0])[::-1], dtype=np.float64)
    if size == 2:
        return np.array(np.linalg.eigvalsh(_complex(matrix))[::-1], dtype=np.float64)
    return np.linalg.eigvalsh(realise(matrix))[::-1].reshape(-1, 4).mean(1)


def eigenvectors(matrix: Real) -> Real:
    """Orthonormal eigenvectors of a Hermitian matrix as columns, eigenvalues descending."""
    size = matrix.shape[2]
    if size == 1:
        vectors = np.linalg.eigh(matrix[..., 0])[1]
        return np.array(vectors[:, ::-1, None], dtype=np.float64)
    if size == 2:
        return _pairs(np.linalg.eigh(_complex(matrix))[1][:, ::-1])
    return _quaternion_eigenvectors(matrix)


def _complex(matrix: Real) -> NDArray[np.complex128]:
    return matrix[..., 0] + 1j * matrix[..., 1]


def _pairs(matrix: NDArray[np.complex128]) -> Real:
    return np.stack([matrix.real, matrix.imag], axis=-1)


def _quaternion_eigenvectors(matrix: Real) -> Real:
    """One eigenvector at a time, its quaternionic line removed before the next.

    The real matrix repeats each eigenvalue four times, and where eigenvalues of the quaternionic
    matrix coincide an arbitrary basis of that eigenspace need not respect ℍ; deflation does.
    """
    count = matrix.shape[0]
    real = realise(matrix)
    bound = 1 + 2 * np.abs(real).sum(1).max(initial=0.0)  # below every eigenvalue, after a sign
    columns = np.zeros((count, count, 4))
    for k in range(count):
        vector = np.linalg.eigh((real + real.T) / 2)[1][:, -1].reshape(count, 1, 4)
        for _ in range(2):  # twice is enough
            earlier = columns[:, :k]
            vector = vector - multiply(earlier, multiply(adjoint(earlier), vector))
            vector /= np.linalg.norm(vector)
        columns[:, k : k + 1] = vector
        real = real - bound * realise(multiply(vector, adjoint(vector)))
    return columns


def _quaternion_svd(matrix: Real) -> SVD:
    """From the eigenvectors of M*M (or MM*, the smaller one), then one QR against rounding."""
    rows, columns, _ = matrix.shape
    if rows < columns:
        flipped = _quaternion_svd(adjoint(matrix))
        return SVD(flipped.right, flipped.values, flipped.left)
    right = _quaternion_eigenvectors(multiply(adjoint(matrix), matrix))
    image = multiply(matrix, right)  # columns σ_k u_k
    left = np.zeros_like(image)
    values = np.zeros(columns)
    basis = np.concatenate([image, np.eye(rows)[..., None] * np.array([1.0, 0, 0, 0])], axis=1)
    scale = np.linalg.norm(matrix)
    for k in range(columns):
        values[k] = np.linalg.norm(image[:, k])
        candidates = [k] if values[k] > 1e-13 * scale else range(columns, columns + rows)
        best = np.zeros((rows, 1, 4))
        for c in candidates:
            vector = basis[:, c : c + 1]
            for _ in range(2):
                earlier = left[:, :k]
                vector = vector - multiply(earlier, multiply(adjoint(earlier), vector))
            if np.linalg.norm(vector) > np.linalg.norm(best):
                best = vector
        left[:, k : k + 1] = best / np.linalg.norm(best)
    return SVD(left, values, right)
