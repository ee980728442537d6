"""The polar split: every element is a compact one after a positive one, in every group."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.algebra import (
    Element,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    Scaling,
    Trivial,
    Wreath,
)
from tests.instances import GROUPS, groups_on

DOUBLE = torch.float64


@st.composite
def elements(draw: st.DrawFn) -> tuple[Group, Element, tuple[int, ...]]:
    """Any group, also nested wreath products, and a batch of elements of any strength."""
    choice = st.sampled_from(GROUPS) | st.sampled_from(groups_on(4, depth=2))
    group, batch = draw(choice), draw(st.sampled_from([(), (2,), (2, 3)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    strength = draw(st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    return group, group.sample(generator, strength, batch, DOUBLE), batch


def matrix(group: Group, g: Element, batch: tuple[int, ...] = ()) -> Tensor:
    return group.matrix(g, DOUBLE).expand(*batch, group.size, group.size)


def close(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() <= 1e-10 * (1 + b.abs().amax())).all())


@settings(deadline=None)
@given(elements())
def test_an_element_is_its_compact_part_after_its_positive_part(drawn) -> None:
    group, g, batch = drawn
    compact, positive = group.polar(g)
    product = matrix(group, group.compose(compact, positive), batch)
    assert close(product, matrix(group, g, batch))
    assert group.contains(compact) and group.contains(positive)


@settings(deadline=None)
@given(elements())
def test_one_part_is_orthogonal_and_the_other_positive(drawn) -> None:
    group, g, batch = drawn
    compact, positive = group.polar(g)
    k, p, whole = (matrix(group, part, batch) for part in (compact, positive, g))
    assert close(k @ k.mT, torch.eye(group.size, dtype=DOUBLE).expand_as(k))
    assert close(p, p.mT) and (torch.linalg.eigvalsh(p) > 0).all()
    assert close(p @ p, whole.mT @ whole)
    assert (group & Orthogonal(group.size)).contains_matrix(k, 1e-10)


@settings(deadline=None)
@given(elements())
def test_each_part_is_split_into_itself_and_the_identity(drawn) -> None:
    group, g, batch = drawn
    eye = torch.eye(group.size, dtype=DOUBLE).expand(*batch, group.size, group.size)
    compact, positive = group.polar(g)
    for part, expected in ((compact, (compact, None)), (positive, (None, positive))):
        for found, wanted in zip(group.polar(part), expected, strict=True):
            target = eye if wanted is None else matrix(group, wanted, batch)
            assert close(matrix(group, found, batch), target)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_what_is_not_compact_has_a_positive_part(group: Group) -> None:
    """The dimension beyond the rotations is that of the positive parts: none for compact groups."""
    rotations = group & Orthogonal(group.size)
    g = group.sample(torch.Generator().manual_seed(0), dtype=DOUBLE)
    positive = matrix(group, group.polar(g)[1])
    still = close(positive, torch.eye(group.size, dtype=DOUBLE))
    assert still == (group.dimension == rotations.dimension)


@pytest.mark.parametrize("group", [Monomial(6), GeneralLinear(3), Wreath(Scaling(2), 3)], ids=str)
def test_the_other_order_is_another_element(group: Group) -> None:
    """The negative control: the positive part acts first."""
    g = group.sample(torch.Generator().manual_seed(4), dtype=DOUBLE)
    compact, positive = group.polar(g)
    assert not close(matrix(group, group.compose(positive, compact)), matrix(group, g))


def test_an_element_without_parts_is_split_into_identities() -> None:
    for group in (Trivial(3), Scaling(4), GeneralLinear(2), Wreath(GeneralLinear(2), 2)):
        for part in group.polar(Element()):
            assert torch.equal(matrix(group, part), torch.eye(group.size, dtype=DOUBLE))
