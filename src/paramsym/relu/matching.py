"""The moves that lead from one three-layer network to another: certificates of equality.

The first layer is matched row by row, whatever the order and the scale; what is left over must
agree in the second layer. Source: the end of section 3.5 of the specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from paramsym.relu import moves
from paramsym.relu.arithmetic import fmpq
from paramsym.relu.domains import Orthant
from paramsym.relu.hyperplanes import Key, add_at, hyperplane
from paramsym.relu.layer_fiber import LayerFiber
from paramsym.relu.network import Layer, Network
from paramsym.relu.rationals import ONE, fraction, fractions, matrix, positive_ratio


@dataclass(frozen=True)
class Coordinates:
    """Where a network sits on the fiber of another one.

    Attributes:
        order: first-layer unit i of the other network is unit order[i] of this one.
        scales: its positive factor.
        reflected: type B: the units k that were reflected.
        translation: type B: t, in the scale of this network's hidden unit.
        turned: type A: second-layer units with the other orientation, as hyperplane indices.
    """

    order: tuple[int, ...]
    scales: tuple[Fraction, ...]
    reflected: frozenset[int] = frozenset()
    translation: Fraction | None = None
    turned: frozenset[int] = frozenset()


def visible_coordinates(mine: Network, layer: LayerFiber, other: Network) -> Coordinates | None:
    """Coordinates where every hyperplane shows: the first layer is rigid up to order and scale.

    Args:
        mine: a network of type A.
        layer: the fiber of its second layer.
        other: a network of the same widths.
    """
    found = _matched_rows(mine.exact[0], other.exact[0])
    if not _is_permutation(found, mine.widths[1]) or any(s < 0 for _, s in found.values()):
        return None
    block = Network(exact=[_in_features(other.exact[1], found), other.exact[2]])
    if not layer.contains(block):
        return None
    order, scales = zip(*found.values(), strict=True)
    return Coordinates(order, fractions(scales), turned=_turned(layer, block))


def _in_features(layer: Layer, found: dict[int, tuple[int, fmpq]]) -> Layer:
    """The layer as it reads y_k instead of y'_i = s·y_k, for each i ↦ (k, s)."""
    back = sorted((k, i, s) for i, (k, s) in found.items())
    table = [[row[i] * s for _, i, s in back] for row in layer.weight.tolist()]
    return Layer(matrix(table, len(back)), list(layer.bias))


def _turned(layer: LayerFiber, block: Network) -> frozenset[int]:
    """The hyperplanes on which a block and the one of the fiber have different orientations."""
    here = {p.hyperplane for p in layer.locate() if p.turned and p.kind == "visible"}
    there = {p.hyperplane for p in layer.locate(block) if p.turned}
    return frozenset(h for h in here ^ there if h is not None)


def hidden_coordinates(
    mine: Network, hidden: int, other: Network, other_hidden: int
) -> Coordinates | None:
    """Coordinates where one hyperplane is hidden: reflections, then a translation of its unit.

    Args:
        mine, other: two networks of type B with the same widths.
        hidden, other_hidden: their hidden units.
    """
    found = _matched_rows(mine.exact[0], other.exact[0])
    found[other_hidden] = (hidden, ONE)  # its row is compared once the others are reflected
    if not _is_permutation(found, mine.widths[1]):
        return None
    reflected = frozenset(k for k, s in found.values() if s < 0)
    moved = _reflected(mine, hidden, reflected)
    if moved is None:
        return None
    line = _half_line(moved, hidden, other.exact[0], other_hidden)
    if line is None:
        return None
    found[other_hidden], t = (hidden, line[0]), line[1]
    order = [found[i][0] for i in range(len(found))]
    scales = [abs(found[i][1]) for i in range(len(found))]
    moved = moves.translate(moved, 1, hidden, t)
    moved = moves.scale(moves.permute(moved, 1, order), 1, scales)
    if not _same_second_layer(moved, other):
        return None
    return Coordinates(tuple(order), fractions(scales), reflected, fraction(t))


def _matched_rows(mine: Layer, other: Layer) -> dict[int, tuple[int, fmpq]]:
    """i ↦ (k, s) where row i of `other` is s != 0 times row k of `mine`, a layer of full rank."""
    places: dict[Key, tuple[int, fmpq]] = {}
    for k, (row, t) in enumerate(zip(mine.weight.tolist(), mine.bias, strict=True)):
        lead, key = hyperplane(row, t)
        places[key] = k, lead
    found = {}
    for i, (row, t) in enumerate(zip(other.weight.tolist(), other.bias, strict=True)):
        lead, key = hyperplane(row, t) if any(row) else (ONE, ())
        if key in places:
            k, own = places[key]
            found[i] = k, lead / own
    return found


def _is_permutation(found: dict[int, tuple[int, fmpq]], width: int) -> bool:
    return sorted(k for k, _ in found.values()) == list(range(width))


def _reflected(net: Network, hidden: int, units: frozenset[int]) -> Network | None:
    """The network with those units reflected, None if one of them cannot be."""
    for k in units:
        if moves.reflection_ratio(net, 1, hidden, k) is None:
            return None
        net = moves.reflect(net, 1, hidden, k)
    return net


def _half_line(moved: Network, hidden: int, layer: Layer, unit: int) -> tuple[fmpq, fmpq] | None:
    """(s, t) where row `unit` of a layer is s > 0 times the hidden row translated by t >= t_min."""
    weight, bias = moved.exact[0]
    scale = positive_ratio(weight.tolist()[hidden], layer.weight.tolist()[unit])
    bound = moves.translation_bound(moved, 1, hidden)
    if scale is None or bound is None:
        return None
    t = layer.bias[unit] / scale - bias[hidden]
    return (scale, t) if t >= bound else None


def _same_second_layer(a: Network, b: Network) -> bool:
    """Whether the second layers agree up to permutation, scale and units that never fire."""
    return _readings(a) == _readings(b) and a.exact[2].bias == b.exact[2].bias


def _readings(net: Network) -> dict[Key, list[fmpq]]:
    """The sum of what is read at each oriented hyperplane of the second layer, zeros left out."""
    domain, sums = Orthant(net.widths[1]), {}
    (weight, bias), (outer, _) = net.exact[1:]
    for row, t, column in zip(weight.tolist(), bias, outer.transpose().tolist(), strict=True):
        if domain.side(row, t) >= 0:
            size = next((abs(x) for x in row if x), ONE)
            add_at(sums, (*(x / size for x in row), t / size), size, column)
    return {key: total for key, total in sums.items() if any(total)}
