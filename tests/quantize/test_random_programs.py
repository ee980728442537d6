"""Least ranges of module graphs drawn at random, against linear programs with every weight."""

from __future__ import annotations

import pytest
import torch

from paramsym import find_symmetry
from paramsym.geometry.result import Status
from paramsym.quantize.ranges import minimize_range
from tests.quantize import range_twins as twin
from tests.quantize.random_programs import program

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

BOUNDED = (
    2,
    5,
    23,
    33,
    55,
    70,
    71,
    79,
    83,
)  # from starts of 33 and 71 no near weights close a cycle
UNBOUNDED = (29, 75, 81)


@pytest.mark.parametrize("seed", BOUNDED)
def test_random_programs_have_the_range_of_the_twin_from_any_start(seed: int) -> None:
    model, x = program(seed)
    symmetry, params = find_symmetry(model, (x,), check=False), twin.state_of(model)
    objective = ("max", "abs")[seed % 4 == 1]
    result = minimize_range(symmetry, params, objective, slack=0.0)
    moved = [n for n in twin.scales_of(symmetry, params) if n not in result.held]
    expected = twin.slow_range(symmetry, params, objective, moved)
    assert moved and result.status is Status.OPTIMAL
    assert result.value == pytest.approx(expected, rel=1e-6)
    for k in range(3):
        start = twin.moved_at_random(symmetry, params, k, moved)
        assert twin.widest(symmetry, start, objective) >= result.value * (1 - 1e-9)
        again = minimize_range(symmetry, start, objective)
        assert again.status is Status.OPTIMAL and again.value <= 1.01 * result.value * (1 + 1e-9)
        assert again.value - again.gap == pytest.approx(result.value, rel=1e-6)
        with torch.no_grad():
            change = torch.func.functional_call(model, again.params, (x,)) - model(x)
            assert float(change.abs().max()) <= 1e-12 * float(model(x).abs().max())
    # other weights, that no symmetry leads to, have another range: the comparison can fail
    other = {n: 1.001 * p if p.is_floating_point() else p for n, p in params.items()}
    wider = minimize_range(symmetry, other, objective, slack=0.0)
    assert wider.value == pytest.approx(1.001 * result.value, rel=1e-9)
    assert wider.value != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", UNBOUNDED)
def test_random_programs_without_a_cycle_have_none_in_the_twin(seed: int) -> None:
    model, x = program(seed)
    symmetry, params = find_symmetry(model, (x,), check=False), twin.state_of(model)
    result = minimize_range(symmetry, params)
    assert result.status is Status.UNATTAINED
    assert all(torch.equal(result.params[n], params[n]) for n in params)
    near, far = (twin.slow_range(symmetry, params, "abs", reach=r) for r in (20.0, 80.0))
    assert far < 1e-3 * near < result.before
    closed = {n: torch.where(p == 0, 1e-3, p) if p.is_floating_point() else p
              for n, p in params.items()}  # fmt: skip
    assert minimize_range(symmetry, closed).status is Status.OPTIMAL  # no zeros: a cycle


def test_a_start_that_hides_every_cycle_is_no_proof_that_there_is_none() -> None:
    """One weight of the last layer closes the cycle, and is far fainter than its neighbours."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4, bias=False), torch.nn.ReLU(), torch.nn.Linear(4, 2, bias=False)
    ).double()
    symmetry = find_symmetry(model, (torch.randn(2, 3).double(),), check=False)
    params = twin.state_of(model)
    params["0.weight"][1:] = 0.0  # the other units have no way in
    for faint in (1e-2, 1e-8, 1e-40):
        params["2.weight"][:, 0] = faint
        result = minimize_range(symmetry, params, slack=0.0)
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(
            twin.slow_range(symmetry, params, "max", reach=60.0), rel=1e-6
        )
    params["2.weight"][:, 0] = 0.0
    assert minimize_range(symmetry, params, slack=0.0).status is Status.UNATTAINED
