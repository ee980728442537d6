"""The closed group leaves the function in place, and is a group."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.waring import Polynomial, RectifiedMonomial
from paramsym.waring.reparametrisation import reparametrised

from .examples import (
    bias_of,
    generator_of,
    network_of,
    normal,
    polynomials,
    powers,
    random_network,
    relative_error,
    whole,
)

SEEDS = range(60)


def _random_order(size: int, generator: torch.Generator) -> list[int]:
    return torch.randperm(size, generator=generator).tolist()


def random_element(network: nn.Sequential, generator: torch.Generator) -> dict[str, Any]:
    """All arguments of `reparametrised`, drawn at random."""
    layers = polynomials(network)
    term_orders: list[dict[int, list[int]]] = []
    signs: list[dict[int, list[int]]] = []
    for layer in layers:
        term_orders.append({})
        signs.append({})
        for k, kinds in enumerate(layer.kinds):
            order = [*range(len(kinds))]
            for kind in {*kinds}:
                places = [t for t, own in enumerate(kinds) if own == kind]
                mixed = _random_order(len(places), generator)
                for t, other in zip(places, mixed, strict=True):
                    order[t] = places[other]
            term_orders[-1][k] = order
            signs[-1][k] = [
                1 if d % 2 else 2 * whole(generator, 0, 1) - 1 for d, _ in (kinds[t] for t in order)
            ]
    widths = [layer.out_features for layer in layers[:-1]]
    inner = layers[0].in_features
    return {
        "inputs": normal(generator, inner, inner) + 2 * torch.eye(inner),
        "permutations": [_random_order(n, generator) for n in widths],
        "scales": [(0.7 * normal(generator, n)).exp() for n in widths],
        "term_orders": term_orders,
        "signs": signs,
    }


def _moved_inputs(element: dict[str, Any], x: Tensor) -> Tensor:
    return x @ element["inputs"].T


@pytest.mark.parametrize("seed", SEEDS)
def test_the_function_stays(seed: int) -> None:
    network, generator = random_network(seed), generator_of(1000 + seed)
    element = random_element(network, generator)
    moved = reparametrised(network, **element)
    x = normal(generator, 40, polynomials(network)[0].in_features)
    assert relative_error(moved(_moved_inputs(element, x)), network(x)) < 1e-12


def _with_powers(network: nn.Sequential, exponents: list[float]) -> nn.Sequential:
    """The same layers between other rectified monomials."""
    rest = iter(exponents)
    return nn.Sequential(
        *(RectifiedMonomial(next(rest)) if isinstance(m, RectifiedMonomial) else m for m in network)
    )


def _live_network(seed: int) -> nn.Sequential:
    """Two layers with a term of degree 1 each, whose units open and whose readers read them."""
    generator = generator_of(seed)
    power = (0.5, 1, 1.5, 2, 3)[seed % 5]
    layers = [
        Polynomial(i, o, [1, 2, 3], generator=generator, dtype=torch.float64)
        for i, o in ((3, 4), (4, 2))
    ]
    return nn.Sequential(layers[0], RectifiedMonomial(power), layers[1])


@pytest.mark.parametrize("seed", range(20))
def test_scales_with_the_wrong_exponent_change_the_function(seed: int) -> None:
    network, generator = _live_network(seed), generator_of(seed)
    element = random_element(network, generator)
    x = normal(generator, 40, 3)
    at = _moved_inputs(element, x)
    wrong = reparametrised(_with_powers(network, [p + 0.1 for p in powers(network)]), **element)
    wrong = _with_powers(wrong, powers(network))
    assert relative_error(wrong(at), network(x)) > 1e-3  # N = ΠΛ^{p + 0.1}
    right = reparametrised(network, **element)
    assert relative_error(right(at), network(x)) < 1e-12
    assert relative_error(right(x), network(x)) > 1e-3  # without T at the input


@pytest.mark.parametrize("seed", range(20))
def test_each_layer_becomes_the_product_of_matrices_around_it(seed: int) -> None:
    """P'_l = M_l P_l N_{l−1}⁻¹, by dense matrices and on values, not on parameters."""
    network, generator = random_network(seed), generator_of(2000 + seed)
    element = random_element(network, generator)
    moved = polynomials(reparametrised(network, **element))
    before = element["inputs"]
    for at, layer in enumerate(polynomials(network)):
        behind = torch.eye(layer.out_features, dtype=torch.float64)
        after = behind
        if at < len(moved) - 1:
            order, scales = element["permutations"][at], element["scales"][at]
            permutation = torch.eye(len(order), dtype=torch.float64)[order]
            behind = permutation @ torch.diag(scales)
            after = permutation @ torch.diag(scales ** powers(network)[at])
        x = normal(generator, 20, layer.in_features)
        assert relative_error(moved[at](x @ before.T), layer(x) @ behind.T) < 1e-12
        before = after


