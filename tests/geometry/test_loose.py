"""What stands against zeros, carried along: the Sylvester equation against plain least squares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paramsym import ParameterSymmetry, Space, act
from paramsym.algebra import GeneralLinear, PositiveScaling
from paramsym.geometry.loose import _nearest, carried_along
from paramsym.geometry.support import supported
from paramsym.structure.axes import parse_axis
from tests.geometry.orbits import State, generator


def interface(n: int = 4) -> ParameterSymmetry:
    signature = {"x": (parse_axis("m"), parse_axis("3")), "y": (parse_axis("2"), parse_axis("m*"))}
    return ParameterSymmetry({"m": Space("m", GeneralLinear(n))}, signature)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def point(seed: int, n: int = 4) -> State:
    return {"x": normal(seed, n, 3), "y": normal(seed + 50, 2, n)}


def least_squares(a: State, b: State) -> Tensor:
    """min ‖g x_b − x_a‖² + ‖y_a g − y_b‖² over all matrices g, written out; the least solution."""
    n = len(a["x"])
    eye = torch.eye(n, dtype=torch.float64)
    rows = torch.cat([torch.kron(eye, b["x"].mT.contiguous()), torch.kron(a["y"], eye)])
    wanted = torch.cat([a["x"].flatten(), b["y"].flatten()])
    return torch.linalg.lstsq(rows, wanted, driver="gelsd").solution.reshape(n, n)


@pytest.mark.parametrize("n", [2, 3])
def test_the_sylvester_equation_is_the_least_squares_problem(n: int) -> None:
    symmetry = interface(n)
    for seed in range(10):
        a, b = point(seed, n), point(seed + 100, n)
        value = _nearest(symmetry, a, b, "m")
        assert value is not None and value.matrix is not None
        torch.testing.assert_close(value.matrix, least_squares(a, b), rtol=1e-8, atol=1e-8)


def test_where_nothing_stands_any_completion_does() -> None:
    """Four coordinates, two of which neither side knows: the least squares leave them open."""
    symmetry = interface(4)
    x, y = normal(0, 4, 3), normal(1, 2, 4)
    x[2:], y[:, 2:] = 0, 0
    g = torch.block_diag(normal(2, 2, 2), torch.eye(2, dtype=torch.float64))
    b = act(symmetry, symmetry.element(m=g), {"x": x, "y": y})
    value = _nearest(symmetry, {"x": x, "y": y}, b, "m")
    assert value is not None and value.matrix is not None
    assert float(torch.linalg.svdvals(value.matrix).amin()) > 1e-6
    assert int(torch.linalg.matrix_rank(least_squares({"x": x, "y": y}, b), atol=1e-9)) == 2
    moved = act(symmetry, symmetry.element(m=value.matrix), b)
    torch.testing.assert_close(moved["x"], x)
    torch.testing.assert_close(moved["y"], y)


@pytest.mark.parametrize("side", ["x", "y"])
def test_what_one_side_alone_holds_is_carried_to_its_place(side: str) -> None:
    """On one orbit an element exists, though the points without what is loose do not tell it."""
    symmetry = interface(4)
    for seed in range(5):
        a = point(seed)
        a[side] = torch.zeros_like(a[side])
        b = act(symmetry, symmetry.sample(generator(seed), 1.0), a)
        assert supported(symmetry, a)[1] == {"m": 2 if side == "x" else 3}
        element = carried_along(symmetry, a, b, ["m"])
        there = act(symmetry, element, b)
        torch.testing.assert_close(there["x"], a["x"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(there["y"], a["y"], rtol=1e-9, atol=1e-9)
        assert float((a["x"] - b["x"]).norm() + (a["y"] - b["y"]).norm()) > 0.1  # the control


def test_scales_are_least_squares_unit_by_unit() -> None:
    signature = {"x": (parse_axis("h"), parse_axis("3")), "y": (parse_axis("2"), parse_axis("h*"))}
    symmetry = ParameterSymmetry({"h": Space("h", PositiveScaling(4))}, signature)
    a = point(3)
    a["y"][:, 1] = 0
    b = act(symmetry, symmetry.sample(generator(3), 1.0), a)
    value = _nearest(symmetry, a, b, "h")
    assert value is not None and value.diagonal is not None
    for k in range(4):
        left = torch.cat([b["x"][k], a["y"][:, k]])
        right = torch.cat([a["x"][k], b["y"][:, k]])
        assert float(value.diagonal[k]) == pytest.approx(float(left @ right / (left @ left)))
    there = act(symmetry, symmetry.element(h=value.diagonal), b)
    torch.testing.assert_close(there["x"], a["x"])


def test_generic_points_have_nothing_loose() -> None:
    symmetry = interface(2)
    kept, loose = supported(symmetry, point(0, 2))
    assert loose == {}
    assert all(torch.equal(kept[n], p) for n, p in point(0, 2).items())
