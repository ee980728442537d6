"""Every form of the change of basis, and every padding, is the same network at another cost."""

from math import inf

import numpy as np
import pytest
import torch

from paramsym.equivariant import (
    EquivariantAutoencoder,
    EquivariantLinear,
    PermutationGroup,
    components,
    decompose,
    equivariance_error,
    image_shift,
)
from paramsym.equivariant import network as network_module
from paramsym.equivariant.blocks import bundle
from paramsym.equivariant.forms.base import Columns
from paramsym.equivariant.forms.choice import FORMS, choose, costs
from paramsym.equivariant.padding import pad
from tests.equivariant.instances import cycles

F64 = torch.float64


def shifts_of_a_grid(*sizes):
    """One cyclic shift along each axis."""
    points = np.arange(np.prod(sizes)).reshape(sizes)
    moves = [np.roll(points, 1, axis).ravel() for axis in range(len(sizes))]
    return PermutationGroup(tuple(tuple(move.tolist()) for move in moves))


SHIFTS = {
    "rows": image_shift(6, 6),
    "columns": image_shift(4, 6, "vertical"),
    "both": image_shift(5, 7, "both"),
    "both, even": image_shift(4, 6, "both"),
    "one row": image_shift(1, 9),
    "channels": image_shift(4, 3, "both", channels=2),
    "mixed": cycles(7, [[0, 3, 1, 5], [2, 6]]),
    "three axes": shifts_of_a_grid(2, 3, 4),
}


def unequal(group, generator):
    """A component in which blocks have different ranks, some of them 0."""
    d = decompose(group)
    ranks = [int(generator.integers(0, v.largest_rank + 1)) for v in d.isotypics]
    ranks[0] = 1
    rank = sum(v.dimension * r for v, r in zip(d.isotypics, ranks, strict=True))
    return components(d, rank).component(ranks)


def both_derivatives(network, x):
    """Outputs, and the derivatives by inputs and weights of one number."""
    network.zero_grad()
    x = x.clone().requires_grad_()
    y = network(x)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in network.parameters())]


