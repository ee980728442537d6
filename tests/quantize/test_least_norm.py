"""Of the points of least range the one of least norm, against a general solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn

from paramsym import ParameterSymmetry, act, balance, find_symmetry
from paramsym.geometry.result import Status
from paramsym.quantize.least_norm import LeastNorm, Norm
from paramsym.quantize.ranges import NORM_GAP, minimize_range
from tests.quantize import range_twins as twin

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def norm_of(symmetry: ParameterSymmetry, params: twin.State) -> float:
    return sum(
        float(p.double().square().sum())
        for n, p in params.items()
        if n not in symmetry.buffers and p.is_floating_point()
    )


def slow_norm(symmetry: ParameterSymmetry, params: twin.State, top: float, one: bool) -> float:
    """The least norm with a row for every weight, by SLSQP from the given parameters.

    The variables are y and the odds x of the tensors: log|w| + ⟨c, y⟩ ≤ log top + log q.
    """
    c, size, tensor, negative = twin.exponents(symmetry, params)
    scales, tensors = c.shape[1], int(tensor.max()) + 1
    parted = np.array([not one and len(set(negative[tensor == t])) == 2 for t in range(tensors)])
    column = np.cumsum(parted) - 1
    has, sign = parted[tensor], np.where(negative, 1.0, -1.0)

    def share(x: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0, sign * x[column[tensor]]) * has if len(x) else 0.0 * size

    def room(z: np.ndarray) -> np.ndarray:
        return math.log(top) + share(z[scales:]) - size - c @ z[:scales]

    def slope(z: np.ndarray) -> np.ndarray:
        made = np.zeros((len(c), len(z)))
        made[:, :scales] = -c
        if len(z) > scales:
            steep = -sign / (1 + np.exp(-sign * z[scales:][column[tensor]])) * has
            made[np.arange(len(c)), scales + column[tensor]] += steep
        return made

    found = minimize(
        lambda z: float(np.exp(2 * (size + c @ z[:scales])).sum()),
        np.zeros(scales + parted.sum()),
        jac=lambda z: np.r_[
            2 * c.T @ np.exp(2 * (size + c @ z[:scales])), np.zeros(len(z) - scales)
        ],
        constraints={"type": "ineq", "fun": room, "jac": slope},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success and room(found.x).min() > -1e-9
    return float(found.fun)


@pytest.mark.parametrize("objective", ["max", "abs"])
@pytest.mark.parametrize("name", twin.MODELS)
def test_the_norm_is_that_of_a_general_solver(name: str, objective: str) -> None:
    model, x, symmetry, params = twin.built(name)
    best = minimize_range(symmetry, params, objective, slack=0.0)
    result = minimize_range(symmetry, params, objective)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(twin.widest(symmetry, result.params, objective), rel=1e-12)
    assert best.value <= result.value * (1 + 1e-12) and result.value <= 1.01 * best.value
    assert result.value - result.gap == pytest.approx(best.value, rel=1e-9)
    assert result.norm == pytest.approx(norm_of(symmetry, result.params), rel=1e-10)
    assert 0 <= result.norm_gap <= NORM_GAP * result.norm
    slow = slow_norm(symmetry, best.params, 1.01 * best.value, objective == "abs")
    assert result.norm - result.norm_gap <= slow * (1 + 1e-7)
    assert result.norm == pytest.approx(slow, rel=1.01 * NORM_GAP)
    assert result.norm < 0.999 * norm_of(symmetry, best.params)  # the point of the bound has more
    with torch.no_grad():
        moved = torch.func.functional_call(model, result.params, (x,))
        assert float((moved - model(x)).abs().max()) < 1e-12 * float(model(x).abs().max())


def test_with_room_enough_it_is_the_least_norm_of_all() -> None:
    _, _, symmetry, params = twin.built("residual MLP")
    result = minimize_range(symmetry, params, slack=9.0)
    least = balance(symmetry, params, shifts=False).value
    assert least <= result.norm <= least * (1 + 1e-3)
    assert minimize_range(symmetry, params).norm > 1.001 * least


@pytest.mark.parametrize("name", ["MLP", "batch norm"])
def test_the_norm_is_the_same_from_any_start(name: str) -> None:
    _, _, symmetry, params = twin.built(name)
    found = [
        minimize_range(symmetry, twin.moved_at_random(symmetry, params, s)).norm for s in range(3)
    ]
    assert max(found) <= min(found) * (1 + NORM_GAP)


def test_units_with_one_side_stay_where_the_range_left_them() -> None:
    _, _, symmetry, params = twin.built("MLP")
    params = {n: p.clone() for n, p in params.items()}
    params["0.weight"][2], params["0.bias"][2] = 0.0, 0.0
    params["2.weight"][:, 3] = 0.0
    result = minimize_range(symmetry, params)
    assert result.norm_gap <= NORM_GAP * result.norm
    left = minimize_range(symmetry, params, slack=0.0)
    for index in ((slice(3, 4), slice(None)), (slice(2, 3), slice(None))):  # least at zero: held
        torch.testing.assert_close(
            result.params["0.weight"][index], left.params["0.weight"][index], rtol=1e-12, atol=0.0
        )
    assert not torch.allclose(result.params["0.weight"][0], left.params["0.weight"][0], rtol=1e-6)


def test_without_a_certificate_nothing_is_traded() -> None:
    _, _, symmetry, params = twin.built("MLP")
    start = twin.moved_at_random(symmetry, params, 0)
    short = minimize_range(symmetry, start, rounds=0)
    assert short.status is Status.LOCAL and math.isnan(short.norm) and short.norm_gap == math.inf
    assert short.value == minimize_range(symmetry, start, rounds=0, slack=0.0).value


class Astray(LeastNorm):
    """A search that goes astray: to scales far off, or to a norm that is no less than claimed."""

    wide = True

    def run(self, y: np.ndarray, x: np.ndarray, tolerance: float) -> Norm:
        if not self.wide:
            return Norm(y, 0.0, 0.0)  # claims a norm of zero, and has moved nothing
        found = super().run(y, x, tolerance)
        far = found.y.copy()
        far[1:] += 0.5 * np.sin(np.arange(1.0, len(far)))
        return Norm(far, 0.5 * found.value, 0.0)


@pytest.mark.parametrize("wide", [True, False])
def test_a_search_for_the_norm_that_goes_astray_leaves_the_point_of_the_least_range(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, symmetry, params = twin.built("residual MLP")
    exact = minimize_range(symmetry, params, slack=0.0)
    sound = minimize_range(symmetry, params)
    monkeypatch.setattr("paramsym.quantize.ranges.LeastNorm", Astray)
    monkeypatch.setattr(Astray, "wide", wide)
    result = minimize_range(symmetry, params)
    assert result.status is Status.OPTIMAL and result.value == exact.value
    assert all(torch.equal(result.params[n], exact.params[n]) for n in params)
    assert result.norm == pytest.approx(norm_of(symmetry, exact.params), rel=1e-12)
    # nothing false is said of the norm: the least is in reach of the gap
    assert result.norm - result.norm_gap <= sound.norm < result.norm


def test_a_share_that_is_none_is_refused() -> None:
    _, _, symmetry, params = twin.built("MLP")
    for bad in (-0.01, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"slack=.*not negative was expected.*Pass 0"):
            minimize_range(symmetry, params, slack=bad)


# -- gains -------------------------------------------------------------------------------------


def normed() -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, twin.State]:
    """Batch norm after convolutions, unfolded, and a layer norm before the head."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(4 * 4), nn.Linear(4 * 4, 3),
    ).double().eval()  # fmt: skip
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    x = torch.randn(2, 2, 4, 4).double()
    return model, x, find_symmetry(model, (x,), check=False), twin.state_of(model)


