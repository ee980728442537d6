"""Ranges with a certificate, against a linear program that has a row for every weight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array
from torch import nn

from paramsym import ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import PositiveScaling
from paramsym.geometry.result import Status
from paramsym.quantize.ranges import minimize_range
from paramsym.structure.axes import parse_axis
from paramsym.structure.patterns import UnknownName

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, torch.Tensor]


class Residual(nn.Module):
    """Two blocks around a rectified sum: the graph of scales has cycles without the ground."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.up, self.down = (
            nn.ModuleList(nn.Linear(a, b) for _ in range(2)) for a, b in ((6, 5), (5, 6))
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        for up, down in zip(self.up, self.down, strict=True):
            h = (h + down(up(h).relu())).relu()
        return self.last(h)


class Convolutions(nn.Module):
    """A residual convolutional net with batch norm, which has scales of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        h = (h + self.norm(self.inner(h))).relu()
        return self.last(h.mean((2, 3)))


def built(name: str) -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, State]:
    torch.manual_seed(3)
    model, x = {
        "MLP": lambda: (
            nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2)),
            torch.randn(4, 5),
        ),
        "residual MLP": lambda: (Residual(), torch.randn(4, 4)),
        "batch norm": lambda: (Convolutions(), torch.randn(4, 2, 6, 6)),
    }[name]()
    model, x = model.double().eval(), x.double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_var.uniform_(0.5, 2.0)
    return model, x, find_symmetry(model, (x,), check=False), state_of(model)


def state_of(model: nn.Module) -> State:
    return {
        n: p.detach().double() if p.is_floating_point() else p.clone()
        for n, p in model.state_dict().items()
    }


MODELS = ("MLP", "residual MLP", "batch norm")


# -- the slow twin -----------------------------------------------------------------------------


def ranges(symmetry: ParameterSymmetry, params: State) -> np.ndarray:
    """R⁺ and R⁻ of every parameter, (tensors, 2)."""
    counted = [p for n, p in params.items() if n not in symmetry.buffers and p.is_floating_point()]
    return np.array([[max(float(s * p.max()), 0.0) if s > 0 else max(-float(p.min()), 0.0)
                      for s in (1, -1)] for p in counted])  # fmt: skip


def widest(symmetry: ParameterSymmetry, params: State, objective: str) -> float:
    found = ranges(symmetry, params)
    return float(found.max() if objective == "abs" else found.sum(1).max())


def exponents(symmetry: ParameterSymmetry, params: State) -> tuple[np.ndarray, ...]:
    """By weight: c, log|w|, its tensor, whether it is negative. c is measured by moving."""
    names = [n for n, p in params.items() if n not in symmetry.buffers and p.is_floating_point()]
    flat = torch.cat([params[n].flatten() for n in names])
    tensor = np.repeat(range(len(names)), [params[n].numel() for n in names])
    columns = []
    for space in symmetry.spaces.values():
        if not getattr(space.group, "scales", False):
            continue
        shape = (*(symmetry.spaces[base].size for base in space.over), space.size)
        for unit in torch.eye(math.prod(shape), dtype=torch.float64):
            step = symmetry.velocity({space.name: unit.reshape(shape)}).exp()
            moved = act(symmetry, step, params)
            columns.append((torch.cat([moved[n].flatten() for n in names]) / flat).log())
    keep = (flat != 0).numpy()
    c = torch.stack(columns, 1).numpy()[keep]
    return c, flat.abs().log().numpy()[keep], tensor[keep], (flat < 0).numpy()[keep]


def tangent(width: int, at: int, pair: np.ndarray) -> tuple[np.ndarray, float]:
    """The tangent of log(e^p + e^n) ≤ τ at a pair (p, n), as a row and its right-hand side."""
    q = np.exp(pair - np.logaddexp(*pair))
    row = np.zeros(width)
    row[at : at + 2], row[-1] = q, -1.0
    return row, float(q @ np.log(q))


def slow_range(symmetry: ParameterSymmetry, params: State, objective: str) -> float:
    """The least range by linear programs with one row for each weight.

    The variables are y, log R⁺ and log R⁻ by tensor, and τ. log(R⁺ + R⁻) ≤ τ is convex: tangents
    of it are added where it is broken, until it holds.
    """
    c, size, tensor, negative = exponents(symmetry, params)
    scales, tensors = c.shape[1], int(tensor.max()) + 1
    width, slot = scales + 2 * tensors + 1, scales + 2 * tensor + negative
    rows = np.zeros((len(c), width))
    rows[:, :scales] = c
    rows[np.arange(len(c)), slot] = -1.0
    right = -size
    present = np.zeros((tensors, 2), dtype=bool)
    present[tensor, negative.astype(int)] = True
    for k in range(2 * tensors):
        row = np.zeros(width)
        row[scales + k], row[-1] = 1.0, -1.0
        rows, right = np.vstack([rows, row]), np.r_[right, 0.0]
    for t in np.flatnonzero(present.all(1)) if objective == "max" else ():
        for odds in np.linspace(-5, 5, 41):
            row, offset = tangent(width, scales + 2 * t, np.array([odds, 0.0]))
            rows, right = np.vstack([rows, row]), np.r_[right, offset]
    bounds = [(-30, 30)] * (width - 1) + [(-60, 60)]
    value = np.r_[np.zeros(width - 1), 1.0]
    for _ in range(200):
        found = linprog(value, csr_array(rows), right, bounds=bounds, method="highs",
                        options={"primal_feasibility_tolerance": 1e-10,
                                 "dual_feasibility_tolerance": 1e-10})  # fmt: skip
        assert found.status == 0
        pairs, tangents = found.x[scales:-1].reshape(-1, 2), []
        if objective == "max":
            for t in np.flatnonzero(present.all(1)):
                if np.logaddexp(*pairs[t]) > found.x[-1] + 1e-10:
                    tangents.append(tangent(width, scales + 2 * t, pairs[t]))
        if not tangents:
            break
        rows = np.vstack([rows, *(row for row, _ in tangents)])
        right = np.r_[right, [offset for _, offset in tangents]]
    return math.exp(found.x[-1])


@pytest.mark.parametrize("objective", ["max", "abs"])
@pytest.mark.parametrize("name", MODELS)
def test_the_range_is_that_of_a_linear_program_with_every_weight(name: str, objective: str) -> None:
    model, x, symmetry, params = built(name)
    result = minimize_range(symmetry, params, objective)
    assert result.status is Status.OPTIMAL and result.gap <= 1e-9 * result.value
    assert result.value == pytest.approx(slow_range(symmetry, params, objective), rel=1e-8)
    assert result.value == pytest.approx(widest(symmetry, result.params, objective), rel=1e-12)
    assert result.before == pytest.approx(widest(symmetry, params, objective), rel=1e-14)
    with torch.no_grad():
        moved = torch.func.functional_call(model, result.params, (x,))
        assert float((moved - model(x)).abs().max()) < 1e-12 * float(model(x).abs().max())


# -- what is certain ---------------------------------------------------------------------------


def scales_of(symmetry: ParameterSymmetry, params: State) -> list[str]:
    return [n for n, s in symmetry.spaces.items() if s.exact and getattr(s.group, "scales", False)]


def moved_at_random(symmetry: ParameterSymmetry, params: State, seed: int) -> State:
    """Log-normal scales, σ = 1."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name in scales_of(symmetry, params):
        space = symmetry.spaces[name]
        shape = (*(symmetry.spaces[base].size for base in space.over), space.size)
        made[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return act(symmetry, symmetry.velocity(made).exp(), params)


@pytest.mark.parametrize("objective", ["max", "abs"])
@pytest.mark.parametrize("name", MODELS)
def test_every_equivalent_start_ends_at_one_value_and_none_is_below_the_bound(
    name: str, objective: str
) -> None:
    _, _, symmetry, params = built(name)
    first = minimize_range(symmetry, params, objective)
    bound = first.value - first.gap
    for seed in range(4):
        start = moved_at_random(symmetry, params, seed)
        result = minimize_range(symmetry, start, objective)
        assert result.before > 1.01 * first.value  # the starts do differ
        assert result.value == pytest.approx(first.value, rel=1e-9)
        assert widest(symmetry, start, objective) >= bound * (1 - 1e-12)
        beside = moved_at_random(symmetry, result.params, seed + 10)
        assert widest(symmetry, beside, objective) > 1.01 * first.value


def test_weights_in_single_precision_are_proved_in_double() -> None:
    model, x, _, _ = built("residual MLP")
    model, x = model.float(), x.float()
    symmetry, params = find_symmetry(model, (x,), check=False), dict(model.state_dict())
    result = minimize_range(symmetry, params)
    assert all(result.params[n].dtype == torch.float32 for n in params)
    assert result.status is Status.OPTIMAL and result.gap <= 1e-9 * result.value
    wide = minimize_range(symmetry, {n: p.double() for n, p in params.items()})
    assert result.value == pytest.approx(wide.value, rel=1e-12)
    assert widest(symmetry, result.params, "max") == pytest.approx(result.value, rel=1e-6)
    with torch.no_grad():
        error = (torch.func.functional_call(model, result.params, (x,)) - model(x)).abs().max()
    assert float(error) < 5e-6 * float(model(x).abs().max())


def test_rounds_that_end_early_say_so() -> None:
    _, _, symmetry, params = built("MLP")
    start = moved_at_random(symmetry, params, 0)
    short = minimize_range(symmetry, start, rounds=1)
    best = minimize_range(symmetry, start)
    assert short.status is Status.LOCAL and best.status is Status.OPTIMAL
    assert short.value - short.gap <= best.value * (1 + 1e-12) < short.value


# -- weights by hand ---------------------------------------------------------------------------


def by_hand(types: dict[str, str], **sizes: int) -> ParameterSymmetry:
    signature = {n: tuple(parse_axis(a) for a in t.split(", ")) for n, t in types.items()}
    spaces = {n: Space(n, PositiveScaling(k)) for n, k in sizes.items()}
    return ParameterSymmetry(spaces, signature)


def numbers(**values: object) -> State:
    return {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items()}


def test_one_unit_has_the_root_of_its_two_sides() -> None:
    symmetry = by_hand({"a": "h, 1", "b": "1, h*"}, h=1)
    params = numbers(a=[[4.0]], b=[[9.0]])
    for objective in ("max", "abs"):
        result = minimize_range(symmetry, params, objective)
        assert result.value == pytest.approx(6.0, rel=1e-14)
        assert result.params["a"].item() == pytest.approx(6.0, rel=1e-14)


def test_two_scales_that_raise_together_and_powers_are_turned_into_edges() -> None:
    """m ↦ h k m with powers ½ on k: the same least value as with −k, which a network has."""
    twisted = by_hand({"a": "h*, 3", "m": "h, k^1/2", "b": "2, k^-1/2"}, h=4, k=5)
    plain = by_hand({"a": "h*, 3", "m": "h, k*", "b": "2, k"}, h=4, k=5)
    generator = torch.Generator().manual_seed(1)
    params = {n: torch.randn(s, generator=generator, dtype=torch.float64)
              for n, s in {"a": (4, 3), "m": (4, 5), "b": (2, 5)}.items()}  # fmt: skip
    result = minimize_range(twisted, params)
    assert result.status is Status.OPTIMAL and not result.held
    assert result.value == pytest.approx(minimize_range(plain, params).value, rel=1e-12)
    assert result.value == pytest.approx(slow_range(twisted, params, "max"), rel=1e-8)
    assert result.value < 0.99 * result.before


def test_blocks_of_one_tensor_on_the_same_scales_count_by_the_larger() -> None:
    """A fused tensor: two blocks that read one gain, under other scales or none."""
    symmetry = by_hand({"gain": "h", "fused": "h*, 2 + k + 3", "last": "k*, 2"}, h=4, k=3)
    generator = torch.Generator().manual_seed(2)
    params = {n: torch.randn(symmetry.shape(n), generator=generator, dtype=torch.float64)
              for n in symmetry.signature}  # fmt: skip
    expected = slow_range(symmetry, params, "max")
    for seed in range(6):
        result = minimize_range(symmetry, moved_at_random(symmetry, params, seed))
        assert result.status is Status.OPTIMAL and result.rounds < 10
        assert result.value == pytest.approx(expected, rel=1e-8)


def test_what_is_no_edge_is_held_and_named() -> None:
    crowded = by_hand({"m": "h, k*, g", "a": "h*", "b": "k", "c": "g*"}, h=3, k=4, g=2)
    uneven = by_hand({"a": "h", "b": "h^-2"}, h=3)
    mixed = by_hand({"m": "h, k", "n": "h, k*"}, h=3, k=4)
    generator = torch.Generator().manual_seed(1)
    for symmetry, reason in (
        (crowded, "two other scales"), (uneven, "several powers"), (mixed, "together"),
    ):  # fmt: skip
        params = {n: torch.rand(symmetry.shape(n), generator=generator, dtype=torch.float64)
                  for n in symmetry.signature}  # fmt: skip
        result = minimize_range(symmetry, params)
        assert [why for why in result.held.values() if reason in why], result.held
        assert result.value <= result.before


def test_dead_units_and_units_with_one_side_are_no_obstacle() -> None:
    _, x, symmetry, params = built("MLP")
    params = {n: p.clone() for n, p in params.items()}
    params["0.weight"][1], params["0.bias"][1], params["2.weight"][:, 1] = 0.0, 0.0, 0.0
    params["0.weight"][2], params["0.bias"][2] = 0.0, 0.0  # nothing comes in
    params["2.weight"][:, 3] = 0.0  # nothing goes out
    result = minimize_range(symmetry, params)
    assert result.status is Status.OPTIMAL
    assert all(bool(p.isfinite().all()) for p in result.params.values())
    assert result.value == pytest.approx(widest(symmetry, result.params, "max"), rel=1e-12)
    assert result.value == pytest.approx(slow_range(symmetry, params, "max"), rel=1e-8)


def test_where_no_cycle_bounds_the_ranges_there_is_no_best_point() -> None:
    symmetry = by_hand({"a": "h, 2", "b": "1, h*"}, h=3)
    params = numbers(a=[[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]], b=[[0.0, 0.0, 0.0]])
    result = minimize_range(symmetry, params)
    assert result.status is Status.UNATTAINED and "zero" in result.held["every scale"]
    assert all(torch.equal(result.params[n], params[n]) for n in params)
    params["b"] += 1.0  # one number on the other side is enough
    assert minimize_range(symmetry, params).status is Status.OPTIMAL


def test_what_is_held_is_held() -> None:
    _, _, symmetry, params = built("MLP")
    names = scales_of(symmetry, params)
    result = minimize_range(symmetry, params, hold=names)
    assert result.value == result.before == widest(symmetry, params, "max")
    assert all(result.held[n] == "it was asked for" for n in names)
    assert minimize_range(symmetry, params).value < result.value


def test_bad_input_is_refused() -> None:
    _, _, symmetry, params = built("MLP")
    with pytest.raises(ValueError, match="'product'.*none of.*residual.*Pass one"):
        minimize_range(symmetry, params, "product")
    with pytest.raises(ValueError, match="'0.bias' is missing"):
        minimize_range(symmetry, {n: p for n, p in params.items() if n != "0.bias"})
    with pytest.raises(UnknownName, match=r"minimize_range\(hold=…\): 'nobody'"):
        minimize_range(symmetry, params, hold="nobody")
    for bad in (math.nan, math.inf):
        broken = {**params, "0.bias": params["0.bias"].clone()}
        broken["0.bias"][1] = bad
        with pytest.raises(ValueError, match=r"minimize_range\(params\): '0.bias' holds numbers"):
            minimize_range(symmetry, broken)
