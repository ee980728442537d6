"""Paths between state dicts, and the barrier of a loss along them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym import act, find_symmetry, interpolate, loss_barrier
from paramsym.merging.evaluation import loss_of
from tests.merging.aligners import permutations_of
from tests.models import Small, Tied


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pair(*shape: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return {"w": normal(*shape, seed=1)}, {"w": normal(*shape, seed=2)}


@pytest.mark.parametrize("kind", ["linear", "spherical"])
def test_ends_are_the_given_parameters_and_share_no_memory(kind: str) -> None:
    a, b = pair(4, 3)
    for t, end in ((0.0, a), (1, b)):
        found = interpolate(a, b, t, kind)["w"]
        assert torch.equal(found, end["w"])
        assert found.data_ptr() != end["w"].data_ptr()
    assert not torch.equal(interpolate(a, b, 0.01, kind)["w"], a["w"])


def test_linear_is_the_weighted_mean() -> None:
    a, b = pair(4, 3)
    assert torch.allclose(interpolate(a, b, 0.3)["w"], 0.7 * a["w"] + 0.3 * b["w"], rtol=1e-15)


def slow_slerp(x: Tensor, y: Tensor, t: float) -> Tensor:
    """By Gram and Schmidt: turn u by t·angle in the plane of u and v."""
    u, v = x / x.norm(), y / y.norm()
    angle = torch.arccos((u * v).sum())
    across = v - (u * v).sum() * u
    turned = torch.cos(t * angle) * u + torch.sin(t * angle) * across / across.norm()
    return ((1 - t) * x.norm() + t * y.norm()) * turned


@given(st.integers(0, 10**6), st.floats(0.01, 0.99), st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_spherical_is_the_great_circle(seed: int, t: float, size: float) -> None:
    x, y = normal(5, 2, seed=seed), size * normal(5, 2, seed=seed + 1)
    found = interpolate({"w": x}, {"w": y}, t, "spherical")["w"]
    expected = slow_slerp(x, y, t)
    assert (found - expected).norm() <= 1e-12 * expected.norm()
    # the chord is shorter: linear interpolation loses norm
    assert interpolate({"w": x}, {"w": y}, t)["w"].norm() < found.norm()


@pytest.mark.parametrize("factor", [0.0, 2.0, -1.0, -3.0, 1 + 1e-15])
def test_degenerate_angles_are_linear(factor: float) -> None:
    a, _ = pair(3, 3)
    b = {"w": factor * a["w"]}
    found = interpolate(a, b, 0.25, "spherical")["w"]
    assert torch.allclose(found, (0.75 + 0.25 * factor) * a["w"], rtol=1e-12, atol=1e-12)


def test_small_angles_are_exact() -> None:
    a, d = pair(6)
    b = {"w": a["w"] + 1e-9 * d["w"]}
    found = interpolate(a, b, 0.5, "spherical")["w"]
    assert (found - (a["w"] + b["w"]) / 2).norm() < 1e-14


def test_complex_tensors_turn_as_pairs_of_reals() -> None:
    x, y = normal(3, 2, seed=1), normal(3, 2, seed=2)
    found = interpolate(
        {"w": torch.view_as_complex(x)}, {"w": torch.view_as_complex(y)}, 0.4, "spherical"
    )
    assert torch.allclose(torch.view_as_real(found["w"]), slow_slerp(x, y, 0.4), rtol=1e-12)


def test_ties_stay_ties_and_what_is_untied_is_untied() -> None:
    a, b = Tied().state_dict(), {n: 2 * t for n, t in Tied().state_dict().items()}
    b["head.weight"] = b["table.weight"]
    found = interpolate(a, b, 0.5)
    assert found["head.weight"] is found["table.weight"]
    b["head.weight"] = b["table.weight"].clone()
    found = interpolate(a, b, 0.5)
    assert found["head.weight"] is not found["table.weight"]


@pytest.mark.parametrize("kind", ["linear", "spherical"])
def test_integers_come_from_the_first_and_statistics_are_averaged(kind: str) -> None:
    a, b = Small().state_dict(), Small().state_dict()
    b = {n: t + 2 for n, t in b.items()}
    found = interpolate(a, b, 0.5, kind)
    assert found["norm.num_batches_tracked"] == 0
    assert found["norm.num_batches_tracked"].dtype == torch.int64
    assert interpolate(b, a, 0.5)["norm.num_batches_tracked"] == 2
    assert torch.allclose(found["norm.running_var"], a["norm.running_var"] + 1)
    assert torch.allclose(found["first.weight"], a["first.weight"] + 1) == (kind == "linear")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat"])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    x, y = normal(2000, seed=1).to(dtype), normal(2000, seed=2).to(dtype)
    found = interpolate({"w": x}, {"w": y}, 0.3)["w"]
    assert found.dtype == dtype
    assert torch.equal(found, (0.7 * x.float() + 0.3 * y.float()).to(dtype))
    assert not torch.equal(found, 0.7 * x + 0.3 * y)


def test_orders_commute_with_both_paths_and_scales_with_the_linear_one_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    symmetry = find_symmetry(model, (normal(5, 3),))
    a = dict(model.state_dict())
    b = {n: t + normal(*t.shape, seed=7) for n, t in a.items()}
    orders = permutations_of(symmetry)
    for acting, kind, kept in [
        (orders, "linear", True), (orders, "spherical", True),
        (symmetry, "linear", True), (symmetry, "spherical", False),
    ]:  # fmt: skip
        g = acting.sample(torch.Generator().manual_seed(1))
        before = act(acting, g, interpolate(a, b, 0.4, kind))
        after = interpolate(act(acting, g, a), act(acting, g, b), 0.4, kind)
        same = all(torch.allclose(before[n], after[n], rtol=1e-10) for n in before)
        assert same == kept


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "cubic"}, "kind='cubic'"),
        ({"t": 1.5}, "t=1.5"),
        ({"t": math.nan}, "t=nan"),
        ({"b": {}}, "lacks"),
        ({"b": {"w": torch.zeros(2), "v": torch.zeros(1)}}, "besides"),
        ({"b": {"w": torch.zeros(3)}}, "(3,)"),
        ({"b": {"w": torch.zeros(2).double()}}, "float64"),
        ({"b": {"w": torch.zeros(2, device="meta")}, "a": {"w": torch.zeros(2, device="meta")}},
         "meta"),
        ({n: {"w": torch.zeros(2).to(torch.float8_e4m3fn)} for n in "ab"}, "float8"),
    ],
    ids=["kind", "time", "nan", "missing", "extra", "shape", "dtype", "meta", "coded"],
)  # fmt: skip
def test_what_cannot_be_interpolated_is_refused(change: dict, text: str) -> None:
    arguments = {"a": {"w": torch.zeros(2)}, "b": {"w": torch.ones(2)}, "t": 0.5, **change}
    with pytest.raises(ValueError) as error:
        interpolate(**arguments)
    assert text in str(error.value)
    assert "expected" in str(error.value)


# -- the barrier --------------------------------------------------------------------------------


def at(x: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([x], dtype=torch.float64)}


def test_the_barrier_of_a_double_well_is_its_hill() -> None:
    found = loss_barrier(lambda p: float((p["w"] ** 2 - 1) ** 2), at(-1), at(1))
    assert found.barrier == 1.0
    assert found.at == 0.5
    assert len(found.losses) == len(found.times) == 11


def test_the_barrier_is_taken_above_the_chord_of_unequal_ends() -> None:
    found = loss_barrier(lambda p: 3 * float(p["w"]), at(0), at(2))
    assert found.barrier == pytest.approx(0, abs=1e-15)
    hill = loss_barrier(lambda p: 3 * float(p["w"]) - float(p["w"]) ** 2, at(0), at(2))
    assert hill.barrier == pytest.approx(1.0)  # x(2 − x) at 1
    assert max(hill.losses) - max(hill.losses[0], hill.losses[-1]) < 0.3  # the naive rise is less


def test_a_bowl_has_no_barrier() -> None:
    found = loss_barrier(lambda p: float(p["w"]) ** 2, at(-1), at(3))
    assert found.barrier == 0.0
    assert min(found.rises) < -3


def test_ends_are_evaluated_at_the_given_parameters() -> None:
    seen = []
    a, b = at(0), at(1)
    loss_barrier(lambda p: seen.append(p) or 0.0, a, b, points=4)
    assert seen[0] is a
    assert seen[-1] is b
    assert [float(p["w"]) for p in seen] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_a_loss_that_overflows_between_is_an_infinite_barrier() -> None:
    def loss(p: dict[str, Tensor]) -> float:
        return math.inf if 0.2 < float(p["w"]) < 0.8 else 1.0

    assert loss_barrier(loss, at(0), at(1)).barrier == math.inf
    with pytest.raises(ValueError, match="loss is inf at t = 0"):
        loss_barrier(lambda p: math.inf, at(0), at(1))
    with pytest.raises(ValueError, match="loss is nan"):
        loss_barrier(lambda p: math.nan, at(0), at(1))
    with pytest.raises(ValueError, match="points=2"):
        loss_barrier(loss, at(0), at(1), points=2)


# -- a model as a loss --------------------------------------------------------------------------


def mean_square(y: Tensor) -> Tensor:
    return y.square().mean()


def test_loss_of_runs_at_other_parameters_and_leaves_no_trace() -> None:
    model = Small().train()
    (x,) = model.example_inputs()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    evaluate = loss_of(model, mean_square, (x,))
    other = {n: t * 2 if t.is_floating_point() else t for n, t in before.items()}
    kept = {n: t.clone() for n, t in other.items()}
    twin = Small().eval()
    twin.load_state_dict(other)
    assert evaluate(other) == pytest.approx(mean_square(twin(x)).item(), rel=1e-6)
    assert evaluate(other) != pytest.approx(evaluate(before), rel=1e-2)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(torch.equal(t, kept[n]) for n, t in other.items())


def test_buffers_that_a_forward_pass_writes_are_copies() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    model = Counting()
    params = {n: t.clone() for n, t in model.state_dict().items()}
    loss_of(model, mean_square, (torch.ones(3, 2),))(params)
    assert params["calls"] == model.calls == 0
    model(torch.ones(3, 2))
    assert model.calls == 1


def test_loss_of_runs_in_the_precision_of_the_parameters() -> None:
    model = Small()
    evaluate = loss_of(model, mean_square, model.example_inputs())
    single = dict(model.state_dict())
    double = {n: t.double() if t.is_floating_point() else t for n, t in single.items()}
    assert evaluate(double) == pytest.approx(evaluate(single), rel=1e-5)
    assert evaluate(double) != evaluate(single)


def test_loss_of_refuses_what_is_no_loss_and_no_state_of_the_model() -> None:
    model = Small()
    state = dict(model.state_dict())
    with pytest.raises(ValueError, match="one real number"):
        loss_of(model, lambda y: y, model.example_inputs())(state)
    del state["first.bias"]
    with pytest.raises(ValueError, match="'first.bias' is missing"):
        loss_of(model, mean_square, model.example_inputs())(state)
    with pytest.raises(ValueError, match="shape"):
        loss_of(model, mean_square, model.example_inputs())({**state, "first.bias": torch.zeros(2)})
