"""The least expected error against its definition, a general solver, and equivalent starts."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

from paramsym import ParameterSymmetry, Space, act, balance, find_symmetry
from paramsym.algebra import PositiveScaling
from paramsym.geometry.costs import cost_along_scales, scales_of
from paramsym.geometry.result import Status
from paramsym.quantize import smoothing
from paramsym.quantize.assembly import Assembly
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.expected_error import ExpectedError
from paramsym.quantize.grids import Grid
from paramsym.quantize.sensitivities import sensitivities
from paramsym.quantize.smoothing import Smooth
from paramsym.structure.axes import parse_axis
from paramsym.structure.data import batch_of
from paramsym.structure.patterns import UnknownName

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, torch.Tensor]
GRIDS = [Grid(4), Grid(4, "channel"), Grid(3, 2), Grid(4, symmetric=False)]


class Convolutions(nn.Module):
    """A skip, a batch norm and two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x)).relu()
        h = (h + self.second(h)).relu()
        return self.out(h.mean((-1, -2)))


def network(kind: str = "mlp") -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if kind == "mlp":
        model = nn.Sequential(
            nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)
        )
        return model.double(), torch.randn(20, 3, dtype=torch.float64)
    return Convolutions().double().eval(), torch.randn(4, 2, 5, 5, dtype=torch.float64)


def problem(kind: str = "mlp") -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, State, State]:
    model, x = network(kind)
    symmetry = find_symmetry(model, (x[:3],), check=False)
    params = {n: p.detach().clone() for n, p in model.state_dict().items()}
    return model, x, symmetry, params, sensitivities(model, [(x,)], projections=None)


def measured(model: nn.Module, x: torch.Tensor, params: State) -> State:
    """Sensitivities at other parameters, measured there."""
    before = {n: p.clone() for n, p in model.state_dict().items()}
    model.load_state_dict(params)
    found = sensitivities(model, [(x,)], projections=None)
    model.load_state_dict(before)
    return found


def scaled(symmetry: ParameterSymmetry, params: State, seed: int, strength: float) -> State:
    """The same function at log-normal scales; units stay in their order, which groups depend on."""
    generator = torch.Generator().manual_seed(seed)
    logs = {
        n: strength
        * torch.randn(
            *batch_of(symmetry, space), scales_of(space), generator=generator, dtype=torch.float64
        )
        for n, space in symmetry.spaces.items()
        if scales_of(space)
    }
    return act(symmetry, symmetry.velocity(logs).exp(), params)


def expected(params: State, found: State, grid: Grid, names: list[str] | None = None) -> float:
    """Σ Δ²/12 · Σ F, group by group, from the definition."""
    total = 0.0
    for name in names or [n for n in found if params[n].ndim >= 2]:
        index = grid.group_of(tuple(params[name].shape))
        steps = grid.ranges(params[name]) / grid.steps
        total += float((steps[index] ** 2 / 12 * found[name]).sum())
    return total


# -- the value ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_value_is_the_error_measured_there_and_the_function_stays(
    grid: Grid, kind: str
) -> None:
    model, x, symmetry, params, found = problem(kind)
    result = minimize_quantization_error(symmetry, params, found, grid)
    assert result.before == pytest.approx(expected(params, found, grid), rel=1e-10)
    there = measured(model, x, result.params)
    assert result.value == pytest.approx(expected(result.params, there, grid), rel=1e-8)
    assert result.value < result.before
    assert result.status is Status.OPTIMAL and 0 <= result.gap <= 1e-3 * result.value
    moved = torch.func.functional_call(model, result.params, (x,)) - model(x)
    assert float(moved.abs().max() / model(x).abs().max()) < 1e-12
    again = act(symmetry, result.element, params)
    assert all(torch.equal(again[n], p) for n, p in result.params.items())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_no_equivalent_point_is_lower_than_the_gap_says(grid: Grid) -> None:
    model, x, symmetry, params, found = problem()
    result = minimize_quantization_error(symmetry, params, found, grid)
    best = measured(model, x, result.params)
    for seed in range(20):
        beside = scaled(symmetry, result.params, seed, 0.05 * (1 + seed % 4))
        assert expected(beside, measured(model, x, beside), grid) >= result.value - result.gap
    rival = balance(symmetry, params).params
    assert expected(rival, measured(model, x, rival), grid) > 1.001 * expected(
        result.params, best, grid
    )


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_equal_values_from_equivalent_starts(grid: Grid) -> None:
    model, x, symmetry, params, found = problem()
    first = minimize_quantization_error(symmetry, params, found, grid)
    for seed in range(2):
        start = scaled(symmetry, params, seed, 1.0)
        result = minimize_quantization_error(symmetry, start, measured(model, x, start), grid)
        assert result.before > 1.1 * first.value  # the starts do differ
        assert result.value == pytest.approx(first.value, rel=1e-3)