def test_the_convention_in_numbers() -> None:
    """Λ first, then Π: new output 0 is old output 1, times the scale of old output 1."""
    network = network_of(1, [[[(2, 1)], [(1, 1)]], [[(1, 1)]]], [3], generator_of(0))
    first, second = polynomials(network)
    lower, upper = polynomials(reparametrised(network, permutations=[[1, 0]], scales=[[4.0, 5.0]]))
    assert lower.degrees == [[1], [2]]
    (linear,), (square,) = lower.terms()
    (old_square,), (old_linear,) = first.terms()
    assert torch.equal(linear.weight, 5 * old_linear.weight)
    assert torch.equal(linear.bias, 5 * old_linear.bias)
    assert torch.equal(square.weight, 2 * old_square.weight)
    assert torch.allclose(
        upper.weight, second.weight[:, [1, 0]] / torch.tensor([125.0, 64.0]).double()
    )


# -- it is a group -------------------------------------------------------------------------------


def product(g: dict[str, Any], h: dict[str, Any], widths: list[int]) -> dict[str, Any]:
    """g after h, by hand: T_g T_h; units of g are numbered by what h made of them."""
    orders, scales, term_orders, signs = [], [], [], []
    for pg, ph, sg, sh in zip(
        g["permutations"], h["permutations"], g["scales"], h["scales"], strict=True
    ):
        orders.append([ph[i] for i in pg])
        back = [ph.index(j) for j in range(len(ph))]
        scales.append(sh * sg[back])
    for at, (tg, th) in enumerate(zip(g["term_orders"], h["term_orders"], strict=True)):
        arrives = [*range(widths[at])]
        if at < len(orders):
            arrives = [h["permutations"][at].index(k) for k in range(widths[at])]
        term_orders.append({k: [th[k][t] for t in tg[i]] for k, i in enumerate(arrives)})
        mg, mh = g["signs"][at], h["signs"][at]
        signs.append(
            {
                k: [s * mh[k][t] for s, t in zip(mg[i], tg[i], strict=True)]
                for k, i in enumerate(arrives)
            }
        )
    return {
        "inputs": g["inputs"] @ h["inputs"],
        "permutations": orders,
        "scales": scales,
        "term_orders": term_orders,
        "signs": signs,
    }


def distance(one: nn.Sequential, other: nn.Sequential) -> float:
    """The largest difference of two networks' parameters, relative to their size."""
    pairs = [*zip(one.state_dict().items(), other.state_dict().items(), strict=True)]
    assert all(a == b and x.shape == y.shape for (a, x), (b, y) in pairs)
    assert [p.degrees for p in polynomials(one)] == [p.degrees for p in polynomials(other)]
    return max(
        float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)) for (_, x), (_, y) in pairs
    )


@pytest.mark.parametrize("seed", range(20))
def test_moves_compose(seed: int) -> None:
    network, generator = random_network(seed), generator_of(3000 + seed)
    widths = [layer.out_features for layer in polynomials(network)]
    h = random_element(network, generator)
    between = reparametrised(network, **h)
    g = random_element(between, generator)
    both = reparametrised(between, **g)
    assert distance(reparametrised(network, **product(g, h, widths)), both) < 1e-11
    if any(len({*layer.degrees[0]}) for layer in polynomials(network)) and max(widths[:-1]) > 1:
        assert distance_or_inf(reparametrised(network, **h), both) > 1e-6


def distance_or_inf(one: nn.Sequential, other: nn.Sequential) -> float:
    if [p.degrees for p in polynomials(one)] != [p.degrees for p in polynomials(other)]:
        return math.inf
    return distance(one, other)


@pytest.mark.parametrize("seed", range(20))
def test_every_move_has_an_inverse(seed: int) -> None:
    network, generator = random_network(seed), generator_of(4000 + seed)
    g = random_element(network, generator)
    undone = {"inputs": torch.linalg.inv(g["inputs"])}
    undone["permutations"] = [[p.index(j) for j in range(len(p))] for p in g["permutations"]]
    undone["scales"] = [1 / s[p] for s, p in zip(g["scales"], g["permutations"], strict=True)]
    undone["term_orders"], undone["signs"] = [], []
    for at, (orders, marks) in enumerate(zip(g["term_orders"], g["signs"], strict=True)):
        places = g["permutations"][at] if at < len(g["permutations"]) else [*range(len(orders))]
        undone["term_orders"].append({})
        undone["signs"].append({})
        for i, k in enumerate(places):
            back = [orders[k].index(t) for t in range(len(orders[k]))]
            undone["term_orders"][-1][i] = back
            undone["signs"][-1][i] = [marks[k][t] for t in back]
    assert distance(reparametrised(reparametrised(network, **g), **undone), network) < 1e-11


def test_nothing_moves_without_arguments_and_the_original_stays() -> None:
    network = random_network(7)
    before = copy.deepcopy(network.state_dict())
    same = reparametrised(network)
    assert distance(same, network) == 0
    assert all(p.data_ptr() != q.data_ptr() for p, q in _pairs(same, network))
    reparametrised(network, **random_element(network, generator_of(0)))
    assert all(torch.equal(before[name], p) for name, p in network.state_dict().items())


