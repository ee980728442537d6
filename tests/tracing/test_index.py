"""Index types: refinement, unification, and giving up where readings contradict each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.primitives import index as ix


def entries(node: ix.Node) -> list[tuple[tuple[int, int], ...]]:
    """For every position of an axis, the (leaf, unit) pairs that it belongs to."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for offset, leaves in ix.blocks(node):
        here: list[tuple[int, tuple[tuple[int, int], ...]]] = [(offset, ())]
        for leaf, stride, _ in leaves:
            here = [
                (at + k * stride, (*units, (leaf.serial, k)))
                for at, units in here
                for k in range(leaf.size)
            ]
        for at, units in here:
            assert found.setdefault(at, units) is units  # no position twice
    return [found[at] for at in range(ix.resolve(node).size)]


def test_a_leaf_is_refined_for_everybody_who_shares_it() -> None:
    node = ix.leaf(12)
    other = node
    heads, dims = ix.split_product(node, [3, 4], "")
    assert [n.size for n in ix.factors(other)] == [3, 4]
    assert ix.factors(other)[0] is ix.resolve(heads) and ix.factors(other)[1] is ix.resolve(dims)


def test_a_second_reading_refines_the_first() -> None:
    node = ix.leaf(24)
    ix.split_product(node, [4, 6], "")
    a, b = ix.split_product(node, [8, 3], "")
    assert [n.size for n in ix.factors(node)] == [4, 2, 3]
    assert [n.size for n in ix.factors(a)] == [4, 2] and b.size == 3
    assert not any(leaf.frozen for leaf in ix.leaves(node))


def test_readings_that_cut_across_each_other_freeze() -> None:
    node = ix.leaf(12)
    ix.split_product(node, [4, 3], "")
    pieces = ix.split_product(node, [3, 4], "they cross")
    assert all(leaf.frozen == "they cross" for leaf in ix.leaves(node))
    assert all(leaf.frozen for piece in pieces for leaf in ix.leaves(piece))


def test_pieces_that_cut_through_units_freeze() -> None:
    node = ix.leaf(12)
    ix.split_product(node, [4, 3], "")
    ix.split_sum(node, [5, 7], "they cross")
    assert all(leaf.frozen for leaf in ix.leaves(node))
    other = ix.leaf(12)
    ix.split_product(other, [4, 3], "")
    pieces = ix.split_sum(other, [3, 9], "")
    assert [p.size for p in pieces] == [3, 9]
    assert not any(leaf.frozen for leaf in ix.leaves(other))


def test_a_sum_read_as_copies_ties_its_pieces_and_tells_the_copies_apart() -> None:
    node = ix.direct_sum([ix.leaf(4), ix.leaf(4)])
    outer, inner = ix.split_product(node, [2, 4], "")
    first, second = ix.terms(node)
    assert ix.resolve(first) is ix.resolve(second) is ix.resolve(inner)
    assert not list(ix.leaves(outer)) and not ix.resolve(inner).frozen
    assert ix.blocks(ix.product([outer, inner])) == ix.blocks(node)  # read as it was written


def test_single_units_do_not_count_as_copies() -> None:
    node = ix.direct_sum([ix.leaf(1), ix.leaf(5)])
    one, whole, last = ix.split_product(node, [1, 6, 1], "")
    assert one is ix.UNIT is last and [n.size for n in ix.terms(whole)] == [1, 5]


def test_unify_lets_two_axes_count_the_same_units() -> None:
    a, b = ix.leaf(6), ix.leaf(6)
    ix.split_product(a, [2, 3], "")
    ix.unify(a, b, "")
    assert ix.resolve(a) is ix.resolve(b)
    ix.freeze(b, "held")
    assert all(leaf.frozen == "held" for leaf in ix.leaves(a))


def test_a_frozen_leaf_freezes_what_it_is_unified_with() -> None:
    a, b = ix.leaf(6, frozen="held"), ix.leaf(6)
    ix.split_product(b, [2, 3], "")
    ix.unify(a, b, "")
    assert all(leaf.frozen == "held" for leaf in ix.leaves(b))


def test_an_axis_that_is_a_part_of_itself_is_frozen() -> None:
    a = ix.leaf(6)
    whole = ix.product([a, ix.leaf(1)])
    ix.unify(a, whole, "")  # of size one: nothing happens
    inner = ix.leaf(2)
    outer = ix.product([inner, ix.leaf(3)])
    bigger = ix.leaf(6)
    ix.unify(bigger, outer, "")
    assert not inner.frozen


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="different size"):
        ix.unify(ix.leaf(3), ix.leaf(4), "")


def test_the_first_reason_stays() -> None:
    node = ix.leaf(3)
    ix.freeze(node, "first")
    ix.freeze(node, "second")
    assert node.frozen == "first"


def test_blocks_know_where_they_start() -> None:
    node = ix.product([ix.leaf(2), ix.direct_sum([ix.leaf(3), ix.leaf(4)])])
    starts = [start for start, _ in ix.blocks(node)]
    assert starts == [0, 3]
    (_, first), (_, second) = ix.blocks(node)
    assert [stride for _, stride, _ in first] == [7, 1] == [stride for _, stride, _ in second]


