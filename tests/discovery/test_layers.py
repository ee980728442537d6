"""GL_h on layers: exact on its sample, a group, of no h × h matrix, and Lipschitz as bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from paramsym.discovery.general_linear.degenerate import Degenerate
from paramsym.discovery.general_linear.frames import AbstractFrame, HouseholderFrame, SphericalFrame
from paramsym.discovery.general_linear.layers import lipschitz_bound, move_layers, move_two_layers

from .dispatched import Largest

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, tuple[Function, float]] = {  # with a Lipschitz constant
    "sigmoid": (torch.sigmoid, 0.25),
    "tanh": (torch.tanh, 1.0),
    "leaky ReLU": (lambda z: functional.leaky_relu(z, 0.1), 1.0),
    "GELU": (functional.gelu, 1.13),
}
FRAMES: dict[str, Callable[[], AbstractFrame]] = {
    "householder": HouseholderFrame,
    "spherical": SphericalFrame,
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def element(h: int, seed: int, size: float = 0.5) -> Tensor:
    return torch.eye(h).double() + size * normal(h, h, seed=seed) / h**0.5


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def weights(h: int, n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, V and x."""
    return normal(m, h, seed=1) / h**0.5, normal(h, n, seed=2) / n**0.5, normal(n, seed=3)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("frame", FRAMES)
def test_512_units_are_moved_exactly_and_by_a_group(name: str, frame: str) -> None:
    (of, _), by = FUNCTIONS[name], FRAMES[frame]()
    outer, inner, x = weights(512, 64, 32)
    g1, g2 = element(512, 4), element(512, 5)
    wanted = outer @ of(inner @ x)
    u, v = move_two_layers(g1, outer, inner, x, of, by)
    assert error(u @ of(v @ x), wanted) <= 1e-12
    assert error(outer @ of(v @ x), wanted) > 1e-2  # V alone changes the function
    other = normal(64, seed=9)  # and both together change it at other inputs
    assert error(u @ of(v @ other), outer @ of(inner @ other)) > 1e-3
    twice, once = (
        move_two_layers(g2, u, v, x, of, by),
        move_two_layers(g2 @ g1, outer, inner, x, of, by),
    )
    assert max(map(error, twice, once)) <= 1e-12
    swapped = move_two_layers(g1 @ g2, outer, inner, x, of, by)
    assert max(map(error, twice, swapped)) > 1e-2
    still = move_two_layers(torch.eye(512).double(), outer, inner, x, of, by)
    assert max(map(error, still, (outer, inner))) <= 1e-14


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("form", ["cocycle", "least-change"])
@pytest.mark.parametrize("samples", [1, 4])
def test_no_square_matrix_is_made_but_g(frame: str, form: str, samples: int) -> None:
    outer, inner, _ = weights(512, 64, 32)
    if frame == "spherical" and samples > 1:
        frame = "householder"
    g, x, by = element(512, 4), normal(64, samples, seed=3), FRAMES[frame]()
    with Largest() as largest:
        move_two_layers(g, outer, inner, x, torch.tanh, by, form=form)
    assert largest.entries == 512 * 64  # gV itself
    with Largest() as largest:  # negative control: the same by matrices
        by.at(torch.tanh(inner @ x)).dense(x)
    assert largest.entries == 512 * 512


@pytest.mark.parametrize("frame", FRAMES)
def test_beyond_the_product_the_cost_is_linear_in_the_units(frame: str) -> None:
    outer, inner, x = weights(512, 64, 32)
    g, by = element(512, 4), FRAMES[frame]()
    with FlopCounterMode(display=False) as counter:
        move_two_layers(g, outer, inner, x, torch.tanh, by, check=False)
    beyond = counter.get_total_flops() - 2 * 512 * 512 * 64
    assert 0 < beyond <= 12 * 512 * (64 + 32)


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
@pytest.mark.parametrize("samples", [1, 3])
def test_deep_networks_with_biases_stay_exact_and_their_last_layer_moves(
    form: str, samples: int
) -> None:
    sizes, functions = (4, 7, 6, 5, 3), [torch.sigmoid, torch.tanh, functional.gelu]
    ws = [normal(b, a, seed=a * b) for a, b in zip(sizes, sizes[1:], strict=False)]
    bs: list[Tensor | None] = [normal(b, seed=b) for b in sizes[1:]]
    bs[1] = None
    x = normal(4, samples, seed=3)

    def value(ws: list[Tensor], bs: list[Tensor | None]) -> Tensor:
        signal = x
        for w, b, of in zip(ws, bs, [*functions, lambda z: z], strict=True):
            signal = of(w @ signal + (0 if b is None else b[:, None]))
        return signal

    gs = [element(n, seed=n) for n in sizes[1:-1]]
    moved, shifts = move_layers(gs, ws, bs, x, functions, form=form)
    wanted = value(ws, bs)
    assert error(value(moved, shifts), wanted) <= 1e-12
    assert shifts[1] is None and torch.equal(shifts[3], bs[3])
    # as printed, to L − 1: the last layer stays, and the function goes
    assert error(moved[3], ws[3]) > 1e-2
    assert error(value([*moved[:3], ws[3]], shifts), wanted) > 1e-2
    # None moves nothing: the same as the identity
    some, _ = move_layers([None, gs[1], None], ws, bs, x, functions, form=form)
    assert some[0] is ws[0] and some[3] is ws[3]
    if form == "cocycle":
        hs = [element(n, seed=30 + n) for n in sizes[1:-1]]
        twice = move_layers(hs, moved, shifts, x, functions)
        once = move_layers([h @ g for h, g in zip(hs, gs, strict=True)], ws, bs, x, functions)
        assert max(map(error, twice[0], once[0])) <= 1e-11


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_lipschitz_bound_is_never_exceeded_on_ten_thousand_pairs(name: str) -> None:
    of, constant = FUNCTIONS[name]
    outer, inner, x = weights(12, 5, 4)
    largest = 0.0
    for seed in range(10):
        g = element(12, seed, size=1.0)
        bound = lipschitz_bound(g, outer, inner, x, of, constant)
        u, v = move_two_layers(g, outer, inner, x, of)
        one = 3 * normal(5, 1000, seed=100 + seed)
        near = 10.0 ** torch.linspace(-6, 1, 1000).double()
        other = one + near * functional.normalize(normal(5, 1000, seed=200 + seed), dim=0)
        slopes = (u @ (of(v @ one) - of(v @ other))).norm(dim=0) / (one - other).norm(dim=0)
        largest = max(largest, float(slopes.max()) / bound)
    assert 0.005 < largest <= 1 + 1e-9  # neither exceeded, nor empty


