"""Gradient flow conserves what symmetries say, also at kinks, and says where it cannot go on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paramsym import find_symmetry, moment_map
from paramsym.dynamics.elementwise import unit_quantities
from paramsym.dynamics.field import GradientField
from paramsym.dynamics.flow import gradient_flow
from paramsym.dynamics.landscape import Landscape
from paramsym.structure.tangent import tangent
from tests.dynamics.networks import (
    WIDE,
    drawn,
    normal,
    on_data,
    seeded,
    squared_error,
    whitened,
)

ACTIVATIONS = {"identity": nn.Identity, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nothing_drifts_over_time_2000(name):
    model, target = whitened(ACTIVATIONS[name](), outputs=1), normal(3, 1, generator=seeded(5))
    error = squared_error(0.5 * target)
    flow = gradient_flow(model, lambda y: error(y) / 4, (torch.eye(3),), [4, 400, 2000])
    drift = flow.drift(
        lambda p: {
            "units": unit_quantities(p["2.weight"], p["0.weight"], name),
            "wrong": unit_quantities(p["2.weight"], p["0.weight"], "tanh" if name != "tanh"
                                     else "identity"),
        }
    )  # fmt: skip
    assert drift["units"] < 1e-9
    assert drift["wrong"] > 1e-3
    assert flow.losses[0] > flow.losses[1] > flow.losses[2]


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1)], ids=str)
def test_scales_are_conserved_through_kinks(activation):
    model, loss_fn, x = on_data(nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2)), 1)
    symmetry = find_symmetry(model, x)
    flow = gradient_flow(model, loss_fn, x, [10])
    assert {event.kind for event in flow.events} == {"crosses", "slides", "leaves"}
    assert flow.drift(lambda p: moment_map(symmetry, p))["mlp"] < 1e-9
    for _ in range(100):  # descent meets the same kinks, and moves what the flow conserves
        model.zero_grad()
        loss_fn(model(*x)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    before, after = (moment_map(symmetry, s)["mlp"] for s in (flow.params[0], model.state_dict()))
    assert (after - before).abs().max() > 1e-3


def test_the_flow_is_where_small_steps_of_descent_lead():
    """Also where it slides: subgradient steps zigzag about the kink."""
    model, loss_fn, x = on_data(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 1)
    flow = gradient_flow(model, loss_fn, x, [3])
    assert any(event.kind == "slides" for event in flow.events)
    errors = []
    for steps in (100, 1000):
        theta = {n: p.detach().clone() for n, p in model.named_parameters()}
        for _ in range(steps):
            held = {n: p.requires_grad_() for n, p in theta.items()}
            loss = loss_fn(torch.func.functional_call(model, held, x))
            slopes = torch.autograd.grad(loss, [*held.values()])
            theta = {n: (p - 3 / steps * g).detach() for (n, p), g in zip(held.items(), slopes,
                                                                        strict=True)}  # fmt: skip
        errors.append(max(float((theta[n] - flow.params[-1][n]).abs().max()) for n in theta))
    assert errors[1] < 2e-3
    assert errors[1] < 0.3 * errors[0]


def test_events_stand_at_zeros_of_pre_activations():
    model, loss_fn, x = on_data(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 1)
    events = [e for e in gradient_flow(model, loss_fn, x, [3]).events if e.kind != "leaves"]
    assert events
    flow = gradient_flow(model, loss_fn, x, [e.time for e in events])
    for event, params in zip(events, flow.params[1:], strict=True):
        z = x[0] @ params["0.weight"].T + params["0.bias"]
        assert abs(z[event.entry]) < 1e-9


class Valley(nn.Module):
    """L = |θ₁| + ½θ₂², with a modulus of any spelling."""

    def __init__(self, modulus):
        super().__init__()
        self.theta, self.modulus = nn.Parameter(torch.tensor([0.5, 1.0], dtype=WIDE)), modulus

    def forward(self, x):
        return self.modulus(self.theta[0]) + self.theta[1].square() / 2 + 0 * x.sum()


@pytest.mark.parametrize(
    "modulus",
    [torch.abs, lambda z: z.relu() + (-z).relu(), lambda z: torch.maximum(z, -z),
     lambda z: -torch.minimum(z, -z), lambda z: nn.functional.leaky_relu(z, -1.0),
     lambda z: z.clamp(min=0) + (-z).clamp(min=0)],
)  # fmt: skip
def test_sliding_is_the_least_subgradient(modulus):
    """It goes along θ₁ = 0 to the origin."""
    flow = gradient_flow(Valley(modulus), lambda y: y, (torch.zeros(1),), [0.25, 2.0])
    assert {round(event.time, 9) for event in flow.events} == {0.5}
    assert torch.allclose(
        torch.stack([p["theta"] for p in flow.params]),
        torch.tensor([[0.5, 1], [0.25, np.exp(-0.25)], [0, np.exp(-2)]], dtype=WIDE),
    )


@pytest.mark.parametrize(
    "modulus",
    [lambda z: z * (2 * (z > 0) - 1), lambda z: torch.stack([z, -z]).amax(0)],
    ids=["comparison", "maximum over an axis"],
)
@pytest.mark.parametrize("time", [2.0, 3.7])
def test_a_kink_that_is_not_seen_ends_in_an_error(modulus, time):
    with pytest.raises(RuntimeError, match="Write kinks with relu, clamp or maximum"):
        gradient_flow(Valley(modulus), lambda y: y, (torch.zeros(1),), [time])


def test_many_scales_are_no_kink():
    """Eight decades of curvature: short steps in which the velocity turns one way only."""
    curvatures = torch.logspace(0, 7, 8, dtype=WIDE)
    model = nn.Linear(8, 1, bias=False).double()
    start = model.weight.detach()[0].clone()
    flow = gradient_flow(
        model, lambda y: y.square().sum() / 2, (torch.diag(curvatures.sqrt()),), [1e-4]
    )
    assert torch.allclose(
        flow.params[1]["weight"][0], start * torch.exp(-1e-4 * curvatures), atol=1e-8
    )


def _written(function, *args):
    def act(z):
        z = z.clone()
        function(z, *args)
        return z

    return act


SPELLINGS = {
    "relu": [
        _written(torch.relu_), _written(torch.Tensor.relu_), _written(nn.functional.relu, True),
        lambda z: nn.functional.relu(z, inplace=True), lambda z: z.clamp(min=0),
        _written(torch.clamp_, 0), lambda z: torch.clip(z, torch.zeros(1), None),
        lambda z: nn.functional.threshold(z, 0, 0), lambda z: torch.max(z, torch.zeros_like(z)),
        lambda z: z.clamp_min(0), lambda z: -(-z).clamp_max(0),
        lambda z: torch.maximum(z, torch.tensor(-1e300)).relu(),
    ],
    "relu6": [nn.functional.relu6, lambda z: z.clamp(0, 6), nn.Hardtanh(0, 6)],
    "pool": [
        lambda z: torch.maximum(torch.maximum(z, z[:, [0, 0, 1, 2]]), z[:, [1, 2, 3, 3]]),
    ],
    "hardsigmoid": [nn.functional.hardsigmoid, lambda z: (z / 6 + 0.5).clamp(0, 1)],
}  # fmt: skip

MODULES = {
    "relu": nn.ReLU(), "relu6": nn.ReLU6(), "hardsigmoid": nn.Hardsigmoid(),
    "pool": nn.MaxPool1d(3, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "act"), [(n, act) for n, acts in SPELLINGS.items() for act in acts]
)
def test_every_spelling_of_an_activation_has_its_flow(name, act):
    class Spelled(nn.Module):
        def forward(self, z):
            return act(z)

    def ends(activation):
        net = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
        model, loss_fn, x = on_data(net, 1)
        return gradient_flow(model, loss_fn, x, [2]).params[-1]

    plain, spelled = ends(MODULES[name]), ends(Spelled())
    assert all(torch.allclose(plain[n], spelled[n], atol=1e-8) for n in plain)
    others = ends(nn.Identity())
    assert not all(torch.allclose(plain[n], others[n], atol=1e-3) for n in plain)


class Counting(nn.Module):
    """Writes to its input, counts its calls, and looks up by whole numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2).double()
        self.register_buffer("calls", torch.zeros((), dtype=WIDE))

    def forward(self, x):
        self.calls += 1
        x *= 2
        places = torch.arange(-1, 2).abs().clamp(max=1)
        return self.linear(x).relu() + nn.functional.one_hot(places, 2)[0]


