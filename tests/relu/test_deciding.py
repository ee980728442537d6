"""The ladder: three answers, the budget, the domains, what UNDECIDED reports, and a campaign."""

import random

import numpy as np
import pytest
from flint import fmpq
from networks import gaussian, perturbed, random_network, rounded, twin, type_a, type_b

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.domains import as_domain
from paramsym.relu.milp import maximise_on_box

FAMILIES = ["shallow", "degenerate", "type A", "type B", "bottleneck"]


def draw(family, rng):
    d, m = rng.randint(2, 4), rng.randint(1, 3)
    if family == "shallow":
        return random_network((d, rng.randint(1, 6), m), rng)
    if family == "degenerate":
        return moves.scramble(random_network((d, rng.randint(1, 4), m), rng, True), 3, rng)
    if family == "type A":
        return type_a((d, rng.randint(2, d), rng.randint(1, 5), m), rng)
    if family == "type B":
        return type_b((d, rng.randint(2, d), rng.randint(1, 3), m), rng)
    return random_network((d, rng.randint(2, d), rng.randint(1, 5), m), rng)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_wrong_verdict_and_no_undecided_on_random_pairs(family):
    undecided = 0
    for seed in range(60):
        rng = random.Random(f"{family} {seed}")
        a = draw(family, rng)
        b = moves.scramble(a, rng.randint(1, 5), rng)
        verdict = relu.decide(a, b)
        assert verdict.kind == "EQUAL" and relu.verify(verdict, a, b)
        near = relu.decide(rounded(a), rounded(b), mode="float")
        assert near.kind in ("EQUAL", "UNDECIDED")
        c = perturbed(b, fmpq(rng.choice([1, -1]), 10 ** rng.randint(2, 9)), rng)
        truth = relu.decide(a, c)
        assert truth.kind is not relu.Kind.UNDECIDED and relu.verify(truth, a, c)
        float_truth = relu.decide(rounded(a), rounded(c), mode="float")
        assert float_truth.kind in (truth.kind, relu.Kind.UNDECIDED)
        undecided += (near.kind == "UNDECIDED") + (float_truth.kind == "UNDECIDED")
    assert undecided <= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_campaign_of_ten_thousand_pairs(seed):
    for family in FAMILIES:
        for number in range(100):
            rng = random.Random(f"slow {seed} {family} {number}")
            a = draw(family, rng)
            b = moves.scramble(a, rng.randint(1, 6), rng)
            assert relu.decide(a, b).kind == "EQUAL"
            c = perturbed(b, fmpq(1, 10 ** rng.randint(2, 9)), rng)
            verdict = relu.decide(a, c)
            assert verdict.kind is not relu.Kind.UNDECIDED and relu.verify(verdict, a, c)


@pytest.mark.parametrize("size", [(8, 8, 6, 2), (12, 10, 8, 3), (25, 20, 12, 3)])
def test_larger_bottlenecks_are_decided_exactly(size):
    rng = random.Random(sum(size))
    a = random_network(size, rng)
    b = moves.scramble(a, 3, rng, moves.KEEPING_WIDTHS)
    assert relu.decide(a, b).kind == "EQUAL"
    for layer in range(3):
        c = perturbed(b, fmpq(1, 10**9), rng, layer)
        assert relu.decide(a, c).kind == "DIFFERENT"


def test_difference_in_a_tiny_polytope_is_found():
    """A bump of width 1e-3 far from the origin, on one network only."""
    c, w = "1000", "1/1000"
    base = [([[1, 0], [0, 1]], [0, 0]), ([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [0])]
    bump = [
        ([[1, 0], [0, 1], [1, 0], [-1, 0], [0, 1], [0, -1]],
         [0, 0, f"-{c}", c, f"-{c}", c]),
        ([[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, -1, -1, -1, -1]], [0, 0, w]),
        ([[1, 1, 1]], [0]),
    ]  # fmt: skip
    verdict = relu.decide(base, bump)
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, base, bump)


