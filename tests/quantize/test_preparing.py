"""What is chosen for a quantiser: the measurements by their definitions, and when nothing wins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import PositiveScaling
from paramsym.quantize.activations import Meetings
from paramsym.quantize.candidates import equalise
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.preparing import Prepared, prepare_for_quantization
from paramsym.quantize.sensitivities import sensitivities
from paramsym.quantize.shares import errors_of_tensors, ranges_of_tensors, tensors_to_round
from paramsym.recording.running import preserved
from paramsym.structure.axes import parse_axis
from paramsym.structure.patterns import UnknownName

State = dict[str, torch.Tensor]
NAMES = ["0.weight", "2.weight", "4.weight"]


class Spelled(nn.Module):
    """Weights that meet their data in other ways than by modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 4))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.register_buffer("mask", torch.ones(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ (self.first * self.mask).T
        return self.attention(h, h, h, need_weights=False)[0]


class Named(nn.Module):
    """A network that says what its outputs are called."""

    def __init__(self, net: nn.Module, name: str) -> None:
        super().__init__()
        self.net, self.name = net, name

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.name: self.net(x)}


def network(scales: float = 0.0, shrink: float = 1.0) -> tuple[nn.Sequential, list, list]:
    """An MLP at log-normal scales of its hidden units, and two lists of inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    ).double()  # fmt: skip
    with torch.no_grad():
        for layer, following in ((model[0], model[2]), (model[2], model[4])):
            s = shrink * (scales * torch.randn(len(layer.weight))).exp()
            layer.weight *= s[:, None]
            layer.bias *= s
            following.weight /= s
    x = torch.randn(96, 6, dtype=torch.float64).split(8)
    return model, [(b,) for b in x[::2]], [(b,) for b in x[1::2]]


def prepared(scales: float = 0.0, shrink: float = 1.0, **options) -> tuple[nn.Sequential, Prepared]:
    model, calibration, held_out = network(scales, shrink)
    symmetry = find_symmetry(model, calibration[0], check=False)
    grid = options.pop("grid", Grid(4))
    return model, prepare_for_quantization(
        model, symmetry, calibration, held_out, grid, **options
    )  # fmt: skip


def rounded_change(model: nn.Module, params: State, inputs: list, grid: Grid) -> float:
    """The mean squared change of the outputs, from its definition."""
    x = torch.cat([batch for (batch,) in inputs])
    coarse = {n: grid.rounded(p) if p.ndim >= 2 else p for n, p in params.items()}
    change = torch.func.functional_call(model, coarse, (x,)) - model(x)
    return float(change.detach().square().mean())


def rows(found: Prepared) -> dict:
    return {row.name: row for row in found.candidates}


# -- what is chosen ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [Grid(4), Grid(3, "channel"), Grid(4, 4, symmetric=False)], ids=str
)
def test_bad_coordinates_are_repaired_and_the_change_is_that_of_the_outputs(grid: Grid) -> None:
    model, found = prepared(2.0, grid=grid, activations=1e6)
    inputs = network()[2]
    params = {n: p.detach() for n, p in model.state_dict().items()}
    table = rows(found)
    assert [*table] == ["untouched", "equalised", "range", "l2", "error"]
    assert table["untouched"].change == pytest.approx(
        rounded_change(model, params, inputs, grid), rel=1e-9
    )
    assert found.chosen != "untouched" and not table[found.chosen].verdict
    assert table[found.chosen].change == pytest.approx(
        rounded_change(model, found.params, inputs, grid), rel=1e-9
    )
    assert table[found.chosen].change < 0.5 * table["untouched"].change
    x = torch.randn(20, 6, dtype=torch.float64)
    with torch.no_grad():
        same, wanted = torch.func.functional_call(model, found.params, (x,)), model(x)
    assert float((same - wanted).abs().max() / wanted.abs().max()) < 1e-12
    assert "chosen" in str(found) and found.chosen in str(found)


def test_the_weights_stay_as_they_are_where_nothing_is_better() -> None:
    model, found = prepared(hold="*")
    assert found.chosen == "untouched"
    assert all(torch.equal(found.params[n], p) for n, p in model.state_dict().items())
    others = [row for row in found.candidates if row.name != "untouched"]
    assert all("no better than untouched" in row.verdict for row in others)
    _, free = prepared(2.0, activations=1e6)
    assert free.chosen != "untouched"


def test_a_gain_within_the_noise_of_the_held_out_inputs_does_not_win() -> None:
    _, found = prepared(0.1)
    first = found.candidates[0].change
    doubtful = [r for r in found.candidates if first - 2 * r.noise <= r.change < first]
    sure = [r for r in found.candidates if r.change < first - 2 * r.noise]
    assert all(row.verdict for row in doubtful if row.name != "untouched")
    assert found.chosen == min(sure, key=lambda r: r.change, default=found.candidates[0]).name


def test_a_candidate_that_blows_activations_up_is_rejected() -> None:
    _, found = prepared(1.5, shrink=1e-3)
    better = [r for r in found.candidates[1:] if r.change < 0.5 * found.candidates[0].change]
    assert better and found.chosen == "untouched"
    assert all(r.verdict.startswith("rejected") and r.growth > 10 for r in better)
    assert all(r.where in r.verdict and r.where in NAMES[1:] for r in better)
    _, allowed = prepared(1.5, shrink=1e-3, activations=1e9)
    assert allowed.chosen in {r.name for r in better}


def test_logits_have_a_divergence_and_other_outputs_have_none() -> None:
    net, calibration, held_out = network()
    for name in ("logits", "values"):
        model = Named(net, name)
        symmetry = find_symmetry(model, calibration[0], check=False)
        first = prepare_for_quantization(
            model, symmetry, calibration, held_out, Grid(3)
        ).candidates[0]
        if name == "values":
            assert first.divergence is None
            continue
        x = torch.cat([batch for (batch,) in held_out])
        coarse = {n: Grid(3).rounded(p) if p.ndim > 1 else p for n, p in net.state_dict().items()}
        p, q = net(x), torch.func.functional_call(net, coarse, (x,))
        wanted = nn.functional.kl_div(
            q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        assert first.divergence == pytest.approx(float(wanted.detach()), rel=1e-9)


def test_the_model_is_left_as_it_was() -> None:
    model, calibration, held_out = network(1.0)
    model.train()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    symmetry = find_symmetry(model, calibration[0], check=False)
    prepare_for_quantization(model, symmetry, calibration, held_out, Grid(4))
    assert model.training
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())


# -- parts -------------------------------------------------------------------------------------


def test_equalised_units_are_as_large_where_they_are_written_as_where_they_are_read() -> None:
    model, calibration, _ = network(2.0)
    symmetry = find_symmetry(model, calibration[0], check=False)
    params = {n: p.detach() for n, p in model.state_dict().items()}

    def apart(state: State) -> float:
        own = torch.maximum(state["0.weight"].abs().amax(1), state["0.bias"].abs())
        return float((own / state["2.weight"].abs().amax(0)).log().abs().max())

    moved = act(symmetry, equalise(symmetry, params), params)
    assert apart(moved) < 5e-3 < 1 < apart(params)
    (x,) = calibration[0]
    with torch.no_grad():
        change = torch.func.functional_call(model, moved, (x,)) - model(x)
    assert float(change.abs().max()) < 1e-12
    held = act(symmetry, equalise(symmetry, params, hold="*"), params)
    assert all(torch.equal(held[n], p) for n, p in params.items())
    with pytest.raises(UnknownName):
        equalise(symmetry, params, hold="nowhere")


def test_the_numbers_that_weights_meet_are_those_of_hooks() -> None:
    model, calibration, _ = network(1.0)
    state = dict(model.state_dict())
    seen: State = {}
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(
                lambda _, args, name=name: seen.__setitem__(f"{name}.weight", args[0].abs().max())
            )
    with torch.no_grad(), Meetings(state, NAMES) as meetings:
        model(calibration[0][0])
    assert meetings.largest == pytest.approx({n: float(v) for n, v in seen.items()})
    with torch.no_grad(), Meetings(state, []) as unwatched:
        model(calibration[0][0])
    assert unwatched.largest == {}


def test_weights_are_seen_however_they_are_spelled() -> None:
    torch.manual_seed(0)
    model, x = Spelled().eval(), torch.randn(3, 5, 4)
    state = dict(model.state_dict())
    watched = ["first", "attention.in_proj_weight", "attention.out_proj.weight"]
    h = (x @ model.first.T).detach()
    with preserved(model, training=False), torch.no_grad(), Meetings(state, watched) as meetings:
        model(x)  # without the fast path, one operator that all weights enter
    assert meetings.largest["first"] == pytest.approx(float(x.abs().max()))
    assert meetings.largest["attention.in_proj_weight"] == pytest.approx(float(h.abs().max()))
    assert 0 < meetings.largest["attention.out_proj.weight"] < float("inf")
    exported = torch.export.export(model, (x,)).module(check_guards=False)
    again = {n: t.detach() for n, t in exported.state_dict().items()}
    with torch.no_grad(), Meetings(again, watched) as program:
        exported(x)
    assert program.largest == pytest.approx(meetings.largest, rel=1e-5)


@pytest.mark.parametrize("grid", [Grid(4), Grid(4, 5, symmetric=False)], ids=str)
def test_shares_add_up_to_the_expected_error_before_and_after(grid: Grid) -> None:
    model, calibration, _ = network(1.0)
    symmetry = find_symmetry(model, calibration[0], check=False)
    params = {n: p.detach() for n, p in model.state_dict().items()}
    slopes = sensitivities(model, calibration)
    result = minimize_quantization_error(symmetry, params, slopes, grid)
    before = errors_of_tensors(symmetry, params, slopes, NAMES, grid)
    after = errors_of_tensors(symmetry, result.params, slopes, NAMES, grid, result.element)
    assert sum(before.values()) == pytest.approx(result.before, rel=1e-10)
    assert sum(after.values()) == pytest.approx(result.value, rel=1e-10)
    stale = errors_of_tensors(symmetry, result.params, slopes, NAMES, grid)
    assert sum(stale.values()) != pytest.approx(result.value, rel=1e-2)


def test_ranges_count_effective_gains_and_tied_tensors_once() -> None:
    signature = {"gain": (parse_axis("h"),), "up": (parse_axis("h"),)}
    symmetry = ParameterSymmetry(
        {"h": Space("h", PositiveScaling(2))}, signature, offsets={"gain": 1.0}, ties={"twin": "up"}
    )
    params = {"gain": torch.tensor([0.5, -2.0]), "up": torch.tensor([3.0, -1.0])}
    assert ranges_of_tensors(symmetry, {**params, "twin": params["up"]}) == {"gain": 2.5, "up": 4.0}


# -- bad input ---------------------------------------------------------------------------------


def test_bad_input_has_four_parts() -> None:
    model, calibration, held_out = network()
    symmetry = find_symmetry(model, calibration[0], check=False)

    def call(held: list, **options) -> Prepared:
        return prepare_for_quantization(model, symmetry, calibration, held, Grid(4), **options)

    with pytest.raises(ValueError, match=r"held_out=….*no inputs came.*Pass a list"):
        call([])
    with pytest.raises(ValueError, match=r"activations=nan.*at least 1.*Pass for example"):
        call(held_out, activations=float("nan"))
    with pytest.raises(ValueError, match=r"not finite.*Look for broken"):
        call([(torch.full((2, 6), torch.inf, dtype=torch.float64),)])
    with pytest.raises(UnknownName):
        call(held_out, hold="nowhere")
    whole = {n: torch.zeros(2, 2, dtype=torch.int64) for n in symmetry.signature}
    with pytest.raises(ValueError, match=r"none of the 0 parameters.*at least one was expected"):
        tensors_to_round(symmetry, whole, None, "prepare_for_quantization")
