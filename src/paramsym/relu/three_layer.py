"""The fiber of a three-layer bottleneck network (two hidden layers, W_1 of full row rank).

Write z = W_1 x + b_1 and p_i = w_i·relu(z) + β_i. Generic networks are of one of two types.

**Type A**: every first-layer hyperplane H_j shows. The first layer is then rigid up to permutation
and positive scaling, and the fiber is that of the second layer on the orthant (`LayerFiber`).

**Type B**: one H_j is hidden. Every live unit i then has W2_ij > 0, W2_ik <= 0 for k != j and
β_i <= 0, so relu(p_i) = relu(W2_ij z_j + β_i - Σ ω_ik relu(z_k)): unit j acts linearly. It may be
translated, b1_j += t and β_i -= t·W2_ij for t >= t_min = max_i β_i/W2_ij, and reflected,
z_k ↦ -z_k with z_j ↦ z_j - γ_k z_k, for each k with W2_ik = -γ_k W2_ij on the live units. Up to
permutation and scaling the fiber is one half-line per subset of those k.

Degeneracies are looked for first and reported, never raised. Source: section 3 of the
specification, after Gegenfurtner, Grillo and Montúfar.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from paramsym.relu import moves
from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.deciding import Budget, decide
from paramsym.relu.domains import Orthant
from paramsym.relu.errors import ReLUError
from paramsym.relu.layer_fiber import LayerFiber
from paramsym.relu.network import Layer, Network
from paramsym.relu.randomness import factor, randomness
from paramsym.relu.rationals import ONE, ZERO, fraction
from paramsym.relu.reading import as_network
from paramsym.relu.seminonnegative import columns
from paramsym.relu.verdict import Kind, Verdict
from paramsym.relu.visibility import live_units, truly_visible, visible


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


class ThreeLayerFiber:
    """The fiber through a network with two hidden layers, d inputs and n1 <= d bottleneck units.

    Args:
        network: anything `as_network` reads, of depth two.

    Attributes:
        full_rank: whether W_1 has rank n1.
        live, dead: second-layer units that can fire and are read, and the others.
        visible: which first-layer hyperplanes show.
        type: "A", "B", "constant" (no live unit) or "degenerate" (W_1 not of full rank).
        hidden: the hidden unit of type B, else None.
        t_min: the end of its half-line (<= 0), else None.
        reflections: k ↦ γ_k for the units that can be reflected.
        layer: the `LayerFiber` of the second layer, for type A.
    """

    def __init__(self, network: Any) -> None:
        net = as_network(network, "relu.ThreeLayerFiber(network)")
        if net.depth != 2:
            raise ReLUError(
                f"a network with {net.depth} hidden layers", "two hidden layers",
                "relu.ThreeLayerFiber(network)", "Use LayerFiber for one layer.",
            )  # fmt: skip
        self.net = net
        self.d, self.n1, self.n2, self.m = net.widths
        self.full_rank = net.exact[0].weight.rank() == self.n1
        self.live = live_units(net)
        self.dead = [i for i in range(self.n2) if i not in self.live]
        self.visible = [visible(net, j) for j in range(self.n1)]
        self.hidden: int | None = None
        self.t_min: Fraction | None = None
        self.reflections: dict[int, Fraction] = {}
        if not self.full_rank:
            self.type = "degenerate"
        elif not self.live:
            self.type = "constant"
        elif all(self.visible):
            self.type = "A"
        else:
            self.type = "B"
            self.hidden = self.visible.index(False)
            bound = moves.translation_bound(net, 1, self.hidden)
            assert bound is not None  # follows from the hyperplane being hidden
            self.t_min = fraction(bound)
            for k in range(self.n1):
                ratio = moves.reflection_ratio(net, 1, self.hidden, k)
                if ratio is not None:
                    self.reflections[k] = fraction(ratio)

    @cached_property
    def layer(self) -> LayerFiber:
        """The fiber of the second layer on the orthant."""
        return LayerFiber(Network(exact=self.net.exact[1:], name=self.net.name))

    @property
    def components(self) -> int | None:
        """Type B: the number of half-lines, 2^(number of reflections); else None."""
        return 1 << len(self.reflections) if self.type == "B" else None

    @property
    def dimension(self) -> int | None:
        """Dimension of the fiber at this network, scalings included; None where not known.

        Type B: n1 + (live units) + 1; type A: n1 + (visible and linear units) + dim V_S. Each dead
        unit adds all of its own parameters, n1 + 1 + m.
        """
        free = self.n1 + 1 + self.m
        if self.type == "B":
            return self.n1 + len(self.live) + 1 + len(self.dead) * free
        if self.type != "A" or any(f.startswith("second layer") for f in self.flags):
            return None
        places = self.layer.locate()
        turned = [p.hyperplane for p in places if p.turned and p.hyperplane is not None]
        kinds = [p.kind for p in places]
        linear, dead = kinds.count("linear"), kinds.count("dead")
        within = self.layer.dim(turned, linear)
        if within is None:
            return None
        return self.n1 + self.layer.k + linear + within + dead * free

    @cached_property
    def flags(self) -> list[str]:
        """Degeneracies, in words; an empty list means none was found.

        "Maximal rank of all masked products" quantifies over exponentially many masks and is not
        tested; nothing here depends on it.
        """
        found = []
        w1, b1 = self.net.exact[0]
        w2, b2 = self.net.exact[1]
        if not self.full_rank:
            found.append(f"first layer: rank {w1.rank()} of {self.n1}")
        if any(not x for x in w2.entries()):
            found.append("zero entries in W_2")
        if any(not x for x in b2):
            found.append("zero entries in b_2")
        for name, table, bias in (("first", w1, b1), ("second", w2, b2)):
            seen: dict[tuple[fmpq, ...], int] = {}
            for i, (row, t) in enumerate(zip(table.tolist(), bias, strict=True)):
                pivot = next((x for x in row if x), None)
                if pivot is None:
                    found.append(f"{name} layer: unit {i} is constant")
                    continue
                key = (*(x / pivot for x in row), t / pivot)
                if key in seen:
                    found.append(f"{name} layer: units {seen[key]} and {i} share a hyperplane")
                seen.setdefault(key, i)
        out = self.net.exact[2].weight.transpose().tolist()
        for i in range(self.n2):
            if not any(out[i]):
                found.append(f"second layer: unit {i} is not read")
        if self.full_rank:
            for j in range(self.n1):
                if truly_visible(self.net, j) != self.visible[j]:
                    found.append(f"hyperplane {j} is invisible by cancellation")
        if self.type == "A":
            found += self._rank_flags()
        return found

    def _rank_flags(self) -> list[str]:
        places = self.layer.locate()
        linear = sum(p.kind == "linear" for p in places)
        turned = [p.hyperplane for p in places if p.turned and p.hyperplane is not None]
        a, _ = self.layer._compensation(turned)
        rank, most = columns(a).rank, min(self.m, self.n1, linear)
        return [] if rank == most else [f"compensation of rank {rank} where {most} is generic"]

    # -------------------------------------------------------------- sampling and membership

    def sample(
        self,
        rng: Any = 0,
        translation: Any = None,
        reflected: Any = None,
        turned: Any = None,
        plain: bool = False,
    ) -> Network:
        """A random network of the fiber, exactly the same function.

        Args:
            rng: an integer seed, a `torch.Generator` or a `random.Random`.
            translation: type B: t >= t_min; drawn if not given.
            reflected: type B: a set of units among `reflections`; drawn if not given.
            turned: type A: a feasible orientation set; drawn if not given.
            plain: leave out the permutations and scalings.
        """
        source = randomness(rng)
        net = self.net
        if self.type == "B":
            assert self.hidden is not None and self.t_min is not None
            if reflected is None:
                reflected = [k for k in self.reflections if source.random() < 0.5]
            for k in reflected:
                net = moves.reflect(net, 1, self.hidden, k)
            bound = moves.translation_bound(net, 1, self.hidden)
            assert bound is not None
            if translation is None:
                translation = bound + source.choice([ZERO, factor(source), 5 * factor(source)])
            net = moves.translate(net, 1, self.hidden, translation)
        elif self.type == "A":
            if turned is None:
                choices = []
                for chosen in self.layer.orientations():
                    choices.append(chosen)
                    if len(choices) == 64:
                        break
                turned = source.choice(choices)
            net = moves.flip(net, 2, turned, source)
        if plain:
            return net
        for layer, width in ((1, self.n1), (2, self.n2)):
            net = moves.permute(net, layer, source.sample(range(width), width))
            net = moves.scale(net, layer, [factor(source) for _ in range(width)])
        return net

    def decide(self, other: Any, budget: Budget | float | None = None) -> Verdict:
        """`decide` of this network and another one."""
        return decide(self.net, other, budget=budget)

    def contains(self, other: Any, budget: Budget | float | None = None) -> bool | None:
        """Whether a network of the same widths is the same function; None if undecided."""
        net = as_network(other, "relu.ThreeLayerFiber.contains(other)")
        if net.widths != self.net.widths:
            return False
        verdict = self.decide(net, budget)
        return None if verdict.kind is Kind.UNDECIDED else verdict.kind is Kind.EQUAL

    def coordinates(self, other: Any) -> Coordinates | None:
        """The moves that lead to another network: a constructive certificate of equality.

        Type B: permutation, scales, reflections and translation, such that applying them gives the
        other first layer exactly and the same bent hyperplanes. Type A: permutation, scales and
        the orientation set, with equal jumps and equal affine parts. None if there are none; for
        generic networks that means that the functions differ.
        """
        net = as_network(other, "relu.ThreeLayerFiber.coordinates(other)")
        if net.widths != self.net.widths:
            return None
        if self.type == "A":
            return self._coordinates_a(net)
        if self.type == "B":
            return self._coordinates_b(net)
        return None

    def _coordinates_a(self, net: Network) -> Coordinates | None:
        matched = _match_oriented(self.net.exact[0], net.exact[0])
        if matched is None:
            return None
        order, scales = matched
        # Read the other second layer in this network's features: y'_i = s_i y_order[i].
        w, b = net.exact[1]
        table = []
        for row in w.tolist():
            pulled = [ZERO] * self.n1
            for i, x in enumerate(row):
                pulled[order[i]] += x * scales[i]
            table.append(pulled)
        inner = Layer(fmpq_mat(table), list(b))
        block = Network(exact=[inner, net.exact[2]])
        if not self.layer.contains(block):
            return None
        here = {p.hyperplane for p in self.layer.locate() if p.turned and p.kind == "visible"}
        there = {p.hyperplane for p in self.layer.locate(block) if p.turned}
        turned = frozenset(h for h in here ^ there if h is not None)
        return Coordinates(tuple(order), tuple(fraction(s) for s in scales), turned=turned)

    def _coordinates_b(self, net: Network) -> Coordinates | None:
        other = ThreeLayerFiber(net)
        if other.type != "B" or self.hidden is None or other.hidden is None:
            return None
        mine = {k: key for k, key in enumerate(_keys(self.net.exact[0])) if k != self.hidden}
        order = [self.hidden] * self.n1
        scales = [ONE] * self.n1
        reflected = set()
        used = set()
        for i, (lead, key) in enumerate(_keys(net.exact[0])):
            if i == other.hidden:
                continue
            found = next((k for k, (_, v) in mine.items() if v == key and k not in used), None)
            if found is None:
                return None
            used.add(found)
            order[i] = found
            ratio = lead / mine[found][0]
            scales[i] = abs(ratio)
            if ratio < 0:
                reflected.add(found)
        moved = self.net
        for k in reflected:
            if k not in self.reflections:
                return None
            moved = moves.reflect(moved, 1, self.hidden, k)
        w, b = moved.exact[0]
        row, row_ = w.tolist()[self.hidden], net.exact[0].weight.tolist()[other.hidden]
        lead = next(i for i, x in enumerate(row) if x)
        s = row_[lead] / row[lead]
        if s <= 0 or any(y != s * x for x, y in zip(row, row_, strict=True)):
            return None
        t = net.exact[0].bias[other.hidden] / s - b[self.hidden]
        bound = moves.translation_bound(moved, 1, self.hidden)
        if bound is None or t < bound:
            return None
        scales[other.hidden] = s
        moved = moves.translate(moved, 1, self.hidden, t)
        moved = moves.scale(moves.permute(moved, 1, order), 1, scales)
        if not _same_second_layer(moved, net):
            return None
        return Coordinates(
            tuple(order), tuple(fraction(v) for v in scales), frozenset(reflected), fraction(t)
        )

    def __repr__(self) -> str:
        widths = "-".join(map(str, self.net.widths))
        extra = ""
        if self.type == "B":
            extra = f", hidden {self.hidden}, t >= {self.t_min}, {self.components} half-lines"
        return f"ThreeLayerFiber({widths}, type {self.type}{extra}, dimension {self.dimension})"


def _keys(layer: Layer) -> list[tuple[fmpq, tuple[fmpq, ...]]]:
    """(leading entry, unoriented key) of each row."""
    found = []
    for row, t in zip(layer.weight.tolist(), layer.bias, strict=True):
        lead = next(x for x in row if x)
        found.append((lead, (*(x / lead for x in row), t / lead)))
    return found


def _match_oriented(mine: Layer, other: Layer) -> tuple[list[int], list[fmpq]] | None:
    """Rows of `other` as positive multiples of rows of `mine`: (order, scales)."""
    if not all(any(row) for row in other.weight.tolist()):
        return None
    place = {(lead > 0, key): (k, lead) for k, (lead, key) in enumerate(_keys(mine))}
    order, scales = [], []
    for lead, key in _keys(other):
        found = place.get((lead > 0, key))
        if found is None or found[0] in order:
            return None
        order.append(found[0])
        scales.append(lead / found[1])
    return order, scales


def _same_second_layer(a: Network, b: Network) -> bool:
    """Whether the second layers agree up to permutation, scale and units that never fire."""
    domain = Orthant(a.widths[1])

    def collected(net: Network) -> dict[tuple[fmpq, ...], list[fmpq]]:
        sums: dict[tuple[fmpq, ...], list[fmpq]] = {}
        out = net.exact[2].weight.transpose().tolist()
        for i, (row, t) in enumerate(zip(net.exact[1].weight.tolist(), net.exact[1].bias,
                                         strict=True)):  # fmt: skip
            if domain.side(row, t) < 0:
                continue
            size = next((abs(x) for x in row if x), ONE)
            key = (*(x / size for x in row), t / size)
            held = sums.setdefault(key, [ZERO] * net.output_dim)
            sums[key] = [p + size * c for p, c in zip(held, out[i], strict=True)]
        return {k: v for k, v in sums.items() if any(v)}

    return collected(a) == collected(b) and a.exact[2].bias == b.exact[2].bias
