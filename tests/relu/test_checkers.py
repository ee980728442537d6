"""The independent checkers must reject what is not proved: negative controls for each kind."""

import copy
import dataclasses
import random

import numpy as np
import pytest
from flint import fmpq
from networks import perturbed, random_network, rounded, type_a, type_b

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.absolute import absolute_forms
from paramsym.relu.absolute_check import check_absolute
from paramsym.relu.bounded import bounded_forms
from paramsym.relu.bounded_check import checked_bound
from paramsym.relu.cell_check import check_cells, proves, proves_by_program
from paramsym.relu.cells import Enumeration, frame
from paramsym.relu.exact_check import check_canonical

RULES = ["constant", "dead", "linear", "plain", "unbend", "unbend negative"]


def cell_data(a, b, domain):
    start = frame(a, b, domain)
    assert start is not None
    tree = Enumeration(a, b, domain, start).run()
    return {"lift": start.lift, "base": start.base, "steps": tree.steps}, tree


@pytest.mark.parametrize("seed", range(30))
def test_logs_of_one_pair_prove_nothing_about_another(seed):
    rng = random.Random(seed)
    make = rng.choice([type_a, type_b])
    a = make((3, 3, 3, 2), rng)
    b = moves.scramble(a, 4, rng)
    domain = relu.Everywhere(3)
    forms = absolute_forms(a, b, domain)
    assert forms.equal and check_absolute(a, b, domain, forms.passes)
    other = perturbed(b, fmpq(1, 10**9), rng, layer=2)
    if relu.decide(a, other).kind == "DIFFERENT":  # else a unit that never fires was hit
        assert not check_absolute(a, other, domain, forms.passes)


@pytest.mark.parametrize("seed", range(40))
def test_tampered_logs_never_prove_a_false_equality(seed):
    """Random false rules and false unbendings: whatever the log claims, no wrong EQUAL."""
    rng = random.Random(seed)
    a = random_network((2, 3, 3, 1), rng, integers=seed % 2 == 0)
    b = random_network((2, 3, 3, 1), rng, integers=seed % 2 == 0)
    domain = relu.Everywhere(2)
    verdict = relu.decide(a, b)
    forms = absolute_forms(a, b, domain)
    for _ in range(30):
        passes = copy.deepcopy(forms.passes)
        for log in passes[-1]:
            for layer in log:
                for i in range(len(layer)):
                    if rng.random() < 0.4:
                        units = tuple(rng.sample(range(3), rng.randint(0, 2)))
                        layer[i] = layer[i]._replace(rule=rng.choice(RULES), units=units)
                    if rng.random() < 0.2:
                        kind = rng.choice(["tie", "minimum"])
                        pair = (kind, (rng.randrange(3),), (rng.randrange(3),))
                        layer[i] = layer[i]._replace(identities=(pair,))
        if check_absolute(a, b, domain, passes):
            assert verdict.kind == "EQUAL"


def test_canonical_checker_rejects_wrong_groups():
    a = relu.as_network([([[1, 2], [2, 4]], [1, 2]), ([[1, 1]], [0])])
    b = relu.as_network([([[1, 2]], [1]), ([[3]], [0])])
    domain = relu.Everywhere(2)
    good = [[(0, 0), (0, 1), (1, 0)]]
    assert check_canonical(a, b, domain, good)
    assert not check_canonical(a, b, domain, [])
    assert not check_canonical(a, b, domain, [[(0, 0), (1, 0)]])
    assert not check_canonical(a, b, domain, [[(0, 0), (0, 0), (0, 1), (1, 0)]])
    c = relu.as_network([([[1, 2]], [1]), ([[4]], [0])])
    assert not check_canonical(a, c, domain, good)
    d = relu.as_network([([[1, 3]], [1]), ([[3]], [0])])
    assert not check_canonical(a, d, domain, good)


@pytest.mark.parametrize("seed", range(8))
def test_cell_checker_rejects_tampered_trees(seed):
    rng = random.Random(seed)
    a = random_network((2, 3, 2, 1), rng)
    b = moves.scramble(a, 3, rng)
    domain = relu.Everywhere(2)
    data, tree = cell_data(a, b, domain)
    assert tree.witness is None and check_cells(a, b, domain, data)
    steps = data["steps"]
    for _ in range(20):
        bad = list(steps)
        at = rng.randrange(len(bad))
        if bad[at] == 0:
            bad[at] = (rng.choice([1, -1]), 7)  # a cut declared decided
        else:
            sign, tight = bad[at]
            bad[at] = (-sign, tight)  # the other sign
        ok = check_cells(a, b, domain, {**data, "steps": bad})
        assert not ok
    assert not check_cells(a, b, domain, {**data, "steps": steps[:-1]})
    assert not check_cells(a, b, domain, {**data, "steps": [*steps, 0]})
    other = perturbed(b, fmpq(1, 10**6), rng, layer=2)
    if relu.decide(a, other).kind == "DIFFERENT":
        assert not check_cells(a, other, domain, data)


def test_cell_checker_wants_coordinates_that_show_everything():
    a = relu.as_network([([[1, 0], [0, 1]], [0, 0]), ([[1, -1]], [0]), ([[1]], [0])])
    domain = relu.Everywhere(2)
    data, _ = cell_data(a, a, domain)
    lift = data["lift"].tolist()
    flat = type(data["lift"])(2, 1, [lift[0][0], lift[1][0]])
    assert not check_cells(a, a, domain, {**data, "lift": flat})


