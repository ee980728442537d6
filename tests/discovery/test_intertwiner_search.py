"""Functions that no list has: domains, steps, periods, logarithmic periods, noise, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from paramsym.discovery import Intertwiners, Relation, intertwiners
from paramsym.discovery.activations.certificate import Certificate
from paramsym.discovery.activations.function import scalar_function
from paramsym.discovery.activations.numbers import combination, short, spelled
from paramsym.discovery.activations.search import jumps


def lines(found: Intertwiners) -> list[str]:
    return [line.strip() for line in str(found).splitlines()]


def log_periodic(z: Tensor) -> Tensor:
    return (z - 1.3) * torch.sin(torch.log((z - 1.3).abs())) * torch.where(z > 1.3, 1.0, 0.5)


# function: (group, lines that must be printed)
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str, list[str]]] = {
    "log": (torch.log, "R>0", ["log on (0, ∞): R>0", "f(s·z) = f(z) + log(s) for s > 0"]),
    "log1p": (torch.log1p, "R>0", ["f(−1 + s·(z + 1)) = f(z) + log(s) for s > 0"]),
    "sqrt": (torch.sqrt, "R>0", ["f(s·z) = s^(1/2)·f(z) for s > 0"]),
    "entropy": (lambda z: z * z.log(), "R>0", ["f(s·z) = s·f(z) + s·log(s)·z for s > 0"]),
    "reciprocal": (torch.reciprocal, "R*", ["f(s·z) = s^(−1)·f(z) for s > 0", "f(−z) = −f(z)"]),
    "asin": (torch.asin, "Z2", ["asin on (−1, 1): Z2", "f(−z) = −f(z)"]),
    "logit": (torch.logit, "Z2", ["logit on (0, 1): Z2", "f(1 − z) = −f(z)"]),
    "acosh": (torch.acosh, "trivial", ["acosh on (1, ∞): trivial"]),
    "quadratic": (lambda z: z * z + z, "Aff(1)", ["f(z + t) = f(z) + 2·t·z + t² + t for all t"]),
    "affine": (lambda z: 2 * z - 1, "Aff(1)", ["f(−z) = −f(z) − 2"]),
    "constant": (lambda z: 0 * z + 3, "Aff(1)", ["f(s·z) = f(z) for s > 0"]),
    "affine on a half-line": (
        lambda z: torch.where(z > 1, 2 * z, torch.nan), "R>0",
        ["f(1 + s·(z − 1)) = s·f(z) − 2·(s − 1) for s > 0"]),
    "affine on an interval": (
        lambda z: torch.where((z > 0) & (z < 2), 3 * z, torch.nan), "Z2", ["f(2 − z) = −f(z) + 6"]),
    "cubic": (lambda z: z**3 + z**2, "R*", ["f(−z − 2/3) = −f(z) + 0.1481481"]),
    "a kink elsewhere": (
        lambda z: F.relu(z - 0.7) ** 1.5, "R>0",
        ["f(7/10 + s·(z − 7/10)) = s^(3/2)·f(z) for s > 0"]),
    "a step elsewhere": (
        lambda z: torch.sign(z - 1.234), "R*",
        ["f(1.234 + s·(z − 1.234)) = f(z) for s > 0", "f(2.468 − z) = −f(z)"]),
    "a shifted sigmoid": (lambda z: torch.sigmoid(z - 3.71), "Z2", ["f(7.42 − z) = −f(z) + 1"]),
    "floor": (torch.floor, "D∞", ["f(−z) = −f(z) − 1", "f(z + 1) = f(z) + 1"]),
    "sawtooth": (lambda z: z - z.floor(), "D∞", ["f(−z) = −f(z) + 1", "f(z + 1) = f(z)"]),
    "staircase": (lambda z: (z / 3).floor() + z, "D∞", ["f(z + 3) = f(z) + 4"]),
    "snake": (lambda z: z + torch.sin(z) ** 2, "D∞", ["f(−z) = f(z) − 2·z"]),
    "tan": (torch.tan, "D∞", ["f(z + π) = f(z)", "f(−z) = −f(z)"]),
    "growing sine": (lambda z: z.exp() * z.sin(), "Z", ["f(z + π) = −e^π·f(z)"]),
    "slow": (lambda z: torch.tanh(z / 50), "Z2", ["f(−z) = −f(z)"]),
    "fast": (lambda z: torch.sin(40 * z), "D∞", ["f(−z) = −f(z)"]),
    "in large units": (lambda z: 1e12 * torch.tanh(z), "Z2", ["f(−z) = −f(z)"]),
    "in small units": (lambda z: 1e-12 * torch.sigmoid(z), "Z2", ["f(−z) = −f(z) + 1e-12"]),
    "on a large constant": (lambda z: torch.tanh(z) + 1e6, "Z2", ["f(−z) = −f(z) + 2000000"]),
    "beside a line": (lambda z: F.gelu(z) / 1000 + 5 * z, "Z2", ["f(−z) = f(z) − 10.001·z"]),
    "two sines": (lambda z: torch.sin(z) + torch.sin(2**0.5 * z), "Z2", ["f(−z) = −f(z)"]),
    "harmonics": (lambda z: torch.sin(z) + torch.cos(2 * z), "D∞", ["f(π − z) = f(z)"]),
    "unequal ramps": (lambda z: F.relu(z) + F.relu(z - 1) / 2 - 2 * F.relu(z + 2), "trivial", []),
    "cosh": (torch.cosh, "Z2", ["f(−z) = f(z)"]),
    "logarithmic period": (log_periodic, "Z", []),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_search_knows_no_names(name: str) -> None:
    function, group, expected = FUNCTIONS[name]
    found = intertwiners(function)
    assert found.group == group, str(found)
    assert set(expected) <= set(lines(found)), str(found)


def test_a_discrete_scaling_about_an_unknown_centre() -> None:
    (relation,) = intertwiners(log_periodic).relations
    assert relation.centre == pytest.approx(1.3, abs=1e-12)
    assert relation.alpha == pytest.approx(math.exp(math.pi), rel=1e-12)
    assert relation.a == pytest.approx(-math.exp(math.pi), rel=1e-12)


def test_a_sine_of_the_logarithm_scales_and_reflects() -> None:
    found = intertwiners(lambda z: z * torch.sin(torch.log(z.abs())))
    assert found.group == "Z2 × Z"
    assert [r.name for r in found.generators] == ["odd", "scaling"]


def test_a_scaling_may_turn_the_line_over() -> None:
    """f(z) = |z| (cos(π log₂|z|) sgn z + 1/2): f(−2z) = 2 f(z), and neither −z nor 2z do."""
    found = intertwiners(lambda z: z * torch.cos(math.pi * z.abs().log2()) + z.abs() / 2)
    (relation,) = found.relations
    assert (relation.alpha, relation.beta) == (-2, 0)
    assert (relation.a, relation.b, relation.c) == (2, 0, 0)
    assert found.group == "Z"


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    st.floats(-2, 2),
    st.floats(-3, 3),
    st.floats(0.3, 2),
    st.floats(-2, 2),
    st.sampled_from([1, -1]),
)
def test_relations_follow_a_change_of_variables(
    slope: float, constant: float, scale: float, shift: float, sign: int
) -> None:
    """g(z) = ± tanh(s z + t) + k z + m reflects about −t/s."""
    found = intertwiners(lambda z: sign * torch.tanh(scale * z + shift) + slope * z + constant)
    (relation,) = found.relations
    assert relation.beta / 2 == pytest.approx(-shift / scale, abs=1e-9)
    assert relation.a == pytest.approx(-1, abs=1e-9)
    assert relation.residual < 1e-11


@pytest.mark.parametrize("size", [1e-4, 1e-6, 1e-7])
def test_what_is_nearly_odd_is_reported_with_its_number_and_not_accepted(size: float) -> None:
    found = intertwiners(lambda z: torch.tanh(z) + size * torch.exp(-z * z))
    assert found.group == "trivial" and found.parity == "pin"
    near = found.nearly[0]
    assert (near.alpha, near.beta, near.a) == (-1, 0, pytest.approx(-1, abs=2 * size))
    assert size / 20 < near.residual < 3 * size
    assert "nearly, to" in str(found)
    assert intertwiners(torch.tanh).nearly == ()


def test_a_large_line_hides_no_defect() -> None:
    """Mish misses each reflection by 7e-3 of itself, which is 1e-9 of what stands here."""
    found = intertwiners(lambda z: 5 * z + 1e-6 * F.mish(z))
    assert found.group == "trivial" and found.tolerance < 1e-12
    gated = intertwiners(lambda z: 5 * z + 1e-6 * F.gelu(z))
    assert gated.group == "Z2" and gated.nearly == ()
    assert gated.relations[0].b == pytest.approx(-10 - 1e-6, abs=1e-8)  # of 1e-16/1e-6


def test_a_map_that_leaves_the_domain_is_none() -> None:
    log = intertwiners(torch.log)
    assert log.measured(Relation(-1, 0, -1)).residual == math.inf
    assert log.measured(Relation(1, 1, 1)).residual > 0.01
    assert log.measured(Relation(2, 0, 1, 0, math.log(2))).residual < 1e-15
    assert log.over(3, 0).c == pytest.approx(math.log(3), rel=1e-12)


def test_a_relation_without_the_function_is_none() -> None:
    """Where f is constant a far map has f(αz + β) = c, which says nothing of f(z)."""
    generator = torch.Generator().manual_seed(0)
    certificate = Certificate(scalar_function(torch.tanh, generator), generator, 1e-9)
    odd = certificate.fitted(-1, 0)
    assert certificate.accepts(odd)
    assert not certificate.accepts(Relation(1, 1e4, 0, 0, 1, residual=0.0))
    # and a map that takes every point near by away from there is no evidence
    assert certificate.fitted(1, 1e4).residual == math.inf


def test_tolerance_decides() -> None:
    def function(z: Tensor) -> Tensor:
        return torch.tanh(z) + 1e-6 * torch.exp(-z * z)

    assert intertwiners(function, tolerance=1e-5).group == "Z2"


def test_a_step_function_has_no_shorter_shift_than_its_steps() -> None:
    """f' = 0 almost everywhere is no symmetry, and few points see a short shift."""
    found = intertwiners(torch.round)
    assert found.families == ()
    assert [r.beta for r in found.relations if r.alpha == 1] == [1]
    generator = torch.Generator().manual_seed(0)
    steps = scalar_function(torch.round, generator)
    breaks = tuple(jumps(steps))
    assert {0.5, 1.5, -0.5, -6.5} <= set(breaks)
    small = Relation(1, 1e-5, 1)
    assert Certificate(steps, generator, 1e-9, places=breaks).residual(small) > 1e-3
    assert Certificate(steps, generator, 1e-9, points=50).residual(small) == 0  # unseen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_function_in_lower_precision_has_a_threshold_of_its_own(dtype: torch.dtype) -> None:
    found = intertwiners(lambda z: torch.sigmoid(z.to(dtype)).double())
    assert found.scalar.epsilon >= torch.finfo(dtype).eps / 4
    assert 1e-7 < found.tolerance < 0.1 and found.group == "Z2"
    if dtype == torch.float32:
        assert intertwiners(lambda z: F.mish(z.float())).group == "trivial"
    assert intertwiners(torch.round).scalar.epsilon == 2.0**-52  # steps, no roundings


