"""Joint cells: counts against known arrangements, verdicts against the other methods."""

import random

import numpy as np
import pytest
from flint import fmpq
from networks import perturbed, random_network, rounded

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.cell_check import check_cells
from paramsym.relu.cells import CellBudget, Enumeration, frame


def enumerate_cells(a, b, domain):
    start = frame(a, b, domain)
    assert start is not None
    tree = Enumeration(a, b, domain, start).run()
    return tree, {"lift": start.lift, "base": start.base, "steps": tree.steps}


@pytest.mark.parametrize("n, d, cells", [(3, 2, 7), (5, 2, 16), (4, 3, 15), (5, 4, 31), (2, 5, 4)])
def test_generic_arrangements_have_the_known_number_of_regions(n, d, cells):
    net = random_network((d, n, 1), random.Random(n + d))
    tree, _ = enumerate_cells(net, net, relu.Everywhere(d))
    assert tree.leaves == cells


@pytest.mark.parametrize("seed", range(6))
def test_every_sampled_activation_pattern_is_a_cell(seed):
    """Sampling never finds more patterns than the enumeration has cells."""
    rng = random.Random(seed)
    net = random_network((2, 4, 3, 1), rng)
    tree, _ = enumerate_cells(net, net, relu.Box((-3, -3), (3, 3)))
    x = np.random.default_rng(seed).uniform(-3, 3, (40000, 2))
    patterns, value = [], x
    for w, b in net.floats[:-1]:
        z = value @ w.T + b
        patterns.append(z > 0)
        value = np.maximum(z, 0)
    seen = len(np.unique(np.concatenate(patterns, axis=1), axis=0))
    assert seen <= tree.leaves <= seen + 6


@pytest.mark.parametrize("seed", range(25))
def test_cells_agree_with_the_construction(seed):
    rng = random.Random(seed)
    widths = (rng.randint(1, 3), *(rng.randint(1, 3) for _ in range(rng.randint(1, 3))), 1)
    a = random_network(widths, rng, integers=seed % 2 == 0)
    b = moves.scramble(a, 3, rng)
    domain = rng.choice([relu.Everywhere(widths[0]), relu.Orthant(widths[0])])
    tree, data = enumerate_cells(a, b, domain)
    assert tree.witness is None
    assert check_cells(a, b, domain, data)
    c = perturbed(b, fmpq(1, 1000), rng, layer=len(widths) - 2)
    tree, _ = enumerate_cells(a, c, domain)
    if tree.witness is not None:
        assert domain.contains(tree.witness) and a.evaluate(tree.witness) != c.evaluate(
            tree.witness
        )


def test_rank_deficient_inputs_are_reduced():
    """Ten inputs seen through two directions: the cells are those of the plane."""
    rng = random.Random(0)
    plane = random_network((2, 3, 2, 1), rng)
    table = [[v * (k + 1) for k in range(5) for v in row] for row in plane.exact[0].weight.tolist()]
    wide = relu.as_network(
        [(table, list(plane.exact[0].bias)), *[(w.tolist(), b) for w, b in plane.exact[1:]]]
    )
    tree, data = enumerate_cells(wide, wide, relu.Everywhere(10))
    reference, _ = enumerate_cells(plane, plane, relu.Everywhere(2))
    assert tree.leaves == reference.leaves
    assert check_cells(wide, wide, relu.Everywhere(10), data)


def test_estimate_is_of_the_right_size():
    net = random_network((3, 8, 6, 1), random.Random(1))
    start = frame(net, net, relu.Everywhere(3))
    assert start is not None
    enumeration = Enumeration(net, net, relu.Everywhere(3), start)
    exact = enumeration.run().leaves
    assert exact / 4 < enumeration.estimate(60) < exact * 4


def test_budget_stops_the_enumeration_and_the_verdict_says_so():
    rng = random.Random(4)
    net = random_network((3, 9, 9, 1), rng)
    start = frame(net, net, relu.Everywhere(3))
    assert start is not None
    with pytest.raises(CellBudget):
        Enumeration(net, net, relu.Everywhere(3), start).run(cells=10)


def test_image_dependent_equality_is_settled_in_both_modes():
    """relu(a+b) <= relu(a) + relu(b): dead although the weights have both signs."""
    a = [([[1, 1], [1, 0], [0, 1]], [0, 0, 0]), ([[1, -1, -1]], [0]), ([[1]], [0])]
    b = [([[0, 0]], [0]), ([[0]], [0])]
    for mode, method in (("exact", "absolute-value with signs"), ("float", "cells")):
        verdict = relu.decide(a, b, mode=mode)
        assert verdict.kind == "EQUAL" and verdict.method == method
        assert relu.verify(verdict, a, b)
    assert relu.decide(rounded(relu.as_network(a)), b, domain=(-1, 1)).kind == "EQUAL"
