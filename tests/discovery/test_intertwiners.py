"""Relations of every entrywise activation of torch, against a table that was derived by hand.

Beside each group stand its reasons. f(−z) = f(z) − z holds for each z·g(z) with g(−z) = 1 − g(z):
f(z) − f(−z) = z (g(z) + g(−z)) = z. It holds for max(z, 0) as well, which is z times a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from paramsym.discovery import Intertwiners, Relation, intertwiners

ODD, EVEN = Relation(-1, 0, -1), Relation(-1, 0, 1)
GATED = Relation(-1, 0, 1, -1)  # f(−z) = f(z) − z
Function = Callable[[Tensor], Tensor]

# name: (function, group, degree, relations)
TABLE: dict[str, tuple[Function, str, float | None, list[Relation]]] = {
    # homogeneous on each half-line; |z| and powers have a parity, the others are c₊ and c₋ times
    # |z|, so that f(−z) = f(z) − (c₊ + c₋) z, where c₋ is the slope on the left times −1
    "relu": (F.relu, "R*", 1, [GATED]),
    "leaky_relu": (F.leaky_relu, "R*", 1, [Relation(-1, 0, 1, -1.01)]),
    "abs": (torch.abs, "R*", 1, [EVEN]),
    "sign": (torch.sign, "R*", 0, [ODD]),
    "cube": (lambda z: z**3, "R*", 3, [ODD]),
    # all of the affine group: polynomials of degree two and less
    "square": (torch.square, "Aff(1)", 2, [EVEN]),
    "identity": (lambda z: z, "Aff(1)", 1, [ODD]),
    # e^{z+t} = e^t e^z
    "exp": (torch.exp, "R", None, []),
    # 1 − f(z) = f(−z), and clamp(z, 0, 6) about its middle (3, 3)
    "sigmoid": (torch.sigmoid, "Z2", None, [Relation(-1, 0, -1, 0, 1)]),
    "hardsigmoid": (F.hardsigmoid, "Z2", None, [Relation(-1, 0, -1, 0, 1)]),
    "relu6": (F.relu6, "Z2", None, [Relation(-1, 6, -1, 0, 6)]),
    # z·g(z) with g(−z) = 1 − g(z)
    "gelu": (F.gelu, "Z2", None, [GATED]),
    "gelu, tanh": (lambda z: F.gelu(z, approximate="tanh"), "Z2", None, [GATED]),
    "silu": (F.silu, "Z2", None, [GATED]),
    "hardswish": (F.hardswish, "Z2", None, [GATED]),
    # log(1 + e^−z) = log(1 + e^z) − z; log σ(z) = −softplus(−z) = z − softplus(z)
    "softplus": (F.softplus, "Z2", None, [GATED]),
    "logsigmoid": (F.logsigmoid, "Z2", None, [Relation(-1, 0, 1, -1)]),
    **{
        name: (f, "Z2", None, [ODD])
        for name, f in {
            "tanh": torch.tanh, "tanhshrink": F.tanhshrink, "softshrink": F.softshrink,
            "hardshrink": F.hardshrink, "hardtanh": F.hardtanh, "softsign": F.softsign,
            "erf": torch.erf, "atan": torch.atan,
        }.items()
    },
    # σ(z + π) = −σ(z) for both; sin(π − z) = sin z, cos(π − z) = −cos z
    "sin": (torch.sin, "D∞", None, [
        ODD, Relation(1, math.pi, -1), Relation(1, 2 * math.pi, 1), Relation(-1, math.pi, 1)]),
    "cos": (torch.cos, "D∞", None, [
        EVEN, Relation(1, math.pi, -1), Relation(1, 2 * math.pi, 1), Relation(-1, math.pi, -1)]),
    # linear on one side, an exponential (times a rational function of e^z) on the other
    "elu": (F.elu, "trivial", None, []),
    "celu": (F.celu, "trivial", None, []),
    "selu": (F.selu, "trivial", None, []),
    "mish": (F.mish, "trivial", None, []),
}  # fmt: skip


@cache
def found(name: str) -> Intertwiners:
    return intertwiners(TABLE[name][0])


def same(one: Relation, other: Relation) -> bool:
    return bool(torch.allclose(one.matrix, other.matrix, rtol=1e-12, atol=1e-12))


@pytest.mark.parametrize("name", TABLE)
def test_what_is_found_is_what_was_derived(name: str) -> None:
    _, group, degree, expected = TABLE[name]
    result = found(name)
    assert result.group == group, str(result)
    assert (result.degree is None) == (degree is None)
    assert degree is None or result.degree == pytest.approx(degree, abs=1e-12)
    assert len(result.relations) == len(expected), str(result)
    for relation in expected:
        assert any(same(relation, other) for other in result.relations), (relation, str(result))


@pytest.mark.parametrize("name", TABLE)
def test_relations_hold_on_a_plain_grid_and_their_neighbours_do_not(name: str) -> None:
    function, result = TABLE[name][0], found(name)
    z = torch.linspace(-30, 30, 4801, dtype=torch.float64) + 1e-3
    elements = [family.at(t) for family in result.families for t in (-0.7, 0.3)]
    for relation in [*result.relations, *elements]:
        for change, holds in ((0.0, True), (1e-3, False)):
            b, c = relation.b + change, relation.c
            left = function(relation.alpha * z + relation.beta)
            right = relation.a * function(z) + b * z + c
            error = float(((left - right).abs() / (left.abs() + z.abs() + 1)).max())
            assert (error < 1e-10) == holds, (str(relation), change, error)


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"square", "identity", "exp"}))
def test_no_accepted_relation_is_close_to_a_rejected_one(name: str) -> None:
    gap = found(name).gap
    limit = 4e-11 if name == "softplus" else 2e-15
    assert gap.largest <= limit
    assert gap.next >= 5e-3


def test_softplus_of_torch_is_cut_at_twenty() -> None:
    """F.softplus returns z above 20, and so loses log(1 + e^−20) = 2.1e-9 there."""
    assert 1e-12 < found("softplus").relations[0].residual < 1e-10
    uncut = intertwiners(lambda z: F.softplus(z, threshold=1000))
    assert uncut.relations[0].residual < 1e-15


EXCLUDED = {
    "gelu": [ODD, EVEN],
    "silu": [ODD, EVEN],
    "sigmoid": [ODD, GATED],
    "mish": [ODD, EVEN, GATED],
    "elu": [ODD, EVEN, GATED],
    "relu": [ODD, Relation(1, 1, 1)],
    "sin": [Relation(1, math.pi, 1), EVEN],
    "tanh": [Relation(2, 0, 2), Relation(1, 2 * math.pi, 1)],
    "exp": [Relation(2, 0, 2), ODD],
}


@pytest.mark.parametrize("name", EXCLUDED)
def test_what_does_not_hold_has_a_large_residual(name: str) -> None:
    for relation in EXCLUDED[name]:
        assert found(name).measured(relation).residual > 0.01, str(relation)


@pytest.mark.parametrize("name", ["mish", "elu", "selu", "celu"])
def test_functions_without_a_reflection_have_none_at_any_centre(name: str) -> None:
    """A slow twin of the search: the best a, b and c over every centre of a fine grid."""
    residuals = [found(name).over(-1, 2 * k / 20).residual for k in range(-100, 101)]
    assert min(residuals) > 5e-3


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("gelu", "f(−z) = f(z) − z"),
        ("sigmoid", "f(−z) = −f(z) + 1"),
        ("relu6", "f(6 − z) = −f(z) + 6"),
        ("sin", "f(π − z) = f(z)"),
        ("sin", "f(z + π) = −f(z)"),
        ("relu", "f(s·z) = s·f(z) for s > 0"),
        ("cube", "f(s·z) = s^3·f(z) for s > 0"),
        ("exp", "f(z + t) = e^t·f(z) for all t"),
    ],
)
def test_relations_print_as_they_are_written(name: str, printed: str) -> None:
    assert printed in [str(r) for r in (*found(name).relations, *found(name).families)]


def test_names_of_relations() -> None:
    names = {name: [r.name for r in found(name).relations] for name in TABLE}
    assert names["tanh"] == ["odd"] and names["cos"][0] == "even"
    assert names["sin"] == ["odd", "half period", "period", "reflection"]
    assert names["gelu"] == ["reflection"]


def test_relations_form_a_group() -> None:
    odd, half = found("sin").generators
    assert (~half @ half).matrix.allclose(torch.eye(3).double())
    assert (odd @ half @ odd).matrix.allclose((~half).matrix)  # a dihedral group
    assert not (half @ odd).matrix.allclose((odd @ half).matrix)
    assert ((half @ odd).beta, (odd @ half).beta) == (math.pi, -math.pi)  # first the right one
    relu = found("relu").families[0]
    assert (relu.at(0.5) @ relu.at(0.2)).matrix.allclose(relu.at(0.7).matrix)
