"""Conserved quantities along integrated gradient flow, and the symmetries that have none."""

import numpy as np
import pytest

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.conservation import (
    LAWS,
    check_conservation,
    gradient,
    gradient_flow,
    pairing,
    translation_generator,
)


def data(d, m, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(20, d)), 0.3 * rng.normal(size=(20, m))


def small(widths, seed):
    rng = np.random.default_rng(seed)
    return [
        (0.4 * rng.normal(size=(n, d)), 0.2 * rng.normal(size=n))
        for d, n in zip(widths, widths[1:], strict=False)
    ]


def test_scaling_laws_hold_while_parameters_move():
    x, y = data(3, 2)
    net = small((3, 4, 4, 2), 1)
    path = gradient_flow(net, x, y, 1.0, 800)
    moved = max(np.abs(a.weight - b.weight).max()
                for a, b in zip(path[0].floats, path[-1].floats, strict=True))  # fmt: skip
    drifts = check_conservation(net, x, y, 1.0, 800)
    assert moved > 0.05
    scaling = [d for d in drifts if d.scope == "global"]
    assert len(scaling) == 8 and max(d.drift for d in scaling) < 1e-5


def linear_pair():
    """Two second-layer units with positive rows and biases: linear on every input."""
    w1, b1 = small((3, 3), 2)[0]
    w2 = np.array([[0.5, 0.2, 0.4], [0.3, 0.6, 0.1], [0.4, -0.5, 0.3]])
    return [(w1, b1), (w2, np.array([0.5, 0.4, -0.1])), (np.array([[0.3, -0.4, 0.5]]), np.zeros(1))]


def test_off_diagonal_law_of_linear_units_holds_and_of_others_fails():
    x, y = data(3, 1)
    drifts = {d.name: d for d in check_conservation(linear_pair(), x, y, 0.5, 800)}
    law = drifts["linear pair, layer 2, units 0 and 1"]
    assert law.scope == "local" and law.valid and law.drift < 1e-7
    path = gradient_flow(linear_pair(), x, y, 0.5, 800)

    def pair(net, i, j):
        (w, b), (v, _) = net.floats[1], net.floats[2]
        return w[i] @ w[j] + b[i] * b[j] - v[:, i] @ v[:, j]

    control = abs(pair(path[-1], 0, 2) - pair(path[0], 0, 2))
    assert control > 1e-4


def hidden():
    return [
        (np.array([[1.0, 0.2], [-0.3, 0.8]]), np.array([0.1, 0.2])),
        (np.array([[0.9, -0.5], [0.7, -0.8]]), np.array([-0.4, -0.2])),
        (np.array([[0.6, -0.7]]), np.zeros(1)),
    ]


def test_translation_ties_velocities_but_conserves_nothing():
    x, y = data(2, 1)
    net = relu.as_network(hidden())
    generator = translation_generator(net, 1, 0)
    assert abs(pairing(gradient(net, x, y), generator)) < 1e-15
    path = gradient_flow(net, x, y, 2.0, 800)
    assert all(moves.translation_bound(p, 1, 0) is not None for p in path[:: len(path) - 1])

    def candidate(p):
        return p.floats[0].bias[0] - p.floats[1].weight[:, 0] @ p.floats[1].bias

    assert abs(candidate(path[-1]) - candidate(path[0])) > 1e-3
    residual = [abs(pairing(gradient(p, x, y), translation_generator(p, 1, 0)))
                for p in path[::100]]  # fmt: skip
    assert max(residual) < 1e-14


def test_translation_form_has_no_integrating_factor():
    """ω = db1_j - Σ W_i db2_i: ω ∧ dω != 0 by exterior algebra on (b1, W_i, b2_i)."""
    import sympy as sp

    w1, w2 = sp.symbols("w1 w2")
    # Coordinates (b, w1, w2, c1, c2); ω = db - w1 dc1 - w2 dc2.
    omega = [sp.Integer(1), 0, 0, -w1, -w2]
    names = [sp.Symbol("b"), w1, w2, sp.Symbol("c1"), sp.Symbol("c2")]
    d = [[sp.diff(omega[j], names[i]) - sp.diff(omega[i], names[j]) for j in range(5)]
         for i in range(5)]  # fmt: skip
    wedge = omega[0] * d[1][3] - omega[1] * d[0][3] + omega[3] * d[0][1]
    assert sp.simplify(wedge) != 0


def test_dead_units_stand_still():
    x, y = data(2, 1)
    net = [(np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([0.0, -9.0])),
           (np.array([[1.0, 1.0]]), np.zeros(1))]  # fmt: skip
    drifts = [d for d in check_conservation(net, x, y, 0.3, 50) if d.name.startswith("dead")]
    assert len(drifts) == 1 and drifts[0].drift == 0.0 and drifts[0].valid


def test_every_move_has_its_law():
    assert {law.move for law in LAWS} == set(moves.PROPOSALS)


def test_generator_of_a_visible_unit_is_refused():
    with pytest.raises(relu.ReLUError, match="hidden unit"):
        translation_generator(hidden(), 1, 1)
