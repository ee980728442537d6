"""Forged and truncated certificates are rejected, never raised on; what passes is still true."""

import ast
import dataclasses
import json
import math
import random
from fractions import Fraction
from itertools import product
from pathlib import Path

import forgeries
import numpy as np
import pytest
from flint import fmpq

from paramsym import relu
from paramsym.relu.documents import document, parse
from paramsym.relu.rationals import nearest_float
from paramsym.relu.spans import Span

SOURCE = Path(relu.__file__).parent


@pytest.fixture(scope="module")
def held():
    return {case.name: case for case in forgeries.cases()}


def test_three_hundred_forgeries_raise_nothing_and_prove_nothing_false(tmp_path):
    tally = forgeries.campaign(300, 9, tmp_path)
    assert sum(tally.values()) == 300 and tally["unreadable"] + tally["not proved"] > 150


def test_every_kind_of_certificate_is_forged(held):
    kinds = {c.verdict.certificate.kind for c in held.values() if c.verdict.certificate}
    assert kinds == {
        "canonical",
        "absolute-value",
        "absolute-value with signs",
        "cells",
        "cell bounds",
        "bound",
    }
    assert {str(c.verdict.kind) for c in held.values()} == {
        "EQUAL", "EQUAL_TO_PRECISION", "DIFFERENT",
    }  # fmt: skip


def test_verdicts_come_back_from_their_files(held, tmp_path):
    for number, case in enumerate(held.values()):
        file = tmp_path / f"{number}.json"
        relu.write_verdict(case.verdict, file)
        again = relu.read_verdict(file)
        assert document(again) == document(case.verdict)
        assert relu.verify(again, case.a, case.b)


@pytest.mark.parametrize("name", ["bound", "bound on a box", "cell bounds", "storage"])
def test_an_upper_bound_that_is_not_proved_does_not_verify(held, name):
    case = held[name]
    bounds = case.verdict.bounds
    for changed in (
        bounds._replace(upper=0.0),
        bounds._replace(upper=bounds.upper * 0.99),
        bounds._replace(offset=0.0, slope=0.0),
        bounds._replace(radius=bounds.radius * 2),
        bounds._replace(lower=bounds.upper),
        bounds._replace(upper=math.nan),
    ):
        forged = dataclasses.replace(case.verdict, bounds=changed)
        assert not relu.verify(forged, case.a, case.b), changed
    wider = dataclasses.replace(case.verdict, bounds=bounds._replace(upper=bounds.upper * 1.01))
    assert relu.verify(wider, case.a, case.b)  # weaker, still true


def test_a_larger_radius_does_not_make_different_networks_equal():
    """Rounding weights moves outputs the more the larger the inputs are: at |x| = 1e18 by more than
    the difference of f and f + 1, which is no reason to call the two equal on all of R^2."""
    rows = np.random.default_rng(0).normal(size=(4, 2))
    layers = [(rows, np.ones(4)), (np.ones((1, 4)), np.zeros(1))]
    f = relu.as_network(layers)
    g = relu.as_network([layers[0], (np.ones((1, 4)), np.ones(1))])
    verdict = relu.decide(f, f, mode="float")
    assert verdict.kind == "EQUAL" and relu.verify(verdict, f, f)
    for radius, upper in ((1e18, 1e5), (1e300, 1e290), (1e-300, 1.1)):
        bounds = relu.Bounds(0.0, upper, radius)
        for pair in ((f, g), (f, f)):
            assert not relu.verify(verdict.having(bounds=bounds), *pair)


