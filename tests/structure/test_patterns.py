"""Names by pattern: what is printed can be typed, and what matches nothing is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramsym.report.collapse import common
from paramsym.structure.patterns import UnknownName, matching, split_patterns

NAMES = [f"h.{n}.{part}" for n in range(13) for part in ("mlp", "attn.head", "attn.qk")]
NAMES += ["residual", "shift:h.0.bias~2", "x[1]"]


def found(*patterns: str) -> set[str]:
    return matching(patterns, NAMES, "here")


def test_ranges_lists_and_globs() -> None:
    assert found("h.{0..11}.mlp") == {f"h.{n}.mlp" for n in range(12)}
    assert found("h.{3..11..4}.mlp") == {"h.3.mlp", "h.7.mlp", "h.11.mlp"}
    assert found("h.{0,1}.attn.*") == {
        "h.0.attn.head", "h.0.attn.qk", "h.1.attn.head", "h.1.attn.qk",
    }  # fmt: skip
    assert found("h.{0..2,12}.{mlp,attn.qk}") == {
        f"h.{n}.{part}" for n in (0, 1, 2, 12) for part in ("mlp", "attn.qk")
    }
    assert found("*.attn.head") == {f"h.{n}.attn.head" for n in range(13)}
    assert found("h.?.mlp") == {f"h.{n}.mlp" for n in range(10)}
    assert found("residual", "h.4.mlp") == {"residual", "h.4.mlp"}
    assert matching("residual", NAMES, "here") == {"residual"}  # one text is one pattern
    assert found() == set()


def test_a_pattern_matches_whole_names_and_dots_are_dots() -> None:
    assert found("h.1.mlp") == {"h.1.mlp"} and found("h.1{,0}.mlp") == {"h.1.mlp", "h.10.mlp"}
    with pytest.raises(UnknownName):
        found("mlp")
    with pytest.raises(UnknownName):
        found("h?1?ml")
    assert found("x[1]") == found("x[?]") == {"x[1]"}  # no sets of characters
    assert found("shift:*") == {"shift:h.0.bias~2"}


def test_what_matches_nothing_lists_near_names_as_they_are_printed() -> None:
    with pytest.raises(UnknownName) as error:
        found("residual", "h.{0..11}.atn.head")
    text = str(error.value)
    assert "here: 'h.{0..11}.atn.head' matches no space and no shift" in text
    assert "h.{0..12}.attn.head" in text and "print(symmetry)" in text
    assert "x[1]" not in error.value.near  # near ones, not all
    with pytest.raises(KeyError, match="nothing moves"):
        matching("a", [], "here")
    with pytest.raises(KeyError, match="residual"):  # none is near: the first ones
        matching("zzzzzz", ["residual"], "here")


@given(st.sets(st.integers(0, 30), min_size=1))
def test_what_a_report_prints_for_some_layers_means_these_layers(layers: set[int]) -> None:
    names = [f"h.{n}.mlp" for n in range(31)]
    wanted = [f"h.{n}.mlp" for n in sorted(layers)]
    assert matching(common(wanted), names, "here") == set(wanted)


def test_commas_in_braces_part_no_patterns() -> None:
    assert split_patterns("residual,h.{0,1}.mlp,*.head") == ["residual", "h.{0,1}.mlp", "*.head"]
    assert split_patterns("a") == ["a"]
