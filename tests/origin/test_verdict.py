"""The rule by itself: what it says of counts and distances."""

from __future__ import annotations

import pytest

from paramsym.origin.comparison import ComparedUnits, Kind, Null
from paramsym.origin.partners import Partners
from paramsym.origin.verdict import CHANCE, MOST, NUMBERS, Measured, _units, _verdict

CASES = {
    # clear, count, base, distance, nearest independent checkpoint: verdict
    "all": (32, 32, 0.25, 0.3, None, Kind.DERIVED),
    "all, at any distance": (32, 32, 0.25, 0.9, None, Kind.DERIVED),
    "half of many": (256, 512, 0.25, 0.5, None, Kind.DERIVED),
    "half of few": (6, 12, 0.25, 0.5, None, Kind.UNDECIDED),
    "less than half": (250, 512, 0.25, 0.5, None, Kind.UNDECIDED),
    "as unrelated ones": (8, 32, 0.25, 0.6, None, Kind.UNRELATED),
    "as unrelated ones, but near": (8, 32, 0.25, 0.2, None, Kind.UNDECIDED),
    "as independent checkpoints": (28, 32, 0.9, 0.6, 0.5, Kind.UNDECIDED),
    "more than these, and near": (32, 32, 0.7, 0.1, 0.5, Kind.UNDECIDED),
    "too few, alone": (6, 6, 0.25, 0.0, None, Kind.UNDECIDED),
    "too few, and nearer than a stranger": (6, 6, 0.25, 0.2, 0.5, Kind.DERIVED),
    "too few, and no nearer": (6, 6, 0.25, 0.5, 0.5, Kind.UNRELATED),
    "too few, and between": (6, 6, 0.25, 0.4, 0.5, Kind.UNDECIDED),
}


@pytest.mark.parametrize("case", CASES)
def test_counts_and_distances_say(case: str) -> None:
    clear, count, base, distance, given, kind = CASES[case]
    own = Partners(count, clear, NUMBERS)
    decides = base < MOST and base**count < CHANCE
    evidence = {("mlp", ""): ComparedUnits(count, clear, base, own.chance(base), decides)}
    found, reason = _verdict(evidence, distance, Null((0.7, 0.75)), given)
    assert found is kind, reason


def test_one_tensor_is_enough_and_many_looks_cost() -> None:
    def cell(clear: int) -> ComparedUnits:
        own = Partners(10, clear, 20)
        return ComparedUnits(10, clear, 0.25, own.chance(0.25), True)

    null = Null((0.7,))
    two = {("mlp", ""): cell(0), ("mlp", "0.weight"): cell(10)}
    assert _verdict(two, 0.69, null, None)[0] is Kind.DERIVED
    many = two | {("mlp", str(k)): cell(0) for k in range(200)}
    assert _verdict(many, 0.69, null, None)[0] is Kind.UNDECIDED


def test_the_base_is_what_unrelated_pairs_show() -> None:
    class Aligned:
        distance = 0.7

    def pair(clear: int) -> Measured:
        return Measured(Aligned(), {("mlp", ""): Partners(10, clear, 20)})  # type: ignore[arg-type]

    own = Partners(10, 9, 20)
    assert _units(own, ("mlp", ""), [pair(1), pair(2)]).base == 0.25
    assert _units(own, ("mlp", ""), [pair(1), pair(6)]).base == 0.6
    assert not _units(Partners(10, 9, NUMBERS - 1), ("mlp", ""), [pair(1)]).decides
    assert not _units(own, ("mlp", ""), [pair(5)]).decides
    assert _units(own, ("mlp", ""), [pair(1)]).decides
