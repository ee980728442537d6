"""Vector fields by parts beside one matrix, and ansätze beside their definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from paramsym.discovery.linear.ansatz import Ansatz
from paramsym.discovery.linear.full import full
from paramsym.discovery.linear.generators import Block, Generator, Shift, Side, without_rounding
from paramsym.discovery.linear.linear_symmetries import LEVELS
from paramsym.discovery.linear.sides import sides
from paramsym.discovery.linear.tensors import alike, tensors

SHAPES = {"a": (2, 3), "b": (4, 3), "c": (2,), "t": (2, 1, 2), "one": (1,)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def samples(count: int, seed: int) -> dict[str, Tensor]:
    return {n: normal(count, *s, seed=seed + k) for k, (n, s) in enumerate(SHAPES.items())}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[n].flatten() for n in SHAPES])


@pytest.mark.parametrize("affine", [False, True], ids=["linear", "affine"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_times_coefficients_is_the_gradient_along_the_velocity(level: str, affine: bool):
    ansatz = LEVELS[level](SHAPES, affine)
    coefficients = normal(ansatz.unknowns, seed=9)
    generator = ansatz.generator(coefficients, 0.0, 0.0)
    matrix, constant = generator.dense(SHAPES)
    gradients, weights = samples(4, 20), samples(4, 40)
    rows = ansatz.rows(gradients, weights)
    assert rows.shape == (4, ansatz.unknowns)
    for k in range(4):
        params = {n: w[k] for n, w in weights.items()}
        velocity = generator.velocity(params)
        whole = {n: velocity.get(n, torch.zeros_like(p)) for n, p in params.items()}
        torch.testing.assert_close(matrix @ flat(params) + constant, flat(whole))
        expected = flat({n: g[k] for n, g in gradients.items()}) @ flat(whole)
        torch.testing.assert_close(rows[k] @ coefficients, expected)
    assert bool(constant.any()) == affine


def test_unknowns_are_as_many_as_the_levels_say():
    assert full(SHAPES, False).unknowns == SIZE**2
    assert full(SHAPES, True).unknowns == SIZE**2 + SIZE
    own = sum(math.prod(s) ** 2 for s in SHAPES.values())
    # a with b, and c with the tensor of one entry, in both directions
    assert tensors(SHAPES, False).unknowns == own + 2 * (6 * 12 + 2 * 1)
    assert sides(SHAPES, False).unknowns == sum(n * n for s in SHAPES.values() for n in s)


def test_tensors_of_parallel_branches_are_alike_and_those_of_a_chain_are_not():
    assert alike((3, 5), (3, 5)) and alike((3, 5), (4, 5)) and alike((3,), (7,))
    assert not alike((3, 5), (5, 3)) and not alike((3,), (3, 1))


def test_trivial_directions_of_sides_have_no_matrix_and_others_have_one():
    ansatz = sides(SHAPES, False)
    trivial = ansatz.trivial()
    assert trivial.shape[1] == 1 + 1 + 0 + 2 + 0  # axes less one of each tensor
    torch.testing.assert_close(trivial.T @ trivial, torch.eye(4, dtype=torch.float64))
    every = torch.stack([_matrix(ansatz, c) for c in torch.eye(ansatz.unknowns).double()], dim=1)
    assert float((every @ trivial).abs().max()) < 1e-15
    assert int(torch.linalg.matrix_rank(every)) == ansatz.unknowns - 4


@pytest.mark.parametrize("level", ["full", "tensors"])
def test_blocks_have_no_trivial_direction(level: str):
    assert LEVELS[level]({"a": (2, 1), "b": (2,)}, True).trivial().shape[1] == 0


def _matrix(ansatz: Ansatz, coefficients: Tensor) -> Tensor:
    return ansatz.generator(coefficients, 0.0, 0.0).dense(SHAPES)[0].flatten()


def test_a_side_acts_from_the_left_on_axis_0_and_from_the_right_on_axis_1():
    w, left, right = normal(2, 3), normal(2, 2, seed=1), normal(3, 3, seed=2)
    both = Generator((Side("w", 0, left, (2, 3)), Side("w", 1, right.T, (2, 3))), 0.0, 0.0)
    torch.testing.assert_close(both.velocity({"w": w})["w"], left @ w + w @ right)


def test_velocities_keep_dtype_and_shape_and_name_only_what_moves():
    params = {"w": torch.ones(2, 2), "t": torch.ones(()), "other": torch.ones(3)}
    parts = (Side("t", 0, torch.full((1, 1), 2.0).double(), (1,)), Shift("w", normal(2, 2)))
    velocity = Generator(parts, 0.0, 0.0).velocity(params)
    assert velocity.keys() == {"t", "w"}
    assert velocity["t"].shape == () and float(velocity["t"]) == 2.0
    assert all(v.dtype == torch.float32 for v in velocity.values())


def test_complex_tensors_are_pairs_of_real_numbers():
    z = torch.complex(normal(2), normal(2, seed=1))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    by_side = Generator((Side("z", 1, turn, (2, 2)),), 0.0, 0.0)
    torch.testing.assert_close(by_side.velocity({"z": z})["z"], 1j * z)
    by_block = Generator((Block("z", "z", torch.kron(torch.eye(2).double(), turn)),), 0.0, 0.0)
    torch.testing.assert_close(by_block.velocity({"z": z})["z"], 1j * z)


def test_parts_that_are_rounding_are_left_out():
    parts = (Shift("w", normal(2)), Shift("v", 1e-14 * normal(2)), Shift("u", 1e-9 * normal(2)))
    assert [part.target for part in without_rounding(parts)] == ["w", "u"]
    assert without_rounding([]) == ()
