"""The pieces of benchmarks/quantisation_models.py: rounding, and moves that keep the function."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from paramsym.quantize.grids import Grid


@pytest.fixture
def study(monkeypatch):
    """Modules of the benchmark by their names."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return lambda name: importlib.import_module(f"quantisation_{name}")


class Stream(nn.Module):
    """A residual stream with gains, a gated layer, and two linear maps in a row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 8, bias=False)
        self.norm, self.last = nn.RMSNorm(8), nn.RMSNorm(8)
        self.gate, self.up = nn.Linear(8, 6), nn.Linear(8, 6)
        self.down = nn.Linear(6, 8, bias=False)
        self.value, self.out = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(8, 5)
        for gain in (self.norm.weight, self.last.weight):
            nn.init.uniform_(gain, 0.5, 2.0)

    def forward(self, x):
        h = self.embed(x)
        y = self.norm(h)
        h = h + self.down(torch.tanh(self.gate(y)) * self.up(y)) + self.out(self.value(y))
        return self.head(self.last(h))


@pytest.fixture
def model():
    return Stream().double()


def test_every_method_keeps_the_function_and_moves(study, model):
    points, x = study("points"), torch.randn(6, 3).double()
    params = {n: p.detach() for n, p in model.state_dict().items()}
    orbit = points.Orbit(model, (x,))
    found = {name: start(orbit, params, 1) for name, start in points.STARTS.items()}
    found |= {n: move() for n, move in points.methods(orbit, params, 1).items()}
    assert {"equalised", "range", "L2", "unit gains", "Hadamard rotation"} <= set(found)
    for name, point in found.items():
        change = torch.func.functional_call(model, point, (x,)) - model(x)
        assert change.abs().max() < 1e-10, name
        still = all(torch.equal(point[n], params[n]) for n in params)
        assert still == (name in ("as trained", "untouched")), name
    # One tensor of a moved point among those of another is another function.
    torn = {**found["Hadamard rotation"], "head.weight": params["head.weight"]}
    assert (torch.func.functional_call(model, torn, (x,)) - model(x)).abs().max() > 1e-2


def test_equalised_tensors_share_their_ranges_and_untouched_ones_do_not(study, model):
    points = study("points")
    params = {n: p.detach() for n, p in model.state_dict().items()}
    orbit = points.Orbit(model, (torch.randn(4, 3).double(),))

    def apart(at):  # of the gated units, between what writes and what reads them
        up = torch.cat([at["up.weight"], at["up.bias"][:, None]], 1).abs().amax(1)
        return float((up / at["down.weight"].abs().amax(0)).log().abs().max())

    assert apart(points.equalised(orbit, params)) < 1e-4 < 0.1 < apart(params)


def test_mxfp4_rounds_to_eight_sizes_times_a_power_of_two(study):
    how = study("rounding").ROUNDINGS["mxfp4"]
    given = [0.2, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.1, 7.9, 0.0]
    wanted = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -6.0, 6.0, 0.0]
    for size in (1.0, 2.0**-7):
        row = torch.zeros(1, 40)  # one group, and a shorter one
        row[0, : len(given)] = torch.tensor(given) * size
        row[0, 39] = 6.0
        assert (how(row)[0, : len(given)] / size).tolist() == wanted
        assert how(row)[0, 39] == 6.0


def test_integers_cut_the_largest_weight_and_the_grid_of_the_library_does_not(study):
    how = study("rounding").ROUNDINGS["int4 channel"]
    row = torch.tensor([[1.0, -0.99, 0.1, 0.0]])
    step = 1 / 7.5
    assert torch.allclose(how(row), torch.tensor([[7 * step, -7 * step, step, 0.0]]))
    assert torch.allclose(Grid(4, "channel").rounded(row), torch.tensor([[1, -1, 1 / 7, 0]]))


@pytest.mark.parametrize("name", ["int8 tensor", "int3 channel", "int4 groups", "mxfp4"])
def test_rounding_loses_less_than_a_step_in_every_group(study, name):
    rounding = study("rounding")
    how = rounding.ROUNDINGS[name]
    weight = torch.randn(5, 7, 3, 3, generator=torch.Generator().manual_seed(0))  # rows of 63
    grid = Grid(how.bits or 4, how.groups)
    index = grid.group_of(tuple(weight.shape))
    most = grid.ranges(weight).float()[index]
    # mxfp4: between 4 and 6 of at most 8 the numbers lie 2 apart, and above 6 they are cut by 2.
    step = most / (2 ** (how.bits - 1) - 0.5) if how.bits else most / 2
    change = (how(weight) - weight).abs()
    assert (change <= 0.51 * step).all() and change.max() > 0.2 * step.min()