@st.composite
def factorisations(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Readings of one axis as products."""
    primes = draw(st.lists(st.sampled_from([2, 3, 5]), min_size=1, max_size=4))
    size = math.prod(primes)
    readings = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(primes))
        cuts = sorted(draw(st.sets(st.integers(1, len(order)), max_size=len(order))))
        parts, last = [], 0
        for cut in [*cuts, len(order)]:
            if cut > last:
                parts.append(math.prod(order[last:cut]))
                last = cut
        readings.append(parts)
    return size, readings


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(factorisations())
def test_readings_keep_the_size_and_never_lose_an_entry(case: tuple[int, list[list[int]]]) -> None:
    size, readings = case
    node = ix.leaf(size)
    for parts in readings:
        pieces = ix.split_product(node, parts, "they cross")
        assert [piece.size for piece in pieces] == parts
    assert ix.resolve(node).size == size
    found = entries(node)
    assert len(found) == size == len(set(found))
    nested = all(_refines(a, b) for a in readings for b in readings)
    frozen = any(leaf.frozen for leaf in ix.leaves(node))
    assert frozen == (not nested) or (frozen and not nested) or not frozen


def _refines(a: list[int], b: list[int]) -> bool:
    """Whether the boundaries of two row-major readings form one chain of divisors."""

    def strides(parts: list[int]) -> set[int]:
        return {math.prod(parts[k:]) for k in range(len(parts) + 1)}

    chain = sorted(strides(a) | strides(b))
    return all(y % x == 0 for x, y in zip(chain, chain[1:], strict=False))


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_unified_sums_have_the_same_pieces(left: list[int], data: st.DataObject) -> None:
    size = sum(left)
    cuts = sorted(data.draw(st.sets(st.integers(1, size), max_size=3)) | {size})
    right = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    a, b = ix.leaf(size), ix.leaf(size)
    ix.split_sum(a, left, "")
    ix.split_sum(b, right, "")
    ix.unify(a, b, "")
    assert [ix.resolve(t) for t in ix.terms(a)] == [ix.resolve(t) for t in ix.terms(b)]
    assert entries(a) == entries(b)


class Twin:
    """The slow obvious way: every axis is a list of entries, and equal entries are merged."""

    def __init__(self) -> None:
        self.axes: list[tuple[ix.Node, list[int]]] = []
        self.parent: list[int] = []

    def fresh(self, node: ix.Node) -> None:
        first = len(self.parent)
        self.parent += range(first, first + node.size)
        self.axes.append((node, list(range(first, first + node.size))))

    def find(self, entry: int) -> int:
        while self.parent[entry] != entry:
            entry = self.parent[entry]
        return entry

    def merge(self, one: list[int], other: list[int]) -> None:
        for a, b in zip(one, other, strict=True):
            self.parent[self.find(a)] = self.find(b)


def _reread(twin: Twin, data: st.DataObject) -> None:
    """Read an axis as a product and transpose it, or as a sum and keep or repeat its pieces."""
    node, whole = data.draw(st.sampled_from(twin.axes))
    if data.draw(st.booleans()):
        outer = data.draw(st.sampled_from([d for d in range(1, node.size + 1)
                                           if node.size % d == 0]))  # fmt: skip
        inner = node.size // outer
        a, b = ix.split_product(node, [outer, inner], "they cross")
        turned = [whole[i * inner + j] for j in range(inner) for i in range(outer)]
        twin.axes.append((ix.product([b, a]), turned))
    elif node.size > 1:
        at = data.draw(st.integers(1, node.size - 1))
        a, b = ix.split_sum(node, [at, node.size - at], "they cross")
        twin.axes.append((a, whole[:at]))
        twin.axes.append((ix.direct_sum([b, a]), whole[at:] + whole[:at]))


def _unify(twin: Twin, data: st.DataObject) -> None:
    node, whole = data.draw(st.sampled_from(twin.axes))
    equal = [(other, entries) for other, entries in twin.axes if other.size == node.size]
    other, found = data.draw(st.sampled_from(equal))
    ix.unify(node, other, "they cross")
    twin.merge(whole, found)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_merged_entries_count_the_same_units_or_are_frozen(data: st.DataObject) -> None:
    """Whatever was read and unified: permuting free units permutes equal entries alike."""
    twin = Twin()
    for _ in range(data.draw(st.integers(2, 3))):
        twin.fresh(ix.leaf(data.draw(st.sampled_from([4, 6, 8, 12]))))
    for _ in range(data.draw(st.integers(2, 6))):
        data.draw(st.sampled_from([_reread, _reread, _unify]))(twin, data)
    units: dict[int, frozenset[tuple[int, int]]] = {}
    for node, whole in twin.axes:
        assert ix.resolve(node).size == len(whole)
        for entry, found in zip(whole, free_units(node), strict=True):
            assert units.setdefault(twin.find(entry), found) == found, twin.axes


def free_units(node: ix.Node) -> list[frozenset[tuple[int, int]]]:
    """For every position, the free units that it belongs to."""
    frozen = {leaf.serial for leaf in ix.leaves(node) if leaf.frozen}
    return [frozenset(u for u in units if u[0] not in frozen) for units in entries(node)]
