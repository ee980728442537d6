import numpy as np
import pytest

from paramsym.equivariant.division import (
    adjoint,
    compress,
    eigenvalues,
    eigenvectors,
    multiply,
    realise,
    svd,
)

SIZES = pytest.mark.parametrize("size", [1, 2, 4], ids=["R", "C", "H"])


@SIZES
def test_realisation_is_a_homomorphism_and_compress_its_inverse(size, rng):
    a, b = rng.standard_normal((3, 4, size)), rng.standard_normal((4, 2, size))
    np.testing.assert_allclose(realise(multiply(a, b)), realise(a) @ realise(b), atol=1e-13)
    np.testing.assert_allclose(realise(adjoint(a)), realise(a).T)
    np.testing.assert_allclose(compress(realise(a), size), a)


@SIZES
def test_compress_is_the_orthogonal_projection(size, rng):
    matrix, a = rng.standard_normal((3 * size, 2 * size)), rng.standard_normal((3, 2, size))
    rest = matrix - realise(compress(matrix, size))
    assert abs(np.sum(rest * realise(a))) < 1e-12


@SIZES
@pytest.mark.parametrize("kind", ["tall", "wide", "zero", "identity", "rank one", "repeated"])
def test_singular_value_decomposition(size, kind, rng):
    wide = rng.standard_normal((3, 5, size))
    one = np.zeros(size)
    one[0] = 1
    matrix = {
        "tall": adjoint(wide),
        "wide": wide,
        "zero": 0 * wide,
        "identity": np.eye(4)[..., None] * one,
        "rank one": multiply(wide[:, :1], wide[:1]),
        "repeated": np.diag([2.0, 2, 1, 1, 0])[..., None] * one,
    }[kind]
    found = svd(matrix)
    count = min(matrix.shape[:2])
    assert (np.diff(found.values) <= 1e-12).all()
    np.testing.assert_allclose(found.select(list(range(count))), matrix, atol=1e-12)
    for side in (found.left, found.right):
        real = realise(side)
        np.testing.assert_allclose(real.T @ real, np.eye(real.shape[1]), atol=1e-12)
    # Any choice of triples is again a matrix over the algebra, of that rank.
    real = realise(found.select([0, 2]))
    values = np.linalg.svd(real)[1]
    assert (values > 1e-9).sum() == size * (found.values[[0, 2]] > 1e-9).sum()


@SIZES
def test_hermitian_eigenvectors(size, rng):
    a = rng.standard_normal((4, 3, size))
    hermitian = multiply(a, adjoint(a))
    vectors, values = eigenvectors(hermitian), eigenvalues(hermitian)
    rebuilt = multiply(vectors * values[:, None], adjoint(vectors))
    np.testing.assert_allclose(rebuilt, hermitian, atol=1e-12)


def test_quaternions_multiply_as_they_should():
    units = np.eye(4)[:, None, None, :]  # 1, i, j, k as 1 × 1 matrices
    one, i, j, k = units
    np.testing.assert_array_equal(multiply(i, j), k)
    np.testing.assert_array_equal(multiply(j, i), -k)
    np.testing.assert_array_equal(multiply(k, k), -one)
