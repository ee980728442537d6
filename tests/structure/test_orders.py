"""Orders: the spaces whose permutations carry the copies of others along."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import GroupElement, ParameterSymmetry, find_symmetry
from paramsym.algebra import Element, GeneralLinear, Permutation, Trivial
from paramsym.structure.axes import parse_axis
from paramsym.structure.space import Space
from tests.tracing.zoo import build, derived


def test_heads_carry_their_bases_and_units_their_scales() -> None:
    model, _ = build("Llama")
    found = derived("Llama").orders
    assert found["layers.0.attn.head"] == (
        "layers.0.attn.group", "layers.0.attn.qk", "layers.0.attn.vo",
    )  # fmt: skip
    assert found["layers.1.mlp"] == ("layers.1.mlp.scale",)
    assert "residual" not in found  # it turns, and permutes nothing


def test_who_carries_nothing_is_no_order() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    assert find_symmetry(model, (torch.randn(2, 4),)).orders == {}


def by_hand(index: Permutation | Trivial) -> ParameterSymmetry:
    """Bases over heads, over layers: the upper index may move or not."""
    spaces = {
        "layer": Space("layer", index),
        "head": Space("head", Permutation(2), ("layer",)),
        "basis": Space("basis", GeneralLinear(2), ("layer", "head")),
    }
    return ParameterSymmetry(spaces, {"w": (parse_axis("(layer head basis)"),)})


def test_an_order_carries_what_stands_over_it_at_any_height() -> None:
    assert by_hand(Permutation(3)).orders == {"layer": ("head", "basis"), "head": ("basis",)}
    assert by_hand(Trivial(3)).orders == {"head": ("basis",)}  # an index that is not permuted


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "by hand"])
def test_conjugation_by_an_order_permutes_the_copies_it_carries_and_no_others(name: str) -> None:
    symmetry = by_hand(Permutation(3)) if name == "by hand" else _of(name)
    draw = torch.Generator().manual_seed(0)
    assert symmetry.orders
    for base, carried in symmetry.orders.items():
        spaces = [n for n, s in symmetry.spaces.items() if s.group.dimension]
        order = torch.arange(symmetry.spaces[base].size).roll(1)
        g = symmetry.element({base: order})
        for space in spaces:
            h = symmetry.sample(draw, only=[space])
            turned, plain = (dense(symmetry, k, space) for k in (g @ h @ ~g, h))
            assert torch.equal(turned, plain) == (space not in carried), (base, space)
            if space in carried:
                axis = symmetry.spaces[space].over.index(base)
                assert torch.equal(turned, plain.index_select(axis, order))


def dense(symmetry: ParameterSymmetry, element: GroupElement, space: str) -> torch.Tensor:
    value = element[space]
    assert isinstance(value, Element)
    return symmetry.spaces[space].group.matrix(value)


def _of(name: str) -> ParameterSymmetry:
    model, inputs = build(name)
    return find_symmetry(model, inputs, check=False)
