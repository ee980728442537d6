"""Entrywise functions as people write them: each has the freedom of the function that it is.

A plain network has one function of its hidden units in the middle. What is asked is that nothing
found is wrong, and that the Jacobian leaves nothing over; beside each spelling stands one that is
only alike and must not scale.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import AbstractMonomial, Group
from paramsym.lowering.normalise import normalise
from paramsym.lowering.probing import NotProbed, probe
from paramsym.recording.record import record
from tests.coverage.measure import Measured, measured
from tests.tracing.test_normalise import computed
from tests.tracing.zoo import errors, randomise

Function = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A function between two linear maps, over 5 units."""

    def __init__(self, function: Function, read: int = 5):
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(3, 5), nn.Linear(read, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def inputs() -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(9)
    return (torch.randn(11, 3, generator=generator, dtype=torch.float64),)


def between(function: Function) -> Measured:
    return measured(Between(function), inputs())


def scaled(symmetry: ParameterSymmetry) -> list[Group]:
    """The groups that scale: monomial ones, and changes of basis."""
    groups = map(symmetry.group, symmetry.spaces)
    return [g for g in groups if not isinstance(g, AbstractMonomial) or g.scales]


# -- positively homogeneous, and alike -------------------------------------------------------------


def _set(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0
    return h


HOMOGENEOUS: dict[str, Function] = {
    "where": lambda h: torch.where(h > 0, h, 0.0),
    "maximum": lambda h: torch.max(h, torch.zeros_like(h)),
    "maximum with a number": lambda h: torch.max(h, torch.tensor(0.0)),
    "mask": lambda h: h * (h > 0),
    "mask of numbers": lambda h: h.gt(0).to(h.dtype) * h,
    "mask of longs": lambda h: h * (h > 0).long(),
    "leaky": lambda h: torch.where(h > 0, h, 0.1 * h),
    "leaky by two": lambda h: F.relu(h) - 0.1 * F.relu(-h),
    "leaky by size": lambda h: 0.55 * h + 0.45 * h.abs(),
    "lerp": lambda h: torch.lerp(torch.zeros_like(h), h, (h > 0).to(h.dtype)),
    "lerp by a number": lambda h: torch.lerp(F.relu(h), h, 0.1),
    "no numbers": lambda h: torch.nan_to_num(F.relu(h)),
    "no numbers before": lambda h: F.relu(torch.nan_to_num(h, nan=0.0)),
    "clamp": lambda h: h.clamp(min=0),
    "half of both": lambda h: (h + h.abs()) / 2,
    "two rectifiers": lambda h: F.relu(h) + F.relu(-h),
    "two that cancel": lambda h: F.relu(h) - F.relu(-h),
    "heaviside": lambda h: torch.heaviside(h.detach(), torch.zeros((), dtype=h.dtype)) * h,
    "size by sign": lambda h: h * h.sign(),
    "half of signs": lambda h: h * (h.sign() + 1) / 2,
    "root of a square": lambda h: h.pow(2).sqrt(),
    "square above": lambda h: h.square() * (h > 0),
    "square of a rectifier": lambda h: F.relu(h) ** 2,
    "product with a rectifier": lambda h: h * F.relu(h),
    "signed root": lambda h: h.sign() * h.abs().sqrt(),
    "less what is below": lambda h: h - h.clamp(max=0),
    "assignment": _set,
    "in place": lambda h: h.clone().mul_(h.gt(0)),
    "three factors": lambda h: torch.addcmul(h, h, h.sign()),
    "hypotenuse": lambda h: torch.hypot(h, 2 * h),
    "two masks": lambda h: h * ((h > 0) | (h < 0.1 * h)),
    "between itself": lambda h: torch.where((h > -h) & (h > 0), h, -0.3 * h),
}  # fmt: skip

# what is left over but no symmetry: the freedom of these is that of the functions beside them
ALIKE: dict[str, Function] = {
    "another threshold": lambda h: torch.where(h > 1e-3, h, 0.0),
    "another value": lambda h: torch.where(h > 0, h, 1e-3),
    "clamp at one": lambda h: h.clamp(min=0, max=1),
    "clamp below": lambda h: h.clamp(min=-0.1),
    "shifted": lambda h: F.relu(h + 0.3) - 0.3,
    "two degrees": lambda h: h + h * h.abs(),
    "mask of another": lambda h: h * (h.flip(-1) > 0),
    "lerp by itself": lambda h: torch.lerp(torch.zeros_like(h), h, h),
    "no numbers but one": lambda h: torch.nan_to_num(h.log(), nan=1.0),
    "assignment of one": lambda h: torch.where(h < 0, 1.0, h),
    "rounded": lambda h: F.relu(h) * (h > 0).double() + 1e-2 * torch.tanh(h),
    "softly": lambda h: h * torch.sigmoid(30 * h),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_each_spelling_of_a_homogeneous_function_scales(name: str) -> None:
    found = between(HOMOGENEOUS[name])
    assert not found.symmetry.unknown and not found.refuted
    assert found.error <= 1e-12 and found.unexplained == 0 and found.explained >= 5


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_only_alike_does_not_scale(name: str) -> None:
    model = randomise(Between(ALIKE[name]), 0)
    symmetry = find_symmetry(model, inputs())
    assert not scaled(symmetry)
    assert errors(model, symmetry, inputs(), each=False)["everything"] <= 1e-12


def _term(draw: random.Random, depth: int) -> Function:
    """A random function of degree one, from masks, choices, multiples and sums."""
    if not depth:
        return draw.choice([lambda h: h, F.relu, torch.abs, lambda h: -h, lambda h: h.clamp(max=0)])
    f, g = _term(draw, depth - 1), _term(draw, draw.randrange(depth))
    c = draw.choice([-1.5, -0.4, 0.3, 2.0])
    return draw.choice([
        lambda h: f(h) + c * g(h),
        lambda h: torch.where(f(h) > c * g(h), f(h), c * h),
        lambda h: torch.maximum(f(h), c * g(h)),
        lambda h: f(h) * (h >= 0) + g(h),
        lambda h: (f(h) * c).masked_fill(g(h) < h, 0.0),
        lambda h: torch.lerp(f(h), g(h), (h > 0).to(h.dtype) * 0.3),
        lambda h: f(h).abs() - c * h,
        lambda h: f(h) * h.sign() + c * h,
    ])  # fmt: skip


def _near_miss(draw: random.Random, f: Function) -> Function:
    return draw.choice([
        lambda h: f(h) + 0.03 * (h > 0.2),
        lambda h: torch.where(h > 0.2, f(h), 0.5 * h + 0.1 * h.sign()),
        lambda h: f(h - 0.1) + 0.05 * h.abs(),  # without the second, a bias takes the number up
        lambda h: f(h).clamp(max=0.7) + 0.1 * h.sign(),
        lambda h: f(h) + 0.1 * h * h,
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_random_spellings(seed: int) -> None:
    """The normal form computes the same, what is homogeneous scales, and what is not does not."""
    draw = random.Random(seed)
    f = _term(draw, 3)
    wrong = _near_miss(draw, f)
    for function, scales in ((f, True), (wrong, False)):
        model = randomise(Between(function), seed)
        made = normalise(record(model, inputs()))
        wanted = model(*inputs()).detach()
        assert (computed(made, model, *inputs()) - wanted).abs().max() <= 1e-12
        symmetry = find_symmetry(model, inputs())
        assert bool(scaled(symmetry)) == scales and not symmetry.checked.refuted
        assert errors(model, symmetry, inputs(), each=False)["everything"] <= 1e-12


# -- functions that nobody registered --------------------------------------------------------------


@torch.library.custom_op("coverage::signed_square", mutates_args=())
def signed_square(h: Tensor) -> Tensor:
    return h * h.abs()


@signed_square.register_fake
def _(h: Tensor) -> Tensor:
    return torch.empty_like(h)


def _signed_square_back(ctx: Any, gradient: Tensor) -> Tensor:
    return 2 * gradient * ctx.saved_tensors[0].abs()


def _saved(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


signed_square.register_autograd(_signed_square_back, setup_context=_saved)


def _counted() -> Function:
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    return function


def _writing(x: Tensor) -> Tensor:
    return x.mul_(2).clone()


PROBES: dict[str, tuple[Function, str | None]] = {
    "relu": (torch.relu, "degree 1, increasing"),
    "signed square": (lambda x: x * x.abs(), "degree 2, odd, increasing"),
    "square": (torch.square, "degree 2, even"),
    "root": (lambda x: x.abs().sqrt(), "degree 1/2, even"),
    "reciprocal": (torch.reciprocal, "degree -1, odd"),
    "sign": (torch.sign, "degree 0, odd, increasing"),
    "leaky": (lambda x: F.leaky_relu(x, 1e-3), "degree 1, increasing"),
    "tanh": (torch.tanh, "odd, increasing"),
    "bessel": (torch.special.bessel_j0, "even"),
    "silu": (F.silu, "entrywise"),
    "constant": (torch.ones_like, "entrywise"),
    "zero": (torch.zeros_like, "entrywise"),
    "a threshold at 1e3": (lambda x: F.hardshrink(x, 1e3), "odd, increasing"),
    "a threshold at 1e-9": (lambda x: F.hardshrink(x, 1e-9), "odd, increasing"),
    "clamped at 1e6": (lambda x: x.clamp(0, 1e6), "increasing"),
    "clamped on one side": (lambda x: x.clamp(max=1e9), "increasing"),
    "flat near zero": (lambda x: torch.where(x.abs() < 1e-20, 0, x), "odd, increasing"),
    "a small square": (lambda x: x + 1e-15 * x * x, "entrywise"),
    "a small tanh": (lambda x: x + 1e-9 * x.tanh(), "odd, increasing"),
    "a window": (lambda x: torch.where((x > 2) & (x < 2.1), 0, x), "entrywise"),
    "one at zero": (lambda x: torch.where(x == 0, 1, x), "entrywise"),
    "narrower": (lambda x: x.float().relu().double(), "increasing"),
    "infinite below zero": (torch.special.entr, "entrywise"),
    "infinite above one": (lambda x: torch.where(x > 1, torch.inf, x), "entrywise"),
    "infinite far away": (lambda x: torch.where(x.abs() > 1e5, -torch.inf, x * x), "even"),
    "softmax": (lambda x: x.softmax(-1), None),
    "softmax of all": (lambda x: x.flatten().softmax(0).view_as(x), None),
    "roll": (lambda x: x.roll(1, 0), None),
    "a tie to the last": (lambda x: torch.cat([x[:-1], x[-1:] + 1e-3 * x[:1]]), None),
    "places": (lambda x: x * torch.arange(x.numel()).view_as(x), None),
    "the largest": (lambda x: x / x.abs().max(), None),
    "a mean far away": (lambda x: x * (x.mean() < 5), None),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(11, 5), (2, 3, 7)])
@pytest.mark.parametrize("name", PROBES)
def test_a_probe(name: str, shape: tuple[int, ...]) -> None:
    function, wanted = PROBES[name]
    found = probe(function, shape)
    assert (None if found is None else str(found)) == wanted


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_counted(), "other numbers when it is called again"),
        (lambda x: x + torch.rand_like(x), "other numbers when it is called again"),
        (_writing, "writes to its input"),
        (lambda x: x[:1] + torch.linalg.inv(x), "does not run on numbers"),
        (lambda x: (x > 0).int(), "another kind"),
    ],
    ids=["state", "noise", "writing", "failing", "integers"],
)
def test_a_probe_says_why_it_claims_nothing(function: Function, why: str) -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(NotProbed, match=why):
        probe(function, (11, 5))
    assert torch.random.get_rng_state().equal(before)


def test_few_points_claim_nothing() -> None:
    assert str(probe(torch.relu, (1,))) == "entrywise"


def test_a_threshold_among_the_arguments_is_looked_at() -> None:
    """A bump of relative width 1e-8 around a number that the call is given."""

    def function(x: Tensor) -> Tensor:
        return torch.where((x / 0.71234 - 1).abs() < 1e-8, 2 * x, x).relu()

    assert str(probe(function, (11, 5))) == "degree 1, increasing"
    assert str(probe(function, (11, 5), [0.71234])) == "entrywise"


def test_an_operator_of_ones_own_has_the_freedom_of_its_function() -> None:
    found = between(signed_square)
    assert found.symmetry.probed.keys() == {"coverage::signed_square"}
    assert "degree 2, odd, increasing" in found.symmetry.probed["coverage::signed_square"]
    assert any("probed: degree 2, odd" in space.why for space in found.symmetry.spaces.values())
    assert not found.symmetry.unknown and found.error <= 1e-12
    assert found.unexplained == 0 and found.explained == 5
    assert ParameterSymmetry.from_json(found.symmetry.to_json()) == found.symmetry
    assert "probed" in str(found.symmetry)


@torch.library.custom_op("coverage::counted", mutates_args=())
def counted(h: Tensor) -> Tensor:
    _CALLS.append(1)
    return h * len(_CALLS)


@counted.register_fake
def _(h: Tensor) -> Tensor:
    return torch.empty_like(h)


_CALLS: list[int] = []


def test_an_operator_with_a_state_is_frozen_and_named() -> None:
    symmetry = find_symmetry(Between(counted), inputs(), check=False)
    assert "called again" in symmetry.unknown["coverage::counted"] and not symmetry.probed
    assert not symmetry.spaces


@pytest.mark.parametrize(
    "function",
    [torch.special.i1, torch.special.ndtr, torch.special.entr, torch.erfinv, torch.special.i0e],
)
def test_special_functions(function: Function) -> None:
    symmetry = find_symmetry(Between(function), inputs())
    assert symmetry.probed and not symmetry.unknown and "mlp" in symmetry.spaces


# -- comparisons with what is learned --------------------------------------------------------------


class Gated(nn.Module):
    """Units that pass where they are above what another tensor says."""

    def __init__(self, function: Callable[[Gated, Tensor], Tensor]):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 2)
        self.threshold, self.function = nn.Parameter(torch.randn(5)), function
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, x))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.first(x) * (m.first(x) > m.threshold),
        lambda m, x: torch.where(m.threshold < m.first(x), m.first(x), 0.0),
        lambda m, x: m.first(x).masked_fill(m.first(x) <= m.other(x), 0.0),
        lambda m, x: m.first(x) * torch.ge(m.first(x), m.other(x)),
    ],
    ids=["threshold", "where", "masked", "another layer"],
)
def test_a_comparison_sees_no_common_scale(function: Callable) -> None:
    model = randomise(Gated(function), 0)
    symmetry = find_symmetry(model, inputs())
    assert scaled(symmetry) and not symmetry.checked.refuted and not symmetry.unknown
    assert errors(model, symmetry, inputs(), each=False)["everything"] <= 1e-12


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.first(x) * (m.first(x).square() > m.threshold) + m.threshold,
        lambda m, x: m.first(x) * (m.first(x) > m.threshold) + torch.tanh(m.threshold),
        lambda m, x: m.first(x) * (m.first(x) > 0.1),
        lambda m, x: (m.first(x) > torch.linspace(-1, 1, 5)) * m.first(x),
    ],
    ids=["other degrees", "bounded elsewhere", "a number", "data"],
)
def test_a_threshold_that_is_held_holds_what_it_meets(function: Callable) -> None:
    """Control: the scale of the unit cannot change where that of the threshold cannot."""
    model = randomise(Gated(function), 0)
    symmetry = find_symmetry(model, inputs())
    assert not scaled(symmetry) and not symmetry.checked.refuted
    assert errors(model, symmetry, inputs(), each=False)["everything"] <= 1e-12


