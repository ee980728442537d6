"""Orbits of two layers U·σ(V·x): closed forms beside the rank, where Theorem 3.3 has others.

Source: Zhao and others (2023), Theorem 3.3 and Corollary C.4.
"""

from __future__ import annotations

from itertools import product
from math import comb

import pytest
import torch

from paramsym import ParameterSymmetry, Space, find_symmetry, orbit_dimension
from paramsym.algebra import GeneralLinear, Group, Orthogonal, PositiveScaling
from paramsym.structure.axes import parse_axis
from tests.tracing.zoo import Apply, radial

GRID = [(n, h, m) for n, h, m in product((1, 2, 3), (1, 2, 3, 4, 5, 6, 8), (1, 2, 3))]


def linear(n: int, h: int, m: int) -> int:
    return h * h - max(0, h - n) * max(0, h - m)


def homogeneous(n: int, h: int, m: int) -> int:
    return h


def of_radial(n: int, h: int, m: int) -> int:
    return comb(h, 2) - comb(max(0, h - n - m), 2)


def stated_homogeneous(n: int, h: int, m: int) -> int:
    return min(h, max(n, m))


def stated_radial(n: int, h: int, m: int) -> int:
    return comb(h, 2) - comb(max(0, h - max(n, m)), 2)


def params(n: int, h: int, m: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in {"V": (h, n), "U": (m, h)}.items()
    }


def measured(group: Group, n: int, h: int, m: int) -> int:
    signature = {
        "V": (parse_axis("h"), parse_axis(str(n))), "U": (parse_axis(str(m)), parse_axis("h*"))
    }  # fmt: skip
    symmetry = ParameterSymmetry({"h": Space("h", group)}, signature)
    return orbit_dimension(symmetry, params(n, h, m))


@pytest.mark.parametrize(
    ("group", "formula"),
    [(GeneralLinear, linear), (PositiveScaling, homogeneous), (Orthogonal, of_radial)],
)
def test_closed_forms_are_ranks(group, formula) -> None:
    assert all(measured(group(h), n, h, m) == formula(n, h, m) for n, h, m in GRID)


@pytest.mark.parametrize(
    ("group", "stated"), [(PositiveScaling, stated_homogeneous), (Orthogonal, stated_radial)]
)
def test_two_rows_of_the_theorem_hold_up_to_the_widest_end_only(group, stated) -> None:
    agree = {g: measured(group(g[1]), *g) == stated(*g) for g in GRID}
    assert all(agree[n, h, m] for n, h, m in GRID if h <= max(n, m))
    # C(1, 2) = 0, so that the radial row is wrong from the second further unit on
    first = 1 if group is PositiveScaling else 2
    assert not any(agree[n, h, m] for n, h, m in GRID if h >= max(n, m) + first)


def test_a_derived_symmetry_says_the_same() -> None:
    n, h, m = 2, 6, 1
    model = torch.nn.Sequential(
        torch.nn.Linear(n, h, bias=False), Apply(radial), torch.nn.Linear(h, m, bias=False)
    ).double()
    symmetry = find_symmetry(model, torch.randn(7, n, dtype=torch.float64))
    state = dict(zip(model.state_dict(), params(n, h, m).values(), strict=True))
    rotations = symmetry.restrict(translations=False)  # U also slides where no V·x points
    assert orbit_dimension(rotations, state) == of_radial(n, h, m) == 12
    assert stated_radial(n, h, m) == 9
