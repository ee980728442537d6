"""Exhaustive truth for tiny networks d = n1 = 2, n2 = 1, entries in {-1, 0, 1} (and b3 = 0)."""

import random
from itertools import product

import numpy as np
import pytest
from flint import fmpq, fmpq_mat

from paramsym import relu
from paramsym.relu.absolute import absolute_forms
from paramsym.relu.cells import Enumeration, frame
from paramsym.relu.network import Layer

PLANE = relu.Everywhere(2)


def tiny(v):
    q = [fmpq(x) for x in v]
    return relu.Network(
        exact=[
            Layer(fmpq_mat(2, 2, q[:4]), q[4:6]),
            Layer(fmpq_mat(1, 2, q[6:8]), [q[8]]),
            Layer(fmpq_mat(1, 1, q[9:]), [fmpq(0)]),
        ]
    )


def classes(entries):
    """Networks by their values on a grid of twelfths that separates the functions."""
    side = [k / 12 for k in range(-60, 61, 7)] + [-97.0, -31.0, 31.0, 97.0]
    points = np.array([[x, y] for x in side for y in side])
    found: dict[bytes, list] = {}
    for v in entries:
        w = np.array(v, dtype=float)
        y = np.maximum(points @ w[:4].reshape(2, 2).T + w[4:6], 0)
        value = np.maximum(y @ w[6:8] + w[8], 0) * w[9]
        found.setdefault(np.round(value, 9).tobytes(), []).append(v)
    return list(found.values())


def full_rank(v):
    return v[0] * v[3] != v[1] * v[2]


def same_by_cells(a, b):
    start = frame(a, b, PLANE)
    assert start is not None
    return Enumeration(a, b, PLANE, start).run().witness is None


def check(groups, every: bool):
    rng = random.Random(0)
    for members in groups:
        head = tiny(members[0])
        for v in members[1:] if every else rng.sample(members, min(2, len(members))):
            assert same_by_cells(head, tiny(v))
        good = [v for v in members if full_rank(v)]
        for v in good[1:] if every else good[1:3]:
            assert absolute_forms(tiny(good[0]), tiny(v), PLANE).equal


def test_a_sample_of_tiny_networks():
    rng = random.Random(2)
    entries = [tuple(rng.choice((-1, 0, 1)) for _ in range(10)) for _ in range(1500)]
    groups = classes(entries)
    check(groups, every=False)
    for _ in range(150):  # different classes are told apart, with a witness
        p, q = rng.sample(groups, 2)
        verdict = relu.decide(tiny(p[0]), tiny(q[0]))
        assert verdict.kind == "DIFFERENT"


@pytest.mark.slow
def test_all_tiny_networks():
    groups = classes(product((-1, 0, 1), repeat=10))
    assert len(groups) == 4480
    assert sum(any(full_rank(v) for v in g) for g in groups) == 3668
    check(groups, every=True)