class Modulated(nn.Module):
    """A norm whose gain and bias another layer computes, as adaptive norms of diffusion have it."""

    def __init__(self, modulate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.gain, self.bias, self.modulate = nn.Linear(5, 6), nn.Linear(5, 6), modulate

    def forward(self, x: Tensor) -> Tensor:
        given = self.gain(x.tanh()), self.bias(x.tanh())
        return self.leave(torch.tanh(self.modulate(self.norm(self.enter(x)), *given)))


MODULATED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "written out": (lambda h, g, b: h * (g + 1) + b, 18),
    "addcmul": (lambda h, g, b: torch.addcmul(b, h, g + 1), 18),
    "a half of it": (lambda h, g, b: torch.addcmul(b, h, g, value=0.5), 18),
    "in place": (lambda h, g, b: b.clone().addcmul_(h, g + 1), 18),
    "addcdiv": (lambda h, g, b: torch.addcdiv(b, h, g.exp() + 1), 6),
}


@pytest.mark.parametrize("name", MODULATED)
def test_a_sum_with_a_product_is_a_sum_and_a_product(name: str) -> None:
    modulate, explained = MODULATED[name]
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    found = measured(Modulated(modulate), (x,))
    assert found.error < 1e-9 and found.refuted == () and found.symmetry.unknown == {}
    assert (found.explained, found.unexplained) == (explained, 0)
