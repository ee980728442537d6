"""All parameters of one hidden layer that give the same function behind a ReLU.

The block y ↦ C relu(A y + t) + e is looked at on the orthant y >= 0, where it stands in a
network whose previous layer is a ReLU. There a neuron is *visible* (entries of both signs in
(a, t): its hyperplane crosses the orthant), *linear* ((a, t) >= 0) or *dead* ((a, t) <= 0). The
function fixes the visible hyperplanes, the jumps c_i of its gradient across them, and its affine
map (A_R, b_R) on the formal cell where every a_i·y + t_i is negative. It does not fix the
orientations: turning neuron i over, relu(u) = u + relu(-u), leaves c_i·u to be made up by the
linear neurons. For the set S of neurons turned over they must produce the compensation

    A_S = A_R + Σ_{i in S} c_i a_iᵀ = U·V with V >= 0,
    b_S = b_R + Σ_{i in S} c_i t_i  = Uβ + e.

So the fiber, up to permutation and positive scaling, is a disjoint union over the S for which A_S
has such a factorisation. Source: Gegenfurtner, Grillo and Montúfar, Theorem 6, in the form worked
out in section 2 of the specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.domains import Orthant
from paramsym.relu.errors import ReLUError
from paramsym.relu.hyperplanes import Key, hyperplane
from paramsym.relu.network import Layer, Network
from paramsym.relu.randomness import factor, generic, randomness
from paramsym.relu.rationals import ONE, along, column, fractions
from paramsym.relu.reading import as_network
from paramsym.relu.seminonnegative import best_rank, factorise, semirank
from paramsym.relu.shallow import block_form

Unit = tuple[list[fmpq], list[fmpq]]  # (normal and offset, outgoing column)


class Place(NamedTuple):
    """Where one neuron of a block sits.

    `kind` is "visible", "cancelling" (its hyperplane does not show), "linear", "dead" or
    "constant"; `hyperplane` an index into `LayerFiber.hyperplanes`; `turned` whether it is
    oriented against the reference.
    """

    kind: str
    hyperplane: int | None = None
    turned: bool = False


class LayerFiber:
    """The fiber of one hidden layer behind a ReLU, through a given block.

    Args:
        block: a network with one hidden layer, y in R^d_{>=0}, n hidden units, m outputs; or the
            pair of its layers.

    Attributes:
        hyperplanes: the k visible hyperplanes (normal, offset), reference orientation.
        jumps: k columns c_i of m entries, the jump of the gradient along normal i.
        AR, bR: the affine map on the formal cell where all visible forms are negative.
        linear: r = n - k, the number of neurons left to be linear.

    Source: section 2 of the specification.
    """

    def __init__(self, block: Any) -> None:
        net = as_network(block, "relu.LayerFiber(block)")
        if net.depth != 1:
            raise ReLUError(
                f"a network with {net.depth} hidden layers", "one hidden layer",
                "relu.LayerFiber(block)", "Pass the two layers around one ReLU.",
            )  # fmt: skip
        self.net = net
        self.d, self.n, self.m = net.widths
        form = block_form(net.exact[0], net.exact[1], Orthant(self.d))
        self._form = form
        self._keys: list[Key] = sorted(form.kinks, key=lambda k: [(int(v.p), int(v.q)) for v in k])
        self._jumps = [[2 * v for v in form.kinks[k]] for k in self._keys]
        linear, constant = form.linear.tolist(), list(form.constant)
        for key, jump in zip(self._keys, self._jumps, strict=True):
            for o in range(self.m):
                for i in range(self.d):
                    linear[o][i] -= jump[o] * key[i] / 2
                constant[o] -= jump[o] * key[-1] / 2
        self._AR = fmpq_mat(self.m, self.d, [v for row in linear for v in row])
        self._bR = constant

    @property
    def k(self) -> int:
        """The number of visible hyperplanes."""
        return len(self._keys)

    @property
    def linear(self) -> int:
        """r = n - k; negative never happens, since each visible hyperplane has a neuron."""
        return self.n - self.k

    @property
    def hyperplanes(self) -> list[tuple[Fraction, ...]]:
        """The visible hyperplanes (normal, offset)."""
        return [fractions(k) for k in self._keys]

    @property
    def jumps(self) -> list[tuple[Fraction, ...]]:
        """The jump columns c_i."""
        return [fractions(c) for c in self._jumps]

    @property
    def AR(self) -> list[list[Fraction]]:
        """The linear part on the reference cell, m×d."""
        return [list(fractions(r)) for r in self._AR.tolist()]

    @property
    def bR(self) -> list[Fraction]:
        """The constant part on the reference cell, m."""
        return list(fractions(self._bR))

    def _compensation(self, turned: Iterable[int]) -> tuple[fmpq_mat, list[fmpq]]:
        a, b = [list(r) for r in self._AR.tolist()], list(self._bR)
        for i in self._check(turned):
            key, jump = self._keys[i], self._jumps[i]
            for o in range(self.m):
                for j in range(self.d):
                    a[o][j] += jump[o] * key[j]
                b[o] += jump[o] * key[-1]
        return fmpq_mat(self.m, self.d, [v for row in a for v in row]), b

    def _check(self, turned: Iterable[int]) -> list[int]:
        chosen = sorted(set(turned))
        if any(not 0 <= i < self.k for i in chosen):
            raise ReLUError(
                f"the orientation set {chosen}",
                f"indices of visible hyperplanes, 0 to {self.k - 1}",
                "relu.LayerFiber(S)",
                "Use the order of `hyperplanes`.",
            )
        return chosen

    def comp(self, turned: Iterable[int]) -> tuple[list[list[Fraction]], list[Fraction]]:
        """(A_S, b_S): what the linear neurons must produce if the neurons in S are turned over."""
        a, b = self._compensation(turned)
        return [list(fractions(r)) for r in a.tolist()], list(fractions(b))

    def feasible(self, turned: Iterable[int], linear: int | None = None) -> bool:
        """Whether r linear neurons can compensate the orientation set S: r >= semirank(A_S)."""
        r = self.linear if linear is None else linear
        return r >= semirank(self._compensation(turned)[0])

    def dim(self, turned: Iterable[int], linear: int | None = None) -> int | None:
        """dim V_S, the fiber over S modulo permutation and scaling; None if it is empty."""
        r = self.linear if linear is None else linear
        best = best_rank(self._compensation(turned)[0], r)
        return None if best is None else best[1]

    def orientations(self, linear: int | None = None) -> Iterator[frozenset[int]]:
        """The feasible orientation sets, smallest first, one at a time: there may be 2^k."""
        for size in range(self.k + 1):
            for chosen in combinations(range(self.k), size):
                if self.feasible(chosen, linear):
                    yield frozenset(chosen)

    def strata(self, turned: Iterable[int]) -> list[tuple[int, int, int]]:
        """For an orientation set: (linear, dead, dimension) with the spare neurons split.

        Spare neurons may be linear or dead; each dead one adds d+1 free input and m free output
        parameters. The dimension counts all parameters of the block, scalings included.
        """
        a, _ = self._compensation(turned)
        found = []
        for r in range(self.linear + 1):
            best = best_rank(a, r)
            if best is not None:
                dead = self.linear - r
                found.append((r, dead, self.k + r + best[1] + dead * (self.d + 1 + self.m)))
        return found

    @property
    def regime(self) -> str:
        """Which case of the generic theorem r, d and m fall into."""
        r, d, m = self.linear, self.d, self.m
        if r < min(d, m):
            return "r < min(d, m): one orientation, dimension r²"
        if r == d <= m:
            return "r = d <= m: every orientation, dimension r²"
        if r == m < d:
            return "r = m < d: orientations with pointed compensation, dimension r²"
        if r == m + 1 <= d:
            return "r = m + 1 <= d: every orientation, dimension m² + m + d"
        return "spare linear neurons: not minimal"

    def sample(
        self,
        turned: Iterable[int] = (),
        rng: Any = 0,
        linear: int | None = None,
        rank: int | None = None,
    ) -> Network | None:
        """A random block of the fiber with orientation set S, exactly the same function on y >= 0.

        Args:
            turned: S, indices of hyperplanes whose neuron is turned against the reference.
            rng: an integer seed, a `torch.Generator` or a `random.Random`.
            linear: how many spare neurons are linear (all by default); the others are dead.
            rank: the rank of U (by default the one of largest dimension).

        Returns None if V_S is empty.
        """
        source = randomness(rng)
        chosen = set(self._check(turned))
        r = self.linear if linear is None else linear
        a, b = self._compensation(chosen)
        factors = factorise(a, r, source, rank)
        if factors is None:
            return None
        u, v = factors
        beta = [generic(source, True) for _ in range(r)]
        e = along(b, -ONE, (u * column(beta)).entries())
        units = self._visible_units(chosen, source)
        for row, t, out in zip(v.tolist(), beta, u.transpose().tolist(), strict=True):
            units.append(([*row, t], out))
        units += self._dead_units(self.linear - r, source)
        source.shuffle(units)
        return block_of(units, e, self.d, f"sample of {self.net.name}")

    def _visible_units(self, turned: set[int], source: Random) -> list[Unit]:
        """One unit of random scale on each visible hyperplane, c_i/q_i·relu(±q_i·(a_i, t_i))."""
        units: list[Unit] = []
        for i, (key, jump) in enumerate(zip(self._keys, self._jumps, strict=True)):
            q = factor(source)
            side = -q if i in turned else q
            units.append(([side * x for x in key], [c / q for c in jump]))
        return units

    def _dead_units(self, count: int, source: Random) -> Iterator[Unit]:
        """Units with (a, t) < 0, read with any weights."""
        for _ in range(count):
            off = [-generic(source, True) for _ in range(self.d + 1)]
            yield off, [generic(source) for _ in range(self.m)]

    def contains(self, block: Any) -> bool:
        """Whether a block of the same widths computes the same function on y >= 0.

        Exact for all parameters: cancelling groups, duplicates and dead neurons included.
        """
        net = as_network(block, "relu.LayerFiber.contains(block)")
        if net.widths != self.net.widths:
            return False
        return block_form(net.exact[0], net.exact[1], Orthant(self.d)) == self._form

    def locate(self, block: Any = None) -> list[Place]:
        """Where each neuron of a block sits (of this fiber's own block by default)."""
        net = self.net if block is None else as_network(block, "relu.LayerFiber.locate(block)")
        domain, places = Orthant(self.d), []
        index = {key: i for i, key in enumerate(self._keys)}
        for row, t in zip(net.exact[0].weight.tolist(), net.exact[0].bias, strict=True):
            side = domain.side(row, t)
            if not any(row):
                places.append(Place("constant"))
            elif side:
                places.append(Place("linear" if side > 0 else "dead"))
            else:
                lead, key = hyperplane(row, t)
                found = index.get(key)
                kind = "cancelling" if found is None else "visible"
                places.append(Place(kind, found, lead < 0))
        return places

    def minimal_width(self, subsets: int = 4096) -> tuple[int, frozenset[int] | None]:
        """The least width found for the same function on y >= 0, and its orientation set.

        k + min_S semirank(A_S); the minimum over S is a search (vector subset sum in general), so
        at most `subsets` sets are looked at and the result is an upper bound beyond that.
        """
        best, where, seen = self.n, None, 0
        for size in range(self.k + 1):
            for chosen in combinations(range(self.k), size):
                seen += 1
                if seen > subsets:
                    return best, where
                need = self.k + semirank(self._compensation(chosen)[0])
                if need < best or where is None and need <= best:
                    best, where = need, frozenset(chosen)
                if best == self.k:
                    return best, where
        return best, where


def block_of(units: list[Unit], offset: list[fmpq], dimension: int, name: str) -> Network:
    """A one-hidden-layer network from its units ((row, bias), outgoing column)."""
    n, m = len(units), len(offset)
    inner = Layer(
        fmpq_mat(n, dimension, [v for row, _ in units for v in row[:-1]]),
        [row[-1] for row, _ in units],
    )
    outer = Layer(fmpq_mat(m, n, [out[o] for o in range(m) for _, out in units]), list(offset))
    return Network(exact=[inner, outer], name=name)