def test_a_claim_is_made_of_what_was_checked():
    """Of a text anybody can say anything: domain and tolerance are stated, the reason is not."""
    f = relu.as_network([([[1, 0]], [0]), ([[1]], [0])])
    g = relu.as_network([([[1, 0]], [0]), ([[2]], [-1])])
    verdict = relu.decide(f, g, mode="float", tolerance=5.0, domain=(0, 1))
    said = verdict.having(reason="f = g exactly on all of R^2")
    assert relu.verify(said, f, g)
    assert said.claim == verdict.claim and "R^2" not in said.claim
    assert "EQUAL up to the tolerance 5 on the box [0, 1]^2" in said.claim
    assert "exactly on R^2" in relu.decide(f, f).claim
    assert "x = (" in relu.decide(f, g).claim


@pytest.mark.parametrize("far", ["1e155", "1e200", "1e300"])
def test_boxes_whose_squares_have_no_float_are_decided(far):
    f = relu.as_network([([[1.0, -1.0]], [0.0]), ([[1.0]], [0.0])])
    g = relu.as_network([([[1.0, -1.0]], [0.0]), ([[2.0]], [0.0])])
    for mode in ("float", "exact"):
        assert relu.decide(f, g, mode=mode, domain=("-" + far, far)).kind == "DIFFERENT"
        assert relu.decide(f, f, mode=mode, domain=("-" + far, far)).kind in ("EQUAL", "UNDECIDED")


def test_a_bound_does_not_make_different_networks_equal(held):
    """The proved bound on a pair that differs is a true bound; that it is small enough is not."""
    case = held["different in float32"]
    assert math.isfinite(case.verdict.bounds.upper)
    for kind in (relu.Kind.EQUAL, relu.Kind.EQUAL_TO_PRECISION):
        for precision in (None, case.verdict.bounds.upper):
            bounds = case.verdict.bounds._replace(precision=precision)
            forged = dataclasses.replace(
                case.verdict, kind=kind, witness=None, values=None, bounds=bounds
            )
            assert not relu.verify(forged, case.a, case.b)
    unclaimed = dataclasses.replace(case.verdict, kind=relu.Kind.UNDECIDED)
    assert relu.verify(unclaimed, case.a, case.b)


def test_storage_is_not_exact_equality_and_rounding_is_no_difference(held):
    case = held["storage"]
    assert not relu.verify(dataclasses.replace(case.verdict, kind=relu.Kind.EQUAL), case.a, case.b)
    x = (Fraction(1),) * case.a.input_dim
    assert case.a(x) != case.b(x)  # exactly different there, but within rounding
    forged = dataclasses.replace(
        case.verdict, kind=relu.Kind.DIFFERENT, certificate=None, witness=x, values=None,
        bounds=relu.Bounds(0.0, math.inf),
    )  # fmt: skip
    assert not relu.verify(forged, case.a, case.b)
    assert relu.verify(dataclasses.replace(forged, mode="exact"), case.a, case.b)


@pytest.mark.parametrize(
    "field, value",
    [
        ("certificate", 7), ("certificate", None), ("domain", "R^3"), ("bounds", (0, 1)),
        ("witness", "abc"), ("kind", "EQUAL"), ("mode", 3), ("tried", None),
        ("certificate", relu.Certificate("bound", "", object())),
        ("certificate", relu.Certificate("bound", "", {"atoms": np.ones(3), "logs": 1})),
        ("certificate", relu.Certificate("cells", "", [1, [2, [3]]])),
        ("certificate", relu.Certificate("nothing", "", None)),
    ],
)  # fmt: skip
def test_malformed_verdicts_in_memory_are_not_proved(held, field, value):
    case = held["bound"]
    forged = dataclasses.replace(case.verdict, **{field: value})
    proved = relu.verify(forged, case.a, case.b)
    assert proved is (field == "kind")  # the name of a kind is the kind


