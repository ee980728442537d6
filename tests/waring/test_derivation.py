"""What `find_symmetry` derives from the operators of a network is its closed group.

`decoded` reads the arguments of `reparametrised` off two networks, by the values of their layers
and not by names of spaces: the derived group lies in the closed one. Both have the same dimension
and the same number of components: they are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, audit, find_symmetry
from paramsym.waring.reparametrisation import reparametrised
from paramsym.waring.terms import Kind, Term

from .examples import (
    POWERS,
    bias_of,
    fiber_dimension,
    generator_of,
    network_of,
    normal,
    polynomials,
    powers,
    random_profile,
    relative_error,
    whole,
)


def derived(network: nn.Sequential) -> ParameterSymmetry:
    x = normal(generator_of(0), 5, polynomials(network)[0].in_features)
    return find_symmetry(network, (x,))


def moved_by(network: nn.Sequential, symmetry: ParameterSymmetry, element: Any) -> nn.Sequential:
    """The network at the moved parameters."""
    result = reparametrised(network)
    state = {name: p.detach() for name, p in network.state_dict().items()}
    result.load_state_dict(act(symmetry, element, state))
    return result


def decoded(network: nn.Sequential, moved: nn.Sequential) -> dict[str, Any]:
    """The arguments that make `moved` of `network`."""
    layers, after, exponents = polynomials(network), polynomials(moved), powers(network)
    found: dict[str, list] = {n: [] for n in ("permutations", "scales", "term_orders", "signs")}
    before: tuple[list[int], Tensor] | None = None  # order and scales of N
    for at, (old, new) in enumerate(zip(layers, after, strict=True)):
        x = normal(generator_of(at), 12, old.in_features)
        y = x if before is None else (x * before[1])[:, before[0]]
        order, scales = _units(old(x).detach(), new(y).detach())
        if at < len(exponents):
            found["permutations"].append(order)
            found["scales"].append(scales)
        else:
            assert order == [*range(old.out_features)]
            assert float((scales - 1).abs().max()) < 1e-9
        terms = [{}, {}]
        for i, k in enumerate(order):
            forms = [_undone(term, before, float(scales[k])) for term in new.terms()[i]]
            terms[0][k], terms[1][k] = _places(old.terms()[k], forms)
        found["term_orders"].append(terms[0])
        found["signs"].append(terms[1])
        if at < len(exponents):
            before = order, scales ** exponents[at]
    return found


def _units(old: Tensor, new: Tensor) -> tuple[list[int], Tensor]:
    """order and λ with new[:, i] = λ[order[i]] · old[:, order[i]]."""
    order, scales = [], torch.zeros(old.shape[1], dtype=old.dtype)
    for column in new.T:
        ratios = column[:, None] / old
        spread = (ratios.amax(0) - ratios.amin(0)) / ratios.abs().amax(0)
        k = int(spread.argmin())
        assert float(spread[k]) < 1e-8, "no multiple of an old output"
        order.append(k)
        scales[k] = ratios[:, k].median()
    assert sorted(order) == [*range(len(order))]
    return order, scales


def _undone(term: Term, before: tuple[list[int], Tensor] | None, scale: float) -> Term:
    """The form before N and λ."""
    weight = term.weight
    if before is not None:
        order, sizes = before
        weight = torch.zeros_like(weight).index_copy(0, torch.tensor(order), weight) * sizes
    factor = scale ** (-1 / term.degree)
    return term._replace(weight=factor * weight, bias=factor * term.bias)


def _places(old: list[Term], new: list[Term]) -> tuple[list[int], list[int]]:
    """By new term, which old one it is, and its sign."""
    order, signs = [], []
    for term in new:
        form = torch.cat([term.weight, term.bias[None]])
        distances = {}
        for t, source in enumerate(old):
            if (source.degree, source.sign) == (term.degree, term.sign):
                given = torch.cat([source.weight, source.bias[None]])
                for sign in (1, -1) if term.degree % 2 == 0 else (1,):
                    distances[t, sign] = float((form - sign * given).norm() / given.norm())
        (place, sign), distance = min(distances.items(), key=lambda item: item[1])
        assert distance < 1e-7, "no old term"
        order.append(place)
        signs.append(sign)
    return order, signs


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def closed_dimension(network: nn.Sequential) -> int:
    return sum(layer.out_features for layer in polynomials(network)[:-1])


def closed_order(network: nn.Sequential) -> float:
    """log₁₀ of the number of components: units of equal degrees, equal terms, signs."""
    layers = polynomials(network)
    count = 1
    for layer in layers:
        profiles = Counter(tuple(sorted(row)) for row in layer.kinds)
        for profile, units in profiles.items():
            if layer is not layers[-1]:
                count *= math.factorial(units)
            for (degree, _), copies in Counter(profile).items():
                own = math.factorial(copies) * (2**copies if degree % 2 == 0 else 1)
                count *= own**units
    return math.log10(count)


def network_for(seed: int) -> nn.Sequential:
    """Up to three layers, one or two kinds of outputs in each, up to three outputs of each kind.

    Outputs of one kind stand together, and an output has no square twice and no three terms of
    degree 1: what is derived outside is named below and in docs/findings.md.
    """
    generator = generator_of(seed)
    while True:
        kinds: list[list[list[Kind]]] = []
        layers = whole(generator, 2, 3)
        for _ in range(layers):
            profiles: list[list[Kind]] = []
            for _ in range(whole(generator, 1, 2)):
                profile = random_profile(generator, repeat_squares=False)
                if profile not in profiles and profile.count((1, 1)) < 3:
                    profiles.append(profile)
            kinds.append([])
            for profile in profiles:
                kinds[-1] += [profile] * whole(generator, 1, 3)
        exponents = [POWERS[whole(generator, 0, len(POWERS) - 1)] for _ in range(layers - 1)]
        if all(kinds):
            return network_of(whole(generator, 1, 3), kinds, exponents, generator)


# -- the derived group is the closed one ---------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_what_is_derived_is_the_closed_group(seed: int) -> None:
    network = network_for(seed)
    symmetry = derived(network)
    assert sum(symmetry.dimension(name) for name in symmetry.spaces) == closed_dimension(network)
    assert symmetry.log_order() == pytest.approx(closed_order(network), abs=1e-9)
    assert not symmetry.shifts
    for strength in (0.3, 1.0):
        moved = moved_by(network, symmetry, symmetry.sample(generator_of(seed), strength))
        again = reparametrised(network, **decoded(network, moved))
        assert distance(again, moved) < 1e-11


def test_what_is_no_element_is_not_decoded() -> None:
    """The negative control: a scale that is not undone, and one with the wrong exponent."""
    network = network_for(0)
    wrong = reparametrised(network)
    with torch.no_grad():
        polynomials(wrong)[0].weight[0] *= 1.1
    with pytest.raises(AssertionError, match="no multiple of an old output|no old term"):
        decoded(network, wrong)


# -- one generator at a time ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def uniform() -> tuple[nn.Sequential, ParameterSymmetry]:
    """3 → 4 → 2 → 2 with terms of degrees 1, 3, 4, 4 in each output; p = 1.5, then 2."""
    kinds: list[list[list[Kind]]] = [[[(1, 1), (3, 1), (4, 1), (4, 1)]] * n for n in (4, 2, 2)]
    network = network_of(3, kinds, [1.5, 2], generator_of(5))
    return network, derived(network)


def _difference(
    uniform: tuple[nn.Sequential, ParameterSymmetry],
    values: dict[str, Any],
    arguments: dict[str, Any],
) -> float:
    """Between the network moved by the derived element, and by the closed group."""
    network, symmetry = uniform
    moved = moved_by(network, symmetry, symmetry.element(values))
    return distance(reparametrised(network, **arguments), moved)


def test_scales_at_each_interface_are_derived(uniform: Any) -> None:
    """The derived scale is that of the activation, λ^p."""
    lower = torch.tensor([2.0, 3.0, 0.5, 1.5], dtype=torch.float64)
    upper = torch.tensor([0.7, 4.0], dtype=torch.float64)
    values = {"head": lower**1.5, "head.2": upper**2}
    assert _difference(uniform, values, {"scales": [lower, upper]}) < 1e-12
    assert _difference(uniform, values, {"scales": [lower, upper * 1.01]}) > 1e-3


def test_permutations_at_each_interface_are_derived(uniform: Any) -> None:
    values = {"head": [2, 0, 3, 1], "head.2": [1, 0]}
    assert _difference(uniform, values, {"permutations": [[2, 0, 3, 1], [1, 0]]}) == 0
    assert _difference(uniform, values, {"permutations": [[1, 3, 0, 2], [1, 0]]}) > 1e-3


def test_scales_are_numbered_by_new_places_in_elements_and_by_old_ones_here(uniform: Any) -> None:
    order, scales = [2, 0, 3, 1], torch.tensor([2.0, 3.0, 0.5, 1.5], dtype=torch.float64)
    values = {"head": (order, scales[order] ** 1.5)}
    closed = {"permutations": [order, None], "scales": [scales, None]}
    assert _difference(uniform, values, closed) < 1e-12


def test_signs_and_orders_of_equal_even_terms_are_derived(uniform: Any) -> None:
    orders = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]])
    signs = torch.tensor([[-1.0, 1], [1, -1], [1, 1], [-1, -1]], dtype=torch.float64)
    values = {"layers.0.mlp": (orders, signs)}
    closed = {
        "term_orders": [{k: [0, 1, *(2 + orders[k])] for k in range(4)}, None, None],
        "signs": [{k: [1, 1, *signs[k].tolist()] for k in range(4)}, None, None],
    }
    assert _difference(uniform, values, closed) == 0
    last = {"layers.4.mlp": ([[0, 1], [1, 0]], [[1.0, -1.0], [1.0, 1.0]])}
    closed = {
        "term_orders": [None, None, {1: [0, 1, 3, 2]}],
        "signs": [None, None, {0: [1, 1, 1, -1]}],
    }
    assert _difference(uniform, last, closed) == 0


# -- what is larger, and what is not there -------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "group", "dimension"),
    [
        ([(2, 1), (2, 1), (3, 1)], "Orthogonal(2)", 1),
        ([(2, 1), (2, 1), (2, 1)], "Orthogonal(3)", 3),
        ([(2, -1), (2, -1), (3, 1)], "Orthogonal(2)", 1),
        ([(1, 1), (1, 1), (1, 1)], "OrthogonalFixingOnes(3)", 1),
    ],
    ids=["two squares", "three squares", "two negative squares", "three of degree 1"],
)
def test_equal_squares_and_sums_turn(profile: list[Kind], group: str, dimension: int) -> None:
    """Larger than the closed group: a² + b² and a + b + c stay under rotations of the forms."""
    network = network_of(3, [[[(1, 1), (3, 1)]] * 4, [profile] * 2], [2], generator_of(0))
    symmetry = derived(network)
    found = {name: str(space.group) for name, space in symmetry.spaces.items()}
    assert group in found.values()
    assert sum(map(symmetry.dimension, found)) == closed_dimension(network) + 2 * dimension
    moved = moved_by(network, symmetry, symmetry.sample(generator_of(0)))
    x = normal(generator_of(1), 30, 3)
    assert relative_error(moved(x), network(x)) < 1e-12
    with pytest.raises(AssertionError, match="no old term"):
        decoded(network, moved)


@pytest.mark.parametrize(
    ("hidden", "missing"),
    [
        ([[(1, 1), (4, 1)], [(3, 1)], [(3, 1)]], 1),
        ([[(2, -1)], [(3, 1)], [(2, 1)]], 1),
        ([[(1, 1)], [(3, 1)], [(1, 1)]], 2),
        ([[(3, 1), (3, 1)], [(2, 1)], [(3, 1), (3, 1)]], 4),
    ],
    ids=["a single sign", "two single signs", "outputs apart", "equal terms of outputs apart"],
)
def test_only_orders_of_outputs_that_stand_apart_are_missing(
    hidden: list[list[Kind]], missing: int
) -> None:
    """Types of axes have no order for entries that stand apart."""
    network = network_of(2, [hidden, [[(1, 1), (3, 1)]] * 2], [2], generator_of(0))
    symmetry = derived(network)
    assert sum(map(symmetry.dimension, symmetry.spaces)) == closed_dimension(network)
    less = 10 ** (closed_order(network) - symmetry.log_order())
    assert less == pytest.approx(missing)


def test_outputs_of_other_degrees_are_not_exchanged_by_an_element() -> None:
    """It changes what the module computes from given parameters: no motion of parameters."""
    kinds: list[list[list[Kind]]] = [[[(1, 1)]] * 2 + [[(3, 1)]] * 2, [[(1, 1)]]]
    network = network_of(2, kinds, [2], generator_of(0))
    symmetry = derived(network)
    assert round(10 ** symmetry.log_order()) == 2 * 2
    moved = reparametrised(network, permutations=[[2, 3, 0, 1]])
    assert polynomials(moved)[0].degrees == [[3], [3], [1], [1]]
    x = normal(generator_of(1), 30, 2)
    assert relative_error(moved(x), network(x)) < 1e-12
    forced = reparametrised(network)
    forced.load_state_dict(moved.state_dict())
    assert relative_error(forced(x), network(x)) > 1e-3


# -- the audit: sums of powers have fibers -------------------------------------------------------


# by degrees of an output: its kinds, dimension of its fiber in two variables, derived of it
FIBERS: dict[str, tuple[list[Kind], int, int]] = {
    "1, 3": ([(1, 1), (3, 1)], 0, 0),
    "2, 3": ([(2, 1), (3, 1)], 0, 0),
    "3, 3, 3": ([(3, 1)] * 3, 0, 0),
    "2, 3, 4, -4": ([(2, 1), (3, 1), (4, 1), (4, -1)], 0, 0),
    "1, 2": ([(1, 1), (2, 1)], 1, 0),
    "1, 1, 3": ([(1, 1), (1, 1), (3, 1)], 3, 0),
    "2, 2, 3": ([(2, 1), (2, 1), (3, 1)], 1, 1),
    "2, -2, 3": ([(2, 1), (2, -1), (3, 1)], 1, 0),
    "1, 2, 2": ([(1, 1), (2, 1), (2, 1)], 3, 1),
    "2, 2, 2, 3": ([(2, 1)] * 3 + [(3, 1)], 4, 3),
    "3, 3, 3, 3": ([(3, 1)] * 4, 2, 0),
}


def fibers(network: nn.Sequential) -> list[int]:
    """By output of all layers: in how many dimensions it can be written otherwise."""
    return [
        fiber_dimension(kinds, layer.weight.detach()[rows], bias_of(layer).detach()[rows])
        for layer in polynomials(network)
        for k, kinds in enumerate(layer.kinds)
        for rows in [layer.rows(k)]
    ]


@pytest.mark.parametrize("name", FIBERS)
def test_the_audit_leaves_the_fibers_of_the_sums_of_powers(name: str) -> None:
    """2 → 2 → 2 with p = 2: nullity = fibers of four outputs + two scales, to the dimension."""
    profile, fiber, own = FIBERS[name]
    network = network_of(2, [[profile] * 2] * 2, [2], generator_of(3))
    with torch.no_grad():  # units that open at many inputs
        for layer in polynomials(network):
            bias_of(layer).add_(0.3)
    assert fibers(network) == [fiber] * 4
    symmetry = derived(network)
    assert sum(map(symmetry.dimension, symmetry.spaces)) == 2 + 4 * own
    found = audit(network, (normal(generator_of(0), 6, 2),), symmetry=symmetry)
    assert found.nullity == 2 + 4 * fiber
    assert found.unexplained == 4 * (fiber - own)
    assert found.complete == (fiber == own)


def test_completing_the_square_is_in_the_fiber_and_not_in_the_group() -> None:
    """(z + δ)² = z² + 2δz + δ² moves between a square and a term of degree 1."""
    network = network_of(2, [[[(1, 1), (2, 1)]] * 2], [], generator_of(0))
    (layer,) = polynomials(network)
    moved = reparametrised(network)
    (other,) = polynomials(moved)
    linear, square = layer.rows(0)
    shift = 0.7
    with torch.no_grad():
        form, constant = layer.weight[square], bias_of(layer)[square]
        bias_of(other)[square] += shift
        other.weight[linear] -= 2 * shift * form
        bias_of(other)[linear] -= 2 * shift * constant + shift**2
    x = normal(generator_of(1), 30, 2)
    assert relative_error(moved(x), network(x)) < 1e-12
    with pytest.raises(AssertionError, match="no old term"):
        decoded(network, moved)
