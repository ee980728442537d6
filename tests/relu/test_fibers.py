"""Layer fibers and three-layer fibers: samples, membership, feasibility and dimensions."""

import random

import numpy as np
import pytest
import torch
from flint import fmpq, fmpq_mat
from networks import perturbed, random_network, type_a, type_b

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.layer_fiber import block_of
from paramsym.relu.randomness import generic
from paramsym.relu.seminonnegative import dimension, factorise, half_space, semirank
from paramsym.relu.visibility import truly_visible, visible, visible_by_program


def block(d, k, r, m, rng):
    units = [([generic(rng) for _ in range(d + 1)], [generic(rng) for _ in range(m)])
             for _ in range(k)]  # fmt: skip
    units += [([generic(rng, True) for _ in range(d + 1)], [generic(rng) for _ in range(m)])
              for _ in range(r)]  # fmt: skip
    return block_of(units, [generic(rng) for _ in range(m)], d, "block")


def nullity(net: relu.Network, samples: int) -> int:
    """Parameter directions that leave the function unchanged, by the rank of the Jacobian."""
    sizes = [part.weight.shape for part in net.floats]
    flat = torch.cat([torch.cat([torch.tensor(w).reshape(-1), torch.tensor(b)])
                      for w, b in net.floats])  # fmt: skip
    rng = np.random.default_rng(0)
    w1, b1 = net.floats[0]
    right = np.linalg.pinv(w1)
    z = rng.choice([-1.0, 1.0], (samples, len(b1))) * 10 ** rng.uniform(
        -2.5, 2.5, (samples, len(b1))
    )
    off = rng.normal(size=(samples, net.input_dim)) @ (np.eye(net.input_dim) - right @ w1).T
    x = torch.tensor((z - b1) @ right.T + off)

    def output(theta, point):
        at, value = 0, point
        for index, (n, d) in enumerate(sizes):
            if index:
                value = torch.relu(value)
            w = theta[at : at + n * d].reshape(n, d)
            value = w @ value + theta[at + n * d : at + n * d + n]
            at += n * d + n
        return value

    jacobian = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))(flat, x)
    table = jacobian.reshape(-1, len(flat)).numpy()
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-300)
    values = np.linalg.svd(table, compute_uv=False)
    return len(flat) - int((values > 1e-10 * values[0]).sum())


@pytest.mark.parametrize("seed", range(40))
def test_layer_samples_have_the_same_function_and_the_wanted_orientation(seed):
    rng = random.Random(seed)
    d, m = rng.randint(1, 4), rng.randint(1, 3)
    b = block(d, rng.randint(0, 3), rng.randint(1, 4), m, rng)
    fiber = relu.LayerFiber(b)
    own = {p.hyperplane for p in fiber.locate() if p.turned}
    sets = list(fiber.orientations())
    assert frozenset(own) in sets
    for chosen in sets:
        sample = fiber.sample(chosen, rng)
        assert sample is not None and fiber.contains(sample)
        assert {p.hyperplane for p in fiber.locate(sample) if p.turned} == chosen
        assert relu.decide(b, sample, domain="orthant").kind == "EQUAL"
        for r in range(fiber.linear + 1):
            spare = fiber.sample(chosen, rng, linear=r)
            assert (spare is None) == (not fiber.feasible(chosen, r))
            assert spare is None or fiber.contains(spare)
        assert not fiber.contains(perturbed(sample, fmpq(1, 10**12), rng, layer=1))


@pytest.mark.parametrize(
    "d, m, r, name, feasible, dim",
    [
        (3, 3, 2, "r < min", 1, 4),
        (4, 3, 1, "r < min", 1, 1),
        (2, 3, 2, "r = d <= m", 8, 4),
        (3, 2, 3, "r = m + 1", 8, 9),
        (4, 2, 3, "r = m + 1", 8, 10),
    ],
)
def test_regimes_of_the_generic_theorem(d, m, r, name, feasible, dim):
    for seed in range(5):
        fiber = relu.LayerFiber(block(d, 3, r, m, random.Random(seed)))
        if fiber.k != 3 or fiber.linear != r:
            continue
        sets = list(fiber.orientations())
        assert fiber.regime.startswith(name)
        assert len(sets) == feasible
        assert {fiber.dim(s) for s in sets} == {dim}


def test_pointed_regime_has_orientations_by_the_cone():
    counts = set()
    for seed in range(20):
        fiber = relu.LayerFiber(block(4, 3, 2, 2, random.Random(seed)))
        if fiber.k == 3 and fiber.linear == 2:
            sets = list(fiber.orientations())
            counts.add(len(sets))
            assert {fiber.dim(s) for s in sets} == {4}
    assert len(counts) > 1 and min(counts) >= 1


@pytest.mark.parametrize("seed", range(60))
def test_factorisations_exist_exactly_from_the_semirank_on(seed):
    rng = random.Random(seed)
    m, d = rng.randint(1, 3), rng.randint(1, 4)
    rank = rng.randint(0, min(m, d))
    left = fmpq_mat(m, rank, [fmpq(rng.randint(-3, 3)) for _ in range(m * rank)])
    right = fmpq_mat(rank, d, [fmpq(rng.randint(-3, 3)) for _ in range(rank * d)])
    a = left * right if rank else fmpq_mat(m, d)
    need = semirank(a)
    assert a.rank() <= need <= a.rank() + 1
    for r in range(need + 3):
        found = factorise(a, r, rng)
        assert (found is None) == (r < need) == (dimension(a, r) is None)
        if found is not None:
            u, v = found
            assert all(x >= 0 for x in v.entries())
            assert (u * v if r else fmpq_mat(m, d)) == a