def test_what_is_not_a_verdict_is_refused_in_four_parts(tmp_path):
    file = tmp_path / "verdict.json"
    good = document(forgeries.cases()[0].verdict)
    nested = "[" * 100_000 + "]" * 100_000
    huge = json.dumps({**good, "domain": {"box": [["0", "0"], ["1e100000000", "1"]]}})
    for text in ("", "{", "7", nested, json.dumps({**good, "format": "other"}), huge,
                 '{"upper": NaN}', "1" * 10_000):  # fmt: skip
        file.write_text(text, encoding="utf-8")
        with pytest.raises(relu.ReLUError, match="got .*; expected "):
            relu.read_verdict(file)
    with pytest.raises(relu.ReLUError, match="no file"):
        relu.read_verdict(tmp_path / "none.json")
    assert parse(good).kind == "EQUAL"


# ------------------------------------------------------------------ independence

FINDERS = {
    "absolute", "absolute_atoms", "bounded", "float_atoms", "float_groups", "cells", "cell_bounds",
    "shallow", "witness", "lines", "image_signs", "sign_search", "simplex", "milp", "sampling",
    "run", "deciding", "exact_steps", "float_steps", "float_ladder", "cell_steps", "clock",
}  # fmt: skip
SHARED = {
    "arithmetic", "clock", "documents", "domains", "errors", "formats", "logs", "network",
    "precision",
    "rationals", "reading", "verdict",
}  # fmt: skip
CHECKERS = {
    "verification", "absolute_check", "bounded_check", "layer_check", "cell_check", "exact_check",
    "nominal_check", "sign_check", "spans",
}  # fmt: skip


def imported(module: str) -> set[str]:
    """The modules of this package that a module imports, anywhere in it."""
    tree = ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    return {n.removeprefix("paramsym.relu.") for n in names if n.startswith("paramsym.relu.")}


def test_checkers_share_only_what_the_notes_list():
    reached, waiting = set(), set(CHECKERS)
    while waiting:
        module = waiting.pop()
        reached.add(module)
        on_demand = {"modules", "onnx_graph"}  # what reads torch modules and ONNX files
        waiting |= imported(module) - reached - on_demand
    assert reached == CHECKERS | SHARED
    assert not (reached - {"clock"}) & FINDERS
    assert imported("deciding") & FINDERS  # the control: finders are seen
    text = (Path(__file__).parents[2] / "docs" / "findings-relu.md").read_text(encoding="utf-8")
    for module in SHARED:
        assert f"`{module}`" in text, module


@pytest.mark.parametrize(
    "domain",
    [relu.Box((-1, 0, 2), (3, 1, 5)), relu.Ball(3, 2), relu.Orthant(3), relu.Everywhere(3)],
    ids=str,
)
def test_ranges_of_affine_forms_contain_every_value_and_are_reached(domain):
    """The one computation that checkers share with the search, against random inputs."""
    rng = random.Random(0)
    for _ in range(60):
        normal = [fmpq(rng.randint(-3, 3)) for _ in range(3)]
        offset = fmpq(rng.randint(-9, 9), 2)
        lower, upper = domain.range(normal, offset)
        inputs = [[fmpq(*v.as_integer_ratio()) for v in domain.draw(rng)] for _ in range(40)]
        if isinstance(domain, relu.Box):
            inputs += [list(x) for x in product(*zip(domain.lower, domain.upper, strict=True))]
        values = [sum((n * v for n, v in zip(normal, x, strict=True)), offset) for x in inputs]
        assert lower is None or lower <= min(values)
        assert upper is None or upper >= max(values)
        if isinstance(domain, relu.Box):
            assert (lower, upper) == (min(values), max(values))
        side = domain.side(normal, offset)
        assert side <= 0 or min(values) >= 0
        assert side >= 0 or max(values) <= 0
        span = Span.of(domain)
        if span is not None:
            table = np.array([[nearest_float(v) for v in normal]])
            low, high = span.range(table, np.array([nearest_float(offset)]))
            assert low[0] <= nearest_float(fmpq(min(values))) + 1e-12
            assert high[0] >= nearest_float(fmpq(max(values))) - 1e-12
            if lower is not None and upper is not None:
                width = nearest_float(upper - lower)
                assert high[0] - low[0] <= width * (1 + 1e-9) + 1e-12