def largest(params: twin.State, names: list[str]) -> float:
    return max(float(params[n].abs().max()) for n in names)


def test_a_net_with_norms_has_a_least_range_because_gains_count() -> None:
    model, _, symmetry, params = normed()
    vectors = [n for n, p in model.named_parameters() if p.ndim == 1]
    exact = minimize_range(symmetry, params, slack=0.0)
    assert exact.status is Status.OPTIMAL
    assert exact.value == pytest.approx(twin.slow_range(symmetry, params, "max"), rel=1e-8)
    for seed in range(3):
        start = twin.moved_at_random(symmetry, params, seed)
        result = minimize_range(symmetry, start)
        assert result.status is Status.OPTIMAL and result.value <= 1.01 * exact.value
        assert result.value - result.gap == pytest.approx(exact.value, rel=1e-9)
        assert largest(start, vectors) > largest(result.params, vectors)
        assert largest(result.params, vectors) <= result.value * (1 + 1e-12)


def test_over_matrices_alone_a_net_with_norms_has_no_least_range() -> None:
    """They all go to zero, and gains to infinity, while the function stays: the control."""
    model, x, symmetry, params = normed()
    alone = twin.matrices_alone(symmetry, params)
    result = minimize_range(alone, params)
    assert result.status is Status.UNATTAINED and "go to zero" in result.held["every scale"]
    found = [twin.slow_range(alone, params, "abs", reach=r) for r in (5.0, 10.0, 20.0)]
    assert found[1] < 1e-1 * found[0] and found[2] < 1e-3 * found[1]  # as far as one looks
    # with the gains, the reach is no matter
    near, far = (twin.slow_range(symmetry, params, "abs", reach=r) for r in (10.0, 20.0))
    assert near == pytest.approx(far, rel=1e-8)
    # along such a direction, the functions are equal
    c, size, _, _ = twin.exponents(alone, params)
    rows, scales = np.c_[c, -np.ones(len(c))], c.shape[1]
    bounds = [(-20.0, 20.0)] * scales + [(None, None)]
    best = linprog(np.r_[np.zeros(scales), 1.0], rows, -size, bounds=bounds).x[:-1]
    step, at = {}, 0
    for name in twin.scales_of(symmetry, params):
        shape = twin.shape_of(symmetry, name)
        step[name] = torch.tensor(best[at : at + math.prod(shape)]).reshape(shape)
        at += math.prod(shape)
    moved = act(symmetry, symmetry.velocity(step).exp(), params)
    matrices = [n for n, p in model.named_parameters() if p.ndim > 1]
    gains = ["1.weight", "4.weight", "7.weight"]
    assert largest(moved, matrices) < 1e-6 and largest(moved, gains) > 1e6
    with torch.no_grad():
        error = (torch.func.functional_call(model, moved, (x,)) - model(x)).abs().max()
    assert float(error) < 1e-9 * float(model(x).abs().max())


def test_the_worst_layer_the_sum_and_the_product_have_the_same_scales() -> None:
    """In a feed-forward net a common factor of a layer is free, and equalises the layers."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    ).double()  # fmt: skip
    symmetry = find_symmetry(model, (torch.randn(2, 4).double(),), check=False)
    params = twin.state_of(model)
    result = minimize_range(symmetry, params, slack=0.0)
    widths = twin.ranges(symmetry, result.params).sum(1)
    np.testing.assert_allclose(widths, result.value, rtol=1e-9)  # all layers are equally wide
    product = float(np.prod(widths))
    for seed in range(20):
        beside = twin.moved_at_random(symmetry, result.params, seed)
        assert np.prod(twin.ranges(symmetry, beside).sum(1)) > product
        assert twin.ranges(symmetry, beside).sum() > widths.sum()
