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

from fractions import Fraction
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any

from paramsym.relu import moves
from paramsym.relu.deciding import Budget, decide
from paramsym.relu.degeneracies import degeneracies
from paramsym.relu.errors import ReLUError
from paramsym.relu.layer_fiber import LayerFiber
from paramsym.relu.matching import Coordinates, hidden_coordinates, visible_coordinates
from paramsym.relu.network import Network
from paramsym.relu.randomness import factor, randomness
from paramsym.relu.rationals import ZERO, fraction
from paramsym.relu.reading import as_network
from paramsym.relu.seminonnegative import columns
from paramsym.relu.verdict import Kind, Verdict
from paramsym.relu.visibility import live_units, visible


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
        """Degeneracies, in words; an empty list means none was found."""
        return [*degeneracies(self.net), *(self._rank_flags() if self.type == "A" else ())]

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
            net = self._on_half_line(source, translation, reflected)
        elif self.type == "A":
            if turned is None:
                turned = source.choice(list(islice(self.layer.orientations(), 64)))
            net = moves.flip(net, 2, turned, source)
        if plain:
            return net
        for layer, width in ((1, self.n1), (2, self.n2)):
            net = moves.permute(net, layer, source.sample(range(width), width))
            net = moves.scale(net, layer, [factor(source) for _ in range(width)])
        return net

    def _on_half_line(self, source: Random, translation: Any, reflected: Any) -> Network:
        """Type B: the network reflected and translated, as given or as drawn."""
        assert self.hidden is not None
        if reflected is None:
            reflected = [k for k in self.reflections if source.random() < 0.5]
        net = self.net
        for k in reflected:
            net = moves.reflect(net, 1, self.hidden, k)
        if translation is None:
            bound = moves.translation_bound(net, 1, self.hidden)
            assert bound is not None  # reflections leave the readers as they are
            translation = bound + source.choice([ZERO, factor(source), 5 * factor(source)])
        return moves.translate(net, 1, self.hidden, translation)

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
            return visible_coordinates(self.net, self.layer, net)
        if self.hidden is None:
            return None
        theirs = ThreeLayerFiber(net).hidden
        if theirs is None:
            return None
        return hidden_coordinates(self.net, self.hidden, net, theirs)

    def __repr__(self) -> str:
        widths = "-".join(map(str, self.net.widths))
        extra = ""
        if self.type == "B":
            extra = f", hidden {self.hidden}, t >= {self.t_min}, {self.components} half-lines"
        return f"ThreeLayerFiber({widths}, type {self.type}{extra}, dimension {self.dimension})"
