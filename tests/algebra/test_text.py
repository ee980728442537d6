"""Groups as values and as text, and the wording of what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramsym.algebra import (
    ComplexScaling,
    Element,
    GeneralLinear,
    Group,
    Monomial,
    Permutation,
    Trivial,
    Wreath,
    parse_group,
)
from tests.instances import GROUPS, plain_groups


@st.composite
def groups(draw: st.DrawFn) -> Group:
    group = draw(st.sampled_from(plain_groups(draw(st.integers(1, 40)))))
    for _ in range(draw(st.integers(0, 3))):
        group = Wreath(group, draw(st.integers(1, 12)))
    return group


@given(groups())
def test_what_prints_parses_back(group: Group):
    assert parse_group(str(group)) == group
    assert parse_group(f"  {str(group).replace(', ', ' ,  ')} ") == group
    assert hash(parse_group(repr(group))) == hash(group)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (Permutation(5), "Permutation(5)"),
        (Monomial(5), "Monomial(5)"),
        (Monomial(5, signed=True), "Monomial(5, signed)"),
        (Wreath(GeneralLinear(4), 3), "Wreath(GeneralLinear(4), 3)"),
        (Wreath(Wreath(Monomial(2, True), 2), 3), "Wreath(Wreath(Monomial(2, signed), 2), 3)"),
    ],
)
def test_the_spelling(group: Group, text: str):
    assert str(group) == text


def test_groups_are_values():
    assert len(set(GROUPS)) == len(GROUPS)
    assert Monomial(3) != Monomial(3, signed=True)
    assert Permutation(3) != Trivial(3)
    with pytest.raises(AttributeError):
        Permutation(3).size = 4  # pyright: ignore


@pytest.mark.parametrize(
    "text",
    ["", "Permutation", "Permutation()", "Rotation(3)", "Permutation(3, signed)", "Wreath(3, 2)"],
)
def test_other_text_is_refused(text: str):
    with pytest.raises(ValueError, match=r"expected one of Trivial, .*'Permutation\(5\)'"):
        parse_group(text)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "3"])
def test_sizes_are_whole_and_positive(size):
    for make in (Permutation, GeneralLinear, ComplexScaling, lambda n: Wreath(Trivial(2), n)):
        with pytest.raises(ValueError, match="expected a whole number of coordinates, 1 or more"):
            make(size)


def test_complex_scalings_need_pairs():
    with pytest.raises(ValueError, match=r"ComplexScaling\(3\): expected an even size"):
        ComplexScaling(3)


def test_a_wreath_product_needs_a_group():
    with pytest.raises(ValueError, match=r"as in Wreath\(GeneralLinear\(4\), 3\)"):
        Wreath(3, Permutation(2))  # pyright: ignore


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_wrong_length_is_named(group: Group, generator):
    g = group.sample(generator)
    for x, axis in ((torch.ones(2, group.size + 1), 1), (torch.ones(group.size), 1)):
        with pytest.raises(ValueError, match=f"acts on {group.size} coordinates") as error:
            group.apply(g, x, axis)
        assert str(group) in str(error.value) and str(tuple(x.shape)) in str(error.value)


def test_the_batch_is_no_axis():
    orders = Permutation(3).identity((3,))
    with pytest.raises(ValueError, match="axis 0 .* batch of the acting elements"):
        Permutation(3).apply(orders, torch.ones(3, 3), 0)
    assert Permutation(3).apply(Element(), torch.ones(3, 3), 0).shape == (3, 3)
