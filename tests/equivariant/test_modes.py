"""Networks in the modes of PyTorch: autocast, half precision, empty batches, traces."""

import copy
import io

import pytest
import torch

from paramsym.equivariant import (
    EquivariantAutoencoder,
    EquivariantLinear,
    OrthogonalGroup,
    components,
    image_dihedral,
    image_shift,
    signed_permutation,
)
from paramsym.equivariant.forms.choice import FORMS

# Small orbits, large ones on one axis and on both, and a group of matrices.
SHAPES = {
    "rows": lambda: image_shift(4, 4),
    "long rows": lambda: image_shift(1, 300),
    "both axes": lambda: image_shift(18, 18, "both"),
    "dihedral": lambda: image_dihedral(4),
    "signed": lambda: OrthogonalGroup((signed_permutation([1, 2, 3, 0], [1, 1, 1, -1]),)),
}
KINDS = {
    "linear": {},
    **{form: {"form": form} for form in FORMS},
    "gates": {"hidden": (2,), "activation": "norm"},
    "pixels": {"hidden": (2,), "activation": torch.tanh},
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]()


@pytest.fixture(params=[*KINDS, "layer", "rank 0"])
def network(request, shape):
    if request.param == "layer":
        return EquivariantLinear(shape, bias=True, in_channels=2, generator=seeded(0))
    rank = 0 if request.param == "rank 0" else min(5, shape.degree)
    component = components(shape, rank)[0]
    options = KINDS["pixels"] if request.param == "rank 0" else KINDS[request.param]
    if options.get("activation") is torch.tanh and isinstance(shape, OrthogonalGroup):
        options = KINDS["gates"]  # no function of one number commutes with a sign but an odd one
    return EquivariantAutoencoder(shape, component, generator=seeded(0), **options)


def samples(network, *lead):
    n = network.decomposition.shape[1]
    tail = (2, n) if isinstance(network, EquivariantLinear) else (n,)
    return torch.randn(*lead, *tail, generator=seeded(1))


def near(found, expected, tolerance):
    error = (found.float() - expected).norm()
    assert error <= tolerance * expected.norm(), f"relative error {error / expected.norm():.1e}"


def test_autocast_computes_and_trains(network):
    x = samples(network, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = network(x)
        near(y, network(x.bfloat16()).float(), 0.05)
        if y.requires_grad:
            y.float().square().sum().backward()
    network.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = network(x).float().square().sum()
    if loss.requires_grad:
        loss.backward()  # outside, as PyTorch recommends
    expected = network(x)
    near(y, expected, 0.05)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in network.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(network, dtype):
    x = samples(network, 4)
    half = copy.deepcopy(network).to(dtype)
    given = x.to(dtype).requires_grad_()
    y = half(given)
    assert y.dtype == dtype
    near(y, network(x), 0.05)
    if y.requires_grad:
        y.float().square().sum().backward()
        assert given.grad is None or torch.isfinite(given.grad).all()


def test_shapes_are_known_where_values_are_not(network):
    x = samples(network, 4)
    y = copy.deepcopy(network).to("meta")(x.to("meta"))
    assert y.shape == network(x).shape and y.device.type == "meta"


@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 3)])
def test_an_empty_batch_gives_an_empty_batch(network, lead):
    x = samples(network, *lead).requires_grad_()
    y = network(x)
    assert y.shape == (*lead, network.decomposition.shape[0])
    if y.requires_grad:
        y.sum().backward()
    if isinstance(network, EquivariantAutoencoder):
        code = network.encode(x)
        assert code.shape == (*lead, network.component.rank)
        assert network.decode(code).shape == y.shape


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_trace_is_the_network_for_every_batch(network):
    traced = torch.jit.trace(network, samples(network, 3))
    for lead in ((3,), (7,), (1,)):
        x = samples(network, *lead)
        torch.testing.assert_close(traced(x), network(x))
    stream = io.BytesIO()
    torch.jit.save(traced, stream)  # no function of our own is left in it
    stream.seek(0)
    torch.testing.assert_close(torch.jit.load(stream)(x), network(x))
    if any(p.numel() for p in network.parameters()):  # a control: the trace reads the weights
        x = samples(network, 3)
        before = traced(x).detach().clone()
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.5)
        assert (traced(x) - before).norm() > 1e-3
        torch.testing.assert_close(traced(x), network(x))