def test_what_a_forward_pass_writes_to_is_left_alone():
    model, x = Counting(), torch.ones(4, 3, dtype=WIDE)
    flow = gradient_flow(model, lambda y: y.square().mean(), (x,), [1])
    assert torch.equal(x, torch.ones_like(x))
    assert model.calls == 0
    assert all(params["calls"] == 0 for params in flow.params)
    assert flow.losses[0] == float(model(x.clone()).square().mean().detach())


def test_tied_weights_come_back_under_both_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    model, _, x = on_data(model, 1)
    flow = gradient_flow(model, lambda y: y.square().mean(), x, [1])
    assert float(model(x[0]).square().mean().detach()) == flow.losses[0]
    model.load_state_dict(flow.params[1])
    assert float(model(x[0]).square().mean().detach()) == pytest.approx(flow.losses[1])


def test_a_drift_that_is_no_number_is_not_hidden():
    model, loss_fn, x = on_data(nn.Linear(3, 2), 1)
    flow = gradient_flow(model, loss_fn, x, [1])
    start = flow.params[0]["weight"]
    drift = flow.drift(lambda p: {"log": torch.where(p["weight"] == start, 1.0, np.nan)})
    assert np.isnan(drift["log"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"times": 1.0}, "increasing positive times were"),
        ({"times": [None]}, "increasing positive times were"),
        ({"tolerance": float("nan")}, "from 1e-13 to 1"),
        ({"tolerance": -1.0}, "from 1e-13 to 1"),
        ({"loss_fn": lambda y: y.detach().sum()}, "sees no way"),
        ({"loss_fn": lambda y: y.argmax()}, "a real one"),
        ({"loss_fn": lambda y: y.sum() + 0j}, "a real one"),
        (
            {"loss_fn": lambda y: (y * 0).square().sum().sqrt()},
            "gradient of the loss is not finite",
        ),
    ],
)
def test_what_has_no_flow_is_refused(wrong, message):
    model, loss_fn, x = on_data(nn.Linear(3, 2), 1)
    with pytest.raises(ValueError, match=message):
        gradient_flow(**{"model": model, "loss_fn": loss_fn, "inputs": x, "times": [1], **wrong})