def by_a_general_solver(params: State, found: State, grid: Grid) -> float:
    """min Σ e^{2t} · Σ F e^{−2⟨c,y⟩} over y and t with log|w| + ⟨c, y⟩ ≤ t, for the MLP."""
    layers = [n for n in params if n.endswith("weight")]
    logs = [params[n].abs().log().numpy() for n in layers]
    weights = [found[n].numpy() for n in layers]
    sizes = [0, *(len(log) for log in logs[:-1]), 0]
    cuts = np.cumsum(sizes)

    def exponents(x: np.ndarray) -> list[np.ndarray]:
        made = []
        for k, log in enumerate(logs):
            inner = x[cuts[k - 1] : cuts[k]] if k else np.zeros(log.shape[1])
            outer = x[cuts[k] : cuts[k + 1]] if k < len(logs) - 1 else np.zeros(log.shape[0])
            made.append(outer[:, None] - inner[None, :])
        return made

    def cost(x: np.ndarray) -> float:
        tops = x[cuts[-1] :]
        return math.log(sum(
            math.exp(2 * t) * float((f * np.exp(-2 * e)).sum())
            for t, f, e in zip(tops, weights, exponents(x), strict=True)
        ))  # fmt: skip

    def room(x: np.ndarray) -> np.ndarray:
        tops = x[cuts[-1] :]
        return np.concatenate(
            [(t - log - e).ravel() for t, log, e in zip(tops, logs, exponents(x), strict=True)]
        )

    start = np.concatenate([np.zeros(cuts[-1]), [log.max() + 0.5 for log in logs]])
    solved = scipy.optimize.minimize(
        cost, start, constraints={"type": "ineq", "fun": room}, method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )  # fmt: skip
    assert solved.success
    return math.exp(solved.fun) / 12 / grid.steps**2


def test_a_general_solver_finds_the_same_value() -> None:
    _, _, symmetry, params, found = problem()
    slow = by_a_general_solver(params, found, Grid(4))
    result = minimize_quantization_error(symmetry, params, found, Grid(4), tolerance=1e-5)
    assert result.value == pytest.approx(slow, rel=1e-5)
    assert result.value - result.gap <= slow * (1 + 1e-9)
    assert result.before > 1.01 * slow


