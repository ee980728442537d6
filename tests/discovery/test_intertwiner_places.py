"""Features, centres and periods far from the origin, and scalings that are least."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from paramsym.discovery import Intertwiners, intertwiners

Function = Callable[[Tensor], Tensor]


def hat(u: Tensor) -> Tensor:
    return F.relu(1 - u.abs())


def bump(u: Tensor) -> Tensor:
    return torch.exp(-u.square())


def fraction(z: Tensor) -> Tensor:
    return z - z.floor()


def worst(function: Function, found: Intertwiners) -> float:
    """A plain twin of the certificate: every relation on a dense grid, near and far."""
    z = torch.linspace(-64, 64, 100_001, dtype=torch.float64) + 1e-5
    errors = [0.0]
    elements = [family.at(t) for family in found.families for t in (-0.4, 0.3)]
    for r in (*found.relations, *elements):
        left, right = function(r.alpha * z + r.beta), r.a * function(z) + r.b * z + r.c
        size = left.abs() + right.abs() + (r.b * z).abs() + abs(r.c)
        size = size + function(z[49_000:51_000]).abs().median() + 1e-300
        # a step is not resolved next to itself
        errors.append(float(((left - right).abs() / size).nan_to_num().quantile(0.9999)))
    return max(errors)


# something far out that breaks (or has) a symmetry: (function, group)
FAR: dict[str, tuple[Function, str]] = {
    "a step at 12": (lambda z: torch.sign(z - 12.0) - 0.5 * z, "R*"),
    "a step at 37": (lambda z: torch.sign(z - 37.2) - 0.5 * z, "R*"),
    "relu, a hat at 30": (lambda z: F.relu(z) + hat(z - 30), "trivial"),
    "sine, a bump at 30": (lambda z: torch.sin(z) + bump((z - 30) / 0.5), "trivial"),
    "tanh, a bump at 20": (lambda z: torch.tanh(z) + bump((z - 20) / 0.1), "trivial"),
    "exp, a bump at −20": (lambda z: torch.exp(z) * (1 + bump((z + 20) / 0.5)), "trivial"),
    "two bumps on a line": (
        lambda z: bump(0.8 * (z - 37.2)) + bump(0.8 * (z - 37.2) - 3) - 0.05 * z + 0.5, "Z2"),
    **{
        f"{name}, a small hat at {p:g}, {w:g} wide": (
            lambda z, f=f, p=p, w=w: f(z) + 0.1 * hat((z - p) / w), group)
        for p, w in ((20.0, 0.3), (33.0, 1.0), (49.0, 0.3))
        for name, f, group in (
            ("tanh", torch.tanh, "trivial"), ("sine", torch.sin, "trivial"),
            ("line", lambda z: z, "Z2"))
    },
}  # fmt: skip


# Three hats at once, each on another function at another place, and six among the slow tests.
LATER = {
    f"{name}, a small hat at {p:g}, {w:g} wide"
    for k, (p, w) in enumerate(((20.0, 0.3), (33.0, 1.0), (49.0, 0.3)))
    for n, name in enumerate(("tanh", "sine", "line"))
    if n != k
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LATER else ()) for n in FAR]
)
def test_features_far_out_are_seen(name: str) -> None:
    function, group = FAR[name]
    found = intertwiners(function)
    assert found.group == group, str(found)
    assert found.gap.largest <= found.tolerance and worst(function, found) < 1e-9


# where a centre or a period lies: (function, centre, period)
PLACES: dict[str, tuple[Function, float | None, float | None]] = {
    "a bump at 12": (lambda z: bump(z - 12), 12.0, None),
    "a bump at 37": (lambda z: bump(z - 37.2), 37.2, None),
    "a narrow bump at 20": (lambda z: bump((z - 20) / 0.5), 20.0, None),
    "gelu at 37": (lambda z: F.gelu(1.38 * (z - 37.2)), 37.2, None),
    "silu at 37": (lambda z: F.silu(1.38 * (z - 37.2)), 37.2, None),
    "relu6 about −42": (lambda z: F.relu6(-0.069 * z + 0.0746), -2.9254 / 0.069, None),
    "relu6 about 40": (lambda z: F.relu6(1.04 * (z - 37.2)), 37.2 + 3 / 1.04, None),
    "period 167": (
        lambda z: torch.sin(0.0376 * z) + torch.cos(0.0752 * z), None, 2 * math.pi / 0.0376),
    "period 22": (lambda z: torch.floor(0.0455 * z), 0.0, 1 / 0.0455),
    "period 13": (lambda z: 1.7 * fraction(0.0784 * z) + 2.2 * z, 0.0, 1 / 0.0784),
    "period 109": (lambda z: torch.exp(torch.sin(0.0576 * z)), None, 2 * math.pi / 0.0576),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_centres_and_periods_are_found_within_the_range(name: str) -> None:
    function, centre, period = PLACES[name]
    found = intertwiners(function)
    centres = [r.beta / 2 for r in found.relations if r.alpha == -1]
    periods = [r.beta for r in found.relations if r.alpha == 1]
    assert centres and (centre is None or centres[0] == pytest.approx(centre, abs=1e-9))
    assert (min(periods) == pytest.approx(period)) if period else not periods
    assert worst(function, found) < 1e-9


def test_scalings_are_the_least() -> None:
    """z sin(2π log|z|/log 3) about ½ answers to −√3 and √3, and (2 + sin(2π log|z|))·z to e."""
    root = intertwiners(
        lambda z: (z - 0.5) * torch.sin(2 * math.pi * (z - 0.5).abs().log() / math.log(3))
    )
    assert [abs(r.alpha) for r in root.generators] == pytest.approx([1, math.sqrt(3)])
    for slope in (0.2, 11.6):
        (least,) = intertwiners(
            lambda z, slope=slope: (
                torch.where(z > 0, z, slope * z) * (2 + torch.sin(2 * math.pi * z.abs().log()))
            )
        ).relations
        assert least.alpha == pytest.approx(math.e, rel=1e-9)
