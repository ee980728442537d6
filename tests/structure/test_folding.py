"""Folding repeated layers loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.structure.folding import Repeat, filled, fold, unfold

WORD = st.sampled_from(["h", "mlp", "ln_1", "attn", "x2", "q-k", "{}", "0.5", "01", "", "a b", "é"])
PIECE = st.one_of(WORD, st.integers(0, 12).map(str))
TEXT = st.lists(PIECE, min_size=1, max_size=5).map(".".join)
RECORD = st.one_of(TEXT, st.lists(st.one_of(TEXT, st.integers(-3, 3), st.none()), max_size=3))


@st.composite
def layered(draw: st.DrawFn) -> list:
    """Records with stretches that repeat in a running number, among others that do not."""
    records: list = []
    for _ in range(draw(st.integers(0, 4))):
        records += draw(st.lists(RECORD, max_size=3))
        block = draw(st.lists(RECORD, min_size=1, max_size=3))
        start, count = draw(st.integers(0, 11)), draw(st.integers(1, 5))
        for number in range(start, start + count):
            records += [[f"h.{number}.w", record] for record in block]
    return records


@settings(max_examples=400, deadline=None)
@given(st.one_of(layered(), st.lists(RECORD, max_size=12)))
def test_unfolding_gives_the_records_back(records: list) -> None:
    assert unfold(fold(records)) == records


@given(st.integers(0, 20), st.integers(2, 9), st.integers(1, 4))
def test_layers_become_one_repeat(start: int, count: int, width: int) -> None:
    names = ["q", "k", "v", "out"][:width]
    records = [f"h.{n}.{name}" for n in range(start, start + count) for name in names]
    (only,) = fold(["wte", *records, "head"])[1:-1]
    assert only == Repeat(start, count, tuple(f"h.{{}}.{name}" for name in names))
    assert filled(only.records[0], only.range) == f"h.{{{start}..{start + count - 1}}}.q"


def test_only_what_agrees_is_folded() -> None:
    different = ["h.0.mlp 3", "h.1.mlp 3", "h.2.mlp 4", "h.4.mlp 4"]
    folded = fold(different)
    assert folded == [Repeat(0, 2, ("h.{}.mlp 3",)), "h.2.mlp 4", "h.4.mlp 4"]
    assert fold(["ln_1", "ln_2"]) == ["ln_1", "ln_2"]  # numbers in words are no layers
    assert fold([["h.0.a", ["h.0.b"]], ["h.1.a", ["h.1.b"]]]) == [
        Repeat(0, 2, (["h.{}.a", ["h.{}.b"]],))
    ]


def test_a_wrong_range_is_noticed() -> None:
    """The negative control: a repeat of another length is another list."""
    records = [f"h.{n}.w" for n in range(3)]
    (only,) = fold(records)
    assert unfold([Repeat(only.start, only.count + 1, only.records)]) != records


@pytest.mark.parametrize("count", [126])
def test_many_layers_fold_quickly(count: int) -> None:
    records = [f"layers.{n}.part_{k}.w" for n in range(count) for k in range(40)]
    assert len(fold(records)) == 1