def test_one_layer_of_one_unit_has_a_closed_form() -> None:
    """e^{2y}·a²·F_b + e^{−2y}·b²·F_a and what no scale moves, for a (1, 2) then b (1, 1)."""
    space = Space("h", PositiveScaling(2))
    signature = {"a": (parse_axis("h"), parse_axis("1")), "b": (parse_axis("1"), parse_axis("h*"))}
    symmetry = ParameterSymmetry({"h": space}, signature)
    params = {"a": torch.tensor([[3.0], [1.0]]).double(), "b": torch.tensor([[2.0, 2.0]]).double()}
    found = {"a": torch.tensor([[1.0], [1.0]]).double(), "b": torch.tensor([[1.0, 1.0]]).double()}
    # per channel the rows of a move with their range, so that b alone is balanced: both
    # columns are equal in |w|²F at once, range 2² (F₁ e^{2y₁} + F₂ e^{2y₂}) least at y₁ = y₂
    result = minimize_quantization_error(symmetry, params, found, Grid(4, "channel"))
    assert result.value == pytest.approx((9 + 1 + 4 * 2) / 12 / 49, rel=1e-9)
    found["b"] = torch.tensor([[16.0, 1.0]]).double()
    # max(e^{−y₁}, e^{−y₂})² (16 e^{2y₁} + e^{2y₂}) is least where the two maxima meet
    result = minimize_quantization_error(symmetry, params, found, Grid(4, "channel"))
    assert result.value == pytest.approx((9 + 1 + 4 * 17) / 12 / 49, rel=1e-3)
    # per tensor row 2 of a is below the range: y₂ > 0 costs nothing there and gains in F_a
    result = minimize_quantization_error(symmetry, params, found, Grid(4), tolerance=1e-5)

    def cost(y: np.ndarray) -> float:
        up, down = np.exp(y), np.exp(-y)
        first = max(3 * up[0], up[1]) ** 2 * float(down @ down)
        return math.log(first + (2 * max(down)) ** 2 * float(16 * up[0] ** 2 + up[1] ** 2))

    least = scipy.optimize.minimize(
        cost, [0.0, 0.5], method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-14}
    ).fun
    assert result.value == pytest.approx(math.exp(least) / 12 / 49, rel=1e-5)


# -- what takes part ---------------------------------------------------------------------------


def test_all_quantised_tensors_count_and_no_other() -> None:
    model, x, symmetry, params, found = problem()
    alone = minimize_quantization_error(symmetry, params, found, Grid(4), quantized="2.weight")
    there = measured(model, x, alone.params)
    assert alone.value == pytest.approx(
        expected(alone.params, there, Grid(4), ["2.weight"]), rel=1e-8
    )
    every = minimize_quantization_error(symmetry, params, found, Grid(4))
    assert expected(alone.params, there, Grid(4)) > every.value  # who looks at one layer pays


def test_flat_directions_go_to_the_least_norm() -> None:
    """A gain takes up the common scale of what it feeds, at no error: the norm decides."""
    _, _, symmetry, params, found = problem("convolutions")
    result = minimize_quantization_error(symmetry, params, found, Grid(4))
    far = act(symmetry, symmetry.sample(torch.Generator().manual_seed(0), 3.0), params)
    model, x = network("convolutions")
    again = minimize_quantization_error(symmetry, far, measured(model, x, far), Grid(4))
    norms = [sum(float(p.square().sum()) for n, p in r.params.items() if n not in symmetry.buffers)
             for r in (result, again)]  # fmt: skip
    assert norms[0] == pytest.approx(norms[1], rel=0.2)  # to the tolerance of E
    assert max(norms) < 3 * balance(symmetry, params, shifts=False).value


def test_the_least_norm_decides_along_a_common_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """E = max(2e^{−y₁}, e^{−y₂})² (16 e^{2y₁} + e^{2y₂}) is least at y₁ = y₂ + log 2, at any y₂."""
    signature = {"a": (parse_axis("h"),), "b": (parse_axis("1"), parse_axis("h*"))}
    symmetry = ParameterSymmetry({"h": Space("h", PositiveScaling(2))}, signature)
    params = {"a": torch.tensor([3.0, 0.5]).double(), "b": torch.tensor([[2.0, 1.0]]).double()}
    found = {"b": torch.tensor([[16.0, 1.0]]).double()}

    def imbalance() -> float:  # the moment of the squared norm along the common scale
        made = minimize_quantization_error(symmetry, params, found, Grid(4), tolerance=1e-5)
        assert made.value == pytest.approx(65 / 12 / 49, rel=1e-4) and made.value < made.before
        gain, read = (float(made.params[n].square().sum()) for n in ("a", "b"))
        return abs(gain - read) / (gain + read)

    assert imbalance() < 1e-3
    monkeypatch.setattr(smoothing, "TIE", 0.0)
    assert imbalance() > 1e-2


