"""Features of inputs and outputs, in symmetries that are written by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from paramsym import Feature, ParameterSymmetry, Space, act, act_inputs, act_outputs
from paramsym.algebra import GeneralLinear, Monomial, Permutation
from paramsym.structure.axes import Fixed, carried, parse_axis

SPACES = {
    "head": Space("head", Permutation(2)),
    "qk": Space("qk", GeneralLinear(3), over=("head",)),
    "h": Space("h", Monomial(4)),
}
BY_HAND = ParameterSymmetry(
    SPACES,
    {"weight": (carried("h"), parse_axis("(head qk)*"))},
    inputs={"x": Feature(parse_axis("(head qk)"), 1), "still": Feature(Fixed(3))},
    outputs={"y": Feature(carried("h"), -1), "squared": Feature(carried("h", 2), 0)},
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_feature_says_where_it_is() -> None:
    assert str(Feature(carried("h"))) == "…, h"
    assert str(Feature(carried("h"), -2)) == "…, h, :"
    assert str(Feature(carried("h", -1), 1)) == ":, h*, …"
    assert Feature(carried("h"), 1).T == Feature(carried("h", -1), 1)
    assert Feature(carried("h"), 1).fits((7, 4, 2), {"h": 4})
    assert not Feature(carried("h"), 1).fits((4, 7), {"h": 4})
    assert not Feature(carried("h"), 1).fits((4,), {"h": 4})


def test_copies_are_told_apart_along_the_feature_axis() -> None:
    """W ↦ M W T⁻¹ and x ↦ T x give y ↦ M y, with another basis for each head."""
    g = BY_HAND.sample(torch.Generator().manual_seed(0))
    weight, x = drawn(4, 6), drawn(5, 6, 2)
    moved = act(BY_HAND, g, {"weight": weight})["weight"]
    there = act_inputs(BY_HAND, g, {"x": x, "still": drawn(3)})["x"]
    y = torch.einsum("oi,bit->bto", weight, x)
    given = {"y": y, "squared": drawn(4).abs()}
    wanted = act_outputs(BY_HAND, g, given)
    torch.testing.assert_close(torch.einsum("oi,bit->bto", moved, there), wanted["y"])
    assert float((torch.einsum("oi,bit->bto", moved, x) - y).abs().max()) > 1e-2
    twice = act_outputs(BY_HAND, g, {"y": y, "squared": given["squared"].sqrt()})["squared"]
    assert float((wanted["squared"] - twice).abs().max()) > 1e-3


def test_it_prints_and_is_read_back() -> None:
    rows = str(BY_HAND).splitlines()
    assert "input x         :, (head qk), …" in rows and "output squared  h^2, …" in rows
    assert ParameterSymmetry.from_json(BY_HAND.to_json()) == BY_HAND
    assert "input x         :, (head qk), …" in BY_HAND.table().splitlines()
    assert BY_HAND.dual.outputs["squared"].type == carried("h", Fraction(-2))


def test_a_space_over_others_needs_them_on_the_axis() -> None:
    with pytest.raises(ValueError, match=r"'input x'.*'qk'.*each unit of 'head'.*no axis carries"):
        ParameterSymmetry(SPACES, {}, inputs={"x": Feature(carried("qk"))})


def test_a_held_index_stays_for_its_copies() -> None:
    held = BY_HAND.restrict(spaces="qk")
    assert str(held.inputs["x"].type) == "(head qk)" and held.outputs["y"].type == Fixed(4)
    assert held.spaces["head"].group.log_order == 0.0