def test_a_function_that_takes_no_float64() -> None:
    prelu = nn.PReLU(init=0.25)
    found = intertwiners(prelu)
    assert (found.group, found.degree, found.name) == ("R*", 1, "PReLU")
    assert found.scalar.dtype == torch.float32


def test_points_come_from_the_generator() -> None:
    state = torch.get_rng_state()
    first = intertwiners(F.gelu, generator=torch.Generator().manual_seed(3))
    again = intertwiners(F.gelu, generator=torch.Generator().manual_seed(3))
    assert first.relations == again.relations
    assert torch.equal(state, torch.get_rng_state())


REFUSED = {
    "softmax": (lambda z: z.softmax(-1), "a function of each entry by itself"),
    "running sum": (lambda z: z.cumsum(-1), "a function of each entry by itself"),
    "normalisation": (lambda z: z - z.mean(), "a function of each entry by itself"),
    "dropout": (nn.Dropout(0.5), "without random numbers"),
    "another shape": (lambda z: z.sum(), "a real tensor of shape"),
    "complex": (lambda z: torch.complex(z, z), "a real tensor of shape"),
    "no tensor": (lambda z: 3.0, "a real tensor of shape"),
    "raises": (lambda z: z @ torch.eye(2), "a real function of each entry"),
    "several intervals": (lambda z: torch.sqrt(torch.sin(z)), "on one interval"),
    "nowhere": (lambda z: torch.sqrt(-1 - z * z), "with numbers near the origin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_one_number_is_refused(name: str) -> None:
    function, expected = REFUSED[name]
    with pytest.raises(ValueError) as error:
        intertwiners(function)
    text = str(error.value)
    assert text.startswith("intertwiners(function=") and expected in text
    assert "was expected. " in text and text.rstrip().endswith(".")  # and what to do


def test_random_modules_pass_in_evaluation_mode() -> None:
    assert intertwiners(nn.Dropout(0.5).eval()).factor == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (-0.5, "−1/2"), (math.pi, "π"), (-1.5 * math.pi, "−3π/2"), (1.01, "1.01"),
     (math.exp(math.pi), "e^π"), (0.1, "1/10"), (1e-9, "1e-09"), (math.e, "e")],
)  # fmt: skip
def test_numbers_are_spelled(value: float, text: str) -> None:
    assert spelled(value) == text


def test_short_numbers_are_near_and_sums_readable() -> None:
    assert short(0.33333333331) == 1 / 3 and short(0.3333) == 0.3333
    assert short(6.2831853071) == 2 * math.pi
    assert combination([(-1, "z"), (math.pi, "")], positive_first=True) == "π − z"
    assert combination([(0, "z"), (0, "")]) == "0"