def test_what_is_held_stays_and_is_named() -> None:
    _, _, symmetry, params, found = problem()
    space = next(iter(minimize_quantization_error(symmetry, params, found, Grid(4)).moment))
    result = minimize_quantization_error(symmetry, params, found, Grid(4), hold=space)
    assert result.held[space] == "it was asked for" and space not in result.moment
    held = minimize_quantization_error(symmetry, params, found, Grid(4), hold="*")
    assert all(torch.equal(held.params[n], p) for n, p in params.items())
    assert held.value == held.before and held.status is Status.OPTIMAL


def test_a_unit_with_weights_on_one_side_stays_and_is_named() -> None:
    model, x, symmetry, params, _ = problem()
    params["2.weight"][:, 3] = 0.0
    found = measured(model, x, params)
    result = minimize_quantization_error(symmetry, params, found, Grid(4))
    (why,) = result.held.values()
    assert "1 of 5 scales have weights on one side only" in why
    assert torch.equal(result.params["0.weight"][3], params["0.weight"][3])
    assert result.value < result.before


def test_half_precision_keeps_its_type() -> None:
    _, _, symmetry, params, found = problem()
    half = {n: p.bfloat16() for n, p in params.items()}
    result = minimize_quantization_error(symmetry, half, found, Grid(4))
    assert all(p.dtype == torch.bfloat16 for p in result.params.values())
    assert result.value < result.before


# -- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_refused_in_four_parts() -> None:
    _, _, symmetry, params, found = problem()

    def refused(match: str, **changes) -> None:
        given = {"params": params, "sensitivities": found, "grid": Grid(4), **changes}
        with pytest.raises(ValueError, match=match):
            minimize_quantization_error(symmetry, **given)

    bad = {**params, "2.weight": params["2.weight"] * math.nan}
    refused("'2.weight' holds numbers that are not finite.*Look where", params=bad)
    refused("'0.weight' is missing.*Measure it", sensitivities={"2.weight": found["2.weight"]})
    refused("shape .*another model", sensitivities={**found, "0.weight": torch.ones(3, 5)})
    refused("negative or not finite", sensitivities={**found, "0.weight": -found["0.weight"]})
    refused("'0.bias' is missing", params={n: p for n, p in params.items() if n != "0.bias"})
    refused("tolerance=0", tolerance=0)
    with pytest.raises(UnknownName, match=r"minimize_quantization_error\(quantized=.*'7.weight'"):
        minimize_quantization_error(symmetry, params, found, Grid(4), quantized="7.weight")
    with pytest.raises(UnknownName, match=r"minimize_quantization_error\(hold=.*'no_space'"):
        minimize_quantization_error(symmetry, params, found, Grid(4), hold="no_space")