def test_a_penalty_that_reads_the_model_is_refused():
    model, loss_fn, x = on_data(nn.Linear(3, 2), 1)
    with pytest.raises(ValueError, match="weights of the model itself"):
        gradient_flow(model, lambda y: loss_fn(y) + model.weight.square().sum(), x, [1])


def test_along_a_slide_the_velocity_does_not_ask_for_sides():
    """P f is one for every choice of sides in S, in both layers; f itself is not."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model, loss_fn, x = on_data(model, 0, 6)
    z = model[0](x[0]).detach()
    with torch.no_grad():  # two kinks of the first layer and one of the second at zero
        model[0].bias[0] -= z[0, 0]
        model[0].bias[1] -= z[1, 1]
        model[2].bias[2] -= model[:3](x[0])[3, 2]
    landscape = Landscape(model, loss_fn, x, "test")
    field = GradientField(landscape)
    field.sliding = [0, 5, 24 + 3 * 4 + 2]
    y = landscape.start.numpy()
    forces, velocities = [], []
    for bits in range(8):
        field.sides[field.sliding] = torch.tensor([bool(bits >> k & 1) for k in range(3)])
        force, normals, pull = field._parts(y, field.sides)
        assert np.allclose(normals @ (force - pull @ normals), 0, atol=1e-12)
        forces.append(force)
        velocities.append(field.velocity(0.0, y))
    assert np.ptp(velocities, axis=0).max() < 1e-12
    assert np.ptp(forces, axis=0).max() > 1e-3


def test_max_pooling_has_kinks():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.MaxPool2d(2), nn.Flatten(1, 2), nn.MaxPool1d(2), nn.Flatten(),
        nn.Linear(4, 2),
    )  # fmt: skip
    drawn(model.double(), 0, 0.5)
    x, target = normal(3, 1, 5, 5, generator=seeded(1)), normal(3, 2, generator=seeded(2))
    flow = gradient_flow(model, squared_error(target), (x,), [2])
    assert len(flow.events) > 3
    for params, loss in zip(flow.params, flow.losses, strict=True):
        plain = torch.func.functional_call(model, params, (x,))
        assert float(squared_error(target)(plain)) == pytest.approx(loss, abs=1e-14)
    symmetry = find_symmetry(model, (x,))
    drift = flow.drift(lambda p: moment_map(symmetry, p))
    assert max(drift[space] for space in symmetry.spaces if space in drift) < 1e-9
    field = GradientField(Landscape(nn.Sequential(nn.MaxPool2d(3, padding=1), model[0]).double(),
                                    lambda y: y.sum(), (x,), "test"))  # fmt: skip
    assert not len(field.sides)


@pytest.mark.parametrize(
    "kink",
    [
        nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(3), nn.Hardtanh(), nn.ReLU6(), torch.relu,
        torch.Tensor.relu, torch.abs, lambda z: nn.functional.relu(z, inplace=True),
    ],
)  # fmt: skip
def test_every_spelling_of_a_kink_is_seen(kink):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.kink = nn.Linear(3, 3), kink

        def forward(self, x):
            return self.kink(self.first(x))

    model = drawn(Net().double(), 0, 1.0)
    x = (normal(5, 3, generator=seeded(1)),)
    landscape = Landscape(model, lambda y: (y - 0.3).square().mean(), x, "test")
    field = GradientField(landscape)
    assert len(field.sides) in (15, 30)
    plain = landscape.gradient(landscape.start)[1]
    assert np.allclose(-field.velocity(0.0, landscape.start.numpy()), plain, atol=1e-15)
    field.sides[:] = ~field.sides
    assert not np.allclose(-field.velocity(0.0, landscape.start.numpy()), plain, atol=1e-3)


def test_times_buffers_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model, loss_fn, x = on_data(model)
    model[0].bias.requires_grad_(False)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    said = []
    flow = gradient_flow(model, loss_fn, x, [0, 0.1, 0.5], progress=lambda *at: said.append(at))
    assert flow.times == (0.0, 0.1, 0.5)
    assert said[-1][0] == 0.5
    assert flow.params[-1].keys() == before.keys()
    still = {"0.bias", *(n for n, _ in model.named_buffers())}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(flow.params[-1][name], before[name]) == (name in still)
    trained = gradient_flow(model, loss_fn, x, [0.5], training=True)
    assert not torch.allclose(trained.params[-1]["0.weight"], flow.params[-1]["0.weight"])
    assert torch.equal(trained.params[-1]["1.running_mean"], before["1.running_mean"])
    assert not model[1].num_batches_tracked


def test_what_is_no_flow_is_refused():
    model, loss_fn, x = on_data(nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="increasing positive times were expected"):
        gradient_flow(model, loss_fn, x, [2, 1])
    with pytest.raises(ValueError, match="one number was expected"):
        gradient_flow(model, lambda y: y, x, [1])
    with pytest.raises(ValueError, match="two losses"):
        gradient_flow(model, loss_fn, x, [1], training=True)
    with pytest.raises(ValueError, match="Look for NaN"):
        gradient_flow(model, lambda y: y.sum() / 0, x, [1])
    with pytest.raises(RuntimeError, match="bounded from below"):
        gradient_flow(model, lambda y: -100 * y.pow(4).sum(), x, [100], tolerance=1e-3)
    with pytest.raises(ValueError, match="none of its parameters requires a gradient"):
        gradient_flow(model.requires_grad_(False), loss_fn, x, [1])


# -- Proposition C.5 and Corollary C.6 -------------------------------------------------------------


class Radial(nn.Module):
    def forward(self, z):
        return z * torch.sigmoid(z.square().sum(-1, keepdim=True))


# The dimension of the symmetric matrices in the algebra of h units.
ALGEBRAS = {
    "linear": (nn.Identity, lambda h: h * (h + 1) // 2),
    "relu": (nn.ReLU, lambda h: h),
    "radial": (Radial, lambda h: 0),
}


@pytest.mark.parametrize("kind", ALGEBRAS)
@settings(max_examples=4, deadline=None)
@given(n=st.integers(2, 4), h=st.integers(2, 4), m=st.integers(2, 4), seed=st.integers(0, 99))
def test_propositions_c5_and_c6(kind, n, h, m, seed):
    """⟨∇L, Mθ⟩ = 0, and M ↦ Q_M = ⟨θ, Mθ⟩ is injective on the symmetric M, with kernel the rest."""
    activation, dimension = ALGEBRAS[kind]
    model = nn.Sequential(nn.Linear(n, h, bias=False), activation(), nn.Linear(h, m, bias=False))
    model, generator = drawn(model.double(), seed, 1.0), seeded(seed)
    x = normal(2 * n + 1, n, generator=generator)
    symmetry = find_symmetry(model, (x,), check=False)
    model(x).sin().sum().backward()
    slope = {name: p.grad for name, p in model.named_parameters()}
    space = next(iter(symmetry.spaces), None)
    operator = tangent(symmetry, model.state_dict())
    assert operator.rmatvec(slope).abs().max() < 1e-11
    wrong = {name: g + torch.randn(g.shape, generator=generator) for name, g in slope.items()}
    assert operator.rmatvec(wrong).abs().max() > 1e-3
    forms = []
    for _ in range(2 * h * h):
        params = {name: normal(*p.shape, generator=generator) for name, p in slope.items()}
        forms.append(moment_map(symmetry, params)[space].reshape(-1))
    assert int(torch.linalg.matrix_rank(torch.stack(forms), rtol=1e-9)) == dimension(h)


def test_without_its_transpose_a_generator_conserves_nothing():
    """Shears x ↦ x + t y leave L = f(y): M = E₁₂ is in the algebra, Mᵀ is not, and xy moves."""

    class Sheared(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([1.0, 2.0], dtype=WIDE))

        def forward(self, x):
            return (self.theta[1] * x).square().sum()

    flow = gradient_flow(Sheared(), lambda y: y, (torch.ones(1),), [1])
    drift = flow.drift(lambda p: {"xy": p["theta"].prod(), "x": p["theta"][0]})
    assert drift["x"] == 0
    assert drift["xy"] > 1
