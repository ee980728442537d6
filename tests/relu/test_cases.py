"""The exact pairs of relu-cases.json, in both modes, and their serialisations."""

import json
from pathlib import Path

import pytest

from paramsym import relu

CASES = json.loads((Path(__file__).parent / "relu-cases.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("mode", ["exact", "float"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_verdict_is_the_expected_one_and_verifies(case, mode):
    verdict = relu.decide(case["theta"], case["eta"], mode=mode)
    assert verdict.kind == case["expected"]
    assert relu.verify(verdict, case["theta"], case["eta"])
    assert verdict.reason
    if verdict.kind is relu.Kind.DIFFERENT:
        assert verdict.witness is not None
        f, g = (relu.as_network(case[k]) for k in ("theta", "eta"))
        assert f(verdict.witness) != g(verdict.witness)
    else:
        assert verdict.certificate is not None


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_verdict_is_symmetric(case):
    assert relu.decide(case["eta"], case["theta"]).kind == case["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_recorded_witnesses_are_witnesses(case):
    if case["witness"] is not None:
        f, g = (relu.as_network(case[k]) for k in ("theta", "eta"))
        assert f(case["witness"]) != g(case["witness"])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_json_round_trip(case):
    net = relu.as_network(case["theta"])
    assert relu.as_network(net.to_json()) == net
    assert relu.as_network(list(net)) == net


def test_verdict_of_another_pair_does_not_verify():
    equal = next(c for c in CASES if c["id"] == "t3-translate-inside")
    other = next(c for c in CASES if c["id"] == "t3-translate-visible")
    verdict = relu.decide(equal["theta"], equal["eta"])
    assert not relu.verify(verdict, other["theta"], other["eta"])
    different = relu.decide(other["theta"], other["eta"])
    assert not relu.verify(different, other["theta"], other["theta"])
