"""Each hidden unit of U σ(V) keeps a quantity of its own on whitened inputs."""

import pytest
import torch
from torch import nn

from paramsym.dynamics.elementwise import unit_quantities
from paramsym.dynamics.flow import gradient_flow
from tests.dynamics.networks import normal, seeded, squared_error, whitened

CLOSED = {
    "identity": nn.Identity(), "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(0.3),
    "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(),
}  # fmt: skip


def flowing(activation: nn.Module, inputs: torch.Tensor | None = None):
    target = normal(3, 2, generator=seeded(5))
    x = torch.eye(3) if inputs is None else inputs
    return gradient_flow(whitened(activation), squared_error(target), (x,), [0.5, 3])


@pytest.mark.parametrize("name", CLOSED)
def test_every_unit_keeps_its_own(name):
    flow = flowing(CLOSED[name])
    first, last = (
        unit_quantities(p["2.weight"], p["0.weight"], name)
        for p in (flow.params[0], flow.params[-1])
    )
    assert first.shape == (4,)
    assert (first - last).abs().max() < 1e-9
    halves = [p["2.weight"].square().sum(0) / 2 for p in (flow.params[0], flow.params[-1])]
    assert (halves[0] - halves[1]).abs().min() > 1e-5  # every unit moves


def test_the_integral_of_another_activation_is_not_kept():
    flow = flowing(nn.Tanh())
    for name in {*CLOSED} - {"tanh"}:
        drift = flow.drift(lambda p, n=name: {n: unit_quantities(p["2.weight"], p["0.weight"], n)})
        assert drift[name] > 1e-3


def test_inputs_that_are_not_white_keep_nothing():
    """On other inputs a linear or a ReLU unit keeps its quantity, and a curved one does not."""
    x = normal(3, 3, generator=seeded(9))
    for name in CLOSED:
        flow = flowing(CLOSED[name], x)
        drift = flow.drift(lambda p, n=name: {n: unit_quantities(p["2.weight"], p["0.weight"], n)})
        assert (drift[name] > 1e-3) == (name in ("relu", "tanh", "sigmoid")), (name, drift)


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.tanh, "tanh"), (torch.sigmoid, "sigmoid"), (lambda x: x, "identity")],
)
def test_the_numerical_integral_is_the_closed_one(function, name):
    outgoing, incoming = normal(2, 4, generator=seeded(0)), normal(4, 3, generator=seeded(1))
    found = unit_quantities(outgoing, incoming, function)
    assert torch.allclose(found, unit_quantities(outgoing, incoming, name), atol=1e-12, rtol=0)


def test_any_smooth_activation_by_quadrature():
    flow = flowing(nn.Softplus())
    drift = flow.drift(
        lambda p: {"q": unit_quantities(p["2.weight"], p["0.weight"], nn.functional.softplus)}
    )
    assert drift["q"] < 1e-8


def test_a_radial_activation_keeps_it_from_any_start():
    """Proposition G.1 without its spectral initialisation, unit by unit."""

    class Rows(nn.Module):
        def forward(self, z):  # z = Vᵀ, units last: rows of V are columns here
            length = z.norm(dim=0, keepdim=True)
            return z * torch.sinh(length) / length

    flow = flowing(Rows())

    def values(p):
        length = p["0.weight"].norm(dim=1, keepdim=True)
        return {"q": unit_quantities(p["2.weight"], length, torch.sinh)}

    drift = flow.drift(values)
    assert drift["q"] < 1e-8
    assert flow.drift(
        lambda p: {"q": unit_quantities(p["2.weight"], p["0.weight"], torch.sinh)}
    )["q"] > 1e-3  # fmt: skip


def test_what_has_no_integral_is_refused():
    outgoing, incoming = torch.ones(2, 3), -torch.ones(3, 2)
    with pytest.raises(ValueError, match="derivative vanishes"):
        unit_quantities(outgoing, incoming, nn.functional.gelu)
    with pytest.raises(KeyError, match="a function: pass"):
        unit_quantities(outgoing, incoming, "gelu")
    with pytest.raises(ValueError, match="the second first"):
        unit_quantities(incoming, incoming, "tanh")
