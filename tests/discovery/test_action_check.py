"""Verdicts are relative to the way moved: no parameter at rest and no constant hides an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paramsym.discovery.acting.action_check import ActionCheck, Limits, Verdict, row
from paramsym.discovery.acting.actions import check_action

Params = dict[str, Tensor]


def normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator, dtype=torch.float64)


def check(rest: float, error: float, constant: float = 0.0, away: float = 0.0) -> ActionCheck:
    """GL(2) on UV with a parameter at rest, elements off by an error, a constant in the loss."""

    def action(g: Tensor, params: Params, x: Tensor) -> Params:
        u = params["U"] @ torch.linalg.inv(g) * (1 + error)
        return {**params, "U": u, "V": g @ params["V"] * (1 + away) / (1 + error)}

    def params(generator: torch.Generator) -> Params:
        rests = torch.full((3,), rest, dtype=torch.float64)
        return {"U": normal(2, 2)(generator), "V": normal(2, 3)(generator), "Z": rests}

    return check_action(
        action, lambda p, x: p["U"] @ p["V"] @ x.T + constant, params=params, data=normal(4, 3),
        elements=lambda generator: torch.linalg.matrix_exp(0.4 * normal(2, 2)(generator)),
        samples=24,
    )  # fmt: skip


@pytest.mark.parametrize("rest", [0.0, 1.0, 1e3, 1e5, 1e7])
def test_parameters_at_rest_hide_no_error(rest: float) -> None:
    found = check(rest, error=1e-6)
    assert found["identity"].verdict is Verdict.FAILS
    assert found["associativity"].verdict is Verdict.FAILS
    assert found["loss invariance"].verdict is Verdict.HOLDS
    assert check(rest, error=0.0).is_symmetry  # the control


@pytest.mark.parametrize("constant", [0.0, 1.0, 1e3, 1e5])
def test_a_constant_in_the_loss_hides_no_error(constant: float) -> None:
    found = check(1.0, error=0.0, constant=constant, away=1e-6)["loss invariance"]
    assert found.verdict is Verdict.FAILS
    assert check(1.0, error=0.0, constant=constant).is_symmetry


def test_where_rounding_hides_the_error_there_is_no_verdict() -> None:
    for away in (0.0, 1e-6):
        found = check(1.0, error=0.0, constant=1e8, away=away)["loss invariance"]
        assert found.verdict is (Verdict.FAILS if away else Verdict.UNDECIDED)
    assert check(1e10, error=1e-6)["identity"].verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("value", "control", "verdict"),
    [
        (0.0, 1.0, Verdict.HOLDS), (9e-7, 1.0, Verdict.HOLDS), (2e-6, 1.0, Verdict.FAILS),
        (9e-7, 0.1, Verdict.FAILS), (9e-8, 0.1, Verdict.HOLDS), (9e-7, 50.0, Verdict.HOLDS),
        (0.0, 9e-6, Verdict.UNDECIDED), (5e-9, 1e-3, Verdict.UNDECIDED),
        (5e-10, 1e-3, Verdict.HOLDS), (2e-8, 1e-3, Verdict.FAILS),
    ],
)  # fmt: skip
def test_the_verdict_of_a_row(value: float, control: float, verdict: Verdict) -> None:
    limits = Limits(tolerance=1e-6, eps=1e-8 / 64)
    errors: Any = [(value, 1.0, control)] * 8
    assert row("identity", errors, limits, 0.95).verdict is verdict
    other = {Verdict.HOLDS: Verdict.SAME, Verdict.FAILS: Verdict.DEPENDS}.get(verdict, verdict)
    assert row("data dependence", errors, limits, 0.95).verdict is other
