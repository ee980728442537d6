"""Vector fields in words, and the sparse basis that they are read from."""

import numpy
import pytest
import torch
from scipy.sparse import csr_array

from paramsym.discovery.algebras.lie_algebra import BasisField, lie_algebra
from paramsym.discovery.algebras.named_entries import describe
from paramsym.discovery.algebras.sparse_basis import flattened, matrices_of, sparse_rows
from paramsym.discovery.algebras.vector_fields import Coordinates, homogeneous_matrix


class Written:
    """A field given as a function of the parameters."""

    def __init__(self, function) -> None:
        self.function = function

    def velocity(self, params):
        return self.function(params)


def words(function, **shapes: tuple[int, ...]) -> str:
    coordinates = Coordinates(shapes)
    generator = torch.Generator().manual_seed(0)
    matrix = homogeneous_matrix(Written(function), coordinates, generator, 1e-9)
    return describe(matrix, coordinates)


def in_row(x: torch.Tensor, k: int, row: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[0]) == k
    return place.to(x).reshape(-1, *[1] * (x.ndim - 1)) * row


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda p: {"w": p["w"]}, {"w": (2, 3)}, "w grows"),
        (lambda p: {"w": -3 * p["w"]}, {"w": (2, 3)}, "w shrinks at rate 3"),
        (lambda p: {"w": in_row(p["w"], 1, p["w"][1])}, {"w": (2, 3)}, "w[1, :] grows"),
        (
            lambda p: {"w": in_row(p["w"], 0, p["w"][1]), "v": -0.5 * p["v"]},
            {"w": (2, 3), "v": (4,)},
            "w[0, :] += w[1, :], v shrinks at rate 0.5",
        ),
        (lambda p: {"w": p["w"].T}, {"w": (3, 3)}, "w += wᵀ"),
        (lambda p: {"w": p["v"].T}, {"w": (2, 3), "v": (3, 2)}, "w += vᵀ"),
        (lambda p: {"w": in_row(p["w"], 2, p["w"][:, 0])}, {"w": (3, 3)},
         "w[2, :] += w[:, 0]"),
        (lambda p: {"b": p["b"].flip(0)}, {"b": (3,)}, "b[0] += b[2], b[1] grows, b[2] += b[0]"),
        (lambda p: {"b": p["w"][:, 1]}, {"b": (2,), "w": (2, 3)}, "b += w[:, 1]"),
        (lambda p: {"b": in_row(p["b"], 1, torch.full((), 2.0))}, {"b": (2,)}, "b[1] += 2"),
        (lambda p: {"b": -torch.ones_like(p["b"])}, {"b": (2,)}, "b −= 1"),
        (lambda p: {"s": p["s"]}, {"s": ()}, "s grows"),
        (lambda p: {"b": p["b"] * 0 + p["s"]}, {"b": (2,), "s": ()}, "b += s"),
        (lambda p: {"k": in_row(p["k"], 0, p["k"][1])}, {"k": (2, 2, 2, 2)},
         "k[0, :, :, :] += k[1, :, :, :]"),
        (lambda p: {"b": 0 * p["b"]}, {"b": (2,)}, "nothing moves"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_field_in_words(function, shapes, expected):
    assert words(function, **shapes) == expected


def test_many_terms_are_cut_and_counted():
    dense = torch.arange(1.0, 17.0, dtype=torch.float64).reshape(4, 4)
    text = words(lambda p: {"b": dense @ p["b"]}, b=(4,))
    assert text.endswith(", and 10 more") and text.count(" · ") == 4


def test_a_field_of_the_basis_moves_as_its_matrix_says():
    function = Written(lambda p: {"w": p["w"] @ p["w"].new_ones(2, 2), "b": p["b"] * 0 + 1})
    (field,) = lie_algebra([function], {"w": (3, 2), "b": (2,), "c": (1,)}).basis
    params = {"w": torch.randn(3, 2), "b": torch.randn(2), "c": torch.randn(1)}
    moved = field.velocity(params)
    assert moved.keys() == {"w", "b"} and moved["w"].dtype == torch.float32
    expected = function.velocity(params)
    assert all(torch.allclose(moved[n], expected[n], atol=1e-6) for n in moved)
    again = lie_algebra([field], {"w": (3, 2), "b": (2,), "c": (1,)}).basis[0]
    assert numpy.array_equal(again.matrix.toarray(), field.matrix.toarray())


def test_complex_parameters_keep_their_kind():
    field = BasisField(Coordinates({"z": (2, 2)}), csr_array(numpy.diag([1.0, 1, 1, 1, 0])))
    z = torch.randn(2, dtype=torch.complex64)
    assert torch.equal(field.velocity({"z": z})["z"], z)


def test_a_sparse_basis_spans_the_same():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(5, 12, generator=generator, dtype=torch.float64).numpy()
    twice = numpy.vstack([rows, rows[:2] - rows[2:4]])
    found = sparse_rows(twice, 1e-9)
    assert len(found) == 5
    assert numpy.linalg.matrix_rank(numpy.vstack([rows, found]), tol=1e-9) == 5
    assert sparse_rows(numpy.zeros((3, 4)), 1e-9).shape == (0, 4)


def test_whole_numbers_come_back_where_all_of_a_row_are_and_not_by_chance():
    whole = numpy.array([[1.0, 0, 2, 0], [0, 1, 0, -1]])
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(2, 2, generator=generator, dtype=torch.float64).numpy()
    assert numpy.array_equal(sparse_rows(weights @ whole, 1e-9), whole)
    odd = numpy.array([[1.0, 0.5 + 1e-9, numpy.pi]])
    assert numpy.pi / sparse_rows(odd, 1e-8)[0, 2] == pytest.approx(
        1.0 / sparse_rows(odd, 1e-8)[0, 0], rel=1e-12
    )


def test_matrices_go_flat_and_come_back():
    matrices = [csr_array(numpy.diag([1.0, 2.0, 0.0])), csr_array(numpy.eye(3)[::-1].copy())]
    dense, places = flattened(matrices)
    back = matrices_of(dense, places, 3)
    assert all(
        numpy.array_equal(a.toarray(), b.toarray()) for a, b in zip(matrices, back, strict=True)
    )
