"""Units that keep one sign on the image of the layers below: proofs, exceptions, and forgeries."""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from flint import fmpq
from networks import random_network
from scipy.optimize import linprog

from paramsym import relu
from paramsym.relu.absolute import absolute_forms
from paramsym.relu.absolute_check import check_absolute_with_signs
from paramsym.relu.cells import CellBudget, Enumeration, frame
from paramsym.relu.domains import Everywhere, as_domain
from paramsym.relu.image_signs import image_signs, known_signs
from paramsym.relu.logs import Leaf, SignProof, Split
from paramsym.relu.rationals import dot, nearest_float
from paramsym.relu.sign_check import checked_signs
from paramsym.relu.sign_search import Prover
from paramsym.relu.simplex import Answer, minimise


def _benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "undecided.py"
    spec = importlib.util.spec_from_file_location("undecided", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["undecided"] = module
    spec.loader.exec_module(module)
    return module


undecided = _benchmark()


def pre_activation(net, layer, unit, x, without=()):
    """p at x, without what the unit reads of some others."""
    values = x
    for part in net.exact[:layer]:
        rows = zip(part.weight.tolist(), part.bias, strict=True)
        values = [max(dot(row, values) + t, fmpq(0)) for row, t in rows]
    values = [fmpq(0) if k in without else v for k, v in enumerate(values)]
    return dot(net.exact[layer].weight.tolist()[unit], values) + net.exact[layer].bias[unit]


# ------------------------------------------------------------------ linear programs


def test_programs_agree_with_highs_and_prove_what_they_say():
    rng = random.Random(0)
    seen = dict.fromkeys(Answer, 0)
    for _ in range(400):
        m, n, size = rng.randint(1, 5), rng.randint(1, 8), rng.choice([2, 3, 20])
        columns = [[rng.randint(-size, size) for _ in range(m)] for _ in range(n)]
        if rng.random() < 0.3:  # equations that repeat each other
            columns = [[*c[:-1], 2 * c[0]] if m > 1 else c for c in columns]
        target = [rng.randint(-size, size) for _ in range(m)]
        if rng.random() < 0.5:
            target = [sum(c[i] for c in columns) for i in range(m)]
        cost = [rng.randint(-size, size) for _ in range(n)]
        found = minimise(columns, target, cost)
        seen[found.answer] += 1
        table = list(zip(*columns, strict=True))
        held = linprog(cost, A_eq=np.array(table), b_eq=target)
        reach = [sum(a * v for a, v in zip(row, found.point, strict=False)) for row in table]
        price = [sum(a * v for a, v in zip(c, found.prices, strict=False)) for c in columns]
        assert all(v >= 0 for v in found.point)
        if found.answer is Answer.OPTIMAL:
            assert held.status == 0 and abs(held.fun - nearest_float(found.value)) < 1e-6
            assert reach == target and all(p <= c for p, c in zip(price, cost, strict=True))
            assert found.value == sum(p * t for p, t in zip(found.prices, target, strict=True))
        elif found.answer is Answer.INFEASIBLE:
            assert held.status == 2 and all(p <= 0 for p in price)
            assert sum(p * t for p, t in zip(found.prices, target, strict=True)) > 0
        else:
            assert held.status in (3, 4) and not any(reach)
            assert sum(c * v for c, v in zip(cost, found.point, strict=True)) == -1
    assert min(seen.values()) > 50


# ------------------------------------------------------------------ proofs


def test_a_fold_never_fires_and_a_little_more_bias_makes_it_fire():
    """relu(u + v) <= relu(u) + relu(v); the largest value is 0, so any bias > 0 is too much."""
    domain = Everywhere(2)
    table = [[1, 1], [1, 0], [0, 1]]
    for bias, dead in (("0", True), ("-1e-9", True), ("1e-30", False)):
        net = relu.as_network([(table, [0, 0, 0]), ([[1, -1, -1]], [bias]), ([[5]], [2])])
        found = image_signs(net, net, domain)
        assert found.of(0) == found.of(1) == ({(1, 0, ()): -1} if dead else {})
        for x in found.inputs:
            assert pre_activation(net, 1, 0, x) > 0
        assert not (dead and found.inputs)


@pytest.mark.parametrize("number", range(40))
def test_a_sliver_of_a_billionth_is_not_dead(number):
    """The largest value is known from all vertices: 1e-9 below 0 it is proved, above refuted."""
    rng = random.Random(f"sliver {number}")
    d, size = rng.randint(2, 5), fmpq(1, 10 ** rng.choice([3, 6, 9, 12]))
    draft = undecided.Draft.random((d, rng.randint(1, 2), 1, 1), rng)
    unit = undecided.spanned(draft, 0, rng, fmpq(0))
    domain = Everywhere(d)
    for shift, dead in ((-size, True), (fmpq(0), True), (size, False)):
        made = draft.copy()
        at = made.add(1, unit.row, unit.bias + shift, [fmpq(1)])
        net = made.network()
        prover = Prover(net, domain, known_signs(net, domain), 1, at, -1)
        tree = prover.tree()
        assert (tree is not None) == dead
        if tree is not None:
            claim = SignProof(0, 1, at, (), -1, tuple(tree))
            assert checked_signs((net, net), domain, [claim]) == ({(1, at, ()): -1}, {})
            wrong = claim._replace(sign=1)
            assert checked_signs((net, net), domain, [wrong]) is None
        else:
            assert prover.refuted is not None
            assert pre_activation(net, 1, at, prover.refuted) > 0


@pytest.mark.parametrize("number", range(60))
def test_what_is_proved_holds_on_every_cell_and_at_every_input(number):
    """The slow twin: with the unit, and without it, the network is the same on all joint cells."""
    rng = random.Random(f"twin {number}")
    net = random_network(
        (2, rng.randint(2, 4), rng.randint(2, 3), 2, 1), rng, integers=number % 2 == 0
    )
    domain = Everywhere(2)
    found = image_signs(net, net, domain)
    assert checked_signs((net, net), domain, found.proofs) is not None
    for proof in found.proofs:
        for _ in range(60):
            size = 10 ** rng.uniform(-2, 3)
            x = [fmpq(round(rng.gauss(0, size) * 1000), 1000) for _ in range(2)]
            p = pre_activation(net, proof.layer, proof.unit, x, proof.without)
            assert p * proof.sign >= 0
        if proof.sign == -1 and not proof.without:
            other = undecided.Draft(
                [[list(r) for r in part.weight.tolist()] for part in net.exact],
                [list(part.bias) for part in net.exact],
            )
            for row in other.rows[proof.layer + 1]:
                row[proof.unit] = fmpq(0)
            start = frame(net, other.network(), domain)
            assert start is not None
            try:
                tree = Enumeration(net, other.network(), domain, start).run(20_000)
            except CellBudget:
                continue
            assert tree.witness is None


@pytest.mark.parametrize("name", ["dead", "linear", "alive", "moved", "perturbed"])
def test_verdicts_on_the_classes_of_the_benchmark_are_true(name):
    told = undecided.measure(name, 20, 11, 30.0, 4.0)
    assert not told["wrong"] and not told["undecided"], told
    if name in ("dead", "linear"):
        assert told["methods"]["absolute-value with signs"] > 10
    if name == "alive":
        assert told["methods"]["signs of later units"] > 10


def test_a_unit_is_unbent_where_only_a_proof_shows_the_rest_negative():
    """relu(3s - 2h - k - 1) with s = relu(z) may read z; so may the same in sums of h and k."""
    first = ([[1, 0, 2], [0, 1, 1], [1, -2, 0]], [0, 1, 0])
    mixed = [1, -1, 2]
    a = [first, ([[1, 0, 0], [0, 1, 0], mixed], [0, 0, -1]), ([[-2, -1, 3]], [-1]), ([[1]], [0])]
    b = [first, ([[1, 1, 0], [1, 2, 0], mixed], [0, 0, -1]), ([[-3, 1, 3]], [-1]), ([[1]], [0])]
    f, g = relu.as_network(a), relu.as_network(b)
    domain = Everywhere(3)
    forms = absolute_forms(f, g, domain)
    assert not forms.equal  # in b the weights do not show it
    verdict = relu.decide(f, g)
    assert verdict.method == "absolute-value with signs" and relu.verify(verdict, f, g)
    assert verdict.certificate is not None
    data = verdict.certificate.data
    assert any(proof.without == (2,) for proof in data["signs"])
    plain = [proof for proof in data["signs"] if not proof.without]
    assert not check_absolute_with_signs(f, g, domain, {**data, "signs": plain})


# ------------------------------------------------------------------ domains


@pytest.mark.parametrize("spec", [(-1, 2), {"ball": 2}, "orthant", None], ids=str)
def test_signs_hold_on_the_domain_that_is_asked_about(spec):
    """y_1 + y_2 - 1 on the unit box of its image is bounded, elsewhere not."""
    rng = random.Random(4)
    settled = 0
    for _ in range(12):
        net = random_network((2, 4, 3, 1), rng)
        domain = as_domain(spec, 2)
        found = image_signs(net, net, domain)
        assert checked_signs((net, net), domain, found.proofs) is not None
        settled += len(found.proofs)
        for proof in found.proofs:
            for _ in range(40):
                x = [fmpq(*v.as_integer_ratio()) for v in domain.draw(rng)]
                p = pre_activation(net, proof.layer, proof.unit, x, proof.without)
                assert p * proof.sign >= 0
        for x in found.inputs:
            assert domain.contains(x)
    assert settled


# ------------------------------------------------------------------ forgeries


def held(rng):
    """A pair with a proof of several cases, its certificate, and the same pair 1e-9 apart."""
    while True:
        draft = undecided.Draft.random((3, 2, 2, 1), rng)
        unit = undecided.spanned(draft, 0, rng, fmpq(0))
        near = draft.copy()
        draft_b = draft.copy()
        draft.add(1, unit.row, unit.bias, [fmpq(1)])
        near.add(1, unit.row, unit.bias + fmpq(1, 10**9), [fmpq(1)])
        a, b = draft.network(), draft_b.network()
        verdict = relu.decide(a, b)
        if verdict.method == "absolute-value with signs":
            assert verdict.certificate is not None
            return a, b, near.network(), verdict.certificate.data


@pytest.mark.parametrize("seed", range(8))
def test_proofs_of_one_unit_prove_nothing_about_its_neighbour(seed):
    rng = random.Random(seed)
    a, b, near, data = held(rng)
    domain = Everywhere(3)
    assert check_absolute_with_signs(a, b, domain, data)
    assert not check_absolute_with_signs(near, b, domain, data)
    assert not check_absolute_with_signs(a, b, domain, {**data, "signs": []})
    for index, proof in enumerate(data["signs"]):
        for _ in range(40):
            forged = tampered(proof, rng)
            signs = [*data["signs"][:index], forged, *data["signs"][index + 1 :]]
            # Never a proof for the neighbour; for the pair itself a weaker tree may still be one.
            assert not check_absolute_with_signs(near, b, domain, {**data, "signs": signs})
            shown = checked_signs((a, b), domain, [forged])
            if shown is not None:
                net = (a, b)[forged.network]
                for _ in range(20):
                    x = [fmpq(rng.randint(-900, 900), 100) for _ in range(3)]
                    p = pre_activation(net, forged.layer, forged.unit, x, forged.without)
                    assert p * forged.sign >= 0


def tampered(proof, rng):
    """A proof with one change: of a slope, a goal, a case, or of the claim."""
    tree = list(proof.tree)
    at = rng.randrange(len(tree))
    step = tree[at]
    how = rng.randrange(6)
    if how == 0:
        return proof._replace(
            unit=proof.unit + rng.choice([-1, 1, 7]) if rng.random() < 0.5 else proof.unit,
            layer=rng.choice([0, 1, 2, 9]),
        )
    if how == 1:
        return proof._replace(sign=-proof.sign, network=rng.choice([0, 1, 2]))
    if how == 2:
        return proof._replace(without=tuple(sorted(rng.sample(range(9), rng.randint(1, 2)))))
    if how == 3:
        tree[at : at + 1] = rng.choice([[], [step, step], [Split(0, rng.randrange(9))]])
    elif isinstance(step, Leaf) and any(step.slopes):
        slopes = [list(layer) for layer in step.slopes]
        layer = rng.choice([layer for layer in slopes if layer])
        k = rng.randrange(len(layer))
        unit, slope = layer[k]
        change = rng.choice([slope * 2, -slope, slope + fmpq(1, 10**12), fmpq(0)])
        layer[k] = (rng.choice([unit, unit, unit + 1]), change)
        goal = rng.choice([step.goal, 1 - step.goal, 2])
        tree[at] = Leaf(goal, tuple(tuple(layer) for layer in slopes))
    else:
        tree[at] = Split(rng.choice([0, 1, -1]), rng.randrange(-1, 9))
    return proof._replace(tree=tuple(tree))


def test_a_case_that_is_left_out_or_split_twice_is_no_proof():
    table = [[1, 1], [1, 0], [0, 1]]
    net = relu.as_network([(table, [0, 0, 0]), ([[1, -1, -1]], [0]), ([[5]], [2])])
    domain = Everywhere(2)
    one, zero = fmpq(1), fmpq(0)
    active = Leaf(1, (((0, one), (1, -one), (2, -one)),))
    inactive = Leaf(1, ((),))
    good = SignProof(0, 1, 0, (), -1, (Split(0, 0), active, inactive))

    def shown(*tree, **fields):
        proof = good._replace(tree=tree or good.tree, **fields)
        return checked_signs((net, net), domain, [proof]) is not None

    assert shown()
    assert not shown(active) and not shown(inactive) and not shown(Split(0, 0), active)
    assert not shown(Split(0, 0), inactive, active)
    assert not shown(Split(0, 0), active, inactive, inactive)
    assert not shown(Split(0, 0), Split(0, 0), active, active, inactive)
    assert not shown(Split(0, 1), active, inactive) and not shown(Split(0, 3), active, inactive)
    assert not shown(Split(0, 0), active._replace(goal=0), inactive)
    assert not shown(Split(0, 0), Leaf(1, (((0, one), (1, -one), (2, zero)),)), inactive)
    assert not shown(sign=1) and not shown(layer=0) and not shown(unit=1) and not shown(network=2)
    assert not shown(without=(1,)) and not shown(without=(5,)) and shown(without=(0,))