def test_undecided_says_what_was_tried_and_what_it_would_cost():
    rng = np.random.default_rng(0)
    a = gaussian((20, 30, 30, 30, 1), rng)
    b = twin(a, rng)  # exactly different by rounding only in the last bits, hard to certify
    lines = []
    verdict = relu.decide(a, a.to_sequential(), mode="exact", budget=5, progress=lines.append)
    assert verdict.kind == "EQUAL" and lines
    # An identity between bent hyperplanes that do not meet is beyond the normal form.
    hard = _hide(rng)
    verdict = relu.decide(*hard, budget=1.0)
    assert verdict.kind == "UNDECIDED"
    assert "Tried" in verdict.reason and "Joint cells" in verdict.reason
    assert relu.verify(verdict, *hard)
    assert relu.decide(a, b, mode="float", budget=5).kind == "EQUAL"


def _hide(rng, d=16, n=20):
    """Σ relu(|u| - 1) = Σ relu(u - 1) + relu(-u - 1): units that fire, whose kinks others cut."""
    u = rng.integers(-9, 10, (n, d))
    both = np.concatenate([u, -u]).tolist()
    table = np.concatenate([np.eye(n, dtype=int)] * 2, axis=1).tolist()
    a = [(both, [0] * (2 * n)), (table, [-1] * n), ([[1] * n], [0])]
    b = [(both, [-1] * (2 * n)), ([[1] * (2 * n)], [0])]
    return a, b


def test_estimate_is_reported_before_the_enumeration():
    a, b = _hide(np.random.default_rng(0), 2, 2)
    lines = []
    relu.decide(a, b, progress=lines.append)
    estimate = next(i for i, line in enumerate(lines) if "expected" in line)
    result = next(i for i, line in enumerate(lines) if "joint cells: equal" in line)
    assert estimate < result


def test_box_search_is_evidence_only():
    rng = random.Random(1)
    a = random_network((3, 4, 3, 1), rng)
    b = moves.scramble(a, 3, rng)
    box = relu.Box((-1, -1, -1), (1, 1, 1))
    evidence = maximise_on_box(a, b, box, 20.0)
    assert evidence.bound < 1e-4
    c = perturbed(b, fmpq(1, 10), rng, layer=2)
    other = maximise_on_box(a, c, box, 20.0)
    best = max(
        (abs(a.evaluate(x)[0] - c.evaluate(x)[0])
         for x in ([fmpq(*float(v).as_integer_ratio()) for v in p] for p in other.points)),
    )  # fmt: skip
    assert float(best.p) / float(best.q) == pytest.approx(other.bound, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("spec", [(-1, 1), {"ball": 1}, "orthant"])
def test_restricted_domains(seed, spec):
    rng = random.Random(seed)
    a = random_network((2, 3, 2, 1), rng)
    b = moves.scramble(a, 3, rng)
    verdict = relu.decide(a, b, domain=spec)
    assert verdict.kind == "EQUAL" and relu.verify(verdict, a, b)
    c = perturbed(b, fmpq(1, 100), rng)
    verdict = relu.decide(a, c, domain=spec, budget=3)
    assert relu.verify(verdict, a, c)
    if verdict.kind == "DIFFERENT":
        x = [fmpq(v.numerator, v.denominator) for v in verdict.witness or ()]
        assert as_domain(spec, 2).contains(x)
    if spec != {"ball": 1}:  # polyhedral domains of the plane are always settled
        assert verdict.kind is not relu.Kind.UNDECIDED


def test_equality_on_a_domain_only():
    a = [([[1, 0], [0, 1]], [5, 5]), ([[1, 1]], [-2]), ([[1]], [0])]
    b = [([[1, 1]], [8]), ([[1]], [0])]
    assert relu.decide(a, b, domain=(-1, 1)).kind == "EQUAL"
    assert relu.decide(a, b).kind == "DIFFERENT"


def test_verdict_reads_like_a_sentence_and_is_truthy_only_when_equal():
    a = [([[1]], [0]), ([[1]], [0])]
    same, other = relu.decide(a, a), relu.decide(a, [([[1]], [0]), ([[2]], [0])])
    assert same and not other
    assert str(same).startswith("EQUAL: ") and str(other).startswith("DIFFERENT: ")
    assert other.to_json()["witness"] == [str(v) for v in other.witness or ()]
