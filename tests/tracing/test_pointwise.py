"""The units between two linear maps and one entrywise function: what is read, and what refused."""

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.checking.pointwise import PointwiseSite, pointwise_site
from paramsym.tracing.pointwise import Carrier, NotPointwise

RELATIVE = 1e-12


class By(nn.Module):
    """A two-layer network with its forward pass given from outside."""

    def __init__(self, forward, **shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            self.register_parameter(
                name, nn.Parameter(torch.randn(*shape, generator=generator).double())
            )
        self.__dict__["given"] = forward

    def forward(self, x):
        return self.__dict__["given"](self, x)


def two_layers(forward, **more):
    return By(forward, v=(5, 3), b=(5,), u=(2, 5), **more)


class Zero(By):
    """A skip around the function whose weight is zero now."""

    def __init__(self):
        super().__init__(
            lambda m, x: torch.tanh(z := x @ m.v.T) @ m.u.T + z @ m.w, v=(5, 3), u=(2, 5), w=(5, 2)
        )
        with torch.no_grad():
            self.w.zero_()


X = (torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double(),)
PLAIN = two_layers(lambda m, x: torch.tanh(x @ m.v.T + m.b) @ m.u.T)
GOOD = {
    "matrix products": PLAIN,
    "linear": two_layers(lambda m, x: nn.functional.linear(
        nn.functional.silu(nn.functional.linear(x, m.v, m.b)), m.u)),
    "in place": two_layers(lambda m, x: torch.relu_(x @ m.v.T + m.b) @ m.u.T),
    "columns": two_layers(lambda m, x: m.u @ torch.sigmoid(m.v @ x.T + m.b[:, None])),
    "an option": two_layers(lambda m, x: nn.functional.leaky_relu(
        torch.addmm(m.b, x, m.v.T), negative_slope=0.3) @ m.u.T),
    "two readers": two_layers(lambda m, x: torch.cat(
        [(h := torch.tanh(x @ m.v.T + m.b)) @ m.u.T, h @ m.w], 1), w=(5, 4)),
    "two writers": two_layers(lambda m, x: torch.tanh(
        x @ m.v.T + x.square() @ m.w + m.b) @ m.u.T, w=(3, 5)),
    "positions": two_layers(lambda m, x: torch.einsum(
        "oh,bth->bot", m.u, torch.erf(x.reshape(2, 2, 3) @ m.v.T + m.b))),
    "in many operators": two_layers(
        lambda m, x: ((z := x @ m.v.T + m.b) * torch.sigmoid(1.7 * z) + 0.5) @ m.u.T),
    "one function of another": two_layers(lambda m, x: torch.sin(torch.tanh(x @ m.v.T)) @ m.u.T),
    "a power": two_layers(lambda m, x: (x @ m.v.T + m.b).pow(3) @ m.u.T),
    "a choice": two_layers(lambda m, x: torch.where(
        (z := x @ m.v.T + m.b) > 0.2, z, torch.tanh(z)) @ m.u.T),
    "means and masks behind it": two_layers(lambda m, x: (
        torch.cumsum(torch.tanh(x.reshape(2, 2, 3) @ m.v.T + m.b), 1).mean(1) @ m.u.T)),
    "a convolution": By(lambda m, x: torch.conv1d(torch.tanh(torch.conv1d(
        x.reshape(1, 3, 4), m.v, m.b)), m.u), v=(5, 3, 2), b=(5,), u=(2, 5, 2)),
    "attention behind it": two_layers(lambda m, x: torch.softmax(x @ x.T, -1) @ torch.tanh(
        x @ m.v.T + m.b) @ m.u.T),
    "twice the same function": By(
        lambda m, x: torch.tanh(torch.tanh(x @ m.v.T) @ m.w.T) @ m.u.T, v=(7, 3), w=(5, 7), u=(2, 5)
    ),
}  # fmt: skip


def site_of(model) -> PointwiseSite:
    symmetry = find_symmetry(model, X)
    space = next(s for s in symmetry.spaces if symmetry.spaces[s].size == 5)
    return pointwise_site(model, symmetry, X, space)


def outputs(model, params):
    with torch.no_grad():
        return torch.func.functional_call(model, params, X)


@pytest.mark.parametrize("name", GOOD)
def test_matrices_on_either_side_do_what_they_say(name):
    model = GOOD[name]
    site = site_of(model)
    params = {n: p.detach() for n, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    g, c = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    z = site.before(params)
    assert (site.before(site.carried(params, g, None)) - g @ z).abs().max() < RELATIVE * z.norm()
    # σ undone: U·C moved to fit on the samples leaves the outputs where they are
    moved = site.carried(params, g, None)
    fit = site.function(z) @ torch.linalg.pinv(site.function(g @ z))
    error = (outputs(model, site.carried(moved, None, fit)) - outputs(model, params)).abs().max()
    wrong = (outputs(model, moved) - outputs(model, params)).abs().max()
    small = z.shape[1] <= 5 and torch.linalg.matrix_rank(site.function(g @ z)) == z.shape[1]
    assert not small or float(error) < 1e-9 < 1e-3 < float(wrong)


def test_the_parameters_and_their_axes_are_named():
    site = site_of(PLAIN)
    assert site.writers == (Carrier("v", 0), Carrier("b", 0))
    assert site.readers == (Carrier("u", 1),)
    assert (site.units, site.name) == (5, "tanh")
    assert torch.equal(site.function(torch.ones(2, 3)), torch.tanh(torch.ones(2, 3)))


def test_what_the_function_gets_is_differentiated_on_demand():
    site = site_of(PLAIN)
    params = dict(PLAIN.named_parameters())
    assert not site.before(params).requires_grad
    (slope,) = torch.autograd.grad(site.before(params, differentiable=True).sum(), params["v"])
    assert torch.allclose(slope, X[0].sum(0).expand(5, 3))


def test_at_other_inputs_it_is_read_again():
    def sum_of_steps(m, x):
        steps = torch.stack([torch.tanh(x[:, t]) for t in range(x.shape[1])])
        return torch.tanh(steps.sum(0) @ m.v.T) @ m.u.T

    model = By(sum_of_steps, v=(5, 3), u=(2, 5))
    shorter, longer = torch.randn(4, 2, 3).double(), torch.randn(4, 6, 3).double()
    symmetry = find_symmetry(model, (shorter,))
    site = pointwise_site(model, symmetry, (shorter,), "mlp")
    wanted = torch.tanh(longer).sum(1) @ model.get_parameter("v").detach().T
    found = site.on((longer,)).before()
    assert float((found - wanted.T).abs().max()) < RELATIVE
    assert site.before(inputs=(longer,)).shape != wanted.T.shape or bool(
        (site.before(inputs=(longer,)) - wanted.T).abs().max() > 1e-3
    )  # the control: the same call of that name is another place


def test_what_is_not_named_stays_the_same_tensor():
    site = site_of(PLAIN)
    params = {**dict(PLAIN.named_parameters()), "other": torch.ones(1)}
    moved = site.carried(params, torch.eye(5, dtype=torch.float64), None)
    assert moved["other"] is params["other"] and moved["u"] is params["u"]
    assert moved["v"] is not params["v"]


def test_tied_names_move_together():
    first = nn.Linear(3, 5)
    model = By(lambda m, x: torch.tanh(first(x)) @ m.u.T, u=(2, 5))
    model.first, model.again = first, first
    model.double()
    site = site_of(model)
    moved = site.carried(model.state_dict(), 2 * torch.eye(5, dtype=torch.float64), None)
    assert torch.equal(moved["first.weight"], 2 * first.weight)
    assert moved["again.weight"] is moved["first.weight"]


BAD = {
    "gated": (
        two_layers(lambda m, x: (torch.sigmoid(x @ m.v.T) * (x @ m.w.T)) @ m.u.T, w=(5, 3)),
        "write 2 tensors",
    ),
    "an output": (
        two_layers(lambda m, x: ((h := torch.tanh(x @ m.v.T + m.b)) @ m.u.T, h)),
        "",
    ),
    "a softmax behind": (
        two_layers(lambda m, x: torch.softmax(torch.tanh(x @ m.v.T + m.b), 1) @ m.u.T),
        "softmax",
    ),
    "used twice": (
        two_layers(lambda m, x: torch.tanh(x @ m.v.T + m.b) @ m.u.T + (2 * x @ m.v.T).sum()),
        "write 2 tensors",
    ),
    "no function": (
        two_layers(lambda m, x: (x @ m.v.T) @ m.u.T),
        "they meet a product",
    ),
    "what it gets is an output": (
        two_layers(lambda m, x: (torch.tanh(z := x @ m.v.T + m.b) @ m.u.T, z.square().sum())),
        "they meet",
    ),
    "a skip around it": (
        two_layers(lambda m, x: torch.tanh(z := x @ m.v.T + m.b) @ m.u.T + z @ m.w, w=(5, 2)),
        "they meet",
    ),
    "a detached skip": (
        two_layers(lambda m, x: torch.tanh(z := x @ m.v.T) @ m.u.T + z.detach() @ m.w, w=(5, 2)),
        "they meet",
    ),
    "a mean of what it gets": (
        two_layers(lambda m, x: torch.tanh(z := x @ m.v.T) @ m.u.T * z.mean(-1, keepdim=True)),
        "they meet",
    ),
    "a part of what it gets is read": (
        two_layers(lambda m, x: torch.tanh(x @ m.v.T + (w := x @ m.w.T)) @ m.u.T + w @ m.t,
                   w=(5, 3), t=(5, 2)),
        "a part of its units meets",
    ),
    "a skip that is zero now": (Zero(), "they meet"),
    "a random function": (
        two_layers(lambda m, x: nn.functional.rrelu(x @ m.v.T, training=True) @ m.u.T),
        "no function of one entry",
    ),
    "a random function of few": (
        two_layers(lambda m, x: nn.functional.alpha_dropout(x @ m.v.T, 0.3, training=True) @ m.u.T),
        "",
    ),
    "random inputs": (
        two_layers(lambda m, x: torch.tanh((x + torch.randn_like(x)) @ m.v.T) @ m.u.T),
        "drawn at random",
    ),
    "another parameter in it": (
        two_layers(lambda m, x: nn.functional.prelu(x @ m.v.T, m.w) @ m.u.T, w=(1,)),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_such_place_is_refused(name):
    model, why = BAD[name]
    symmetry = find_symmetry(model, X)
    spaces = [s for s in symmetry.spaces if symmetry.spaces[s].size == 5]
    for space in spaces:
        with pytest.raises(NotPointwise, match=why or None) as raised:
            pointwise_site(model, symmetry, X, space)
        assert "U·σ(V·x + b)" in str(raised.value) and "Choose another space" in str(raised.value)
    assert spaces or not why


def test_an_unknown_space_is_named():
    with pytest.raises(KeyError, match="it is no space"):
        pointwise_site(PLAIN, find_symmetry(PLAIN, X), X, "none")
