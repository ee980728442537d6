"""Points of one orbit that were once not found to be such: each network was the smallest one.

The names say what stood in the way. All is drawn at strength one, generic, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paramsym import align, same_orbit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import gap, generic, moved, noisy
from tests.geometry.small_networks import (
    Attention,
    Made,
    MaskedLanguageModel,
    Net,
    Positional,
    olmo2,
    rows,
    sequences,
    tokens,
)

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
L = nn.Linear


def narrow_reader(norm: Callable[[int], nn.Module], out: int = 3) -> Made:
    layers = {"l": L(5, 6), "n": norm(6), "o": L(6, out, bias=False)}
    return Net(lambda s, x: s.o(s.n(torch.tanh(s.l(x)))), **layers), rows()


def two_readers() -> Made:
    layers = {"l": L(5, 6), "n": nn.LayerNorm(6), "a": L(6, 8, bias=False),
              "c": L(6, 7, bias=False), "b": L(7, 8)}  # fmt: skip
    return Net(
        lambda s, x: s.a(h := s.n(torch.tanh(s.l(x)))) + s.b(torch.tanh(s.c(h))), **layers
    ), rows()


def linear_norm_linear() -> Made:
    layers = {"l": L(5, 6), "n": nn.BatchNorm1d(6), "o": L(6, 3, bias=False)}
    return Net(lambda s, x: s.o(s.n(s.l(x))), **layers), rows()


def two_gains() -> Made:
    layers = {"l": L(5, 6), "n": nn.RMSNorm(6), "a": L(6, 4), "b": L(4, 6),
              "m": nn.BatchNorm1d(6), "o": L(6, 3)}  # fmt: skip
    return Net(
        lambda s, x: s.o(s.m((h := s.n(s.l(x))) + s.b(torch.relu(s.a(h))))), **layers
    ), rows()


def tied_twice() -> Made:
    layers = {"p": L(5, 12), "l": L(6, 4), "o": L(6, 3)}
    return Net(lambda s, x: s.o(torch.relu(s.l(F.glu(s.p(x), -1))) @ s.l.weight), **layers), rows()


def centred_product() -> Made:
    layers = {"a": L(10, 6), "b": L(6, 6), "n": nn.LayerNorm(6), "o": L(6, 3)}
    return Net(lambda s, x: s.o(s.n(s.b(s.a(torch.cat([x, x * x], -1))))), **layers), rows()


def product_behind_norm(affine: bool) -> Made:
    layers = {"i": L(5, 6), "n": nn.LayerNorm(6, elementwise_affine=affine), "a": L(6, 6),
              "b": L(6, 6), "o": L(6, 3)}  # fmt: skip
    return Net(lambda s, x: s.o(torch.tanh(s.b(s.a(s.n(s.i(x)))))), **layers), rows()


def normed_weight() -> Made:
    layers = {"l": nn.utils.parametrizations.weight_norm(L(5, 6)), "o": L(6, 3)}
    return Net(lambda s, x: s.o(torch.relu(s.l(x))), **layers), rows()


def cosine_head() -> Made:
    layers = {"l": L(5, 6), "o": L(6, 3, bias=False)}
    return Net(
        lambda s, x: F.normalize(torch.tanh(s.l(x)), dim=-1) @ F.normalize(s.o.weight, dim=-1).T,
        **layers,
    ), rows()


def depthwise() -> Made:
    layers = {"i": nn.Conv1d(2, 6, 1), "c": nn.Conv1d(6, 6, 3, padding=1, groups=6),
              "n": nn.BatchNorm1d(6), "o": nn.Conv1d(6, 3, 1)}  # fmt: skip
    x = torch.randn(2, 2, 7, generator=torch.Generator().manual_seed(0))
    return Net(lambda s, x: s.o((h := s.i(x)) + s.n(s.c(h))), **layers), (x,)


CASES: dict[str, Callable[[], Made]] = {
    "kernel of a narrow reader, layer norm": lambda: narrow_reader(nn.LayerNorm),
    "kernel of a narrow reader, batch norm": lambda: narrow_reader(nn.BatchNorm1d),
    "no kernel, wide reader": lambda: narrow_reader(nn.LayerNorm, 9),
    "transvection with two readers": two_readers,
    "transvection whose reader has a basis": lambda: (
        Attention(bias=False, norm=True, out=9), sequences()
    ),
    "square transform in a tied head": lambda: (MaskedLanguageModel(), tokens()),
    "running variance as a frame": linear_norm_linear,
    "a gain that moves another": two_gains,
    "one weight used twice": tied_twice,
    "mean that a norm does not see": centred_product,
    "ones that a norm does not give": lambda: product_behind_norm(True),
    "ones without a gain": lambda: product_behind_norm(False),
    "parities of signs over heads": olmo2,
    "grouped positions, orders within groups": lambda: (Positional(4, False), sequences()),
    "grouped positions, normed weights": lambda: (Positional(4, True), sequences()),
    "positions in one group, normed weights": lambda: (Positional(1, True), sequences()),
    "two heads of four": lambda: (Attention(), sequences()),
    "as many heads as coordinates": lambda: (Attention(16, 4), sequences()),
    "as many heads as coordinates, no bias": lambda: (Attention(16, 4, False), sequences()),
    "weight norm": normed_weight,
    "cosine head": cosine_head,
    "depthwise kernel beside a skip": depthwise,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_random_element_is_undone_where_it_once_was_not(case: str) -> None:
    symmetry, params = generic(*CASES[case]())
    for seed in (1, 2):
        other = moved(symmetry, params, seed, strength=1.0)
        aligned = align(symmetry, params, other)
        assert not aligned.held and aligned.distance <= 1e-10
        assert gap(symmetry, params, aligned.params) <= 1e-8
        assert same_orbit(symmetry, params, other).kind is Kind.EQUAL


@pytest.mark.parametrize("case", CASES)
def test_a_noisy_point_is_not_brought_back(case: str) -> None:
    """The control: the distance that vanishes above need not."""
    symmetry, params = generic(*CASES[case]())
    other = moved(symmetry, noisy(symmetry, params, 0.1))
    assert align(symmetry, params, other).distance > 1e-3
    assert same_orbit(symmetry, params, other).kind is not Kind.EQUAL