# -- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [8.0, None], ids=["norm", "means"])
@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_matrix_of_a_smooth_cost_is_its_hessian(
    grid: Grid, kind: str, norm: float | None
) -> None:
    """Against products without a matrix, and these against differences of the gradient."""
    _, _, symmetry, params, found = problem(kind)
    names = [n for n in found if params[n].ndim >= 2]
    spaces = [n for n, space in symmetry.spaces.items() if scales_of(space)]
    cost = cost_along_scales(symmetry, params, spaces, 2.0)
    error = ExpectedError(symmetry, params, found, names, grid, cost)
    generator = torch.Generator().manual_seed(0)
    y, v = torch.randn(2, cost.size, generator=generator, dtype=torch.float64) * 0.3
    means = Smooth(error, 0.0, 4.0).at(y).means
    smooth = Smooth(error, error.log(y), norm, means, assembly=Assembly(error))
    here = smooth.at(y)
    matrix, product = here.matrix, here.product(v)
    assert matrix is not None
    torch.testing.assert_close(matrix @ v, product, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(matrix, matrix.mT)
    step = 1e-5
    slopes = (smooth.at(y + step * v).gradient - smooth.at(y - step * v).gradient) / (2 * step)
    torch.testing.assert_close(product, slopes, rtol=1e-4, atol=1e-5)


def test_with_and_without_the_matrix_the_value_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("mlp", "convolutions"):
        _, _, symmetry, params, found = problem(kind)
        with_it = minimize_quantization_error(symmetry, params, found, Grid(4))
        with monkeypatch.context() as patch:
            patch.setattr(Assembly, "fits", staticmethod(lambda error: False))
            without = minimize_quantization_error(symmetry, params, found, Grid(4))
        assert with_it.status is without.status is Status.OPTIMAL
        assert with_it.value == pytest.approx(without.value, rel=1e-3)


# -- programs of other kinds -------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding that also reads the logits, a grouped convolution in a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=3)
        self.up, self.down = nn.Linear(6, 5), nn.Linear(5, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.table(tokens)
        h = h + self.conv(h.mT).relu().mT
        h = h + self.down(self.up(h).relu())
        return h @ self.table.weight.mT


class Wide(nn.Module):
    """A chain of grouped convolutions, of widths that no group size divides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 10, 2, groups=2)
        self.skip, self.out = nn.Conv2d(10, 10, 1), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.second(self.first(x).relu()).relu()
        return self.out((h + self.skip(h)).relu().mean((-1, -2)))


@functools.cache
def unlike(
    kind: str, damage: str
) -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, State, State]:
    """A network of another kind, with weights that see nothing or are nothing."""
    torch.manual_seed(1)
    model = (Tied() if kind == "tied" else Wide()).double()
    x = (
        torch.randint(0, 5, (2, 4))  # two rows of the table are never looked up
        if kind == "tied"
        else torch.randn(4, 3, 5, 5, dtype=torch.float64)
    )
    middle = model.up if isinstance(model, Tied) else model.second
    with torch.no_grad():
        if damage == "a dead unit":
            middle.weight[1] = 0.0
            assert middle.bias is not None
            middle.bias[1] = -1.0
        elif damage == "zeros":
            (model.down if isinstance(model, Tied) else model.skip).weight.zero_()
    symmetry = find_symmetry(model, (x,), check=False)
    params = {n: p.detach().clone() for n, p in model.state_dict().items()}
    return model, x, symmetry, params, sensitivities(model, [(x,)], projections=None)


@pytest.mark.parametrize("damage", ["none", "a dead unit", "zeros"])
@pytest.mark.parametrize("kind", ["tied", "wide"])
@pytest.mark.parametrize(
    "grid", [Grid(4), Grid(3, 4), Grid(4, "channel", symmetric=False), Grid(5, 7, False)], ids=str
)
def test_other_programs_agree_with_the_definition(grid: Grid, kind: str, damage: str) -> None:
    """Value, function and bound against E from its definition, at random equivalent points."""
    model, x, symmetry, params, found = unlike(kind, damage)
    names = [n for n in found if params[n].ndim >= 2]
    result = minimize_quantization_error(symmetry, params, found, grid)
    there = measured(model, x, result.params)
    assert result.before == pytest.approx(expected(params, found, grid, names), rel=1e-9)
    assert result.value == pytest.approx(expected(result.params, there, grid, names), rel=1e-7)
    assert result.value <= result.before and 0 <= result.gap <= 0.02 * result.value
    moved = torch.func.functional_call(model, result.params, (x,)) - model(x)
    assert float(moved.abs().max() / model(x).abs().max()) < 1e-12
    for seed in range(2):
        beside = scaled(symmetry, result.params, seed, 0.1)
        rival = expected(beside, measured(model, x, beside), grid, names)
        assert rival >= (result.value - result.gap) * (1 - 1e-9)