def assert_alike(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max()) <= 1e-12 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", SHIFTS)
def test_every_form_is_the_dense_basis(name, rng):
    for c in decompose(SHIFTS[name]).source_classes:
        used = rng.permutation(c.basis.shape[1])[: max(1, 2 * c.basis.shape[1] // 3)]
        columns = Columns(c, used)
        dense = torch.as_tensor(columns.matrix)
        x = torch.as_tensor(rng.standard_normal((5, columns.size)), dtype=F64)
        y = torch.as_tensor(rng.standard_normal((len(used), 5)), dtype=F64)
        for form in costs(columns):
            made = choose(columns, F64, form)
            assert type(made) is FORMS[form]
            assert float((made.analyse(x) - dense.T @ x.T).abs().max()) <= 1e-13
            assert float((made.synthesise(y) - (dense @ y).T).abs().max()) <= 1e-13
            # The negative control: coefficients in another order are noticed.
            if len(used) > 1:
                other = choose(Columns(c, np.roll(used, 1)), F64, form)
                assert float((other.analyse(x) - dense.T @ x.T).abs().max()) > 0.1


def autoencoder(group, component, hidden, form=None):
    """The same weights whatever its form and padding."""
    return EquivariantAutoencoder(
        group,
        component,
        hidden=hidden,
        activation="norm" if hidden else None,
        dtype=F64,
        generator=torch.Generator().manual_seed(0),
        form=form,
    )


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("hidden", [(), (2,)], ids=["linear", "gates"])
def test_forms_agree_forward_and_backward(name, hidden, rng):
    group = SHIFTS[name]
    component = unequal(group, rng)
    x = torch.as_tensor(rng.standard_normal((3, group.degree)))
    results, codes = [], []
    for form in (None, *FORMS):
        network = autoencoder(group, component, hidden, form)
        assert equivariance_error(network, group, x) <= 1e-14
        assert torch.autograd.gradcheck(network, (x.clone().requires_grad_(),), fast_mode=True)
        results.append(both_derivatives(network, x))
        codes.append(network.encode(x).detach())
    for result, code in zip(results[1:], codes[1:], strict=True):
        assert_alike(result, results[0])
        assert_alike([code], codes[:1])


@pytest.mark.parametrize("hidden", [(), (2,)], ids=["linear", "gates"])
def test_padding_changes_cost_alone(group, hidden, rng, monkeypatch):
    component = unequal(group, rng)
    x = torch.as_tensor(rng.standard_normal((3, group.degree)))
    results, states = [], []
    for start in (0, 20, inf):
        monkeypatch.setattr(
            network_module, "pad", lambda stored, keys, start=start: pad(stored, keys, start)
        )
        network = autoencoder(group, component, hidden)
        code = network.encode(x).detach()
        results.append([*both_derivatives(network, x), code, network.decode(code).detach()])
        states.append(network.state_dict())
    for result, state in zip(results[1:], states[1:], strict=True):
        assert_alike(result, results[0])
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


def test_a_wrong_form_would_be_noticed(rng):
    group = SHIFTS["both"]
    component = unequal(group, rng)
    x = torch.as_tensor(rng.standard_normal((3, group.degree)))
    networks = [
        EquivariantAutoencoder(
            group, component, dtype=F64, generator=torch.Generator().manual_seed(0), form=form
        )
        for form in ("product", "separable")
    ]
    axis = networks[1].core.source.parts[0].form.axis0
    axis[1:] = axis[1:].roll(1, 0)  # sines for cosines
    first, second = (both_derivatives(network, x) for network in networks)
    with pytest.raises(AssertionError):
        assert_alike(second, first)


def test_products_are_padded_where_that_is_cheaper():
    stored = bundle(decompose(image_shift(9, 9)).isotypics, [(9,) * 5, (5, 4, 3, 2, 1), (9,) * 5])
    keys = [0] * 5
    assert [len(b.blocks) for b in pad(stored, keys, 0)] == [1] * 5
    assert [b.copies[1] for b in pad(stored, keys, inf)] == [5, 4]  # one real, one complex
    # Both layers of 9 × 1 complex numbers have 72 entries; padding 4, 3 | 2, 1 wastes two of them.
    assert [b.copies[1] for b in pad(stored, keys, 100)] == [5, 4, 2]
    mixed = pad(stored, [0, 1, 2, 1, 2], inf)  # what lies differently on the orbits stays apart
    assert sorted(b.blocks for b in mixed) == [(0,), (1, 3), (2, 4)]


def test_the_form_is_chosen_by_cost_and_can_be_named():
    def forms(group, rank, form=None):
        d = decompose(group)
        layer = EquivariantAutoencoder(d, components(d, rank)[0], form=form)
        return [type(part.form).__name__ for part in layer.core.source.parts]

    assert forms(image_shift(28, 28), 99) == ["Product"]
    assert forms(image_shift(1, 1024), 1000) == ["Fourier"]
    assert forms(image_shift(1, 1024), 1000, "product") == ["Product"]
    assert forms(image_shift(8, 8), 9, "separable") == ["Product"]  # its orbits have one axis
    with pytest.raises(ValueError, match="form='fft': expected one of 'product', 'separable'"):
        EquivariantLinear(image_shift(4, 4), form="fft")


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("form", FORMS)
def test_forms_take_other_dtypes_and_no_samples(form, rng):
    group = image_shift(6, 6, "both")
    component = unequal(group, rng)
    network = EquivariantAutoencoder(group, component, form=form)
    x = torch.as_tensor(rng.standard_normal((4, 36)), dtype=torch.float32)
    expected = network(x)
    assert network(x[:0]).shape == (0, 36)
    network(x[:0]).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = network(x)
        found.float().square().sum().backward()
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)
    traced = torch.jit.trace(network, x)
    torch.testing.assert_close(traced(x), expected)
    exact = network.to(F64)(x.to(F64))  # the constants are rounded anew
    torch.testing.assert_close(expected.to(F64), exact, rtol=1e-4, atol=1e-5)
    assert equivariance_error(network, group, x.to(F64)) <= 1e-14
    half = network.to(torch.bfloat16)
    torch.testing.assert_close(half(x.bfloat16()).float(), expected, rtol=0.1, atol=0.1)