def test_the_lipschitz_bound_is_attained_by_a_linear_network() -> None:
    outer, inner, x = normal(1, 1), normal(1, 1, seed=1), normal(1, seed=2)
    g = torch.full((1, 1), -0.7).double()
    bound = lipschitz_bound(g, outer, inner, x, lambda z: 2 * z, 2.0)
    u, v = move_two_layers(g, outer, inner, x, lambda z: 2 * z)
    assert float((2 * u @ v).abs()) == pytest.approx(bound)
    # too small a constant, and the bound is none
    assert float((2 * u @ v).abs()) > lipschitz_bound(g, outer, inner, x, lambda z: 2 * z, 1.0)


def test_the_printed_step_of_the_proof_bounds_another_thing() -> None:
    """|F(x₁ − x₂)| ≤ bound·|x₁ − x₂| is false: F(0) ≠ 0 for the sigmoid."""
    outer, inner, x = weights(12, 5, 4)
    g = element(12, 0)
    bound = lipschitz_bound(g, outer, inner, x, torch.sigmoid, 0.25)
    u, v = move_two_layers(g, outer, inner, x, torch.sigmoid)
    apart = 1e-3 * functional.normalize(normal(5, seed=7), dim=0)
    assert float((u @ torch.sigmoid(v @ apart)).norm()) > 10 * bound * 1e-3


def test_where_the_action_is_not_defined_the_layer_is_named() -> None:
    ws = [normal(5, 3), normal(5, 5, seed=1), normal(2, 5, seed=2)]
    x, no, functions = normal(3, seed=3), [None] * 3, [torch.relu, torch.relu]
    ws[1] = -ws[1].abs()  # closed behind positive features
    g = element(5, 1)
    with pytest.raises(Degenerate, match="move_layers, layer 2, before g: σ.z. has norm 0"):
        move_layers([None, g], ws, no, x, functions)
    move_layers([g, None], ws, no, x, functions)
    with pytest.raises(Degenerate, match="layer 1, before g: σ.z. has norm 0 at sample 0"):
        move_two_layers(g, ws[2], ws[0], 0 * x, torch.tanh)
    move_two_layers(g, ws[2], ws[0], 0 * x, torch.sigmoid)  # Theorem 4.1: σ(0) ≠ 0
    with pytest.raises(Degenerate, match="singular values"):
        move_two_layers(torch.ones(5, 5).double(), ws[2], ws[0], x, torch.sigmoid)
    with pytest.raises(Degenerate, match="7 samples came for 5 units"):
        move_two_layers(g, ws[2], ws[0], normal(3, 7), torch.sigmoid)


def test_lists_of_other_lengths_and_batches_for_the_bound_are_refused() -> None:
    ws = [normal(5, 3), normal(2, 5)]
    with pytest.raises(ValueError, match="one element, function and frame for each hidden layer"):
        move_layers([None], ws, [None], normal(3), [torch.tanh])
    with pytest.raises(ValueError, match=r"layer 1: g of shape \(4, 4\) came; \(5, 5\)"):
        move_two_layers(element(4, 0), ws[1], ws[0], normal(3), torch.tanh)
    with pytest.raises(ValueError, match="2 samples came; one was expected"):
        lipschitz_bound(element(5, 0), ws[1], ws[0], normal(3, 2), torch.tanh)


def test_a_singular_element_beyond_128_units_is_seen_by_what_it_acts_on() -> None:
    outer, inner, x = weights(200, 5, 3)
    g = torch.zeros(200, 200).double()
    g[:4] = normal(4, 200)
    with pytest.raises(Degenerate, match="gV has rank 4 where V has 5"):
        move_two_layers(g, outer, inner, x, torch.sigmoid)
    move_two_layers(g, outer, inner, x, torch.sigmoid, check=False)
