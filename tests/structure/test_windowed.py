"""A window that is moved by itself is the window on what was moved as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from paramsym import ParameterSymmetry, act
from paramsym.algebra import Monomial, Orthogonal, Permutation, PositiveScaling
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import GroupElement
from paramsym.structure.needs import steps
from paramsym.structure.panels import act_panels
from paramsym.structure.space import Space
from paramsym.structure.windowed import Window, windowed

SPACES = [
    Space("e", Permutation(3)), Space("u", Permutation(4), ("e",)),
    Space("s", PositiveScaling(1), ("e", "u")), Space("r", Orthogonal(5)),
    Space("m", Monomial(3)), Space("c", Orthogonal(2), ("m",)),
]  # fmt: skip
TYPES = {
    "joined": ("e", "u + (u s)", "r[gain]*"), "down": ("e", "r", "(u s*)"), "gain": ("5",),
    "scaled": ("m", "c", "7"), "fixed": ("2", "r", "7"), "turned": ("r + 3", "e", "u"),
}  # fmt: skip
# each with whether it can be moved by itself
WINDOWS: list[tuple[str, Window, bool]] = [
    ("joined", Window((1, (0, 4), (0, 5)), (1, 2)), True),
    ("joined", Window((2, (4, 8), (0, 5)), (2, 1)), True),
    ("joined", Window((0, (0, 8), (0, 5)), (1, 2)), True),
    ("joined", Window(((0, 3), (4, 8), (0, 5)), (0, 1, 2)), True),
    ("down", Window((1, (0, 5), (0, 4)), (2, 1)), True),
    ("fixed", Window((1, (0, 5), (2, 6)), (1, 2)), True),
    ("turned", Window(((5, 8), 1, (0, 4)), (2, 0)), True),
    ("joined", Window((1, (0, 3), (0, 5)), (1, 2)), False),  # across units
    ("joined", Window(((0, 2), (0, 4), (0, 5)), (0, 1, 2)), False),  # some experts
    ("joined", Window((1, (0, 4), 2), (1,)), False),  # one entry of a basis
    ("scaled", Window((1, (0, 2), (0, 7)), (1, 2)), False),  # an index with a scale
]


def moved(name: str) -> tuple[ParameterSymmetry, GroupElement, Mapping[str, torch.Tensor]]:
    types = {n: tuple(map(parse_axis, axes)) for n, axes in TYPES.items()}
    symmetry = ParameterSymmetry({s.name: s for s in SPACES}, types)
    generator = torch.Generator().manual_seed(1)
    element = symmetry.sample(generator, 1.0, dtype=torch.float64)

    def drawn(n: str) -> torch.Tensor:
        return torch.randn(symmetry.shape(n), generator=generator, dtype=torch.float64)

    return symmetry, element, {n: drawn(n) + 3 * (n == "gain") for n in types}


@pytest.mark.parametrize(("name", "window", "alone"), WINDOWS)
def test_a_window_is_moved_without_the_rest(name: str, window: Window, alone: bool) -> None:
    symmetry, element, state = moved(name)
    found = windowed(symmetry, element, name, window, steps(symmetry, element, name))
    assert (found is not None) == alone
    if found is None:
        return
    given: dict[str, Any] = {**state, name: found.source(state[name])}
    made = torch.cat([p.clone() for p in act_panels(found.symmetry, found.element, name, given)])
    expected = window(act(symmetry, element, state)[name])
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    if name in ("joined", "down"):  # the control: from its own place it is another
        given[name] = window(state[name])
        still = torch.cat(
            [p.clone() for p in act_panels(found.symmetry, found.element, name, given)]
        )
        assert found.source == window or not torch.allclose(still, expected, rtol=1e-3)
