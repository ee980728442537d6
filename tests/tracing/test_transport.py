"""The labelled union–find agrees with a slow twin, and what is capped meets in the lattice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym import find_symmetry
from paramsym.tracing.transport import Transport
from tests.tracing.test_held import M, x

MEMBERS = 7
Affine = tuple[int, int]  # x ↦ a x + b modulo 7: a group that does not commute


def compose(outer: Affine, inner: Affine) -> Affine:
    return outer[0] * inner[0] % 7, (outer[0] * inner[1] + outer[1]) % 7


def along(root_side: Affine, member_side: Affine) -> Affine:
    """What `Transport` composes: the label of the parent first, then that of the child."""
    return compose(member_side, root_side)


def inverse(label: Affine) -> Affine:
    a = pow(label[0], -1, 7)
    return a, -a * label[1] % 7


labels = st.tuples(st.integers(1, 6), st.integers(0, 6))
members = st.integers(0, MEMBERS - 1)
joins = st.lists(st.tuples(members, members, labels), max_size=10)


def join(found: Transport[int, Affine], a: int, b: int, label: Affine) -> None:
    """a = label · b, where the two were apart."""
    (root_a, to_a), (root_b, to_b) = found.find(a), found.find(b)
    if root_a != root_b:
        found.link(root_a, root_b, compose(inverse(to_a), compose(label, to_b)))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(joins)
def test_classes_and_labels_are_those_of_the_twin(given_joins: list) -> None:
    found: Transport[int, Affine] = Transport((1, 0), along)
    value: dict[int, tuple[int, Affine]] = {m: (m, (1, 0)) for m in range(MEMBERS)}  # class, label
    for a, b, label in given_joins:
        join(found, a, b, label)
        (class_a, to_a), (class_b, to_b) = value[a], value[b]
        if class_a != class_b:  # relabel a whole class, one member after the other
            turned = compose(inverse(to_a), compose(label, to_b))
            for m, (owner, to) in value.items():
                if owner == class_a:
                    value[m] = class_b, compose(to, turned)
    for a in range(MEMBERS):
        for b in range(MEMBERS):
            (root_a, to_a), (root_b, to_b) = found.find(a), found.find(b)
            assert (root_a == root_b) == (value[a][0] == value[b][0])
            if root_a == root_b:
                mine = compose(to_a, inverse(to_b))
                assert mine == compose(value[a][1], inverse(value[b][1]))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(joins, members)
def test_finding_twice_is_finding_once(given_joins: list, member: int) -> None:
    found: Transport[int, Affine] = Transport((1, 0), along)
    for a, b, label in given_joins:
        join(found, a, b, label)
    first = found.find(member)
    assert found.find(member) == first
    assert found.find(first[0]) == (first[0], (1, 0))


def test_labels_do_not_commute_here() -> None:
    """Negative control: composed in the wrong order, a chain of three is another label."""
    found: Transport[str, Affine] = Transport((1, 0), along)
    wrong: Transport[str, Affine] = Transport((1, 0), compose)
    for each in (found, wrong):
        each.link("a", "b", (2, 1))
        each.link("b", "c", (3, 5))
    assert found.find("a") == ("c", compose((2, 1), (3, 5)))
    assert wrong.find("a") != found.find("a")


# -- caps ----------------------------------------------------------------------------------------

CAPS = {
    "nothing": (lambda s, h: h @ s.a.T @ s.u, "GeneralLinear(4)"),
    "a mean": (
        lambda s, h: (h @ s.a.T).mean(-1, keepdim=True) + (h @ s.a.T) @ s.u,
        "OrthogonalFixingOnes(4)"),
    "a norm": (lambda s, h: F.rms_norm(h @ s.a.T, (4,)) @ s.u, "Orthogonal(4)"),
    "a centred norm": (lambda s, h: F.layer_norm(h @ s.a.T, (4,)) @ s.u, "OrthogonalFixingOnes(4)"),
    "its own dual": (
        lambda s, h: ((h @ s.a.T) ** 2).sum(-1, keepdim=True) * (h @ s.a.T @ s.u), "Orthogonal(4)"),
    "the same with and without a gain": (
        lambda s, h: (h @ s.a.T) @ s.u + (h @ s.a.T * s.g) @ s.u, ""),
    "unit by unit": (lambda s, h: torch.tanh(h @ s.a.T) @ s.u, "SignedPermutation(4)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CAPS)
def test_caps_meet_in_the_lattice(name: str) -> None:
    function, group = CAPS[name]
    model = M(function, a=(4, 3), u=(4, 2), **({"g": (4,)} if "gain" in name else {}))
    symmetry = find_symmetry(model, (x(7, 3),), check=False)
    found = {str(space.group) for space in symmetry.spaces.values() if space.size == 4}
    if group:
        assert found == {group}
    else:
        assert not any(text.startswith(("General", "Orthogonal")) for text in found)