@pytest.mark.parametrize("seed", range(60))
def test_half_space_is_found_or_refuted_by_a_program(seed):
    from scipy.optimize import linprog

    rng = random.Random(seed)
    rho, d = rng.randint(1, 3), rng.randint(1, 5)
    c = fmpq_mat(rho, d, [fmpq(rng.randint(-2, 2)) for _ in range(rho * d)])
    u = half_space(c)
    table = np.array([[float(x) for x in row] for row in c.tolist()])
    kept = table[:, np.abs(table).any(axis=0)]
    result = linprog(
        [0.0] * rho + [-1.0],
        A_ub=np.concatenate([-kept.T, np.ones((kept.shape[1], 1))], axis=1),
        b_ub=np.zeros(kept.shape[1]),
        bounds=[(-1, 1)] * rho + [(None, 1)],
    )
    assert (u is not None) == (-result.fun > 1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_three_visibility_criteria_agree_at_generic_parameters(seed):
    rng = random.Random(seed)
    make = [random_network, type_a, type_b][seed % 3]
    net = make((4, rng.randint(2, 4), rng.randint(1, 4), 2), rng)
    for j in range(net.widths[1]):
        assert visible(net, j) == visible_by_program(net, j) == truly_visible(net, j)


def test_cancellation_is_flagged():
    """Two units with the same trace on the face and opposite slopes hide H_0 by accident."""
    net = relu.as_network(
        [([[1, 0], [0, 1]], [0, 0]), ([[1, 1], [2, 1]], [1, 1]), ([[2, -1]], [0])]
    )
    fiber = relu.ThreeLayerFiber(net)
    assert fiber.visible[0] and not truly_visible(net, 0)
    assert any("cancellation" in flag for flag in fiber.flags)


@pytest.mark.parametrize("seed", range(40))
def test_three_layer_samples_membership_and_coordinates(seed):
    rng = random.Random(seed)
    d = rng.randint(2, 4)
    make = [type_a, type_b, random_network][seed % 3]
    net = make((d, rng.randint(2, d), rng.randint(1, 4), rng.randint(1, 3)), rng)
    fiber = relu.ThreeLayerFiber(net)
    assert fiber.type in ("A", "B", "constant")
    if fiber.type == "constant":
        return
    sample = fiber.sample(rng)
    assert fiber.contains(sample)
    assert fiber.coordinates(sample) is not None
    other = perturbed(sample, fmpq(1, 10**9), rng)
    verdict = fiber.decide(other)
    assert verdict.kind is not relu.Kind.UNDECIDED
    assert (fiber.coordinates(other) is not None) == (verdict.kind == "EQUAL")
    assert fiber.contains(random_network(net.widths, rng)) is False


@pytest.mark.parametrize("seed", range(25))
def test_type_b_coordinates_recover_what_was_planted(seed):
    rng = random.Random(seed)
    net = type_b((3, 3, rng.randint(1, 3), 1), rng)
    fiber = relu.ThreeLayerFiber(net)
    assert fiber.type == "B" and fiber.t_min is not None and fiber.hidden is not None
    chosen = frozenset(k for k in fiber.reflections if rng.random() < 0.5)
    t = fiber.t_min + rng.randint(0, 5)
    sample = fiber.sample(rng, translation=t, reflected=sorted(chosen))
    found = fiber.coordinates(sample)
    assert found is not None and found.reflected == chosen and found.translation == t


@pytest.mark.parametrize("seed", range(30))
def test_half_line_ends_sharply(seed):
    rng = random.Random(seed)
    net = type_b((3, 2, rng.randint(1, 3), 1), rng)
    fiber = relu.ThreeLayerFiber(net)
    assert fiber.hidden is not None and fiber.t_min is not None
    j = fiber.hidden
    end = moves.translate(net, 1, j, fiber.t_min)
    assert relu.decide(net, end).kind == "EQUAL"
    with pytest.raises(moves.MoveError, match="t >= t_min"):
        moves.translate(net, 1, j, fiber.t_min - fmpq_fraction(1, 10**9))
    beyond = [(w, list(b)) for w, b in net]
    t = fiber.t_min - fmpq_fraction(1, 10**9)
    beyond[0][1][j] += t
    for i in range(net.widths[2]):
        beyond[1][1][i] -= t * beyond[1][0][i][j]
    verdict = relu.decide(net, beyond)
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, net, beyond)


def fmpq_fraction(p, q):
    from fractions import Fraction

    return Fraction(p, q)


@pytest.mark.parametrize("seed", range(24))
def test_dimensions_are_the_nullity_of_the_jacobian(seed):
    rng = random.Random(seed)
    d = rng.randint(2, 3)
    make = [type_a, type_b, random_network][seed % 3]
    net = make((d, 2, rng.randint(1, 4), rng.randint(1, 2)), rng)
    fiber = relu.ThreeLayerFiber(net)
    if fiber.flags or fiber.type not in ("A", "B"):
        return
    # Few samples of a small cell under-count the rank: more samples can only raise it.
    for samples in (600, 6000, 30000):
        measured = nullity(net, samples)
        if measured == fiber.dimension:
            break
    assert measured == fiber.dimension


def test_rank_deficient_first_layer_is_reported_and_still_decided():
    net = [([[1, 1], [1, 0], [0, 1]], [0, 0, 0]), ([[1, -1, -1]], [0]), ([[5]], [2])]
    fiber = relu.ThreeLayerFiber(net)
    assert fiber.type == "degenerate" and "rank 2 of 3" in fiber.flags[0]
    assert fiber.contains(net)


def test_minimal_width_drops_what_is_spare():
    b = relu.as_network([([[1, -1], [2, -2], [1, 1]], [0, 0, 1]), ([[1, 1, 0]], [0])])
    assert relu.LayerFiber(b).minimal_width() == (1, frozenset())