def test_farkas_proof_by_program_agrees_with_the_hint():
    square = [[fmpq(v) for v in row] for row in ([1, 0, 0], [0, 1, 0], [-1, 0, 1], [0, -1, 1])]
    wanted = [fmpq(-1), fmpq(-1), fmpq(2)]  # x + y <= 2 on the unit square
    assert proves(square[2:], wanted) and proves_by_program(square, wanted)
    false = [fmpq(-1), fmpq(-1), fmpq(1)]  # x + y <= 1 fails at (1, 1)
    assert not proves(square, false) and not proves_by_program(square, false)


@pytest.mark.parametrize("seed", range(20))
def test_float_checker_bound_is_a_bound_whatever_the_log_says(seed):
    rng = random.Random(seed)
    a = rounded(type_b((3, 3, 3, 1), rng))
    b = rounded(random_network((3, 3, 3, 1), rng) if seed % 2 else moves.scramble(a, 3, rng))
    domain = relu.Everywhere(3)
    forms = bounded_forms(a, b, domain)
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(400, 3)) * 10.0 ** generator.uniform(-2, 2, (400, 1))
    gap = np.abs(a.batch(points) - b.batch(points))
    norm = np.linalg.norm(points, axis=1)[:, None]
    for trial in range(12):
        logs = copy.deepcopy(forms.logs)
        if trial:
            for log in logs:
                for layer in log:
                    for i in range(len(layer.rule)):
                        if rng.random() < 0.3:
                            layer.rule[i] = rng.randrange(6)
                        if rng.random() < 0.3:
                            layer.atom[i] = rng.randrange(len(forms.atoms.rows))
                            layer.sign[i] = rng.choice([-1.0, 1.0])
                            layer.scale[i] = rng.choice([0.0, 0.5, 1.0, 3.0])
                        if rng.random() < 0.2:
                            layer.units[i] = tuple(rng.sample(range(3), rng.randint(0, 2)))
        bound = checked_bound(a, b, domain, {"atoms": forms.atoms.rows, "logs": logs})
        if bound is not None:
            slack = 1e-9 * (a.magnitude(points) + b.magnitude(points))
            assert (gap <= bound[:, 0] + bound[:, 1] * norm + slack).all()


def test_bounds_smaller_than_proved_do_not_verify():
    rng = np.random.default_rng(0)
    a = [(rng.normal(size=(4, 3)), rng.normal(size=4)), (rng.normal(size=(1, 4)), np.zeros(1))]
    b = [(a[0][0] * 3.0, a[0][1] * 3.0), (a[1][0] / 3.0, a[1][1])]
    verdict = relu.decide(a, b, mode="float")
    assert verdict.kind == "EQUAL" and relu.verify(verdict, a, b)
    small = verdict.bounds._replace(offset=0.0, slope=0.0)
    assert not relu.verify(dataclasses.replace(verdict, bounds=small), a, b)


def test_forged_verdicts_do_not_verify():
    a, b = [([[1]], [0]), ([[1]], [0])], [([[1]], [0]), ([[2]], [0])]
    verdict = relu.decide(a, b)
    assert verdict.witness is not None
    outside = dataclasses.replace(verdict, witness=(fmpq(-1),))  # f = g = 0 there
    assert not relu.verify(outside, a, b)
    assert not relu.verify(dataclasses.replace(verdict, kind=relu.Kind.EQUAL), a, b)


def test_bounds_on_cells_are_proved_and_understated_ones_rejected():
    from paramsym.relu.cell_check import checked_cells

    rng = random.Random(1)
    a = rounded(random_network((2, 3, 2, 1), rng))
    first = a.floats[0]
    # x ↦ relu(±x) in front: a first layer of rank 2 with four units, rounded rows behind it.
    lifted = relu.as_network(
        [
            (np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]), np.zeros(4)),
            (np.concatenate([first.weight / 3.0, -first.weight / 3.0], axis=1), first.bias / 3.0),
            (a.floats[1].weight * 3.0, a.floats[1].bias),
            tuple(a.floats[2]),
        ]
    )
    verdict = relu.decide(a, lifted, mode="float")
    assert verdict.kind == "EQUAL" and relu.verify(verdict, a, lifted)
    from paramsym.relu.cell_bounds import Tolerance

    domain = relu.Everywhere(2)
    start = frame(a, lifted, domain)
    assert start is not None
    enumeration = Enumeration(a, lifted, domain, start)
    tree = enumeration.run(tolerate=Tolerance(a, lifted, enumeration).leaf)
    data = {"lift": start.lift, "base": start.base, "steps": tree.steps, "bounds": tree.bounds}
    proved = checked_cells(a, lifted, domain, data)
    assert tree.bounds and proved is not None and 0 < proved[0] < 1e-12
    for field in ("offset", "slope"):
        small = [leaf._replace(**{field: 0.0}) for leaf in tree.bounds]
        if any(getattr(leaf, field) > 1e-200 for leaf in tree.bounds):
            assert checked_cells(a, lifted, domain, {**data, "bounds": small}) is None
    long = [leaf._replace(direction=(1.0, 1.0)) for leaf in tree.bounds]
    assert checked_cells(a, lifted, domain, {**data, "bounds": long}) is None
    assert checked_cells(a, lifted, domain, {**data, "bounds": tree.bounds[:-1]}) is None