def _pairs(one: nn.Module, other: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [*zip(one.parameters(), other.parameters(), strict=True)]


def test_structure_is_kept() -> None:
    first = Polynomial(2, 3, [1, 3], power=2, bias=False)
    second = Polynomial(3, 1, [[1]])
    bias_of(second).requires_grad_(False)
    network = nn.Sequential()
    network.add_module("lower", first)
    network.add_module("between", RectifiedMonomial(2))
    network.add_module("upper", second)
    moved = reparametrised(network.eval(), scales=[[1.0, 2.0, 3.0]])
    assert [*moved.state_dict()] == [*network.state_dict()]
    assert [p.requires_grad for p in moved.parameters()] == [True, True, False]
    (lower, _) = polynomials(moved)
    assert lower.bias is None and lower.power == 2 and not moved.training
    assert lower.weight.dtype == torch.float32


def test_one_activation_may_stand_twice() -> None:
    between = RectifiedMonomial(2)
    layers = [Polynomial(2, 2, [1, 3], dtype=torch.float64) for _ in range(3)]
    network = nn.Sequential(layers[0], between, layers[1], between, layers[2])
    moved = reparametrised(network, scales=[[2.0, 3.0], [4.0, 5.0]])
    x = normal(generator_of(0), 9, 2)
    assert relative_error(moved(x), network(x)) < 1e-12


# -- bad input -----------------------------------------------------------------------------------

_NETWORK = nn.Sequential(
    Polynomial(2, 2, [1, 2, 2], generator=generator_of(0)),
    RectifiedMonomial(2),
    Polynomial(2, 1, [[1]], generator=generator_of(1)),
)
_BAD = [
    ({"inputs": torch.ones(2, 2)}, r"singular values from .* invertible matrix was expected"),
    ({"inputs": torch.full((2, 2), math.nan)}, r"entries that are not finite"),
    ({"inputs": torch.eye(3)}, r"shape \(3, 3\) came; a real matrix T of shape \(2, 2\)"),
    ({"inputs": torch.eye(2) * 1j}, r"complex64 of shape"),
    ({"scales": [[1.0, -2.0]]}, r"-2.0 for unit 1 among them; 2 positive finite"),
    ({"scales": [[0.0, 1.0]]}, r"0.0 for unit 0"),
    ({"scales": [[math.inf, 1.0]]}, r"inf for unit 0"),
    ({"scales": [[1.0]]}, r"scales\[0\]=…\): numbers of shape \(1,\)"),
    ({"scales": [None, None]}, r"2 entries came for 1 hidden interfaces"),
    ({"scales": [[1e-200, 1.0]]}, r"moved weights of layer .* are not finite"),
    ({"permutations": [[0, 0]]}, r"no order of 2 .* Entry i says"),
    ({"permutations": [[0.5, 1]]}, r"no order of 2"),
    ({"permutations": [[0, 1, 2]]}, r"3 entries that are no order of 2"),
    ({"term_orders": [{0: [1, 0, 2]}, None]}, r"layer 0, output 0, term 1 of degree and sign"),
    ({"term_orders": [{5: [0, 1, 2]}, None]}, r"output 5 was named; a number from 0 to 1"),
    ({"term_orders": [{0: [0, 2]}, None]}, r"term_orders\[0\]\[0\].*no order of 3"),
    ({"signs": [{0: [-1, 1, 1]}, None]}, r"terms \[0\] have the odd degrees \[1\]"),
    ({"signs": [{0: [1, 2, 1]}, None]}, r"1 or -1 for each of 3 terms"),
    ({"signs": [{0: [1, 1]}, None]}, r"1 or -1 for each of 3 terms"),
    ({"signs": [None]}, r"1 entries came for 2 polynomial layers"),
]


@pytest.mark.parametrize(("arguments", "message"), _BAD, ids=[m[:28] for _, m in _BAD])
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reparametrised(_NETWORK, **arguments)


_SHARED = Polynomial(2, 2, [1])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Linear(2, 2), "an nn.Sequential of Polynomial and RectifiedMonomial"),
        (nn.Sequential(nn.Linear(2, 2)), "module '0' is a Linear, where a Polynomial"),
        (nn.Sequential(_SHARED, nn.ReLU(), _SHARED), "module '1' is a ReLU, where a Rectified"),
        (nn.Sequential(_SHARED, RectifiedMonomial()), "2 modules came"),
        (nn.Sequential(), "0 modules came"),
        (nn.Sequential(_SHARED, RectifiedMonomial(), _SHARED), "with 1 tensors of weights"),
    ],
    ids=["linear", "no polynomial", "relu", "ends with σ", "empty", "shared"],
)
def test_networks_that_do_not_alternate(network: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reparametrised(network)  # pyright: ignore[reportArgumentType]
